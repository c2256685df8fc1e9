"""Optimizers over parameters of FSDP1 (`use_orig_params=True`), as optimizer_state.py reads and fills others.

Such a parameter is a view of what this rank's shard of a flat buffer has of it, perhaps nothing, and the optimizer's
tensors have the form of that view. Here they are put side by side as the parameters are, into a buffer for each state,
which is shared out as the unit is. A rank without elements of a parameter has no state of it: which there is, the ranks
tell each other (save_optimizer.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .fsdp1 import FlatMember, FlatUnit
from .inventory import PARAMETER, Entry
from .optimizer_state import MASTER, TorchOptimizer, problem_of, refusal_of


def has_flat_members(entries: Iterable[Entry]) -> bool:
    return any(entry.kind == PARAMETER and isinstance(entry.value, FlatMember) for entry in entries)


@dataclasses.dataclass(eq=False)
class _StateUnit:
    """One state of all parameters of a unit: another buffer of the same form."""

    of: FlatUnit
    name: str
    memory: torch.Tensor
    handle: Any = None  # what a member is known by: these are not made anew each time, as those of a module are

    @property
    def elems(self) -> int:
        return self.of.elems

    @property
    def is_offloaded(self) -> bool:
        return self.of.is_offloaded

    def ranks(self, known: Iterable[int]) -> list[int]:
        return self.of.ranks(known)


class Fsdp1Optimizer(TorchOptimizer):
    """The optimizer's parameters are those that FSDP1 has left in the modules."""

    is_partial = True

    def __init__(self, optimizer: torch.optim.Optimizer, entries: Sequence[Entry]) -> None:
        self._members: dict[str, FlatMember] = {}
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        known = []
        for entry in entries:
            if entry.kind == PARAMETER and isinstance(entry.value, FlatMember):
                self._members[entry.name] = entry.value
                known.append((entry.name, entry.module._parameters.get(entry.attribute)))
            elif entry.kind == PARAMETER:
                known.append((entry.name, entry.value))
        super().__init__(optimizer, known, None)
        self.shapes |= {name: tuple(one.shape) for name, one in self._members.items() if name in self._parameters}

    def is_cut(self, name: str) -> bool:
        return name in self._members

    def states(self) -> dict[str, dict[str, Any]]:
        found = super().states()
        for name, states in list(found.items()):
            if name not in self._members:
                continue
            begin, elems = self._span(name)
            if not elems:
                del found[name]
                continue
            for state, value in states.items():
                if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == self._parameters[name].shape:
                    states[state] = made = self.blank(name, state, self.shapes[name], value.dtype)
                    made.unit.memory[begin : begin + elems] = value.detach().reshape(-1)  # type: ignore[attr-defined]
        return found

    def blank(self, name: str, state: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if name not in self._members:
            return super().blank(name, state, shape, dtype)
        member = self._members[name]
        memory = self._buffers.get((id(member.unit.handle), state))
        if memory is None:
            memory = torch.zeros_like(member.unit.memory, dtype=dtype)
            self._buffers[id(member.unit.handle), state] = memory
        if shape != self.shapes[name] or dtype != memory.dtype:
            message = f"{state!r} of it is of {dtype} and {list(shape)}, and FSDP1 has one dtype in a unit, and whole shapes"
            raise refusal_of(problem_of(message, name, "Use FSDP2, or save this optimizer's state yourself."))
        made = FlatMember(torch.Size(shape), memory, False)
        unit = _StateUnit(member.unit, f"{member.unit.name}.{state}", memory, made)
        made.unit, made.offset, made.problem, made.is_empty = unit, member.offset, "", False  # type: ignore[assignment]
        return made

    def _span(self, name: str) -> tuple[int, int]:
        """Where this rank's elements of it begin in its shard, and how many there are."""
        member, parameter = self._members[name], self._parameters[name]
        elems = int(parameter.numel())
        shard = member.unit.memory
        distance = parameter.data_ptr() - shard.data_ptr()
        return distance // shard.element_size() if elems else 0, elems

    def attach(self, states: dict[str, dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
        for name in [name for name in states if name in self._members]:
            begin, elems = self._span(name)
            master = states[name].pop(MASTER, None)
            if elems:
                self._take_master(name, None if master is None else self._part(name, master, begin, elems))
            own = {
                state: self._part(name, value, begin, elems) if isinstance(value, FlatMember) else value
                for state, value in states[name].items()
            }
            states[name] = own if elems else {}
        super().attach(states, options)

    def _part(self, name: str, member: Any, begin: int, elems: int) -> torch.Tensor:
        part: torch.Tensor = member.unit.memory[begin : begin + elems]
        return part.view(self._parameters[name].shape)
