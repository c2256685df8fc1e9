"""`lading.dcp.Reader` in `torch.distributed.checkpoint.load`: right on every layout, and what it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from geometry.launch import require, run_worker

require("torch")

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / "python"
LAYOUTS = ("fsdp2", "fsdp2x3", "hsdp", "tp", "fsdp2tp")
MODELS = ("small", "small_untied", "llama", "llama_tied")


@pytest.fixture(scope="module")
def results():
    return run_worker("dcp_worker", 300, package="dcp", layouts=LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_is_filled_in_place(results, layout, model):
    """R37, R54: the model's own memory has the file's bits, and those that DCP's own reader gives."""
    assert results[layout][model] == []


def cases(where):
    """Their names, which this process reads and does not import: a framework would come with them."""
    text = (HERE / "dcp_cases.py").read_text()
    return re.findall(rf"^def (\w+)\({where}\):", text, re.MULTILINE)


@pytest.mark.parametrize("case", cases("folder"))
def test_on_one_process(results, case):
    if case != "make_checkpoints":
        assert results["one process"][case] == []


@pytest.mark.parametrize("case", cases("_?rank, folder"))
def test_on_ranks(results, case):
    found = [results[where][case] for where in results if case in results[where]]
    assert found == [[]]


IMPORTS = """
import sys
{first}
import lading
assert not [name for name in sys.modules if name.startswith("torch.distributed.checkpoint")]
lading.dcp.Reader
assert "torch.distributed.checkpoint" in sys.modules and "dcp" in dir(lading)
"""


@pytest.mark.parametrize("first", ["", "import torch", "import torch, transformers"])
def test_importing_lading_does_not_import_dcp(first):
    code = IMPORTS.format(first=first)
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(PYTHON)}, timeout=120)
