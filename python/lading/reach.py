"""Tensors that a module holds without registering them, and tensors that it reaches in any other way.

    for name, tensor in attributes(module):         # "_flat_weights[0]", "tables['cos']", "cache.keys"
        ...
    for name, tensor in stranded(modules, known):   # on meta, in a place that no inventory looks at
        ...

`attributes` looks into lists, tuples, dicts and dataclasses, however deep: what it finds is part of the model, and is
filled. `stranded` looks into everything else too: objects, sets, modules that hang in a list. Nothing fills tensors
there, so one that is on meta there after a load would be a model that looks loaded and is not.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch import nn

# Attributes of every module: they hold what is registered, and hooks. torch has hooks in further ones.
_EVERY_MODULE = frozenset(vars(nn.Module()))
_BARE = frozenset((int, float, bool, str, type(None)))  # what most attributes are
# Objects of these packages are the machinery of a framework: their tensors are filled, or told, by name.
_MACHINERY = ("torch", "deepspeed", "accelerate", "numpy")
_STATE = "torch.distributions"  # but these hold tensors of the model


def attributes(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a module's own attributes, by the expression that leads to them. Each container is walked once."""
    if fields := _own_fields(module):
        seen: set[int] = set()
        for name, value in fields:
            if not _holds_no_tensor(type(value)):
                yield from _tensors_in(name, value, seen)


def has_fields(module: nn.Module) -> bool:
    """Whether attributes of its own may lead to a tensor."""
    own = vars(module)
    for name in own.keys() - _EVERY_MODULE:
        if type(own[name]) not in _BARE and not _is_bare(type(own[name])):
            return True
    return bool(_slots(type(module)))


def _own_fields(module: nn.Module) -> list[tuple[str, Any]]:
    """Its attributes that may lead to a tensor. Most modules have none, and every load asks each module twice."""
    if not has_fields(module):
        return []
    own = vars(module)
    fields = [(name, value) for name, value in own.items() if name not in _EVERY_MODULE and not _is_bare(type(value))]
    is_traced = isinstance(module, torch.fx.GraphModule)  # what a tracer saw is no state of the model
    return [
        (name, value) for name, value in fields
        if not (name.endswith("_hooks") and isinstance(value, dict)) and not (is_traced and name == "meta")
    ]  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _is_bare(kind: type) -> bool:
    return _is_leaf(kind) and _holds_no_tensor(kind)


@functools.lru_cache(maxsize=4096)
def _holds_no_tensor(kind: type) -> bool:
    return not issubclass(kind, (torch.Tensor, list, tuple, dict)) and not _is_dataclass(kind)


@functools.lru_cache(maxsize=4096)
def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not issubclass(kind, nn.Module) and not _is_machinery(kind)


@functools.lru_cache(maxsize=4096)
def _is_machinery(kind: type) -> bool:
    """Also classes that are derived from one of these packages, such as an optimizer of the user's."""
    homes = [base.__module__ for base in kind.__mro__ if not base.__module__.startswith(_STATE)]
    return not issubclass(kind, nn.Module) and any(home.partition(".")[0] in _MACHINERY for home in homes)


def _tensors_in(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif not _holds_no_tensor(type(value)) and id(value) not in seen:
        seen.add(id(value))
        for label, item in _items(value):
            yield from _tensors_in(name + label, item, seen)


def _items(container: Any) -> Iterator[tuple[str, Any]]:
    """What a list, tuple, dict or dataclass holds. A copy is walked: others may change it meanwhile."""
    if isinstance(container, (list, tuple)):
        yield from ((f"[{place}]", item) for place, item in enumerate(list(container)))
    elif isinstance(container, dict):
        yield from ((f"[{key!r}]", item) for key, item in list(container.items()))
    if dataclasses.is_dataclass(container):
        yield from _fields(container)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds in its dict and its slots. Properties are not asked: they may compute, or raise."""
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        yield from ((f".{name}", item) for name, item in list(fields.items()))
    for name in _slots(type(value)):
        if (item := getattr(value, name, None)) is not None:
            yield f".{name}", item


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


# ---- everything else


def stranded(
    modules: Iterable[tuple[str, nn.Module]], known: Collection[int]
) -> list[tuple[str, torch.Tensor]]:
    """Tensors on meta that the modules of a model reach, by name, less those whose ids are known."""
    modules = {id(module): (prefix, module) for prefix, module in modules}
    walk = _Walk(modules, known)
    for prefix, module in modules.values():
        walk.module(prefix, module)
    return walk.found


class _Walk:
    """One walk over all that a model reaches. Every object is looked at once."""

    def __init__(self, modules: Collection[int], known: Collection[int]) -> None:
        self._modules, self._known = modules, set(known)
        self._seen: set[int] = set()
        self.found: list[tuple[str, torch.Tensor]] = []

    def module(self, prefix: str, module: nn.Module) -> None:
        dot = f"{prefix}." if prefix else ""
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.is_meta:
                    self._tensor(dot + name, tensor)
        for name, value in _own_fields(module):
            self._value(dot + name, value)
        for name in _slots(type(module)):  # no inventory looks there
            self._value(dot + name, getattr(module, name, None))

    def _tensor(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_meta or id(tensor) in self._known or id(tensor) in self._seen:
            return
        if not type(tensor).__module__.startswith("torch._subclasses"):  # a tracer's
            self._seen.add(id(tensor))
            self.found.append((name, tensor))

    def _value(self, name: str, value: Any) -> None:
        waiting = [(name, value)]
        while waiting:
            name, value = waiting.pop()
            kind = type(value)
            if isinstance(value, torch.Tensor):
                self._tensor(name, value)
            elif not _is_leaf(kind) and id(value) not in self._seen and id(value) not in self._modules:
                self._seen.add(id(value))
                waiting.extend((name + label, item) for label, item in _everything_in(value))


@functools.lru_cache(maxsize=4096)
def _is_leaf(kind: type) -> bool:
    """Whether objects of this class lead to no tensor of the model."""
    plain = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, weakref.ref)
    code = (types.FunctionType, types.BuiltinFunctionType, types.CodeType)
    # A traced module that is no child is the code of one: its tensors are the child's.
    return issubclass(kind, (*plain, *code, torch.fx.GraphModule)) or _is_machinery(kind)


def _everything_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        for name, tensor in (*value._parameters.items(), *value._buffers.items(), *value._modules.items()):
            yield f".{name}", tensor
        yield from ((f".{name}", item) for name, item in _own_fields(value))
        return
    if isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        return
    if isinstance(value, functools.partial):
        value = {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, types.MappingProxyType):
        value = dict(value)
    if isinstance(value, (set, frozenset)):
        yield from (("{…}", item) for item in list(value))
    elif isinstance(value, (list, tuple, dict)):
        yield from _items(value)
    elif type(value).__module__ == "collections" and hasattr(value, "__iter__"):
        yield from ((f"[{place}]", item) for place, item in enumerate(list(value)))
    yield from _fields(value)
