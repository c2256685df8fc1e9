"""The memory of this rank that a save reads, for the engine: one contiguous memory for each destination of its plan.

Memory is read where it is. What is not contiguous (channels-last weights, a transposed view) is copied first, and the
copies are kept until the save is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from .allocate import distinct_memories, is_plain, misfit, same_device
from .bits import same_bits
from .errors import LadingError, Problem
from .inventory import BUFFER, EXTRA_STATE, PARAMETER, Entry
from .placements import is_elsewhere

_LOAD = "Load the model first, on every rank: a save writes what is in memory."
_UNTIED = "Make them one tensor again, or save a model whose config does not tie them (tie_word_embeddings=False)."
_IN_FILES = (PARAMETER, BUFFER)
_NOTHING = torch.empty(0)


@dataclasses.dataclass
class Memories:
    """`addresses`: address and size of each destination. `tensors` keep that memory alive."""

    addresses: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list)
    copied_bytes: int = 0

    def notes(self) -> list[str]:
        if not self.copied_bytes:
            return []
        size = f"{self.copied_bytes / 1e6:.1f} MB"
        return [f"{size} of memory that is not contiguous were copied before they were written"]


def memories_of(
    destinations: Sequence[Any], entries: Iterable[Entry], elsewhere: Collection[str] = ()
) -> Memories:
    """LadingError with every destination that the model does not have as the plan does. `elsewhere`: names of those
    that are no tensors of it."""
    by_name = {entry.name: entry for entry in entries if entry.is_tensor}
    found = Memories()
    problems = []
    for destination in destinations:
        if destination.name in elsewhere:
            found.addresses.append((0, 0))
            found.tensors.append(_NOTHING)
            continue
        members = [by_name[name] for name in (destination.name, *destination.aliases) if name in by_name]
        problem = misfit(destination, members)
        if problem is None:
            first, *others = (memory.detach() for memory in distinct_memories(members, destination))
            memory = first if is_plain(first) else first.resolve_conj().resolve_neg().contiguous()
            found.copied_bytes += 0 if memory is first else memory.nbytes
            found.tensors.append(memory)
            found.addresses.append((memory.data_ptr(), memory.nbytes))
            problem = _elsewhere(destination, first) or _came_apart(destination, first, others)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    return found


def _elsewhere(destination: Any, memory: torch.Tensor) -> Problem | None:
    """The engine would take an address for one of another device."""
    if same_device(memory.device, torch.device(destination.device)):
        return None
    message = f"the tensor is on {memory.device}, and the rest of the model on {destination.device}"
    remedy = "Move the whole model to one device, and save it then."
    return Problem("no_device", message, tensor=destination.name, rule="R35", remedy=remedy)


def _came_apart(destination: Any, first: torch.Tensor, others: Iterable[torch.Tensor]) -> Problem | None:
    """Names of a tie have one key. A framework may have made a memory of each, and training may have changed one."""
    if all(same_bits(first, other) for other in others):
        return None
    names = ", ".join(destination.aliases)
    message = f"the tensor and {names} are tied, so that the checkpoint has one value for them, but their values differ"
    return Problem("values_differ", message, tensor=destination.name, rule="R50", remedy=_UNTIED)


def refuse_without_value(entries: Iterable[Entry]) -> None:
    """Parameters and persistent buffers on meta, and extra state that no file of tensors can hold."""
    problems = []
    for entry in entries:
        if entry.kind in _IN_FILES and entry.is_meta and not is_elsewhere(entry.value):
            problems.append(Problem("incomplete", "the tensor is on meta: it has no value", entry.name, remedy=_LOAD))
        elif entry.kind == EXTRA_STATE and not entry.is_tensor and entry.value is not None:
            message = "its extra state is not a tensor, and safetensors files hold nothing else"
            remedy = "Save it beside the checkpoint with get_extra_state, and clear it for this call."
            problems.append(Problem("skeleton", message, entry.name, rule="R10", remedy=remedy))
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
