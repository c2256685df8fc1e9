"""Modules that stand in for others while an initialiser runs on them: they share nothing with the model that could be
written.

Fields are copied as far as they are containers, dataclasses, generators or plain data, whatever these hold; tensors are
replaced. Other objects (functions, process groups, objects with tensors of their own) stay the model's.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, type)
_CONTAINERS = (list, dict, set, frozenset, tuple, collections.deque)
_DEPTH = 8  # of plain data: a config in a config


class Copier:
    """Copies fields, each object once: names of one list stay names of one list.

    Args:
        module: gives the stand-in of a module.
        tensor: gives the stand-in of a tensor.
    """

    def __init__(self, module: Callable[[nn.Module], nn.Module], tensor: Callable[[torch.Tensor], Any]) -> None:
        self._module, self._tensor = module, tensor
        self._made: dict[int, tuple[Any, Any]] = {}  # with the original, whose id must stay its own

    def of(self, value: Any) -> Any:
        if isinstance(value, _ATOMS):
            return value
        if id(value) not in self._made:
            self._made[id(value)] = (value, self._copied(value))
        return self._made[id(value)][1]

    def _copied(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Generator):
            return _generator_like(value)
        if isinstance(value, tuple):
            items = [self.of(item) for item in value]
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, _CONTAINERS):
            return self._filled(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
            return self._object(value)
        if not _is_data(value, set()):
            return value
        with contextlib.suppress(Exception):  # a class that forbids it
            return copy.deepcopy(value)
        return value

    def _filled(self, value: Any) -> Any:
        """A container of the same kind. It is known before its items are, for it may hold itself."""
        if isinstance(value, frozenset):
            return value
        made: Any = {} if isinstance(value, dict) else set() if isinstance(value, set) else []
        if type(value) is not type(made):
            try:
                made = copy.copy(value)
                made.clear()
            except Exception:  # noqa: BLE001  # a class of the user's that cannot be copied: a plain one will do
                made = {} if isinstance(value, dict) else set() if isinstance(value, set) else []
        self._made[id(value)] = (value, made)
        if isinstance(value, dict):
            for key, item in list(value.items()):
                made[key] = self.of(item)
        elif isinstance(value, set):
            made.update(value)  # what has a hash is not changed
        else:
            made.extend([self.of(item) for item in value])
        return made

    def _object(self, value: Any) -> Any:
        made = object.__new__(type(value))
        self._made[id(value)] = (value, made)
        made.__dict__.update({name: self.of(field) for name, field in vars(value).items()})
        return made


def _generator_like(generator: torch.Generator) -> torch.Generator:
    made = torch.Generator(generator.device)
    made.set_state(generator.get_state())
    return made


def _is_data(value: Any, seen: set[int], depth: int = _DEPTH) -> bool:
    """Whether an object is numbers and names all the way down, as a config is."""
    if isinstance(value, _ATOMS) or id(value) in seen:
        return True
    if depth == 0 or isinstance(value, (nn.Module, torch.Tensor, types.ModuleType, types.FunctionType)):
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        return all(_is_data(item, seen, depth - 1) for item in (*value.keys(), *value.values()))
    if isinstance(value, _CONTAINERS):
        return all(_is_data(item, seen, depth - 1) for item in value)
    fields = getattr(value, "__dict__", None)
    return type(fields) is dict and _is_data(fields, seen, depth - 1)
