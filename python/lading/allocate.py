"""Memory for what a plan fills on this rank, and how it gets into the model.

Only what is on meta is allocated, in the dtype that the plan decided, once per tensor object. Memory that is there
already is written in place: FSDP2 gathers from the storage that it knows, and a tensor that is replaced after the
first forward is silently ignored (R37). Nothing is put into the model before everything is loaded: until `attach` a
model on meta is as it was.

A tensor object stays the same object (R61): its insides change places with those of a new tensor, so that its class,
attributes, hooks, names in modules, optimizers' and weak references all still hold. `torch.utils.swap_tensors` would
exchange class and attributes too, and refuse what somebody has a weak reference to (every LSTM); the exchange itself
minds neither.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from . import zero3
from .dtypes import torch_dtype
from .errors import Problem
from .inventory import ATTRIBUTE, EXTRA_STATE, NON_PERSISTENT, PARAMETER, Entry
from .placements import Unit, is_dtensor, is_elsewhere, layout_problem, local_of
from .recording import is_dense

# Of torch's allocator for GPUs: up to here tensors share blocks anyway; and what sizes are rounded up to.
_SMALL_BYTES, _GRAIN_BYTES = 1 << 20, 512

IN_PLACE, COPY_BACK, ATTACH, KEEP = "in place", "copy back", "attach", "keep"


@dataclasses.dataclass
class Slot:
    """One memory of this rank, the tensors that are to have it, and how. What is written is contiguous."""

    destination: Any  # of the engine's plan
    entries: list[Entry]
    how: str
    memory: torch.Tensor
    plain: torch.Tensor | None = None  # of kept memory that is not contiguous: what the engine sees instead

    def for_engine(self) -> tuple[int, int]:
        """Address and size. Of what is kept nothing is written."""
        if self.how == KEEP and not self.memory.is_contiguous():
            self.plain = self.memory.contiguous()
        memory = self.memory if self.plain is None else self.plain
        return memory.data_ptr(), memory.numel() * memory.element_size()


def make_slots(
    destinations: Sequence[Any], entries: Iterable[Entry], units: Iterable[Unit]
) -> tuple[list[Slot], list[Problem]]:
    """One slot per destination, in their order, with memory. The model is not touched."""
    by_name = {entry.name: entry for entry in entries if entry.is_tensor}
    unit_of = {key: unit for unit in units for key in unit.shard_dims}
    slots: list[Slot] = []
    problems: list[Problem] = []
    written: dict[int, str] = {}
    _reserve(destination for destination in destinations if _is_new(destination, by_name))
    for destination in destinations:
        members = [by_name[name] for name in (destination.name, *destination.aliases) if name in by_name]
        problem = _misfit(destination, members)
        if problem is not None:
            problems.append(problem)
            continue
        slot = _slot(destination, members, unit_of)
        slots.append(slot)
        if slot.how == IN_PLACE and slot.memory.numel():
            other = written.setdefault(slot.memory.data_ptr(), destination.unit or destination.name)
            if other != (destination.unit or destination.name):
                text = f"it and {other} are one memory, which cannot be filled twice"
                problems.append(layout_problem(destination.name, text, "R11"))
    return slots, problems


def _is_new(destination: Any, by_name: dict[str, Entry]) -> bool:
    entry = by_name.get(destination.name)
    return entry is not None and entry.is_meta and destination.provenance != "kept"


def _reserve(destinations: Iterable[Any]) -> None:
    """Asks the driver once for what torch would ask for tensor by tensor, at a tenth of a millisecond and more each.

    torch's allocator keeps what is given back, and cuts the tensors from it. If it cannot be had in one piece, they
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


def _misfit(destination: Any, members: list[Entry]) -> Problem | None:
    """The engine and the framework must mean the same part (R54). Empty parts are equal, whatever their shape."""
    if not members:
        return layout_problem(destination.name, "the plan fills it, but the model has no such tensor")
    if destination.slot and not zero3.is_partitioned(members[0].value):
        return layout_problem(destination.name, "the plan has a second memory for it, which this front does not fill")
    wanted, there = tuple(destination.local_shape), tuple(_memory_of(members[0], destination).shape)
    if wanted != there and not (_count(wanted) == 0 and _count(there) == 0):
        text = (
            f"its part on this rank should have the shape {list(wanted)}, but the one that is there has {list(there)}"
        )
        return layout_problem(destination.name, text, "R54")
    return None


def _memory_of(entry: Entry, destination: Any) -> torch.Tensor:
    """What there is of it on this rank. ZeRO-3 has several memories of one tensor."""
    if zero3.is_partitioned(entry.value):
        return zero3.memory_of(entry.value, destination.slot)
    return local_of(entry.value)


def _slot(destination: Any, members: list[Entry], unit_of: dict[int, Unit]) -> Slot:
    device, dtype = torch.device(destination.device), torch_dtype(destination.dtype)
    if destination.provenance == "kept":
        member = next((one for one in members if not local_of(one.value).is_meta), members[0])
        kept = _memory_of(member, destination).detach()
        return Slot(destination, members, KEEP, kept if _same_device(kept.device, device) else kept.to(device))
    for member in members:
        local = _memory_of(member, destination)
        if _fits(local, dtype, device):
            if local.is_contiguous():
                return Slot(destination, members, IN_PLACE, local.detach())
            return Slot(destination, members, COPY_BACK, torch.empty(tuple(local.shape), dtype=dtype, device=device))
    local, unit = local_of(members[0].value), unit_of.get(id(members[0].value))
    pinned = unit is not None and unit.is_offloaded and unit.pins_memory and torch.cuda.is_available()
    memory = torch.empty(tuple(local.shape), dtype=dtype, device=device, pin_memory=pinned)
    return Slot(destination, members, ATTACH, memory)


def _fits(local: torch.Tensor, dtype: torch.dtype, device: torch.device) -> bool:
    return not local.is_meta and local.dtype == dtype and _same_device(local.device, device)


def _same_device(one: torch.device, two: torch.device) -> bool:
    return one.type == two.type and (one.type == "cpu" or one.index == two.index)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


# ---- into the model


def attach(slots: Sequence[Slot], entries: Iterable[Entry], units: Iterable[Unit]) -> None:
    """Puts what was loaded into the model. To be called once everything is there."""
    entries = list(entries)
    views = _views(entries)
    nothing = torch.empty(0)
    seen: set[tuple[int, str]] = set()
    for slot in slots:
        _attach_slot(slot, seen)
        slot.memory = nothing  # the model has it now; where FSDP2 makes a padded copy, this one goes
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


def _attach_slot(slot: Slot, seen: set[tuple[int, str]]) -> None:
    """Every object of the slot gets the memory: it has it already, or takes the values, or exchanges its insides."""
    memory = slot.memory
    distinct: dict[tuple[int, str], Entry] = {}
    for entry in slot.entries:
        distinct.setdefault((id(entry.value), slot.destination.slot), entry)
    for key, entry in distinct.items():
        local = _memory_of(entry, slot.destination)
        if key in seen:  # a tie that was taken apart: the object belongs to the first part
            fresh = _renewed(entry.value, memory)
            for member in slot.entries:
                if member.value is entry.value:
                    _register(member, fresh)
        elif not local.is_meta and local.untyped_storage()._cdata == memory.untyped_storage()._cdata:
            if slot.how == IN_PLACE:
                torch.autograd.graph.increment_version(local)
        elif _fits(local, memory.dtype, memory.device):
            with torch.no_grad():
                local.copy_(memory)
        else:
            put(entry.value, _laid_out_like(memory, local))
    seen |= set(distinct)


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
        spec = _spec_of(target, local.dtype)
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


def _spec_of(target: Any, dtype: torch.dtype) -> Any:
    spec = copy.copy(target._spec)
    meta = spec.tensor_meta
    spec.tensor_meta = type(meta)(meta.shape, meta.stride, dtype)
    return spec


def _renewed(value: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    if isinstance(value, nn.Parameter):
        return nn.Parameter(memory, requires_grad=value.requires_grad)
    return memory.detach().requires_grad_(value.requires_grad)


def _register(entry: Entry, tensor: torch.Tensor) -> None:
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
                member.reset_sharded_param()
