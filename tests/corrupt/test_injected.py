"""Faults of the machine, not of the file: what reading returns, how memory ends, what changes meanwhile."""

import os
import shutil
import subprocess
import time

import pytest

from .build import entry, file_of, length_prefix, one_tensor
from .checks import MEBIBYTE, REFUSED

# Codes that no file can provoke by what it holds.
INJECTED_CODES = {"read_failed", "file_truncated", "file_changed", "out_of_memory"}


def strace_works():
    strace = shutil.which("strace")
    return (
        strace is not None
        and subprocess.run([strace, "-qq", "-e", "trace=none", "true"], capture_output=True).returncode == 0
    )


needs_strace = pytest.mark.skipif(not strace_works(), reason="strace is missing or may not trace")


@pytest.fixture
def path(tmp_path):
    path = tmp_path.resolve() / "x.safetensors"
    path.write_bytes(one_tensor())
    return path


def injecting(path, what):
    """Only reads of that file: the loader reads libraries with the same call."""
    return ("strace", "-qq", "-o", os.devnull, "-P", path, "-e", f"inject=pread64:{what}")


def only_problem(finished):
    assert finished.exit_code == REFUSED
    (problem,) = finished.json["problems"]
    return problem


@needs_strace
@pytest.mark.parametrize("read", [1, 2], ids=["length", "header"])
@pytest.mark.parametrize(("fault", "code"), [("error=EIO", "read_failed"), ("retval=0", "file_truncated")])
def test_reading_fails(lading, path, read, fault, code):
    # From that read on: an error that passes is read again.
    problem = only_problem(lading.inspect(path, "--json", prefix=injecting(path, f"{fault}:when={read}+")))
    assert problem["code"] == code
    assert problem["file"] == str(path)
    assert problem["bytes"][0] == (0 if read == 1 else 8)
    assert "tensor" not in problem
    if code == "read_failed":
        assert "(5)" in problem["message"]


@needs_strace
@pytest.mark.parametrize("fault", ["error=EINTR:when=1..3", "error=EAGAIN:when=1..3", "error=EIO:when=1..2"])
def test_reading_is_interrupted(lading, path, fault):
    finished = lading.inspect(path, "--json", prefix=injecting(path, fault))
    assert finished.exit_code == 0
    assert finished.json["tensor_count"] == 1


@needs_strace
def test_file_changes_while_it_is_read(lading, path):
    env = lading.environment()
    delayed = injecting(path, "delay_enter=700ms:when=2")
    process = subprocess.Popen(
        [*delayed, lading.command, "inspect", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    time.sleep(0.35)
    with path.open("ab") as file:
        file.write(b"more")
    out, _ = process.communicate(timeout=10)
    assert process.returncode == REFUSED
    assert b'"file_changed"' in out


def test_memory_ends(lading, tmp_path):
    path = tmp_path.resolve() / "x.safetensors"
    header_bytes = 90_000_000
    path.write_bytes(length_prefix(header_bytes) + b"{" + b" " * 1000)
    os.truncate(path, header_bytes + 8)
    problem = only_problem(lading.inspect(path, "--json", prefix=("prlimit", f"--as={80 * MEBIBYTE}")))
    assert problem["code"] == "out_of_memory"
    assert problem["file"] == str(path)


def test_memory_ends_while_parsing(lading, tmp_path):
    """Wherever the allocation fails, the answer is a refusal that names the file."""
    path = tmp_path.resolve() / "x.safetensors"
    path.write_bytes(file_of({f"t{i}": entry(i, i + 1) for i in range(50_000)}, bytes(50_000)))
    seen = set()
    for limit in range(20, 120, 5):
        finished = lading.inspect(path, "--json", prefix=("prlimit", f"--as={limit * MEBIBYTE}"))
        if finished.exit_code == 0 or b"shared librar" in finished.err:
            continue
        problem = only_problem(finished)
        assert problem["file"] == str(path)
        seen.add(problem["code"])
    assert seen == {"out_of_memory"}


def test_path_that_is_empty(lading):
    finished = lading.inspect("", "--json")
    assert finished.exit_code == 2
