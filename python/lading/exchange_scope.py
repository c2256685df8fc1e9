"""Whether ranks exchange bytes, and between whom: `exchange="never" | "node" | "job" | "auto"`.

"auto" measures: every rank reads a little of the checkpoint, all at the same time, and then bytes are sent round.
Reading once and exchanging is chosen if that would clearly take less time (docs/guides/exchange.md).
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .agreement import Agreement, agreed
from .exchange import Block, Wires, move

_LEAST_BYTES = 64 << 20  # below, latencies would be measured
_SAMPLES = 4
_MOST_SAMPLE_BYTES = 2 << 20
_SAMPLED_SHARE = 400  # of the checkpoint no more than a 400th, by all ranks together
_CLEARLY = 0.7  # of the time: what is received is digested once more, and the group has other costs
_SENT_BYTES = 16 << 20


def node_name() -> str:
    """Of this machine, as others can tell it from theirs."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def exchange_nodes(
    scope: str, ranks: Agreement, names: Sequence[str], devices: Sequence[str], path: str, group: Any
) -> tuple[list[str] | None, list[str]]:
    """The name of each rank's node, as far as bytes are exchanged, or None: nowhere; and notes about the choice."""
    if scope == "never" or ranks.size == 1:
        return None, []
    kinds = {torch.device(device).type for device in devices}
    if len(kinds) > 1:
        return None, [f"exchange: no, because the ranks have different devices ({', '.join(sorted(kinds))})"]
    if scope == "node":
        return list(names), []
    if scope == "job":
        return [""] * ranks.size, []
    return _measured(ranks, path, devices[ranks.rank], group)


def _measured(ranks: Agreement, path: str, device: str, group: Any) -> tuple[list[str] | None, list[str]]:
    files = _files(path)
    total = sum(file.stat().st_size for file in files)
    with agreed(ranks, "exchange") as step:  # then all begin to read at once
        step.message = {"size": total, "token": uuid.uuid4().hex if ranks.rank == 0 else ""}
    if min(message["size"] for message in step.answers) < _LEAST_BYTES:
        return None, ["exchange: no, because there is too little to read for a measurement"]
    token = step.answers[0]["token"]
    with agreed(ranks, "how fast files are") as step:
        step.message = {"read": _read_speed(files, total, ranks)}
    read = statistics.median(message["read"] for message in step.answers)
    wires = Wires(ranks, group)
    wires.token = f"{token}/measured"
    told = ranks.say("how fast the group is", {"sent": _sent_speed(device, wires)})
    wires.close()  # when all have received
    sent = min(message["sent"] for message in told)
    each_reads, exchanged = 1 / read, 1 / (read * ranks.size) + 1 / sent
    speeds = f"{read / 1e9:.2f} GB/s from files on each rank, {sent / 1e9:.2f} GB/s between ranks"
    if exchanged < _CLEARLY * each_reads:
        return [""] * ranks.size, [f"exchange: yes, by measurement: {speeds}"]
    return None, [f"exchange: no, by measurement: {speeds}"]


def _files(path: str) -> list[Path]:
    found = Path(path)
    if found.is_file() and found.suffix != ".json":
        return [found]
    return sorted((found if found.is_dir() else found.parent).glob("*.safetensors"))


def _read_speed(files: list[Path], total: int, ranks: Agreement) -> float:
    """Bytes per second, of places that no other rank looks at."""
    sample_bytes = min(_MOST_SAMPLE_BYTES, max(1, total // (_SAMPLED_SHARE * _SAMPLES * ranks.size)))
    began, read = time.perf_counter(), 0
    for sample in range(_SAMPLES):
        place = (sample * ranks.size + ranks.rank) * total // (_SAMPLES * ranks.size)
        for file in files:
            if place < file.stat().st_size:
                with open(file, "rb", buffering=0) as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # or the kernel reads on by itself
                    read += len(os.pread(opened.fileno(), sample_bytes, place))
                break
            place -= file.stat().st_size
    return max(read, 1) / max(time.perf_counter() - began, 1e-9)


def _sent_speed(device: str, wires: Wires) -> float:
    """Bytes per second of a broadcast; the second one, for the first has to connect."""
    memory = torch.empty(_SENT_BYTES, dtype=torch.uint8, device=device)
    everyone = tuple(range(wires.ranks.size))
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        block = Block(0, everyone)
        block.add(memory, must_stage=not wires.takes(memory.device.type))
        move([block], wires)
    return _SENT_BYTES / max(time.perf_counter() - began, 1e-9)
