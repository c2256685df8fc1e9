"""A plan that asks for more memory than is free is refused before anything is allocated or written (R64)."""

import json
import os
import re
import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from lading import _engine
from lading.errors import LadingError

GIBIBYTE = 1 << 30


@pytest.fixture
def checkpoint(tmp_path):
    save_file({"w": np.arange(16, dtype=np.float32).reshape(4, 4)}, tmp_path / "model.safetensors")
    return tmp_path


def layout(folder, pad_multiple, ranks=1):
    cut = {"flat": {"pad_multiple": pad_multiple}, "axes": ["a"]}
    mesh = [{"name": "a", "size": ranks}]
    text = {"schema": "lading.layout/1", "mesh": mesh, "devices": "cpu", "rules": [{"pattern": "w", "cuts": [cut]}]}
    path = folder / "layout.json"
    path.write_text(json.dumps(text))
    return path


def load(lading, *arguments, **limits):
    def limit():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    begin = time.monotonic()
    done = subprocess.run(
        [lading.command, "load", *map(str, arguments)], capture_output=True, text=True, preexec_fn=limit
    )
    return done, time.monotonic() - begin


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("pad_multiple", [2**40, 2**50, 2**56])
def test_R64_padding_beyond_all_memory_is_refused_at_once(lading, checkpoint, pad_multiple, ranks):
    done, seconds = load(lading, checkpoint, "--layout", layout(checkpoint, pad_multiple, ranks))
    assert done.returncode == 5, done.stderr
    assert seconds < 5
    assert "out_of_memory" in done.stderr and "R64" in done.stderr and '"w"' in done.stderr
    needed = max(int(number) for number in re.findall(r"(\d+) bytes", done.stderr))
    assert pad_multiple * 4 <= needed <= pad_multiple * 4 + GIBIBYTE
    assert "free memory" in done.stderr or "limit" in done.stderr, "what sets the limit"


def test_R64_the_plan_itself_needs_no_memory(lading, checkpoint):
    """Plans are made for other machines, too."""
    done = subprocess.run([lading.command, "plan", checkpoint, "--layout", layout(checkpoint, 2**40)], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_R64_limits_of_the_process_count(lading, checkpoint, name):
    path = layout(checkpoint, GIBIBYTE // 16)  # 256 MiB of F32
    done, _ = load(lading, checkpoint, "--layout", path, **{name: GIBIBYTE // 4})
    assert done.returncode == 5, done.stderr
    assert f"the limit {name} of this process" in done.stderr
    done, _ = load(lading, checkpoint, "--layout", path, **{name: 2 * GIBIBYTE})
    assert done.returncode == 0, done.stderr


CALLER = """
import ctypes, json, re, resource, sys
from lading import _engine
plan = _engine.plan({"checkpoint": sys.argv[1], "layout": json.load(open(sys.argv[2]))})
(destination,) = plan.destinations
memory = (ctypes.c_char * destination.size_bytes)()
used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (96 << 20), -1))
assert _engine.check_memory("cpu", 0) < destination.size_bytes
print(plan.load([(ctypes.addressof(memory), destination.size_bytes)]).answer["bytes"])
"""


def test_R64_memory_of_the_caller_is_never_refused(checkpoint, repository):
    path = layout(checkpoint, GIBIBYTE // 16)
    done = subprocess.run(
        [sys.executable, "-c", CALLER, checkpoint, path],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository / "python")},
    )
    assert done.returncode == 0, done.stderr


def test_a_front_can_ask(checkpoint):
    available = _engine.check_memory("cpu", 1)
    assert available > GIBIBYTE // 16
    with pytest.raises(LadingError) as refused:
        _engine.check_memory("cpu", 2**60)
    (problem,) = refused.value.problems
    assert problem.rule == "R64" and str(2**60) in problem.found and problem.remedy
    with pytest.raises(LadingError):
        _engine.check_memory("cuda:99", 1)
