"""Saving one model from several ranks under FSDP2, contenders side by side in one run.

    save_model.py CKPT --folder DIR [--ranks 4] [--repeats 3]

CKPT is a Llama of transformers (bench/gpu/checkpoints.py writes one), DIR is on the disk that is measured. For every
single measurement gloo ranks are forked, load the model, and wait for each other. Timed is from there until all ranks
are done, by the slowest clock. Then the tensors of the new checkpoint are compared bit for bit with those of CKPT.

plain: the floor; every rank writes as many bytes from memory into a file of its own, in large writes, and syncs it.
lading: `lading.save`, which syncs too. DCP: HuggingFaceStorageWriter with consolidation, on one thread as it is by
default and on two. rank 0: the full state dict is gathered, and written by `save_pretrained`. The last two sync nothing
by themselves, so they are timed as they are.

Of each rank: bytes written and read by system calls (/proc/self/io), and the peak of its memory above that before the
save (VmHWM). Prints one line of JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/e2e"), str(ROOT / "bench/gpu"), str(ROOT / "python")]

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoints import files_of
from forked import run_ranks
from ranks_load import sharded
from safetensors import safe_open
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import lading

LIMIT_S, CHUNK_BYTES = 900, 8 << 20


def plain(model: torch.nn.Module, checkpoint: Path, out: Path) -> None:
    """This rank's parts, one after the other."""
    out.mkdir(exist_ok=True)
    descriptor = os.open(out / f"rank{dist.get_rank()}", os.O_WRONLY | os.O_CREAT, 0o600)
    at = 0
    for parameter in model.parameters():
        memory = memoryview(parameter._local_tensor.detach().reshape(-1).view(torch.uint8).numpy())
        for begin in range(0, len(memory), CHUNK_BYTES):
            at += os.pwrite(descriptor, memory[begin : begin + CHUNK_BYTES], at)
    os.fsync(descriptor)
    os.close(descriptor)


def by_lading(model: torch.nn.Module, checkpoint: Path, out: Path) -> None:
    lading.save(model, out, base=checkpoint, progress=False, timeout=300)


def by_dcp(model: torch.nn.Module, checkpoint: Path, out: Path, threads: int = 1) -> None:
    files = {name: place for place, file in enumerate(files_of(checkpoint), 1) for name in keys_of(file)}
    writer = HuggingFaceStorageWriter(
        path=str(out),
        fqn_to_index_mapping=files,
        save_distributed=True,
        enable_consolidation=True,
        thread_count_consolidation=threads,
    )
    dcp.save(get_model_state_dict(model), storage_writer=writer)


def by_dcp_with_threads(model: torch.nn.Module, checkpoint: Path, out: Path) -> None:
    by_dcp(model, checkpoint, out, threads=2)


def by_rank_0(model: torch.nn.Module, checkpoint: Path, out: Path) -> None:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(out, state_dict=state)


CONTENDERS = {
    "plain writes and fsync": plain,
    "lading.save": by_lading,
    "DCP, consolidated": by_dcp,
    "DCP, consolidated by 2 threads": by_dcp_with_threads,
    "gathered, rank 0 writes": by_rank_0,
}


def keys_of(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as handle:
        return list(handle.keys())


def counters() -> dict[str, int]:
    lines = (line.split(":") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(value) for name, value in lines}


def status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def run_rank(contender: str, checkpoint: Path, out: Path, ranks: int) -> dict:
    model = sharded(checkpoint, ranks)
    lading.materialize(model, checkpoint, progress=False, timeout=300)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins here
    resident, before = status("VmRSS"), counters()
    dist.barrier()
    begin = time.perf_counter()
    CONTENDERS[contender](model, checkpoint, out)
    dist.barrier()
    seconds = time.perf_counter() - begin
    after = counters()
    return {
        "seconds": seconds,
        "memory_bytes": status("VmHWM") - resident,
        "written_bytes": after["wchar"] - before["wchar"],
        "read_bytes": after["rchar"] - before["rchar"],
    }


def wrong(checkpoint: Path, out: Path) -> str:
    wanted = {name: file for file in files_of(checkpoint) for name in keys_of(file)}
    found = {name: file for file in files_of(out) for name in keys_of(file)}
    if wanted.keys() != found.keys():
        return f"other keys: {sorted(wanted.keys() ^ found.keys())[:4]}"
    for name, file in wanted.items():
        with safe_open(file, framework="pt") as one, safe_open(found[name], framework="pt") as other:
            left, right = one.get_tensor(name), other.get_tensor(name)
            if left.dtype != right.dtype or not torch.equal(left.view(torch.int16), right.view(torch.int16)):
                return f"{name} differs"
    return ""


def measure(contender: str, checkpoint: Path, out: Path, ranks: int) -> dict:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    try:
        answers = run_ranks(ranks, LIMIT_S, lambda: run_rank(contender, checkpoint, out, ranks))
        if contender != "plain writes and fsync" and (why := wrong(checkpoint, out)):
            raise SystemExit(f"{contender}: {why}")
    finally:
        shutil.rmtree(out, ignore_errors=True)
    found = {name: sum(answer[name] for answer in answers) for name in ("memory_bytes", "written_bytes", "read_bytes")}
    return {"seconds": max(answer["seconds"] for answer in answers), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    runs: dict[str, list[dict]] = {contender: [] for contender in CONTENDERS}
    names = list(CONTENDERS)
    for repeat in range(arguments.repeats):
        for contender in names[repeat % len(names) :] + names[: repeat % len(names)]:
            one = measure(contender, arguments.checkpoint, arguments.folder / "out", arguments.ranks)
            runs[contender].append(one | {"load": os.getloadavg()[0]})
            print(f"{contender}: {one}", file=sys.stderr, flush=True)
    size = sum(file.stat().st_size for file in files_of(arguments.checkpoint))
    results = {name: summary(found, size) for name, found in runs.items()}
    print(json.dumps({"bytes": size, "ranks": arguments.ranks, "torch": torch.__version__, "results": results}))
    return 0


def summary(runs: list[dict], size: int) -> dict:
    seconds = [run["seconds"] for run in runs]
    return {
        "median_seconds": statistics.median(seconds),
        "least_seconds": min(seconds),
        "most_seconds": max(seconds),
        "times_written": max(run["written_bytes"] for run in runs) / size,
        "times_read": max(run["read_bytes"] for run in runs) / size,
        "memory_bytes": max(run["memory_bytes"] for run in runs),
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
