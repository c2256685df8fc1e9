"""`mpirun lading load` works however lading was put there: it finds its plug-in for MPI without being told where."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

RANKS = 2
PLUGIN = "liblading_mpi.so"


@pytest.fixture(scope="module")
def mpirun(lading):
    command = shutil.which("mpirun")
    if command is None:
        pytest.skip("there is no mpirun (Debian: openmpi-bin)")
    if not (Path(lading.command).parent / PLUGIN).exists():
        pytest.skip("lading was built without MPI (Debian: libopenmpi-dev)")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def run(program, *arguments):
        argv = [command, "--oversubscribe", "-n", str(RANKS), str(program), *map(str, arguments)]
        return subprocess.run(argv, env=lading.environment(root), capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="module")
def sample(lading, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    subprocess.run([lading.command, "demo", "--dir", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def prefix(lading, tmp_path_factory):
    """An installed tree, moved after it was installed."""
    place = tmp_path_factory.mktemp("installed")
    build = Path(lading.command).parent
    subprocess.run(["cmake", "--install", build, "--prefix", place / "first"], check=True, capture_output=True)
    (place / "first").rename(place / "prefix")
    return place / "prefix"


def assert_loads(done, folder):
    assert done.returncode == 0, done.stderr
    assert f"all {RANKS} ranks read" in done.stdout, done.stdout
    assert sorted(path.name for path in folder.iterdir()) == [f"ledger.rank{rank}.json" for rank in range(RANKS)]


def load(mpirun, program, sample, folder):
    folder.mkdir()
    layout = ("--mesh", f"dp={RANKS}", "--strategy", "fsdp2")
    return mpirun(program, "load", sample, *layout, "--ledger", folder / "ledger.json")


def test_from_a_link_to_the_build(lading, mpirun, sample, tmp_path):
    """As build/lading is one to build/release/lading."""
    (tmp_path / "direct").symlink_to(lading.command)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lading").symlink_to("../direct")
    for number, name in enumerate(("direct", "folder/lading")):
        ledgers = tmp_path / f"ledgers{number}"
        assert_loads(load(mpirun, tmp_path / name, sample, ledgers), ledgers)


def test_from_an_installed_prefix(mpirun, sample, prefix, tmp_path):
    (tmp_path / "lading").symlink_to(prefix / "bin" / "lading")
    assert_loads(load(mpirun, prefix / "bin" / "lading", sample, tmp_path / "installed"), tmp_path / "installed")
    assert_loads(load(mpirun, tmp_path / "lading", sample, tmp_path / "linked"), tmp_path / "linked")


def test_the_ledgers_are_verified_together(lading, mpirun, sample, tmp_path):
    assert_loads(load(mpirun, lading.command, sample, tmp_path / "ledgers"), tmp_path / "ledgers")
    done = subprocess.run([lading.command, "verify", sample, tmp_path / "ledgers"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "verified: 22 tensors" in done.stdout and "in part" not in done.stdout


def test_every_place_that_was_tried_is_told(lading, mpirun, sample, tmp_path):
    place = tmp_path.resolve() / "prefix"
    (place / "bin").mkdir(parents=True)
    program = Path(shutil.copy(lading.command, place / "bin" / "lading"))
    done = load(mpirun, program, sample, tmp_path / "ledgers")
    assert done.returncode != 0 and not os.listdir(tmp_path / "ledgers")
    for folder in ("bin", "lib", "lib64"):
        assert f'"{place / folder / PLUGIN}"' in done.stderr, done.stderr
    assert "LADING_MPI_PLUGIN" in done.stderr and "libopenmpi-dev" in done.stderr


def test_a_plug_in_that_does_not_open_is_named_with_its_reason(lading, mpirun, sample, tmp_path):
    program = Path(shutil.copy(lading.command, tmp_path.resolve() / "lading"))
    (tmp_path / PLUGIN).write_text("no library at all, but as long as the head of one " * 8)
    done = load(mpirun, program, sample, tmp_path / "ledgers")
    assert done.returncode != 0
    told = rf"refused: {re.escape(str(program.parent / PLUGIN))}: .*invalid ELF header"
    assert re.search(told, done.stderr), done.stderr
    assert "built with" in done.stderr and "libopenmpi-dev" not in done.stderr
