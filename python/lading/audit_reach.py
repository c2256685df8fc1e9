"""Tensors that a model reaches beside those of the inventory: in dataclasses, other objects, and containers of any
depth.

    for name, tensor in reached(module):
        print(name, tensor.device)                      # held.tensor, cache['a'][0][1]
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_DEPTH = 64
_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType, torch.dtype)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_CONTAINERS = (dict, collections.OrderedDict, collections.defaultdict, *_SEQUENCES)
# Objects of these packages are frameworks' own state: what they hold on meta is their affair.
_FRAMEWORKS = ("torch", "deepspeed", "accelerate", "transformers", "peft", "lading", "numpy", "builtins", "functools", "collections")


def reached(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in a module's own attributes, not those of its children. An object is visited once."""
    seen: set[int] = set()
    for name, value in vars(module).items():
        if name not in _EVERY_MODULE and not name.endswith("_hooks"):
            yield from _walk(name, value, seen, _DEPTH)


def _walk(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if isinstance(value, (*_PLAIN, nn.Module)) or id(value) in seen or not depth:
        return
    if type(value) not in _CONTAINERS and type(value).__module__.partition(".")[0] in _FRAMEWORKS:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        items = [(f"{name}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, _SEQUENCES):
        items = [(f"{name}[{place}]", item) for place, item in enumerate(value)]
    else:
        items = [(f"{name}.{key}", item) for key, item in _attributes(value)]
    for inner, item in items:
        yield from _walk(inner, item, seen, depth - 1)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                yield slot, getattr(value, slot)
