"""Programs that end, fork or are interrupted while a load runs: an exit status of 0, and no signal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file

REPOSITORY = Path(__file__).resolve().parents[2]
TRIES = int(os.environ.get("LADING_EXIT_TRIES", "3"))  # of each case


def test_programs_end_while_they_load(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({f"w{place}": numpy.full(1 << 20, place, numpy.float32) for place in range(8)}, path)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-W", "ignore", Path(__file__).with_name("exit_worker.py"), path, str(TRIES)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120 + 60 * TRIES, check=False
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(said) == 7 and all(one["statuses"] == [0] * TRIES for one in said), done.stdout + done.stderr
    assert "Fatal" not in done.stderr and "Traceback" not in done.stderr, done.stderr
