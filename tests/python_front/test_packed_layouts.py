"""Packed codes on ranks: every bit is that of an oracle that knows nothing of lading."""

import importlib.util
import os

import pytest
from geometry.launch import require, run_worker

require("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import packed_models as models  # noqa: E402

DEADLINE_S = 400
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
ALL = models.ON_RANKS
# Every scheme in one of two layouts; each in both takes half a minute more.
SOME, OTHERS = (ALL, ALL) if os.environ.get("LADING_ALL_LAYOUTS") else (ALL[::2], ALL[1::2])
CASES = [f"fsdp2 of {scheme} on 3" for scheme in ALL]
CASES += [f"tp of {scheme} on 4" for scheme in SOME]
CASES += ["fsdp2 of int4 with zero points on 2", "fsdp2 of awq on 4", "tp of gptq of 8 bits on 2", "tp of awq on 2"]
CASES += ["fsdp2_over_tp of gptq with zero points on 4", "fsdp2_over_tp of nvfp4 on 4", "hsdp_exchanged of awq on 4"]
CASES += ["peft of int4 on 2", "planted of gptq with zero points on 2"]
CASES += [f"fsdp2 of experts of {scheme} on 3" for scheme in ("int4 with zero points", "gptq with zero points", "awq")]
CASES += ["fsdp2 of mxfp4 on 2", "fsdp2 of mxfp4 on 3", "experts_by_dim_1 of mxfp4 on 2", "experts_by_dim_2 of mxfp4 on 4"]
ZERO3 = [f"zero3 of {scheme} on 3" for scheme in (*OTHERS, "mxfp4", "experts of awq")] + ["zero3 of int4 on 2"]
PLANTED = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def results():
    cases = [*CASES, *(ZERO3 if HAS_DEEPSPEED else [])]
    return run_worker("packed_worker", DEADLINE_S, package="python_front", cases=cases)


@pytest.mark.parametrize("case", [*CASES, *ZERO3])
def test_R48_every_code_has_its_own_scale(results, case):
    """And the audit says so, on each rank; what was planted in one rank's part is found there."""
    if case in ZERO3 and not HAS_DEEPSPEED:
        pytest.skip("deepspeed is not installed")
    is_planted = case.startswith("planted")
    for rank, answer in enumerate(results[case]):
        assert "failed" not in answer, answer["failed"]
        assert list(answer["wrong"]) == ([PLANTED] if is_planted else [])
        assert answer["audit"] == ([PLANTED] if is_planted and rank == 1 else [])
