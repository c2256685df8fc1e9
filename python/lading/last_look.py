"""The last look at a model before a load is called done: is it still the model that was planned for?

Between the inventory and the commit other code runs: recipes and initialisers of the user's, other threads. What they
change would be loaded past. So the model is walked once more, and must hold the same tensors under the same names, in
the memory that was planned; and nothing on meta may be left in a place that no load fills. A difference fails the load
on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from .errors import LadingError, Problem
from .fsdp1 import FlatMember
from .inventory import EXTRA_STATE, Entry, canonical_modules, tensors_of
from .patterns import matches
from .placements import is_memory, local_of
from .reach import stranded


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
        message = "it is on meta, in a place that no load fills"
        remedy = "Register it as a buffer, hold it in a list, dict or dataclass of its module, or name it in keep."
        yield Problem("skeleton", message, tensor=name, rule="R11", remedy=remedy)


class LastLook:
    """What a model held when its load was planned. `excused`: patterns of tensors that may stay on meta."""

    def __init__(self, parts: Sequence[nn.Module], entries: Sequence[Entry], excused: Sequence[str]) -> None:
        self._parts, self._entries, self._excused = parts, entries, excused
        self._before = {entry.name: _state(entry.value) for entry in entries if entry.kind != EXTRA_STATE}

    def refuse_changes(self, *, has_written: bool) -> None:
        """To be called when everything is loaded, before the commit."""
        filled = {id(entry.value) for entry in self._entries}
        left: list[Problem] = []
        same = others = 0
        for part in self._parts:
            modules = canonical_modules(part)  # once for both questions
            for name, value in tensors_of(modules):  # nothing is collected here: it would wake the garbage collector
                if self._before.get(name) == _state(value):
                    same += 1
                else:
                    others += 1
            left += _stranded(modules, filled, self._excused, set())
        problems = [] if same == len(self._before) and not others else list(self._changes())
        known = {problem.tensor for problem in problems}
        problems += [problem for problem in left if problem.tensor not in known]
        if problems:
            raise LadingError(problems, stage="loading", begun=has_written, exit_code=5)

    def refuse_meta(self) -> None:
        """To be called when the model has its memory."""
        left = [entry.name for entry in self._entries if entry.is_meta]
        if left:
            problems = [Problem("incomplete", "it is still on meta after the load", tensor=name) for name in left]
            raise LadingError(problems, stage="loading", begun=True, exit_code=5)

    def _changes(self) -> Iterator[Problem]:
        now = {name: _state(value) for part in self._parts for name, value in tensors_of(canonical_modules(part))}
        for name, before in self._before.items():
            after = now.pop(name, None)
            if after != before:
                message = "the tensor was taken out of the model" if after is None else "the tensor was replaced"
                yield _changed(name, message)
        for name in now:
            yield _changed(name, "the tensor was added")


_PLAIN = (nn.Parameter, torch.Tensor)


def _changed(name: str, message: str) -> Problem:
    remedy = "Change the model before the load, not in a recipe or in another thread."
    return Problem("incomplete", f"{message} while the model was being loaded", tensor=name, rule="R61", remedy=remedy)


def _state(value: torch.Tensor) -> tuple[object, ...]:
    """What must stay as it is: the object, its shape and placements, and where its memory is. FSDP1's members are made
    anew each time that they are asked for; their unit and place in it stay."""
    if type(value) in _PLAIN and value.layout is torch.strided:
        return id(value), value.shape, 0 if value.is_meta else value.data_ptr()
    local = local_of(value)
    memory = local.data_ptr() if not local.is_meta and is_memory(value) else 0
    if isinstance(value, FlatMember):
        return id(value.unit.handle), value.offset, tuple(value.shape), memory
    placements = getattr(value, "placements", None)
    return id(value), tuple(value.shape), tuple(local.shape), placements, memory
