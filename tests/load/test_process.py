"""Loads in processes of their own: memory under a limit, interruptions, files that change under the load."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """600 MiB of F32 in two shards: matrices, and a thousand small tensors."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(1)
    for shard in range(2):
        tensors = {f"shard{shard}.{i}": random.standard_normal((1024, 12800), np.float32) for i in range(6)}
        tensors |= {f"shard{shard}.small{i}": random.standard_normal(64 + i, np.float32) for i in range(500)}
        save_file(tensors, folder / f"model-{shard + 1:05}-of-00002.safetensors")
    weight_map = {}
    for file in sorted(folder.glob("*.safetensors")):
        header = json.loads(file.read_bytes()[8:][: int.from_bytes(file.open("rb").read(8), "little")])
        weight_map |= {name: file.name for name in header if name != "__metadata__"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture
def command(lading):
    return lading.command


def planned_bytes(command, checkpoint, *options):
    """What the plan says that the host needs: buffers and staging, over all ranks."""
    done = subprocess.run([command, "plan", checkpoint, "--all-ranks", "--json", *options], capture_output=True, check=True)
    ranks = json.loads(done.stdout)["ranks"]
    return sum(rank["owned_bytes"] for rank in ranks), max(rank["staging_bytes"] for rank in ranks)


def idle_bytes(command, tmp_path):
    """The most that the program itself needs, libraries included: a load of almost nothing."""
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    return peak_bytes([command, "load", str(tmp_path / "model.safetensors")])[1]


def peak_bytes(argv, limit_bytes=None):
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(argv, stdout=nowhere, stderr=subprocess.PIPE, preexec_fn=limit if limit_bytes else None)
    error = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024, error


LAYOUTS = [
    [],
    ["--mesh", "dp=4", "--strategy", "fsdp2"],
    ["--mesh", "tp=2", "--strategy", "tp", "--tp-plan", "shard*=rowwise"],
]


@pytest.mark.parametrize("options", LAYOUTS, ids=["single", "fsdp2", "columns"])
def test_R64_the_peak_is_what_the_plan_says(command, large, tmp_path, options):
    owned, staging = planned_bytes(command, large, *options)
    allowed = (owned + staging) * 1.02
    code, peak, error = peak_bytes([command, "load", str(large), *options])
    assert code == 0, error
    assert peak - idle_bytes(command, tmp_path) <= allowed


def test_R64_the_load_gets_through_under_a_limit_of_that_size(command, large):
    owned, staging = planned_bytes(command, large)
    code, _, error = peak_bytes([command, "load", str(large)], limit_bytes=int((owned + staging) * 1.02))
    assert code == 0, error


def test_Fault43_too_little_memory_is_a_clear_error(command, large):
    owned, _ = planned_bytes(command, large)
    code, _, error = peak_bytes([command, "load", str(large)], limit_bytes=int(owned * 0.8))
    assert code == 5
    assert "out_of_memory" in error


def slow_load(command, checkpoint, delay_us, *options, log=os.devnull):
    """A load whose every read takes so long; strace holds the reads up, and logs them and the signals."""
    return subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=pread64", "-e", f"inject=pread64:delay_enter={delay_us}",
         command, "load", str(checkpoint), "--io", "pread", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
    )  # fmt: skip


def loading_child(process):
    """The pid of lading beneath strace, once it reads. strace has other children before, to try itself out on."""
    for _ in range(200):
        time.sleep(0.05)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "lading":
                    time.sleep(0.5)
                    return int(child)
    raise AssertionError("the load did not start")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_Fault56_an_interrupted_load_ends_in_order(command, large, tmp_path, sent):
    """At once: counted in reads that begin after the signal, because on a busy machine seconds say nothing."""
    process = slow_load(command, large, 20_000, "--threads", 2, log=tmp_path / "log")
    child = loading_child(process)
    os.kill(child, sent)
    out, error = process.communicate(timeout=120)
    lines = (tmp_path / "log").read_text().splitlines()
    arrived = next(number for number, line in enumerate(lines) if f"--- {sent.name} " in line)
    assert sum("pread64(" in line for line in lines[arrived:]) <= 4  # of some 600: each thread may begin one more or two
    assert process.returncode == 5, error
    assert b"incomplete" in error
    assert b"loaded" not in out
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("change", ["truncate", "rewrite", "replace"])
def test_Fault37_38_a_file_that_changes_during_the_load_is_an_error(command, tmp_path, change):
    file = tmp_path / "model.safetensors"
    save_file({f"w{i}": np.full((256, 1024), i, np.float32) for i in range(40)}, file)
    process = slow_load(command, file, 60_000)
    loading_child(process)
    if change == "truncate":
        os.truncate(file, file.stat().st_size // 2)
    elif change == "rewrite":
        with open(file, "r+b") as handle:
            handle.seek(-4, os.SEEK_END)
            handle.write(b"abcd")
    else:
        save_file({"w0": np.zeros(4, np.float32)}, tmp_path / "other")
        os.replace(tmp_path / "other", file)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 5, (out, error)
    assert b"model.safetensors" in error
    assert b"loaded" not in out


def test_fewer_descriptors_than_shards(command, tmp_path):
    """Fault 44: files are opened one after the other."""
    for i in range(60):
        save_file({f"w{i}": np.full(1000, i, np.float32)}, tmp_path / f"model-{i + 1:05}-of-00060.safetensors")
    weight_map = {f"w{i}": f"model-{i + 1:05}-of-00060.safetensors" for i in range(60)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    done = subprocess.run(
        [command, "load", str(tmp_path), "--ledger", str(tmp_path / "ledger")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert subprocess.run([command, "verify", str(tmp_path), str(tmp_path / "ledger")]).returncode == 0
