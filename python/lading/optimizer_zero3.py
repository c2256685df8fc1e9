"""The optimizer of DeepSpeed's ZeRO-3, as optimizer_state.py reads and fills others.

A rank's partitions of many parameters lie in one flat tensor of a *sub-group*, and so does what the optimizer inside
keeps of them: a state tensor of a sub-group is the partitions of as many state tensors, in the same order. Each is shared
out as its parameter is, and says so as a parameter does (`ds_tensor`). The numbers of a sub-group, such as steps, are
those of all its parameters.

Master weights in F32 beside parameters in BF16 are saved too, under the name `MASTER`. DeepSpeed is never imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import zero3
from .errors import Problem
from .inventory import PARAMETER, Entry
from .optimizer_document import Group
from .optimizer_state import MASTER, OWN_FIELDS, problem_of, refusal_of
from .private_names import check

_SAVE = "Save with DeepSpeed's own save_checkpoint."


def is_zero3(optimizer: Any) -> bool:
    return any(base.__name__ == "DeepSpeedZeroOptimizer_Stage3" for base in type(optimizer).__mro__)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Of a parameter's partition: the sub-group, and where in its flat tensor."""

    number: int
    begin: int
    elems: int


class Zero3Optimizer:
    """`DeepSpeedZeroOptimizer_Stage3`, with the optimizer of torch inside."""

    is_partial = False

    def __init__(self, optimizer: Any, entries: Sequence[Entry]) -> None:
        check("deepspeed", "optimizer state")
        self._outer, self._inner = optimizer, optimizer.optimizer
        if problems := [*_refusals(optimizer)]:
            raise refusal_of(problems)
        self.kind = type(self._inner).__name__
        self._flats: list[torch.Tensor] = list(optimizer.fp32_partitioned_groups_flat)
        names: dict[int, str] = {}
        for entry in entries:
            if entry.kind == PARAMETER:
                names.setdefault(id(entry.value), entry.name)
        self._parameters: dict[str, Any] = {}
        self._places: dict[str, _Place] = {}
        members: list[list[str]] = [[] for _ in self._inner.param_groups]
        strangers = 0
        for number, sub_group in enumerate(optimizer.fp16_groups):
            begin = 0
            for parameter in sub_group:
                elems = int(parameter.partition_numel())
                name = names.get(id(parameter))
                strangers += name is None
                if name is not None:
                    self._parameters[name], self._places[name] = parameter, _Place(number, begin, elems)
                    members[optimizer.sub_group_to_group_id[number]].append(name)
                begin += elems
        if strangers:
            message = f"{strangers} parameters of the optimizer are not parameters of the model"
            raise refusal_of(problem_of(message, remedy="Pass the model that the optimizer was made for."))
        self.groups = [
            Group(held, {name: one for name, one in group.items() if name not in OWN_FIELDS})
            for held, group in zip(members, self._inner.param_groups, strict=True)
        ]
        self.shapes = {name: tuple(one.ds_shape) for name, one in self._parameters.items()}
        self._made: dict[tuple[int, str], torch.Tensor] = {}  # flat, by sub-group and state

    def is_cut(self, name: str) -> bool:
        return True

    def states(self) -> dict[str, dict[str, Any]]:
        return {name: found for name in self._parameters if (found := dict(self._states_of(name)))}

    def _states_of(self, name: str) -> Iterator[tuple[str, Any]]:
        place, parameter = self._places[name], self._parameters[name]
        flat = self._flats[place.number]
        for state, value in self._inner.state.get(flat, {}).items():
            is_flat = isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == flat.shape
            yield state, self._part(name, value) if is_flat else value
        if self._has_master(name):
            yield MASTER, _stand_in(parameter, flat.detach()[place.begin : place.begin + place.elems])

    def _part(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        place = self._places[name]
        return _stand_in(self._parameters[name], flat.detach()[place.begin : place.begin + place.elems])

    def _has_master(self, name: str) -> bool:
        """Whether the flat tensor is another memory than the partition."""
        own, flat = self._parameters[name].ds_tensor, self._flats[self._places[name].number]
        return bool(own.untyped_storage().data_ptr() != flat.untyped_storage().data_ptr())

    def blank(self, name: str, state: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if shape != self.shapes[name]:
            message = f"the saved {state!r} of it has the shape {list(shape)}, and ZeRO-3 keeps those of the parameter's"
            raise refusal_of(problem_of(message, name, "Load it with the optimizer that was saved, without ZeRO-3."))
        number = self._places[name].number
        flat = self._made.get((number, state))
        if flat is None:
            flat = torch.zeros(self._flats[number].shape, dtype=dtype, device=self._flats[number].device)
            self._made[number, state] = flat
        if flat.dtype != dtype:
            message = f"the saved {state!r} is of {dtype} here, and of {flat.dtype} in other parameters of its group"
            raise refusal_of(problem_of(message, name, "Load it with the optimizer that was saved, without ZeRO-3."))
        return self._part(name, flat)

    def refuse_uneven(self, kept: dict[str, dict[str, Any]], shaped: dict[str, set[str]]) -> None:
        """A sub-group has one state: its parameters must have the same numbers, and the same tensors."""
        problems = []
        first: dict[int, str] = {}
        for name, place in self._places.items():
            other = first.setdefault(place.number, name)
            one, two = ((_comparable(kept.get(each, {})), shaped.get(each, set()) - {MASTER}) for each in (name, other))
            if one != two:
                message = f"its steps, or what was kept of it, are others than those of {other!r}, which ZeRO-3 steps with it"
                problems.append(problem_of(message, name, "Load it without ZeRO-3, or with a smaller sub_group_size."))
        if problems:
            raise refusal_of(problems)

    def attach(self, states: dict[str, dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
        for (number, state), flat in self._made.items():
            if state != MASTER:
                self._inner.state[self._flats[number]][state] = flat
        for name, held in states.items():
            flat = self._flats[self._places[name].number]
            for state, value in held.items():
                if state == MASTER:
                    place = self._places[name]
                    flat.detach()[place.begin : place.begin + place.elems].copy_(value.ds_tensor)
                elif not hasattr(value, "ds_tensor"):
                    self._inner.state[flat][state] = value
        for group, saved in zip(self._inner.param_groups, options, strict=True):
            group.update(saved)


def _comparable(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def _stand_in(parameter: Any, partition: torch.Tensor) -> torch.Tensor:
    """A tensor that is shared out as the parameter is, and says so in the same way."""
    made: Any = torch.empty(0, dtype=partition.dtype, device=partition.device)
    made.ds_tensor, made.ds_shape = partition, parameter.ds_shape
    made.ds_process_group = parameter.ds_process_group
    stand_in: torch.Tensor = made
    return stand_in


def _refusals(optimizer: Any) -> Iterator[Problem]:
    if optimizer.swap_optimizer:
        yield problem_of("the optimizer state of ZeRO-3 is on NVMe, which lading does not read", remedy=_SAVE)
    if getattr(optimizer, "zenflow", None):
        yield problem_of("ZenFlow keeps the optimizer state in a way that lading does not support", remedy=_SAVE)
    if getattr(optimizer, "use_muon", False) or getattr(optimizer, "backup_optimizer", None) is not None:
        message = "the optimizer state of ZeRO-3 is kept by several optimizers (Muon, or offload in part)"
        yield problem_of(message, remedy=_SAVE)
    if getattr(optimizer, "offloaded_states", None):
        yield problem_of("DeepSpeed has offloaded its state", remedy="Call engine.reload_states() first.")
    if getattr(optimizer, "dtype", None) == torch.float16:
        yield problem_of("the loss scale of FP16 is not saved", remedy="Train in BF16 or F32, or use save_checkpoint.")
