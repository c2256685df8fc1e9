"""Files that are rewritten in place while they are read, without a new size or mtime (R45)."""

import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from .test_process import loading_child, slow_load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({f"w{i}": np.full((256, 1024), i, np.float32) for i in range(40)}, path)
    return path


def made_old(path):
    os.utime(path, (time.time() - 3600, time.time() - 3600))


def run(lading, *arguments):
    begin = time.monotonic()
    done = subprocess.run([lading.command, *map(str, arguments)], capture_output=True, text=True)
    return done, time.monotonic() - begin


def test_R45_a_file_that_was_just_saved_is_loaded_at_once(lading, file):
    done, seconds = run(lading, "load", file)
    assert done.returncode == 0, done.stderr
    assert seconds < 2 and "twice" not in done.stdout + done.stderr


def test_R45_a_file_that_is_open_for_writing_is_read_twice_and_loaded(lading, file):
    made_old(file)
    with open(file, "r+b"):
        done, _ = run(lading, "load", file)
    assert done.returncode == 0, done.stderr
    assert "twice" in done.stdout + done.stderr


def test_R45_an_mtime_in_the_future_is_no_reason_to_refuse(lading, file):
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    with open(file, "r+b"):
        done, seconds = run(lading, "load", file)
    assert done.returncode == 0, done.stderr
    assert 2 <= seconds < 6, "waited for as long as a write may take, not for the clock"


@pytest.mark.parametrize("write", ["mapped", "put_back"])
def test_R45_bytes_that_change_under_the_same_size_and_mtime_are_found(lading, file, tmp_path, write):
    with open(file, "r+b") as handle, mmap.mmap(handle.fileno(), 0) as memory:
        memory[:] = memory[:]  # from now on the kernel does not see stores to these pages
        made_old(file)
        if write == "put_back":
            memory.close()
            handle.close()
        before = file.stat().st_mtime_ns
        process = slow_load(lading.command, file, 60_000, "--ledger", tmp_path / "ledger.json")
        loading_child(process)
        data = b"\x01" * (40 << 20)  # of all tensors: some have been read by now
        if write == "mapped":
            memory[-len(data) :] = data
        else:
            with open(file, "r+b") as writer:
                writer.seek(-len(data), os.SEEK_END)
                writer.write(data)
            os.utime(file, ns=(before, before))
        assert file.stat().st_mtime_ns == before
        out, error = process.communicate(timeout=60)
    assert process.returncode == 5, (out, error)
    assert b"file_changed" in error and b"model.safetensors" in error
    assert b"loaded" not in out
    assert not json.loads((tmp_path / "ledger.json").read_text())["complete"]


def test_R45_a_header_that_changes_between_planning_and_loading_is_found(lading, file):
    """The tensors change places: the same size, and the mtime put back."""
    from lading import _engine
    from lading.errors import LadingError

    made_old(file)
    before = file.stat().st_mtime_ns
    plan = _engine.plan({"checkpoint": file})
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"w10"', b'"\x00"').replace(b'"w11"', b'"w10"').replace(b'"\x00"', b'"w11"'))
    os.utime(file, ns=(before, before))
    memory = [np.zeros(d.size_bytes, np.uint8) for d in plan.destinations]
    with pytest.raises(LadingError) as refused:
        plan.load([(one.ctypes.data, one.size) for one in memory])
    assert refused.value.problems[0].code == "file_changed"


def test_R45_no_load_is_complete_and_mixed(tmp_path):
    """A small run of the campaign that docs/how-it-works/reliability.md records."""
    tool = [sys.executable, ROOT / "tools" / "torn_files", tmp_path]
    options = ["--loads", "32", "--megabytes", "32", "--at-once", "2", "--writers", "kept,opened"]
    done = subprocess.run([*map(str, tool), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 loads of 32 MiB: 0 complete and wrong" in done.stdout
