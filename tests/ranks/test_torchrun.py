"""`torchrun --nproc-per-node 4`: four processes fill a model as one does, by the digests in their ledgers."""

import os
import subprocess
import sys

import numpy as np
import pytest
from geometry.launch import TESTS, require
from safetensors.numpy import save_file

require("torch", exactly=False)

RANKS = 4
DEADLINE_S = 90
SHAPES = {"0.weight": (37, 24), "0.bias": (37,), "1.weight": (37,), "1.bias": (37,), "2.weight": (5, 37)}
SHAPES |= {"2.bias": (5,)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    random = np.random.default_rng(4)
    folder = tmp_path_factory.mktemp("torchrun")
    save_file({name: random.random(shape, np.float32) for name, shape in SHAPES.items()}, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("exchange", [(), ("job",)], ids=["fsdp2", "replicas_read_once"])
def test_R44_four_processes_hold_what_one_does(run, checkpoint, tmp_path, exchange):
    one, together = tmp_path / "one.json", tmp_path / "together"
    together.mkdir()
    code, _, error = run("load", checkpoint, "--ledger", one)
    assert code == 0, error
    worker = TESTS / "ranks" / "torchrun_worker.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(worker), str(checkpoint), str(together), *exchange],
        env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(together.iterdir())) == RANKS
    code, out, error = run("diff", one, together)
    assert code == 0 and f"equal: {len(SHAPES)} tensors" in out, error
