"""Each byte is read once where several ranks hold it: one of them reads it, the others take it from its memory.

    exchange = Exchange(plan, slots, ranks, nodes, group)
    plan.load(memories, owners=exchange.owners, receive=lambda is_stopped: exchange.run(tell, is_stopped))

Who reads what is the engine's choice (`Plan.owners`, docs/exchange.md). Bytes are broadcast, in the order of the plan,
which is the same on all ranks, over process groups of our own: one that had to be given up leaves the user's in step.
Nothing here waits for a rank that has failed: work that is under way is left behind, with the memory that it may still
write, which is never memory that the model had before.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import _engine
from .agreement import DEADLINE_S, VALUE, Agreement, OnThread, ranges
from .allocate import IN_PLACE, Slot
from .errors import LadingError, Problem

_BLOCK_BYTES = 64 << 20
_PACKED_BYTES = 1 << 20  # small tensors go together, up to this
_IN_FLIGHT_BYTES = 256 << 20
_WORK_TIMEOUT_S = 300.0
_LONGEST_PAUSE_S = 0.002

# Work that may still write, and what it writes to. Never freed, not even when the process ends.
_left_behind: list[Any] = []


class Exchange:
    """Of one load, on one rank. `owners` has a rank for each destination that is read by one for all, else None."""

    def __init__(
        self, plan: _engine.Plan, slots: Sequence[Slot], ranks: Agreement, nodes: Sequence[str], group: Any
    ) -> None:
        self._slots, self._ranks = slots, ranks
        self.wires = Wires(ranks, group)
        node = nodes[ranks.rank]
        self._members = [tuple(rank for rank in one.replicas if nodes[rank] == node) for one in plan.destinations]
        self.owners = plan.owners(nodes)

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

    def run(self, tell: Callable[[int | None], None], is_stopped: Callable[[], bool]) -> None:
        """Hands over what this rank has read, and takes what others have. `tell` hears of the bytes that moved."""
        tell(None)  # who waits for a slow reader makes no progress, and is well
        self._ranks.is_stopped = is_stopped
        try:
            self._ranks.say("what was read", {}, while_alive=True)
            move(self._blocks(), self.wires, tell)
        finally:
            self._ranks.is_stopped = lambda: False

    def _blocks(self) -> Iterator[Block]:
        pack: Block | None = None
        for owner, members, slot in zip(self.owners, self._members, self._slots, strict=True):
            if owner is None:
                continue
            must_stage = slot.how == IN_PLACE or not self.wires.takes(slot.memory.device.type)
            for part in bytes_of(slot.memory).split(_BLOCK_BYTES):
                joins = pack is not None and (pack.owner, pack.members, pack.device) == (owner, members, part.device)
                if pack is not None and not (joins and pack.size + part.numel() <= _PACKED_BYTES):
                    yield pack
                    pack = None
                if pack is None:
                    pack = Block(owner, members)
                pack.parts.append(part)
                pack.must_stage = pack.must_stage or must_stage
        if pack is not None:
            yield pack


@dataclasses.dataclass
class Block:
    """Bytes that go from one rank to others at once."""

    owner: int
    members: tuple[int, ...]
    parts: list[torch.Tensor] = dataclasses.field(default_factory=list)
    must_stage: bool = False

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def size(self) -> int:
        return sum(part.numel() for part in self.parts)


class Wires:
    """Process groups of our own, one for each set of ranks, made when it is first needed."""

    def __init__(self, ranks: Agreement, group: Any) -> None:
        self.ranks = ranks
        self.token = ""  # the same on all ranks, and of this load only
        self._group = group if group is not None else dist.group.WORLD
        self._made: dict[tuple[str, tuple[int, ...]], Any] = {}

    def takes(self, device: str) -> bool:
        """Whether memory of this kind can be sent as it is; otherwise through host memory."""
        return device == "cpu" or self._has_nccl(device)

    def _has_nccl(self, device: str) -> bool:
        try:
            return self._group._get_backend(torch.device(device)).name() == "nccl"
        except RuntimeError:
            return False

    def broadcast(self, block: torch.Tensor, owner: int, members: tuple[int, ...]) -> Any:
        """Work under way. All members come here, in the same order."""
        kind = block.device.type
        if (kind, members) not in self._made:
            make = self._make_nccl if kind != "cpu" else self._make_gloo
            self._made[kind, members] = self._waited(lambda: make(members))
        options = dist.BroadcastOptions()
        options.rootRank = members.index(owner)
        options.rootTensor = 0
        return self._made[kind, members].broadcast([block], options)

    def close(self) -> None:
        """When all work is done. Those of gloo end with this object; what torch has a list of must be taken off it."""
        for (kind, _), group in self._made.items():
            if kind != "cpu":
                dist.destroy_process_group(group)
        self._made.clear()

    def _make_gloo(self, members: tuple[int, ...]) -> Any:
        name = f"lading/exchange/{self.token}/{ranges(members)}"
        store = dist.PrefixStore(name, self.ranks.store)
        timeout = datetime.timedelta(seconds=_WORK_TIMEOUT_S)
        return dist.ProcessGroupGloo(store, members.index(self.ranks.rank), len(members), timeout)

    def _make_nccl(self, members: tuple[int, ...]) -> Any:
        everyone = [self.ranks.ranks[rank] for rank in members]
        return dist.new_group(everyone, backend="nccl", use_local_synchronization=True)

    def _waited(self, make: Callable[[], Any]) -> Any:
        """Groups meet in the store, where one that has died would be waited for."""
        made = OnThread(make)
        while not made.wait(_LONGEST_PAUSE_S):
            refuse_failed(self.ranks)
        if made.error is not None:
            raise made.error
        return made.result


def move(blocks: Iterator[Block], wires: Wires, tell: Callable[[int | None], None]) -> None:
    """Until all blocks are where they belong; or the load has failed elsewhere, or was stopped here."""
    under_way: collections.deque[_Flight] = collections.deque()
    flying_bytes, moved_bytes = 0, 0

    def finish() -> int:
        flight = under_way[0]
        flight.finish(wires.ranks)
        under_way.popleft()
        return flight.block.size

    try:
        for block in blocks:
            under_way.append(_Flight(block, wires))
            flying_bytes += block.size
            while flying_bytes > _IN_FLIGHT_BYTES:
                size = finish()
                flying_bytes, moved_bytes = flying_bytes - size, moved_bytes + size
                tell(1 + moved_bytes)  # another number than that of a load which had nothing to read
        while under_way:
            moved_bytes += finish()
            tell(1 + moved_bytes)
    except BaseException:
        _leave_behind((wires, list(under_way)))
        raise


class _Flight:
    """A block on its way. Staged, unless it can be sent from and to where it belongs."""

    def __init__(self, block: Block, wires: Wires) -> None:
        self.block = block
        self._is_mine = block.owner == wires.ranks.rank
        self._staging: torch.Tensor | None = None
        wire = block.parts[0]
        if len(block.parts) > 1 or block.must_stage:
            device = wire.device if wires.takes(wire.device.type) else torch.device("cpu")
            wire = self._staging = torch.empty(block.size, dtype=torch.uint8, device=device)
            if self._is_mine:
                for part, place in self._places():
                    place.copy_(part)
        self._work = wires.broadcast(wire, block.owner, block.members)

    def finish(self, ranks: Agreement) -> None:
        pause_s = 1e-5
        while not self._work.is_completed():
            refuse_failed(ranks)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            self._work.wait()
        except RuntimeError:
            # A connection that broke is another rank's end, as a rule, which is noticed soon: then it is named.
            _wait_for_failure(ranks)
            raise
        if self._staging is not None and not self._is_mine:
            for part, place in self._places():
                part.copy_(place)
        device = self.block.device
        if device.type != "cpu":
            torch.get_device_module(device.type).synchronize(device)

    def _places(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each part, and where it lies in the staging memory."""
        assert self._staging is not None
        yield from zip(self.block.parts, self._staging.split([part.numel() for part in self.block.parts]), strict=True)


def refuse_failed(ranks: Agreement) -> None:
    if ranks.is_stopped():
        raise LadingError(Problem("cancelled", "the load was stopped while bytes were exchanged"))
    if ranks.has_failed():
        raise LadingError(Problem("cancelled", "another rank failed while bytes were exchanged"))


def _wait_for_failure(ranks: Agreement) -> None:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        refuse_failed(ranks)
        time.sleep(_LONGEST_PAUSE_S)


def _leave_behind(what: Any) -> None:
    import ctypes

    _left_behind.append(what)
    # Groups that are destroyed wait for their work, and that may be for ever.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_left_behind))


def bytes_of(memory: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes. It is contiguous."""
    begin = memory.storage_offset() * memory.element_size()
    size = memory.numel() * memory.element_size()
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.untyped_storage(), begin, (size,))
