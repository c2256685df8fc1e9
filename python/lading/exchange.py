"""Each byte is read once where several ranks hold it: one of them reads it, the others take it from its memory.

    nodes = exchange_nodes(options.exchange, everybody)              # or None: every rank reads what it holds
    exchange = Exchange(plan, slots, ranks, nodes, group)
    plan.load(memories, owners=exchange.owners, receive=lambda: exchange.run(tell))

Who reads what is the engine's choice (`Plan.owners`, docs/exchange.md). Bytes go over the process group, from memory to
memory, in the order of the plan, which is the same on all ranks: a broadcast where a group has just the ranks that hold
a tensor, otherwise messages from one to each (gloo only). A thread does it, so that a rank that dies or hangs while
others wait for its bytes does not keep them: they leave the thread behind, and the memory that it may still write.
"""

from __future__ import annotations

import collections
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import _engine
from .agreement import VALUE, Agreement, ranges
from .allocate import Slot
from .errors import LadingError, Problem

_BLOCK_BYTES = 64 << 20  # what a backend may stage of one tensor
_IN_FLIGHT_BYTES = 256 << 20
_LOOK_S = 0.05  # how long another rank's failure, or a signal of this process, may wait

_Blocks = Callable[[], Iterator[tuple[int, list[Any]]]]  # bytes, and the work under way to move them

# Threads that wait for bytes of ranks that are gone, with the memory that they may still write to.
_left_behind: list[Any] = []


class Exchange:
    """Of one load, on one rank. `owners` has a rank for each destination that is read by one for all, else None."""

    def __init__(
        self, plan: _engine.Plan, slots: Sequence[Slot], ranks: Agreement, nodes: Sequence[str], group: Any
    ) -> None:
        self._slots, self._ranks = slots, ranks
        self._transport = _Transport(ranks, group)
        node = nodes[ranks.rank]
        self._members = [tuple(rank for rank in one.replicas if nodes[rank] == node) for one in plan.destinations]
        self.owners = [
            owner if owner is not None and self._transport.reaches(members, slot.memory.device.type) else None
            for owner, members, slot in zip(plan.owners(nodes), self._members, slots, strict=True)
        ]

    def facts(self) -> dict[str, str]:
        """What those that exchange bytes must have in common, or they would wait for each other in vain."""
        said: dict[tuple[int, ...], list[str]] = {}
        for owner, members, slot in zip(self.owners, self._members, self._slots, strict=True):
            if owner is not None:
                one = slot.destination
                said.setdefault(members, []).append(f"{one.name}/{one.slot}/{one.size_bytes}/{owner}")
        return {
            f"{VALUE}who reads what for ranks {ranges(members)}": hashlib.sha256("\n".join(lines).encode()).hexdigest()
            for members, lines in said.items()
        }

    def run(self, tell: Callable[[int | None], None]) -> None:
        """Hands over what this rank has read, and takes what others have. `tell` hears of the bytes that moved."""
        tell(None)  # who waits for a slow reader makes no progress, and is well
        self._ranks.exchange("what was read", {}, while_alive=True)
        move(self._blocks, self._ranks, tell)

    def _blocks(self) -> Iterator[tuple[int, list[Any]]]:
        """The bytes of each block, and the work under way to move it."""
        for owner, members, slot in zip(self.owners, self._members, self._slots, strict=True):
            if owner is None:
                continue
            for block in _bytes_of(slot.memory).split(_BLOCK_BYTES):
                yield block.numel(), self._transport.start(block, owner, members)


def move(blocks: _Blocks, ranks: Agreement, tell: Callable[[int | None], None] | None = None) -> None:
    """Until all blocks are where they belong, or another rank has failed."""
    thread = _Moving(blocks)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            if tell is not None:
                tell(1 + thread.moved_bytes)  # another number than that of a load which had nothing to read
            if thread.is_alive() and ranks.has_failed():
                raise LadingError(Problem("cancelled", "another rank failed while bytes were exchanged"))
        if thread.error is not None:
            raise thread.error
    except BaseException:
        _left_behind.append((thread, blocks))
        raise


class _Moving(threading.Thread):
    """Moves blocks, a bounded number of them at once."""

    def __init__(self, blocks: _Blocks) -> None:
        super().__init__(name="lading exchange", daemon=True)
        self.moved_bytes = 0
        self.error: Exception | None = None
        self._blocks = blocks

    def run(self) -> None:
        try:
            self._move()
        except Exception as error:  # noqa: BLE001 - raised by who waits
            self.error = error

    def _move(self) -> None:
        under_way: collections.deque[tuple[int, list[Any]]] = collections.deque()
        flying_bytes = 0
        for size, works in self._blocks():
            under_way.append((size, works))
            flying_bytes += size
            while flying_bytes > _IN_FLIGHT_BYTES:
                flying_bytes -= self._finish(under_way.popleft())
        while under_way:
            self._finish(under_way.popleft())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # NCCL's work is only queued when it is waited for

    def _finish(self, block: tuple[int, list[Any]]) -> int:
        size, works = block
        for work in works:
            work.wait()
        self.moved_bytes += size
        return size


class _Transport:
    """Moves a block from one rank to others, over torch.distributed."""

    def __init__(self, ranks: Agreement, group: Any) -> None:
        self._ranks = ranks
        self._group = group if group is not None else dist.group.WORLD
        self._known = {frozenset(dist.get_process_group_ranks(one)): one for one in reversed(_groups())}
        self._known[frozenset(ranks.ranks)] = self._group

    def reaches(self, members: tuple[int, ...], device: str) -> bool:
        """Whether there is a way between them. The same on all members: groups are made by all of them together."""
        group = self._own_group(members)
        if group is not None:
            return _backend(group, device) != ""
        return device == "cpu" and _backend(self._group, device) == "gloo"

    def start(self, block: torch.Tensor, owner: int, members: tuple[int, ...]) -> list[Any]:
        everyone = self._ranks.ranks
        group = self._own_group(members)
        if group is not None:
            return [dist.broadcast(block, src=everyone[owner], group=group, async_op=True)]
        if owner != self._ranks.rank:
            return [dist.irecv(block, src=everyone[owner], group=self._group)]
        return [dist.isend(block, dst=everyone[rank], group=self._group) for rank in members if rank != owner]

    def _own_group(self, members: tuple[int, ...]) -> Any:
        return self._known.get(frozenset(self._ranks.ranks[rank] for rank in members))


def _groups() -> list[Any]:
    """All process groups of this process, in the order in which they were made: meshes have one per dim."""
    return list(dist.distributed_c10d._world.pg_group_ranks)


def _backend(group: Any, device: str) -> str:
    """Its name, or "" if the group has none for the device."""
    try:
        return group._get_backend(torch.device(device)).name()
    except RuntimeError:
        return ""


def _bytes_of(memory: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes. It is contiguous."""
    begin = memory.storage_offset() * memory.element_size()
    size = memory.numel() * memory.element_size()
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.untyped_storage(), begin, (size,))
