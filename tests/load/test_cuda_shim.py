"""Loads onto GPUs through the real command, with a stand-in for the CUDA driver (tests/cuda_shim)."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

DEADLINE_S = 60
TWO_RANKS = ["--mesh", "dp=2", "--strategy", "fsdp2", "--device", "cuda"]
ONE_RANK = ["--mesh", "dp=1", "--strategy", "single", "--device", "cuda:0"]


@dataclass(frozen=True)
class Loaded:
    """How a load ended, and what the stand-in has to say about it."""

    exit_code: int
    err: str
    report: dict
    dumps: dict[int, list[bytes]]  # by GPU: what was in device memory when it was freed

    @property
    def mistakes(self) -> list[str]:
        return self.report["leaks"] + self.report["violations"]

    @property
    def written_bytes(self) -> list[int]:
        return [gpu["written_bytes"] for gpu in self.report["gpus"]]


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(6)
    made = {f"layer{i}.weight": random.standard_normal((64, 256 + i), np.float32) for i in range(4)}
    return made | {f"small{i}": random.standard_normal(30 + i, np.float32) for i in range(50)}


@pytest.fixture(scope="module")
def checkpoint(tensors, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def shim(lading) -> Path:
    library = Path(lading.command).parent / "tests" / "cuda_shim" / "libcuda_shim.so"
    if not library.is_file():
        pytest.skip("the stand-in for the driver is not built beside the command")
    return library


@pytest.fixture
def load(lading, shim, checkpoint, tmp_path):
    def environment(settings: str) -> dict[str, str]:
        dump = tmp_path / "dump"
        dump.mkdir(exist_ok=True)
        text = f"gpus=2,report={tmp_path / 'report.json'},dump={dump}"
        return os.environ | {"LADING_LIBCUDA": str(shim), "LADING_SHIM": f"{text},{settings}" if settings else text}

    def collect(code: int, err: str) -> Loaded:
        dumps: dict[int, list[bytes]] = {0: [], 1: []}
        for file in (tmp_path / "dump").iterdir():
            dumps[int(file.name[3])].append(file.read_bytes())
        return Loaded(code, err, json.loads((tmp_path / "report.json").read_text()), dumps)

    def run(settings: str, *options: str) -> Loaded:
        argv = [lading.command, "load", str(checkpoint), *options]
        done = subprocess.run(argv, env=environment(settings), capture_output=True, text=True, timeout=DEADLINE_S)
        return collect(done.returncode, done.stderr)

    def interrupt(settings: str, after_s: float, *options: str) -> Loaded:
        argv = [lading.command, "load", str(checkpoint), *options]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = subprocess.Popen(argv, env=environment(settings), text=True, **pipes)
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        return collect(process.returncode, err)

    run.interrupt = interrupt
    return run


def part(tensor: np.ndarray, rank: int) -> bytes:
    """What fsdp2 gives a rank of two: torch.chunk along the first dim."""
    rows = -(-tensor.shape[0] // 2)
    return tensor[rank * rows : (rank + 1) * rows].tobytes()


def verify(lading, checkpoint: Path, ledger: Path) -> subprocess.CompletedProcess:
    argv = [lading.command, "verify", checkpoint, ledger]
    return subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)


def test_every_byte_is_in_the_memory_of_the_gpu(load, tensors):
    loaded = load("", *ONE_RANK)
    assert loaded.exit_code == 0, loaded.err
    assert loaded.mistakes == []
    assert loaded.written_bytes[1] == 0
    # One stretch of memory holds all tensors.
    assert any(all(t.tobytes() in dump for t in tensors.values()) for dump in loaded.dumps[0])


@pytest.mark.parametrize("threads", ["1", "4"])
def test_R34_the_bytes_of_rank_1_are_on_gpu_1(load, tensors, threads):
    loaded = load("", *TWO_RANKS, "--threads", threads)
    assert loaded.exit_code == 0, loaded.err
    assert loaded.mistakes == []
    assert "rank r uses cuda:(r % 2)" in loaded.err
    for rank in range(2):
        wanted = [part(t, rank) for t in tensors.values()]
        assert any(all(bytes_ in dump for bytes_ in wanted) for dump in loaded.dumps[rank]), f"rank {rank}"
        assert not any(all(bytes_ in dump for bytes_ in wanted) for dump in loaded.dumps[1 - rank]), f"rank {rank}"


def test_R34_one_rank_of_two_is_on_the_gpu_that_its_process_names(load, tensors):
    """Where CUDA_VISIBLE_DEVICES shows each process one GPU, all of them call it cuda:0."""
    loaded = load("", "--mesh", "dp=2", "--strategy", "fsdp2", "--rank", "1", "--device", "cuda:0")
    assert loaded.exit_code == 0, loaded.err
    assert loaded.mistakes == []
    assert "every rank uses cuda:0, in its own process" in loaded.err
    assert loaded.dumps[1] == []
    assert any(all(part(t, 1) in dump for t in tensors.values()) for dump in loaded.dumps[0])


def test_R34_one_rank_of_two_touches_its_own_gpu_only(load, tensors):
    loaded = load("", *TWO_RANKS, "--rank", "1")
    assert loaded.exit_code == 0, loaded.err
    assert loaded.mistakes == []
    assert loaded.written_bytes[0] == 0
    assert loaded.dumps[0] == []
    assert any(all(part(t, 1) in dump for t in tensors.values()) for dump in loaded.dumps[1])


def test_a_ledger_of_gpus_is_verified_against_the_files(lading, load, checkpoint, tmp_path):
    ledger = tmp_path / "ledger.json"
    assert load("", *TWO_RANKS, "--ledger", str(ledger)).exit_code == 0
    verified = verify(lading, checkpoint, ledger)
    assert verified.returncode == 0, verified.stderr


def test_F40_a_bit_that_flips_on_the_way_is_found(lading, load, checkpoint, tmp_path):
    ledger = tmp_path / "ledger.json"
    assert load("flip=3", *ONE_RANK, "--threads", "1", "--ledger", str(ledger)).exit_code == 0
    assert verify(lading, checkpoint, ledger).returncode == 6


@pytest.mark.parametrize("gpu", [0, 1])
def test_F45_too_little_memory_is_refused_before_the_first_write(load, tensors, gpu):
    """Of one rank, whose GPU has 1,000 bytes less than its tensors need, each at a multiple of some alignment."""
    options = [*TWO_RANKS, "--rank", str(gpu)]
    needed = load("", *options)
    assert needed.exit_code == 0, needed.err
    sizes = [len(dump) for dump in needed.dumps[gpu] if all(part(t, gpu) in dump for t in tensors.values())]
    stretch = min(sizes)
    loaded = load(f"memory={stretch - 1000}", *options)
    assert loaded.exit_code == 5
    assert f"cuda:{gpu} has too little memory free, 1000 bytes short" in loaded.err
    assert "[device_memory, R64]" in loaded.err
    assert loaded.written_bytes == [0, 0]
    assert loaded.mistakes == []


def test_F43_what_cannot_be_pinned_is_said_once(load, tensors):
    loaded = load("memlock=0,memlockcode=304", *ONE_RANK)
    assert loaded.exit_code == 0, loaded.err
    assert loaded.err.count("could not be pinned") == 1
    assert "memlock" in loaded.err
    assert any(all(t.tobytes() in dump for t in tensors.values()) for dump in loaded.dumps[0])
    assert loaded.mistakes == []


@pytest.mark.parametrize(
    "settings",
    [
        "async=1:719",
        "async=9:719",
        "async=5:700",
        "fail=cuMemcpyHtoDAsync_v2:3:700:sticky",
        "fail=cuLaunchKernel:2:719:sticky",
        "fail=cuEventRecord:1:999:sticky",
        "fail=cuStreamSynchronize:1:719:sticky",
    ],
)
def test_F46_a_lost_gpu_fails_the_load_and_is_left_alone(load, settings):
    loaded = load(settings, *TWO_RANKS, "--threads", "1")
    assert loaded.exit_code == 5
    assert "[device_failed]" in loaded.err
    assert "Restart the process" in loaded.err
    assert loaded.report["work_after_sticky"] == 0
    assert loaded.mistakes == []


def test_F46_threads_stop_when_a_gpu_is_lost(load):
    loaded = load("async=20:719", *TWO_RANKS, "--threads", "4")
    assert loaded.exit_code == 5
    # A thread may have been on its way to the driver when another heard of it.
    assert loaded.report["work_after_sticky"] <= 8


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ("gpus=0", ONE_RANK, "the CUDA driver sees no GPU"),
        ("gpus=1", TWO_RANKS, "cuda:1 does not exist"),
        ("version=11040", ONE_RANK, "the NVIDIA driver is too old: it is for CUDA 11.4"),
        ("fail=cuInit:1:803:always", ONE_RANK, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused(load, settings, options, message):
    loaded = load(settings, *options)
    assert loaded.exit_code == 5
    assert message in loaded.err
    assert "[no_device" in loaded.err
    assert loaded.mistakes == []
    assert sum(loaded.written_bytes) == 0


def test_without_a_driver_the_missing_library_is_named(lading, checkpoint):
    environment = os.environ | {"LADING_LIBCUDA": "libnowhere.so.1"}
    argv = [lading.command, "load", str(checkpoint), *ONE_RANK]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 5
    assert "the CUDA driver could not be opened: libnowhere.so.1" in done.stderr


def test_an_interrupted_load_waits_for_the_gpu_and_gives_everything_back(load):
    loaded = load.interrupt("slow=400", 0.7, *TWO_RANKS, "--threads", "2")
    assert loaded.exit_code == 5, loaded.err
    assert "cancelled" in loaded.err
    assert loaded.mistakes == []
