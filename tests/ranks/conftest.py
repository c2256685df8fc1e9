"""The command under test, alone and under `mpirun`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RANKS = 4
DEADLINE_S = 30


@pytest.fixture(scope="package")
def run(lading):
    def call(*arguments):
        argv = [lading.command, *map(str, arguments)]
        done = subprocess.run(argv, env=lading.environment(), capture_output=True, text=True, timeout=DEADLINE_S)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture(scope="package")
def mpirun(lading):
    """Runs the command on all ranks; a shell on each of them may say which checkpoint it gets."""
    command = shutil.which("mpirun")
    if command is None:
        pytest.skip("there is no mpirun (Debian: openmpi-bin)")
    part = os.environ.get("LADING_MPI_PLUGIN", Path(lading.command).parent / "liblading_mpi.so")
    if not os.path.exists(part):
        pytest.skip(f"{part} is missing: lading was built without MPI (Debian: libopenmpi-dev)")

    def run(*arguments, script='exec "$@"'):
        environment = lading.environment() | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "LADING_MPI_PLUGIN": str(part),
            "PATH": os.environ["PATH"],
        }
        each = ["sh", "-c", script, "sh", str(lading.command), *map(str, arguments)]
        done = subprocess.run(
            [command, "--oversubscribe", "-n", str(RANKS), *each],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    return run
