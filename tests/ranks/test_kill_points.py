"""`tools/kill_points`, a few loads of each launcher: real ranks, one of which is killed, stopped, interrupted or fails.

docs/how-it-works/reliability.md records the long runs. Mistakes that are planted in the front are found.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geometry.launch import require

DEADLINE_S = 240
FAULTS = ("kill", "stop", "brief", "end", "interrupt", "error", "truncate", "nothing")
KINDS = ("hang", "false success", "different texts", "failure of nothing", "wrong exit code", "model touched", "orphan")
NOTHING_WRONG = ", ".join(f"{kind}: 0" for kind in KINDS)

# By name: the options of a run. Three run side by side, since most of their time is waiting.
RUNS = {
    "fork": "--launcher fork --loads 10 --at-once 4 --deadline 5",
    "mpirun": "--launcher mpirun --loads 6 --ranks 2,4 --faults kill,stop,brief,error,truncate,nothing",
    "torchrun": "--launcher torchrun --loads 1 --ranks 2 --faults stop --deadline 5",
    "save": "--what save --loads 7 --ranks 2,4 --at-once 4 --deadline 6",
    "save by mpirun": "--what save --launcher mpirun --loads 2 --ranks 2 --faults kill,error --deadline 8",
    "copied": "--what save --plant copied --loads 8 --ranks 2 --faults kill --deadline 6",
    "alone": "--plant alone --loads 3 --ranks 2 --faults kill --deadline 3",
    "pulse": "--plant pulse --loads 3 --ranks 2 --faults nothing --deadline 3",
}


@pytest.fixture(scope="module")
def runs(repository, lading):
    """Exit code and output of each, once it is asked for."""

    def run(options):
        argv = [sys.executable, repository / "tools" / "kill_points", *options.split(), "--command", lading.command]
        done = subprocess.run(argv, env=dict(os.environ), capture_output=True, text=True, timeout=DEADLINE_S)
        return done.returncode, done.stdout + done.stderr[-2000:]

    require("torch", exactly=False)
    with ThreadPoolExecutor(3) as pool:
        yield {name: pool.submit(run, options) for name, options in RUNS.items() if "mpirun" not in name or has_mpi(lading)}


def has_mpi(lading):
    return shutil.which("mpirun") is not None and (Path(lading.command).parent / "liblading_mpi.so").exists()


def test_R44_forked_ranks_of_the_front_end_together(runs):
    code, out = runs["fork"].result()
    assert code == 0 and NOTHING_WRONG in out, out
    assert all(f"| {fault}: " in out for fault in FAULTS)


def test_R44_ranks_of_mpirun_end_together(runs):
    if "mpirun" not in runs:
        pytest.skip("there is no mpirun, or lading was built without MPI")
    code, out = runs["mpirun"].result()
    assert code == 0 and NOTHING_WRONG in out, out
    assert "| kill: SIGKILL | 1 |" in out


SAVE_KINDS = (*KINDS[:6], "mixture", "old lost", "leftover", "orphan")
NOTHING_WRONG_SAVED = ", ".join(f"{kind}: 0" for kind in SAVE_KINDS)


@pytest.mark.parametrize("run", ["save", "save by mpirun"])
def test_R69_a_save_that_something_happens_to_leaves_a_whole_checkpoint(runs, run):
    if run not in runs:
        pytest.skip("there is no mpirun, or lading was built without MPI")
    code, out = runs[run].result()
    assert code == 0 and NOTHING_WRONG_SAVED in out, out
    assert "| kill: " in out and "| error: " in out


def test_R69_a_destination_that_is_written_itself_is_found(runs):
    """File by file, in place of one rename."""
    code, out = runs["copied"].result()
    assert code == 1 and "mixture: SaveCase" in out and "mixture: 0" not in out, out


def test_R44_workers_of_torchrun_end_together(runs):
    code, out = runs["torchrun"].result()
    assert code == 0 and NOTHING_WRONG in out, out
    assert "| stop: " in out


@pytest.mark.parametrize(("plant", "found"), [("alone", "false success"), ("pulse", "failure of nothing")])
def test_R44_a_planted_mistake_is_found(runs, plant, found):
    """Every rank loads for itself; no rank gives signs of life."""
    code, out = runs[plant].result()
    assert code == 1 and f"{found}: Case" in out and f"{found}: 0" not in out, out
