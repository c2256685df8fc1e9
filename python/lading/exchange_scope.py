"""Whether ranks exchange bytes, and between whom: `exchange="never" | "node" | "job" | "auto"`.

"auto" measures: every rank reads a little of the checkpoint, all at the same time, and then bytes are sent round.
Reading once and exchanging is chosen if that would clearly take less time than reading on every rank (docs/exchange.md).
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .agreement import Agreement, agreed
from .exchange import move

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
        return None, [f"exchange: no, for ranks have different devices ({', '.join(sorted(kinds))})"]
    if scope == "node":
        return list(names), []
    if scope == "job":
        return [""] * ranks.size, []
    return _measured(ranks, path, kinds.pop(), group)


def _measured(ranks: Agreement, path: str, device: str, group: Any) -> tuple[list[str] | None, list[str]]:
    with agreed(ranks, "exchange"):  # all begin to read at once
        pass
    with agreed(ranks, "how fast files are") as step:
        step.message = {"read": _read_speed(path, ranks.rank, ranks.size)}
    read = statistics.median(message["read"] for message in step.answers)
    told = ranks.exchange("how fast the group is", {"sent": _sent_speed(device, ranks, group)})
    sent = min(message["sent"] for message in told)
    each_reads, exchanged = 1 / read, 1 / (read * ranks.size) + 1 / sent
    speeds = f"{read / 1e9:.2f} GB/s from files on each rank, {sent / 1e9:.2f} GB/s between ranks"
    if exchanged < _CLEARLY * each_reads:
        return [""] * ranks.size, [f"exchange: yes, by measurement: {speeds}"]
    return None, [f"exchange: no, by measurement: {speeds}"]


def _read_speed(path: str, rank: int, size: int) -> float:
    """Bytes per second, of places that no other rank looks at."""
    found = Path(path)
    files = [found] if found.is_file() else sorted(found.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    sample_bytes = min(_MOST_SAMPLE_BYTES, max(1, total // (_SAMPLED_SHARE * _SAMPLES * size)))
    began, read = time.perf_counter(), 0
    for sample in range(_SAMPLES):
        place = (sample * size + rank) * total // (_SAMPLES * size)
        for file in files:
            if place < file.stat().st_size:
                with open(file, "rb", buffering=0) as opened:
                    read += len(os.pread(opened.fileno(), sample_bytes, place))
                break
            place -= file.stat().st_size
    return max(read, 1) / max(time.perf_counter() - began, 1e-9)


def _sent_speed(device: str, ranks: Agreement, group: Any) -> float:
    """Bytes per second of a broadcast; the second one, for the first may have to connect."""
    block = torch.empty(_SENT_BYTES, dtype=torch.uint8, device=device)

    def blocks() -> Iterator[tuple[int, list[Any]]]:
        yield _SENT_BYTES, [dist.broadcast(block, src=ranks.ranks[0], group=group, async_op=True)]

    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        move(blocks, ranks)
    return _SENT_BYTES / max(time.perf_counter() - began, 1e-9)
