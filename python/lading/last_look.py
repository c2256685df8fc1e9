"""The last look at a model before a load is called done: is it still the model that was planned for?

Between the inventory and the commit other code runs: recipes and initialisers of the user's, other threads. What they
change would be loaded past. So the model is walked once more, and must hold the same tensors under the same names, in
the memory that was planned; and nothing on meta may be left in a place that no load fills. A difference fails the load
on all ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from .errors import LadingError, Problem
from .fsdp1 import FlatMember, flat_members
from .inventory import EXTRA_STATE, Entry, canonical_modules, tensors_of
from .patterns import matches
from .placements import is_memory, local_of
from .reach import has_fields, stranded


def refuse_stranded(parts: Sequence[nn.Module], entries: Iterable[Entry], excused: Sequence[str]) -> list[str]:
    """Tensors on meta that the model reaches and the load does not fill are refused, but for those that match a
    pattern. Returns the patterns that excused one."""
    filled = {id(entry.value) for entry in entries}
    used: set[str] = set()
    problems = [
        problem for part in parts for problem in _stranded(canonical_modules(part), filled, excused, used)
    ]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
    return sorted(used)


def _stranded(
    modules: Sequence[tuple[str, nn.Module]], filled: set[int], excused: Sequence[str], used: set[str]
) -> Iterator[Problem]:
    for name, _ in stranded(modules, filled):
        if found := [pattern for pattern in excused if matches(pattern, name)]:
            used |= set(found)
            continue
        message = "the tensor is on meta, and lading cannot fill it where it is held"
        remedy = "Register it as a buffer, hold it in a list, dict or dataclass of its module, or name it in keep."
        yield Problem("skeleton", message, tensor=name, rule="R11", remedy=remedy)


class LastLook:
    """What a model held when its load was planned. `excused`: patterns of tensors that may stay on meta."""

    def __init__(self, parts: Sequence[nn.Module], entries: Sequence[Entry], excused: Sequence[str]) -> None:
        self._parts, self._entries, self._excused = parts, entries, excused
        self._before = [_Held(canonical_modules(part)) for part in parts]
        # Other code may have run since the inventory: get_extra_state, threads.
        now: dict[str, object] = {}
        for part in self._before:
            part.add_identities(now)
        then = {
            entry.name: id(entry.value) if type(entry.value) in _PLAIN else _identity(entry.value)
            for entry in entries
            if entry.kind != EXTRA_STATE
        }
        if now != then:
            changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
            _refuse([_changed(name, "the tensor was changed") for name in changed], has_written=False)

    def refuse_changes(self, *, has_written: bool) -> None:
        """To be called when everything is loaded, before the commit."""
        filled = {id(entry.value) for entry in self._entries}
        left: list[Problem] = []
        problems: list[Problem] = []
        for part, before in zip(self._parts, self._before, strict=True):
            now = _Held(canonical_modules(part))
            if not now.is_as(before):
                problems += _changes(before.states(), now.states())
            if now.may_be_stranded:
                left += _stranded(now.modules, filled, self._excused, set())
        known = {problem.tensor for problem in problems}
        _refuse(problems + [problem for problem in left if problem.tensor not in known], has_written=has_written)

    def refuse_meta(self) -> None:
        """To be called when the model has its memory."""
        left = [entry.name for entry in self._entries if entry.is_meta]
        if left:
            message, remedy = "the tensor is still on meta after the load", "Please report this bug in lading."
            problems = [Problem("incomplete", message, tensor=name, remedy=remedy) for name in left]
            raise LadingError(problems, stage="loading", begun=True, exit_code=5)


class _Held:
    """What the modules of a part hold, in the order of the walk. Most tensors are in the tables of plain modules: they
    are compared as whole lists, without a name or a tuple for each, which every load would wait for."""

    def __init__(self, modules: list[tuple[str, nn.Module]]) -> None:
        self.modules = modules
        tables = [table for _, module in modules for table in (module._parameters, module._buffers)]
        self.counts = [*map(len, tables)]  # of which module the tensors are
        self.keys = [*itertools.chain.from_iterable(table.keys() for table in tables)]  # a scripted module's are no dicts
        self.tensors = [*itertools.chain.from_iterable(table.values() for table in tables)]
        there = [tensor for tensor in self.tensors if tensor is not None]
        self.memory = _places(there)
        self.shapes = [*map(_SHAPE, there)]
        self.forms = _forms(there, self.memory)
        self.is_flat = bool(flat_members(modules))  # then FSDP1's members count, not what the tables hold
        others = modules if self.is_flat else [one for one in modules if has_fields(one[1])]
        self.others = {name: _state(value) for name, value in tensors_of(others)} if others else {}
        self.may_be_stranded = bool(others) or any(tensor.is_meta for tensor in there)

    def is_as(self, before: _Held) -> bool:
        """Whether nothing has changed."""
        if self.modules != before.modules or self.others != before.others:
            return False
        return self.is_flat or (
            self.counts == before.counts
            and self.keys == before.keys
            and [*map(id, self.tensors)] == [*map(id, before.tensors)]
            and self.memory == before.memory
            and self.shapes == before.shapes
            and self.forms == before.forms
        )

    def add_identities(self, found: dict[str, object]) -> None:
        """By name: which object it is."""
        found.update((name, state[0]) for name, state in self.others.items())
        begin = 0
        for at, count in enumerate(() if self.is_flat else self.counts):
            if not count:
                continue
            dot = f"{prefix}." if (prefix := self.modules[at // 2][0]) else ""
            end = begin + count
            for key, tensor in zip(self.keys[begin:end], self.tensors[begin:end], strict=True):
                if tensor is not None:
                    found[dot + key] = id(tensor)
            begin = end

    def states(self) -> dict[str, tuple[object, ...]]:
        """By name, one by one: this says what has changed."""
        found = dict(self.others)
        places = zip(self.memory, self.shapes, self.forms, strict=True)
        rows = zip(self.keys, self.tensors, strict=True)
        for at, count in enumerate(() if self.is_flat else self.counts):
            prefix = self.modules[at // 2][0]
            for key, tensor in itertools.islice(rows, count):
                if tensor is not None:
                    found[f"{prefix}.{key}" if prefix else key] = (id(tensor), *next(places))
        return found


def _places(tensors: list[torch.Tensor]) -> list[object]:
    """Where the memory of each is."""
    if _PLAIN.issuperset(map(type, tensors)):
        with contextlib.suppress(RuntimeError):  # a sparse one has no memory of its own
            return [tensor.data_ptr() for tensor in tensors]
    return [*map(_state, tensors)]


def _forms(tensors: list[torch.Tensor], memory: list[object]) -> list[object]:
    """How the elements of existing memory lie: values are written by strides and bits that were planned for."""
    if not any(memory):
        return [None] * len(tensors)  # all on meta: their memory is yet to come
    is_plain = isinstance(memory[0], int)
    if is_plain and all(map(_CONTIGUOUS, tensors)) and not any(map(_NEG, tensors)) and not any(map(_CONJ, tensors)):
        return [*map(_DTYPE, tensors)]
    return [_form(tensor) if place else None for tensor, place in zip(tensors, memory, strict=True)]


def _form(tensor: torch.Tensor) -> object:
    if tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
        return tensor.dtype
    if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor.dtype
    return tensor.dtype, tensor.stride(), tensor.is_neg(), tensor.is_conj()


def _identity(value: torch.Tensor) -> int:
    return id(value.unit.handle) if isinstance(value, FlatMember) else id(value)


def _changes(old: dict[str, tuple[object, ...]], now: dict[str, tuple[object, ...]]) -> Iterator[Problem]:
    for name, before in old.items():
        after = now.pop(name, None)
        if after != before:
            yield _changed(name, "the tensor was taken out of the model" if after is None else "the tensor was replaced")
    for name in now:
        yield _changed(name, "the tensor was added")


def _refuse(problems: list[Problem], *, has_written: bool) -> None:
    if problems:
        raise LadingError(problems, stage="loading", begun=has_written, exit_code=5)


_PLAIN = frozenset((nn.Parameter, torch.Tensor))
_SHAPE, _DTYPE = operator.attrgetter("shape"), operator.attrgetter("dtype")
_CONTIGUOUS, _NEG, _CONJ = torch.Tensor.is_contiguous, torch.Tensor.is_neg, torch.Tensor.is_conj


def _changed(name: str, message: str) -> Problem:
    remedy = "Change the model before the load, not in a recipe or in another thread."
    return Problem("incomplete", f"{message} while the model was being loaded", tensor=name, rule="R61", remedy=remedy)


def _state(value: torch.Tensor) -> tuple[object, ...]:
    """What must stay as it is: the object, its shape and placements, and where its memory is. FSDP1's members are made
    anew each time that they are asked for; their unit and place in it stay."""
    if type(value) in _PLAIN and value.layout is torch.strided:
        memory = 0 if value.is_meta else value.data_ptr()
        return id(value), memory, value.shape, _form(value) if memory else None
    local = local_of(value)
    memory = local.data_ptr() if not local.is_meta and is_memory(value) else 0
    if isinstance(value, FlatMember):
        return _identity(value), value.offset, tuple(value.shape), memory
    placements = getattr(value, "placements", None)
    return id(value), tuple(value.shape), tuple(local.shape), placements, memory
