"""The scripts of docs/upstream.md show what the page says, without lading. A script that ends with 0 says that the bug is
mended: say so on the page."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from geometry.launch import wrong_in  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "examples" / "upstream"
DEADLINE_S = 120
SAID = {  # script, arguments: what it prints
    ("accelerate_to_empty.py", ""): "tied: False",
    ("deepspeed_zero_init.py", ""): "inv_freq: torch.bfloat16",
    ("torch_dcp_strict.py", ""): "All keys matched successfully",
    ("torch_fp8_reader.py", ""): "scale weight_scale: 0.004 is read as 1",
    ("transformers_distributed_save.py", ""): "12 of 24 keys are missing",
    ("transformers_fp8_blocks.py", ""): "17% of the elements are wrong",
    ("transformers_fp8_save.py", ""): "its config: None",
    ("transformers_fp8_sharded.py", "fsdp_size"): "25% of the elements are wrong",
    ("transformers_fp8_sharded.py", "tp_size"): "25% of the elements are wrong",
    ("transformers_fsdp_fused.py", ""): "layers.0.self_attn.k_proj.weight",
    ("transformers_fsdp_mismatch.py", ""): "12 of 13 rows",
    ("transformers_mxfp4_save.py", ""): "saved as down_proj_blocks torch.bfloat16",
    ("transformers_unfreezes.py", ""): "requires_grad: True",
}
PROJECTS = {"torch": ["torch"], "transformers": ["torch", "transformers"], "accelerate": ["torch", "accelerate"]}
PROJECTS["deepspeed"] = ["torch", "transformers", "deepspeed"]


def run(script, argument):
    """Its exit status and what it printed. Nothing of it outlives the deadline."""
    ranks = re.search(r"torchrun --nproc-per-node (\d)", (SCRIPTS / script).read_text())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks[1]] if ranks else []
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, *launcher, str(SCRIPTS / script), *argument.split()],
        env=os.environ | quiet | {"DS_ACCELERATOR": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the session is ours
        raise
    return process.returncode, output


@pytest.mark.parametrize(
    ("script", "argument"),
    [pytest.param(*one, marks=wrong_in(*PROJECTS[one[0].partition("_")[0]]), id=" ".join(one).strip()) for one in SAID],
)
def test_the_bug_is_there(script, argument):
    status, output = run(script, argument)
    assert SAID[script, argument] in output, output
    assert status == 1, "mended there: say so in docs/upstream.md"


def test_the_page_names_every_script_and_no_other():
    page = (REPOSITORY / "docs" / "upstream.md").read_text()
    scripts = {path.name for path in SCRIPTS.glob("*.py")}
    assert set(re.findall(r"examples/upstream/(\w+\.py)", page)) == scripts == {script for script, _ in SAID}
    assert not any(re.search(r"^\s*(import|from) lading", (SCRIPTS / name).read_text(), re.MULTILINE) for name in scripts)
