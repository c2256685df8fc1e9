"""Memory for what a plan fills on this rank, and how it gets into the model.

Only what is on meta is allocated, in the dtype that the plan decided, once per tensor object. Existing memory
already is written in place: FSDP2 gathers from the storage that it knows, and a tensor that is replaced after the
first forward is silently ignored (R37). The engine writes contiguous memory; other memory (strided, or with a conj or
neg bit) gets its values from a contiguous copy. Three steps, each for all tensors:

    make_slots    before the load: memory for every destination, and what cannot be filled is refused
    settle        after the load, before the commit: values go where the engine could not write them, and are compared
    attach        after the commit: what was on meta gets its memory

A tensor object stays the same object (R61): its insides change places with those of a new tensor, so that its class,
attributes, hooks, names in modules, optimizers' and weak references all still hold. `torch.utils.swap_tensors` would
exchange class and attributes too, and refuse tensors with weak references (every LSTM); the exchange itself
minds neither.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import _engine, zero3
from .bits import same_bits
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .fsdp1 import FlatMember
from .inventory import ATTRIBUTE, BUFFER, EXTRA_STATE, NON_PERSISTENT, PARAMETER, Entry, is_sharded
from .inventory_json import dtype_name
from .overlap import byte_extent, overlap, overlaps_itself
from .placements import Unit, is_dtensor, is_elsewhere, layout_problem, local_of
from .recording import is_dense

# Of torch's allocator for GPUs: up to here tensors share blocks anyway; and what sizes are rounded up to.
_REPORT = "Please report this bug in lading, and load again."
_IN_PLACE = "Allocate it on this rank's device, in that dtype."
_SMALL_BYTES, _GRAIN_BYTES = 1 << 20, 512

IN_PLACE, COPY_BACK, ATTACH, KEEP = "in place", "copy back", "attach", "keep"


@dataclasses.dataclass
class Slot:
    """One memory of this rank, the tensors that are to have it, and how. The engine sees it as contiguous memory."""

    destination: Any  # of the engine's plan
    entries: list[Entry]
    how: str
    memory: torch.Tensor
    plain: torch.Tensor | None = None  # of kept memory that is not contiguous: what the engine sees instead
    copies: list[torch.Tensor] = dataclasses.field(default_factory=list)  # memory of the model that gets the values too
    fresh: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)  # by id of a tensor that gets other memory: that
    is_attached: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes memory that the model had before the load."""
        return self.how == IN_PLACE or bool(self.copies)

    @property
    def owner(self) -> str:
        """The members of an FSDP1 unit have one memory, each its part of it."""
        return self.destination.unit or self.destination.name

    def for_engine(self) -> tuple[int, int]:
        """Address and size. Of what is kept nothing is written."""
        if self.how == KEEP and not is_plain(self.memory):
            self.plain = self.memory.resolve_conj().resolve_neg().contiguous()
        memory = self.memory if self.plain is None else self.plain
        return memory.data_ptr(), memory.numel() * memory.element_size()


def make_slots(
    destinations: Sequence[Any], entries: Iterable[Entry], units: Iterable[Unit], *, allocates: bool = True
) -> tuple[list[Slot], list[Problem]]:
    """One slot per destination, in their order, with memory. The model is not touched. Without `allocates` new memory
    is on meta: the slots are only good for the problems."""
    by_name = {entry.name: entry for entry in entries if entry.is_tensor}
    unit_of = {key: unit for unit in units for key in unit.shard_dims}
    slots: list[Slot] = []
    problems: list[Problem] = []
    if allocates:
        new = [destination for destination in destinations if _is_new(destination, by_name)]
        _check_memory(new)
        _reserve(new)
    for destination in destinations:
        members = [by_name[name] for name in (destination.name, *destination.aliases) if name in by_name]
        problem = misfit(destination, members)
        if problem is not None:
            problems.append(problem)
        else:
            slots.append(_slot(destination, members, unit_of, allocates=allocates))
    return slots, [*problems, *_taken_apart(slots), *_shared_memory(slots)]


def _taken_apart(slots: Sequence[Slot]) -> Iterator[Problem]:
    """One object in two slots is a tie that the load takes apart: the second gets an object of its own. What a
    framework has sharded it knows by the one object, a place in a list or a tuple is not ours to change, and one
    attribute of one module cannot hold two."""
    first: dict[tuple[int, str], Slot] = {}
    places: dict[tuple[int, str, str], Slot] = {}
    for slot in slots:
        for entry in slot.entries:
            known = first.setdefault((id(entry.value), slot.destination.slot), slot)
            is_one = places.setdefault((id(entry.module), entry.attribute, slot.destination.slot), slot) is not slot
            is_plain = type(entry.value) in (torch.Tensor, nn.Parameter) and not is_sharded(entry.value)
            if known is slot or (is_plain and not is_one and entry.attribute in entry.module.__dir__()):
                continue
            text = f"the tensor is the same as {known.destination.name}, but the load would have to separate them"
            remedy = "Separate them before the model is sharded."
            yield layout_problem(entry.name, text, "R50", remedy)


def _shared_memory(slots: Sequence[Slot]) -> Iterator[Problem]:
    """Memory that a load would write twice with different values, or write although it is to be kept (R11)."""
    by_storage: dict[int, list[tuple[Slot, torch.Tensor]]] = {}
    for slot in slots:
        for memory in (*_held_alone(slot), *slot.copies):
            if memory.numel() and memory.layout is torch.strided:
                by_storage.setdefault(memory.untyped_storage()._cdata, []).append((slot, memory))
        for memory in slot.copies:
            if overlaps_itself(memory):
                text = f"the tensor's memory, with strides {list(memory.stride())}, has fewer elements than its shape"
                yield layout_problem(slot.destination.name, text, "R11", "Give it separate memory with .clone().")
    for sharers in by_storage.values():
        yield from _overlapping(sharers)


def _held_alone(slot: Slot) -> list[torch.Tensor]:
    """Memory that no other slot may share: what is written; and of what is in files what is kept, or was one memory
    in a constructor on meta. Other tensors are made of values, and may be made apart."""
    if slot.how == IN_PLACE:
        return [slot.memory]
    if not any(entry.kind in (PARAMETER, BUFFER) for entry in slot.entries):
        return []
    if slot.how == KEEP:
        return [slot.memory]
    return [entry.value for entry in slot.entries if entry.is_meta and not is_sharded(entry.value)]


def _overlapping(sharers: list[tuple[Slot, torch.Tensor]]) -> Iterator[Problem]:
    """Sorted by where they begin, a tensor is compared with those that begin before it ends."""
    sharers = sorted(sharers, key=lambda pair: byte_extent(pair[1])[0])
    told: set[tuple[int, int]] = set()
    for place, (slot, memory) in enumerate(sharers):
        end = byte_extent(memory)[1]
        for other, other_memory in sharers[place + 1 :]:
            if byte_extent(other_memory)[0] >= end:
                break
            pair = (id(slot), id(other))
            if pair not in told and not _may_share(slot, other) and overlap(memory, other_memory):
                told.add(pair)
                text = f"the tensor and {slot.owner} share memory, which cannot hold the values of both"
                remedy = "Give each separate memory with .clone(), or register only one of them."
                yield layout_problem(other.destination.name, text, "R11", remedy)


def _may_share(slot: Slot, other: Slot) -> bool:
    """One memory of one owner; memory that stays as it is; and a tie on meta that the user takes apart."""
    is_kept = slot.how == KEEP and other.how == KEEP
    is_untied = slot.how == ATTACH and other.how == ATTACH and slot.entries[0].tie_class == other.entries[0].tie_class
    return slot.owner == other.owner or is_kept or (is_untied and slot.entries[0].tie_class is not None)


def memory_problems(destinations: Iterable[Any], entries: Iterable[Entry]) -> tuple[Problem, ...]:
    """Why the memory of a plan could not be allocated now."""
    by_name = {entry.name: entry for entry in entries if entry.is_tensor}
    try:
        _check_memory([destination for destination in destinations if _is_new(destination, by_name)])
    except LadingError as error:
        return error.problems
    return ()


def _is_new(destination: Any, by_name: dict[str, Entry]) -> bool:
    entry = by_name.get(destination.name)
    return entry is not None and entry.is_meta and destination.provenance != "kept"


def _check_memory(destinations: Iterable[Any]) -> None:
    """LadingError before anything is allocated, if a device has less memory free than the load needs."""
    needed: dict[str, int] = {}
    for destination in destinations:
        needed[destination.device] = needed.get(destination.device, 0) + destination.size_bytes
    for device, size_bytes in needed.items():
        unused = 0
        if device.startswith("cuda"):  # torch's allocator keeps memory that the driver does not count as free
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        _engine.check_memory(device, max(0, size_bytes - unused))


def _reserve(destinations: Iterable[Any]) -> None:
    """Asks the driver once for what torch would ask for tensor by tensor, at a tenth of a millisecond and more each.

    torch's allocator keeps what is given back, and cuts the tensors from it. If that fails in one piece, they
    are asked for one by one.
    """
    wanted: dict[str, list[int]] = {}
    for destination in destinations:
        if destination.device.startswith("cuda") and destination.size_bytes > _SMALL_BYTES:
            wanted.setdefault(destination.device, []).append(-(-destination.size_bytes // _GRAIN_BYTES) * _GRAIN_BYTES)
    for device, sizes in wanted.items():
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if len(sizes) > 1 and sum(sizes) > unused:
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.empty(sum(sizes), dtype=torch.uint8, device=device)


def elsewhere(slots: Sequence[Slot]) -> list[Problem]:
    """Tensors that these slots would not fill, or keep, in the memory that they have."""
    problems = []
    for slot in slots:
        for entry in slot.entries:
            local, wanted = local_of(entry.value), slot.memory
            if not _fits(local, wanted.dtype, wanted.device):
                there = f"{dtype_name(local.dtype)} on {local.device}"
                problem = layout_problem(entry.name, "the tensor cannot be filled in the memory that it has", "R37", _IN_PLACE)
                expected = f"{slot.destination.dtype} on {slot.destination.device}"
                problems.append(dataclasses.replace(problem, expected=expected, found=there))
    return problems


def misfit(destination: Any, members: list[Entry]) -> Problem | None:
    """The engine and the framework must mean the same part (R54). Empty parts are equal, whatever their shape."""
    if not members:
        return layout_problem(destination.name, "the plan fills this tensor, but the model does not have it")
    if destination.slot and not zero3.is_partitioned(members[0].value):
        message = "the plan has a second memory for this tensor, which the Python front does not fill"
        return layout_problem(destination.name, message)
    wanted, there = tuple(destination.local_shape), tuple(memory_in_slot(members[0], destination).shape)
    if wanted != there and not (_count(wanted) == 0 and _count(there) == 0):
        text = (
            f"this rank's part of the tensor should have the shape {list(wanted)}, but has {list(there)}"
        )
        return layout_problem(destination.name, text, "R54")
    for member in members:
        local = memory_in_slot(member, destination)
        if local.layout is torch.strided and not local.is_meta and not isinstance(member.value, FlatMember):
            end, size = byte_extent(local)[1], local.untyped_storage().nbytes()
            if end > size:
                text = f"the tensor claims to have {end} bytes of memory, but has {size}"
                return layout_problem(member.name, text, "R11")
    return None


def memory_in_slot(entry: Entry, destination: Any) -> torch.Tensor:
    """What there is of it on this rank. ZeRO-3 has several memories of one tensor."""
    if zero3.is_partitioned(entry.value):
        return zero3.memory_of(entry.value, destination.slot)
    return local_of(entry.value)


def _slot(destination: Any, members: list[Entry], unit_of: dict[int, Unit], *, allocates: bool) -> Slot:
    device, dtype = torch.device(destination.device), torch_dtype(destination.dtype)
    place = device if allocates else torch.device("meta")
    if destination.provenance == "kept":
        member = next((one for one in members if not local_of(one.value).is_meta), members[0])
        kept = memory_in_slot(member, destination).detach()
        return Slot(destination, members, KEEP, kept if same_device(kept.device, device) else kept.to(place))
    real = [local for local in distinct_memories(members, destination) if _fits(local, dtype, device)]
    plain = next((local for local in real if is_plain(local)), None)
    if plain is not None:
        storage = plain.untyped_storage()._cdata
        others = [local.detach() for local in real if local.untyped_storage()._cdata != storage]
        return Slot(destination, members, IN_PLACE, plain.detach(), copies=others)
    if real:
        memory = torch.empty(tuple(real[0].shape), dtype=dtype, device=place)
        return Slot(destination, members, COPY_BACK, memory, copies=[local.detach() for local in real])
    local, unit = local_of(members[0].value), unit_of.get(id(members[0].value))
    pinned = allocates and unit is not None and unit.is_offloaded and unit.pins_memory and torch.cuda.is_available()
    memory = torch.empty(tuple(local.shape), dtype=dtype, device=place, pin_memory=pinned)
    return Slot(destination, members, ATTACH, memory)


def distinct_memories(members: list[Entry], destination: Any) -> Iterator[torch.Tensor]:
    """The memories of the objects that have these names, each once."""
    seen: set[int] = set()
    for member in members:
        if id(member.value) not in seen:
            seen.add(id(member.value))
            yield memory_in_slot(member, destination)


def is_plain(memory: torch.Tensor) -> bool:
    """Whether its bytes are its values, in order."""
    return memory.is_contiguous() and not memory.is_conj() and not memory.is_neg()


def _fits(local: torch.Tensor, dtype: torch.dtype, device: torch.device) -> bool:
    return not local.is_meta and local.dtype == dtype and same_device(local.device, device)


def same_device(one: torch.device, two: torch.device) -> bool:
    return one.type == two.type and (one.type == "cpu" or one.index == two.index)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


# ---- into the model


def settle(slots: Sequence[Slot]) -> None:
    """Puts loaded values where the engine could not write them, and compares them there. Tensors on meta stay so."""
    problems = []
    for slot in slots:
        with torch.no_grad():
            for local in slot.copies:
                local.copy_(slot.memory)
        _arrange(slot)  # of a value that is kept: only if it moves to the rank's device (R35)
        moved = [tensor for tensor in slot.fresh.values() if tensor is not slot.memory]
        if not all(same_bits(tensor, slot.memory) for tensor in (*slot.copies, *moved)):
            text = "the tensor's memory does not hold the loaded value"
            problems.append(Problem("incomplete", text, slot.destination.name, remedy=_REPORT))
    if problems:
        raise LadingError(problems, stage="loading", begun=any(slot.writes for slot in slots), exit_code=5)


def _arrange(slot: Slot) -> None:
    """Memory for the objects on meta, and for those that are kept and were on another device. Names of a tie share it, but for the second and further objects of a tied
    parameter that a framework shared out under each of its names: it makes them copies."""
    shared: dict[tuple[int, ...], torch.Tensor] = {}  # by strides
    for entry in slot.entries:
        local = memory_in_slot(entry, slot.destination)
        if id(entry.value) in slot.fresh or _fits(local, slot.memory.dtype, slot.memory.device):
            continue
        if is_dtensor(entry.value) and (shared or slot.how != ATTACH):
            slot.fresh[id(entry.value)] = _laid_out_like(slot.memory.clone(), local)
            continue
        if local.stride() not in shared:
            shared[local.stride()] = _laid_out_like(slot.memory, local)
        slot.fresh[id(entry.value)] = shared[local.stride()]


def attach(slots: Sequence[Slot], entries: Iterable[Entry], units: Iterable[Unit]) -> None:
    """Puts what was loaded into the model. To be called once everything is there."""
    entries = list(entries)
    views = _views(entries)
    seen: set[tuple[int, str]] = set()
    for slot in slots:
        _attach_slot(slot, seen)
    for view, base, offset in views:
        if view.value.is_meta or view.value.untyped_storage()._cdata != base.value.untyped_storage()._cdata:
            begin = base.value.storage_offset() + offset
            put(view.value, base.value.detach().as_strided(view.value.size(), view.value.stride(), begin))
    for entry in entries:
        if entry.is_tensor and entry.is_meta and is_elsewhere(entry.value):
            shape, kind = entry.value._local_tensor.shape, entry.value.device_mesh.device_type
            put(entry.value, torch.empty(shape, dtype=entry.dtype, device=kind))
    for slot in slots:
        for entry in slot.entries:
            if entry.kind == EXTRA_STATE and slot.how != KEEP:
                entry.module.set_extra_state(entry.value)
    tell_fsdp2(units)
    _refuse_other_values(slots)


def _attach_slot(slot: Slot, seen: set[tuple[int, str]]) -> None:
    """Every object of the slot that was on meta exchanges its insides. Real memory has its values already."""
    distinct: dict[tuple[int, str], Entry] = {}
    slot.is_attached = True
    for entry in slot.entries:
        distinct.setdefault((id(entry.value), slot.destination.slot), entry)
    for key, entry in distinct.items():
        if key in seen:  # a tie that was taken apart: the object belongs to the first part
            fresh = _renewed(entry.value, slot.memory)
            for member in slot.entries:
                if member.value is entry.value:
                    _register(member, fresh)
        elif id(entry.value) in slot.fresh:
            put(entry.value, slot.fresh[id(entry.value)])
        elif slot.writes:
            torch.autograd.graph.increment_version(memory_in_slot(entry, slot.destination))
    seen |= set(distinct)


def _refuse_other_values(slots: Sequence[Slot]) -> None:
    """FSDP2 copies uneven parts into padded memory of its own; what it gathers from then is compared once more."""
    problems = []
    for slot in slots:
        for entry in slot.entries if slot.how == ATTACH and is_dtensor(slot.entries[0].value) else ():
            local = local_of(entry.value)
            moved = local.untyped_storage()._cdata != slot.memory.untyped_storage()._cdata
            if local.is_meta or (moved and not same_bits(local, slot.memory)):
                text = "FSDP2 does not hold the loaded value"
                problems.append(Problem("incomplete", text, entry.name, remedy=_REPORT))
        slot.memory, slot.fresh = torch.empty(0), {}  # the model has it now; where FSDP2 made a copy, this one goes
    if problems:
        raise LadingError(problems, stage="loading", begun=True, exit_code=5)


def _laid_out_like(memory: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Channels-last and the like stay so. Memory that overlaps itself does not."""
    if old.is_contiguous() or not is_dense(tuple(old.size()), old.stride()):
        return memory
    return torch.empty_strided(old.size(), old.stride(), dtype=memory.dtype, device=memory.device).copy_(memory)


def put(target: torch.Tensor, local: torch.Tensor) -> None:
    """Gives a tensor object other insides: this local part. It stays the object that it is."""
    backward, accumulated = target._backward_hooks, getattr(target, "_post_accumulate_grad_hooks", None)
    spec = None
    if is_dtensor(target):
        spec = spec_of(target, local.dtype)
        fresh: torch.Tensor = type(target)(local.detach(), spec, requires_grad=False)
    else:
        fresh = local.detach()
    fresh.requires_grad_(target.requires_grad)
    torch._C._swap_tensor_impl(target, fresh)
    if spec is not None:
        target._local_tensor, target._spec = local.detach(), spec  # type: ignore[attr-defined]
    # Hooks hang on the insides; their dicts, which handles for removal know, are the object's.
    if backward is not None:
        target._backward_hooks = backward
    if accumulated is not None:
        target._post_accumulate_grad_hooks = accumulated  # type: ignore[attr-defined]


def spec_of(target: Any, dtype: torch.dtype) -> Any:
    spec = copy.copy(target._spec)
    meta = spec.tensor_meta
    spec.tensor_meta = type(meta)(meta.shape, meta.stride, dtype)
    return spec


def _renewed(value: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    if isinstance(value, nn.Parameter):
        return nn.Parameter(memory, requires_grad=value.requires_grad)
    return memory.detach().requires_grad_(value.requires_grad)


def _register(entry: Entry, tensor: torch.Tensor) -> None:
    """Names in containers do not come here: `_taken_apart` refuses them."""
    if entry.kind == PARAMETER:
        entry.module._parameters[entry.attribute] = tensor  # type: ignore[assignment]
    elif entry.attribute in entry.module._buffers:
        entry.module._buffers[entry.attribute] = tensor
    else:
        setattr(entry.module, entry.attribute, tensor)


def is_made_with(entry: Entry) -> bool:
    """Whether it comes with another tensor, as a view of it, and needs no memory of its own."""
    return entry.kind in (NON_PERSISTENT, ATTRIBUTE) and entry.view_of is not None and not is_dtensor(entry.value)


def _views(entries: Sequence[Entry]) -> list[tuple[Entry, Entry, int]]:
    """Views of other entries, and where they begin in them, in elements. To be asked before anything is replaced."""
    by_name = {entry.name: entry for entry in entries}
    found = []
    for entry in entries:
        if entry.is_tensor and is_made_with(entry):
            base = by_name[entry.view_of]  # type: ignore[index]
            found.append((entry, base, entry.value.storage_offset() - base.value.storage_offset()))
    return found


def tell_fsdp2(units: Iterable[Unit]) -> None:
    """FSDP2 pads the local tensors that it finds, and gathers from them. By itself it looks at the first forward."""
    with torch.no_grad():
        for unit in units:
            for member in unit.members:
                if member.sharded_param.numel():  # there is nothing to gather of others, and FSDP2 trips over some
                    member.reset_sharded_param()
