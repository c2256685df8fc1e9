"""Each byte is read once where several ranks hold it: one of them reads it, the others take it from its memory.

    exchange, notes = agreed_exchange(plan, slots, {"exchange": "node", "nodes": nodes}, ranks, group, device)
    plan.load(memories, owners=exchange.owners, receive=lambda is_stopped: exchange.run(tell, is_stopped))

The engine chooses whether ranks exchange, and the readers (`Plan.exchange`, docs/guides/exchange.md). Bytes are
broadcast in blocks. All ranks of a
block know it alike, and blocks go in the order of the plan, which is the same on all ranks. Their process groups are
our own: one that had to be given up leaves the user's in step.
Nothing here waits for a rank that has failed: work that is under way is left behind, with the memory that it may still
write, which is never memory that the model had before.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import hashlib
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import _engine
from .agreement import DEADLINE_S, VALUE, Agreement, OnThread, agreed, ranges, stopped
from .allocate import IN_PLACE, Slot
from .devices import wait_for
from .errors import LadingError, Problem

_BLOCK_BYTES = 64 << 20
_PACKED_BYTES = 1 << 20  # small tensors go together, up to this
_IN_FLIGHT_BYTES = 256 << 20
_STALL_S = 300.0  # for as long nothing may move
_WORK_TIMEOUT_S = 2 * _STALL_S  # of gloo, whose messages name no rank
_LONGEST_PAUSE_S = 0.002
_MEASURED_BYTES = 16 << 20  # of the broadcast that tells how fast the group is

# Work that may still write, and what it writes to. Never freed, not even when the process ends.
_left_behind: list[Any] = []


def node_name() -> str:
    """The name of this machine, which no other machine of the job has."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def agreed_exchange(
    plan: _engine.Plan,
    slots: Sequence[Slot],
    facts: Mapping[str, Any],
    ranks: Agreement,
    group: Any,
    device: torch.device,
) -> tuple[Exchange | None, list[str]]:
    """What the engine chooses: None if every rank reads all that it holds. And its note about the choice.

    `facts`: `exchange` and `nodes` of docs/schema/request.md, the same on all ranks. `device`: this rank's.
    """
    with agreed(ranks, "exchange") as step:
        chosen = plan.exchange(facts)
        step.message = {"token": uuid.uuid4().hex if ranks.rank == 0 else ""}
    token = step.answers[0]["token"]
    if chosen["exchange"] == "measure":
        chosen = plan.exchange({**facts, **_measured(plan, Wires(ranks, group), token, device)})
    notes = [chosen["note"]] if chosen["note"] else []
    if chosen["exchange"] != "yes":
        return None, notes
    with agreed(ranks, "who reads what") as step:
        exchange = Exchange(plan, slots, ranks, chosen, group)
        step.message = exchange.facts()
    exchange.wires.token = token
    return exchange, notes


def _measured(plan: _engine.Plan, wires: Wires, token: str, device: torch.device) -> dict[str, list[float]]:
    """Speeds of all ranks. They have just agreed on something, so they begin to read at once."""
    with agreed(wires.ranks, "how fast files are") as step:
        step.message = {"read": plan.read_speed()}
    wires.token = f"{token}/measured"
    sent = wires.ranks.say("how fast the group is", {"sent": _sent_speed(device, wires)})
    wires.close()  # when all have received
    return {"read_speeds": [one["read"] for one in step.answers], "sent_speeds": [one["sent"] for one in sent]}


def _sent_speed(device: torch.device, wires: Wires) -> float:
    """Bytes per second of a broadcast; the second one, for the first has to connect."""
    memory = torch.empty(_MEASURED_BYTES, dtype=torch.uint8, device=device)
    everyone = tuple(range(wires.ranks.size))
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        block = Block(0, everyone)
        block.add(memory, must_stage=not wires.takes(memory.device.type))
        move([block], wires)
    return _MEASURED_BYTES / max(time.perf_counter() - began, 1e-9)


class Exchange:
    """Of one load, on one rank. `owners` has a rank for each destination that is read by one for all, else None."""

    def __init__(
        self, plan: _engine.Plan, slots: Sequence[Slot], ranks: Agreement, chosen: Mapping[str, Any], group: Any
    ) -> None:
        self._slots, self._ranks = slots, ranks
        self.wires = Wires(ranks, group)
        self.owners: list[int | None] = chosen["owners"]
        nodes = chosen["nodes"]
        node = nodes[ranks.rank]
        self._members = [tuple(rank for rank in one.replicas if nodes[rank] == node) for one in plan.destinations]

    def facts(self) -> dict[str, str]:
        """What those that exchange bytes must have in common, or they would wait for each other in vain."""
        said: dict[tuple[int, ...], list[str]] = {}
        for owner, members, slot in zip(self.owners, self._members, self._slots, strict=True):
            if owner is not None:
                one = slot.destination
                kind = slot.memory.device.type
                said.setdefault(members, []).append(f"{one.name}/{one.slot}/{one.size_bytes}/{owner}/{kind}")
        return {
            f"{VALUE}who reads what for ranks {ranges(members)}": hashlib.sha256("\n".join(lines).encode()).hexdigest()
            for members, lines in said.items()
        }

    def run(self, tell: Callable[[int | None], None], is_stopped: Callable[[], bool]) -> None:
        """Hands over what this rank has read, and takes what others have. `tell` hears that reading is over."""
        tell(None)  # who waits for a slow reader makes no progress, and is well; a stall is found by `Wires.look`
        self._ranks.is_stopped = is_stopped
        try:
            self._ranks.say("what was read", {}, while_alive=True)
            move(self._blocks(), self.wires)
        finally:
            self._ranks.is_stopped = lambda: False

    def planned_bytes(self) -> int:
        """The most host memory that blocks will have for themselves while they are under way, as `move` sends them."""
        most = staged = flying = 0
        under_way: collections.deque[tuple[int, int]] = collections.deque()
        for block in self._blocks():
            is_on_host = block.device.type == "cpu" or not self.wires.takes(block.device.type)
            under_way.append((block.size, block.size if block.is_staged and is_on_host else 0))
            flying, staged = flying + under_way[-1][0], staged + under_way[-1][1]
            most = max(most, staged)
            while flying > _IN_FLIGHT_BYTES:
                size, own = under_way.popleft()
                flying, staged = flying - size, staged - own
        return most

    def _blocks(self) -> list[Block]:
        """What an owner and its members have in common decides what goes into a block, and nothing else: what this rank
        holds beside it, other members may not hold. Blocks are in the order of their first parts."""
        blocks: list[Block] = []
        open_blocks: dict[tuple[int, tuple[int, ...], torch.device], Block] = {}
        for owner, members, slot in zip(self.owners, self._members, self._slots, strict=True):
            if owner is None:
                continue
            must_stage = slot.how == IN_PLACE or not self.wires.takes(slot.memory.device.type)
            for part in bytes_of(slot.memory).split(_BLOCK_BYTES):
                key = (owner, members, part.device)
                block = open_blocks.get(key)
                if block is None or block.size + part.numel() > _PACKED_BYTES:
                    block = open_blocks[key] = Block(owner, members)
                    blocks.append(block)
                block.add(part, must_stage=must_stage)
        return blocks


@dataclasses.dataclass
class Block:
    """Bytes that go from one rank to others at once."""

    owner: int
    members: tuple[int, ...]
    parts: list[torch.Tensor] = dataclasses.field(default_factory=list)
    must_stage: bool = False
    size: int = 0

    def add(self, part: torch.Tensor, *, must_stage: bool) -> None:
        self.parts.append(part)
        self.size += part.numel()
        self.must_stage = self.must_stage or must_stage

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def is_staged(self) -> bool:
        """Whether it has memory of its own on its way."""
        return len(self.parts) > 1 or self.must_stage

    def __str__(self) -> str:
        return f"from rank {self.owner} to ranks {ranges([rank for rank in self.members if rank != self.owner])}"


class Wires:
    """Process groups of our own, one for each set of ranks, made when it is first needed."""

    def __init__(self, ranks: Agreement, group: Any) -> None:
        self.ranks = ranks
        self.token = ""  # the same on all ranks, and of this load only
        self._group = group if group is not None else dist.group.WORLD
        self._made: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._moved_at = time.monotonic()

    def has_moved(self) -> None:
        self._moved_at = time.monotonic()

    def look(self, block: Block) -> None:
        """While this block is waited for: has the load failed elsewhere, or does nothing move?"""
        refuse_failed(self.ranks)
        if time.monotonic() - self._moved_at > _STALL_S:
            message = f"the exchange of bytes {block} made no progress for {_STALL_S:.0f} s on rank {self.ranks.rank}"
            remedy = 'Check the network between these ranks, or pass exchange="never".'
            raise LadingError(Problem("no_answer", message, rule="R44", remedy=remedy), stage="loading", exit_code=7)

    def takes(self, device: str) -> bool:
        """Whether memory of this kind can be sent as it is; otherwise through host memory."""
        return device == "cpu" or self._has_nccl(device)

    def _has_nccl(self, device: str) -> bool:
        try:
            return self._group._get_backend(torch.device(device)).name() == "nccl"
        except RuntimeError:
            return False

    def broadcast(self, wire: torch.Tensor, block: Block) -> Any:
        """Work under way. All members come here, in the same order."""
        kind, members = wire.device.type, block.members
        if (kind, members) not in self._made:
            make = self._make_nccl if kind != "cpu" else self._make_gloo
            self._made[kind, members] = self._waited(lambda: make(members), block)
        options = dist.BroadcastOptions()
        options.rootRank = members.index(block.owner)
        options.rootTensor = 0
        return self._made[kind, members].broadcast([wire], options)

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

    def _waited(self, make: Callable[[], Any], block: Block) -> Any:
        """Groups meet in the store, where one that has died would be waited for."""
        made = OnThread(make)
        while not made.wait(_LONGEST_PAUSE_S):
            self.look(block)
        if made.error is not None:
            raise made.error
        return made.result


def move(blocks: Sequence[Block], wires: Wires) -> None:
    """Until all blocks are where they belong; or the load has failed elsewhere, was stopped here, or stands still."""
    under_way: collections.deque[_Flight] = collections.deque()
    flying_bytes = 0
    wires.has_moved()
    try:
        for block in blocks:
            under_way.append(_Flight(block, wires))
            flying_bytes += block.size
            while flying_bytes > _IN_FLIGHT_BYTES:
                under_way[0].finish()
                flying_bytes -= under_way.popleft().block.size
        while under_way:
            under_way[0].finish()
            under_way.popleft()
    except BaseException:
        _leave_behind((wires, list(under_way)))
        raise


class _Flight:
    """A block on its way. Staged, unless it can be sent from and to where it belongs."""

    def __init__(self, block: Block, wires: Wires) -> None:
        self.block, self._wires = block, wires
        self._is_mine = block.owner == wires.ranks.rank
        self._staging: torch.Tensor | None = None
        wire = block.parts[0]
        if block.is_staged:
            device = wire.device if wires.takes(wire.device.type) else torch.device("cpu")
            wire = self._staging = torch.empty(block.size, dtype=torch.uint8, device=device)
            if self._is_mine:
                for part, place in self._places():
                    place.copy_(part)
        self._work = wires.broadcast(wire, block)

    def finish(self) -> None:
        pause_s = 1e-5
        while not self._work.is_completed():
            self._wires.look(self.block)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            self._work.wait()
        except RuntimeError:
            # A connection that broke is another rank's end, as a rule, which is noticed soon: then it is named.
            wait_for_failure(self._wires.ranks)
            raise
        self._wires.has_moved()
        if self._staging is not None and not self._is_mine:
            for part, place in self._places():
                part.copy_(place)
        wait_for(self.block.device)

    def _places(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each part, and where it lies in the staging memory."""
        assert self._staging is not None
        yield from zip(self.block.parts, self._staging.split([part.numel() for part in self.block.parts]), strict=True)


def refuse_failed(ranks: Agreement) -> None:
    if ranks.is_stopped():
        raise stopped("the load was stopped while bytes were exchanged")
    if ranks.has_failed():
        raise stopped("another rank failed while bytes were exchanged")


def wait_for_failure(ranks: Agreement) -> None:
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
