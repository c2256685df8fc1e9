"""The examples run as their headers say."""

import os
import subprocess
import sys

import pytest
from ranks_launch import HERE, PYTHON

EXAMPLES = HERE.parents[1] / "examples" / "python"


def run(*command):
    environment = os.environ | {
        "PYTHONPATH": str(PYTHON),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def torchrun(ranks, *command):
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *command)


def test_single():
    assert "the same output, bit for bit" in run(str(EXAMPLES / "single.py"))


def test_transformers_model():
    assert "LlamaForCausalLM" in run(str(EXAMPLES / "transformers_model.py"))


@pytest.mark.parametrize(("ranks", "options"), [(2, ()), (4, ("--tp", "2"))])
def test_fsdp2(ranks, options):
    output = torchrun(ranks, str(EXAMPLES / "fsdp2.py"), *options)
    assert "from that of one process" in output and f"rank {ranks - 1} of {ranks}" in output
