"""Every method of PEFT against PEFT's own loading (python/lading/peft_base.py, peft_files.py)."""

from importlib.metadata import version

import pytest
from geometry.launch import require, run_worker

require("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
if version("peft") != "0.21.2":
    pytest.skip("these tests know the methods of PEFT 0.21.2", allow_module_level=True)

METHODS = (
    "LORA ADALORA ADAMSS ADAPTION_PROMPT BEFT BOFT C3A CARTRIDGE CPT DEFT DELORA FOURIERFT FROD GLORA GRALORA HIRA HRA "
    "IA3 LILY LN_TUNING LOHA LOKR MISS MULTITASK_PROMPT_TUNING OFT OSF PEANUT POLY PREFIX_TUNING PROMPT_TUNING PSOFT PVERA "
    "P_TUNING RANDLORA ROAD SHADOW SHIRA SUPERTUNING TINYLORA TRAINABLE_TOKENS UNILORA VBLORA VERA WAVEFT XLORA"
).split()
CASES = (
    "pissa_converted",
    "pissa_by_the_file",
    "pissa_with_the_changed_base",
    "another_config_is_told",
    "adapters_in_a_plain_model",
)
DEADLINE_S = 300


@pytest.fixture(scope="module")
def results():
    return run_worker("peft_methods_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", [*CASES, *METHODS])
def test_R65_as_PEFT_loads_it_or_refused(results, case):
    assert results[case] == []


def test_R65_none_is_forgotten(results):
    assert set(results) == {*CASES, *METHODS}
