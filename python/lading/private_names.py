"""Whether a library still has the private names that the front uses (private_tables.py).

    check("torch", "FSDP2")         # LibraryError if a name is gone, or a signature is another; once per process
    needed(state, "_fsdp_param_groups", "torch")        # the same for an attribute of an object

A library is looked at when the front first meets it: torch when the front is imported, the others when a model has a
module, tensor or hook of theirs. The error names every name that is missing and the versions that work. Nothing is
guessed: FSDP2's units, for example, are either found or refused, and never taken for absent.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from .errors import LadingError, Problem
from .private_tables import TABLES, Name, Table


class LibraryError(LadingError, ImportError):
    """A library does not have the private names that the front uses."""


# Classes by whose names it shows that a model uses a library, or a part of it.
_SIGNS = {
    "DTensor": ("torch", "DTensor"),
    "FSDPModule": ("torch", "FSDP2"),
    "FullyShardedDataParallel": ("torch", "FSDP1"),
    "OptimizedModule": ("torch", "compile"),
    "ActivationWrapper": ("torch", "activation checkpointing"),
    "DistributedDataParallel": ("torch", "DDP"),
    "PeftModel": ("peft", ""),
    "BaseTunerLayer": ("peft", ""),
    "AuxiliaryTrainingWrapper": ("peft", ""),
}
_checked: set[tuple[str, str]] = set()
_STORE = dis.opmap["STORE_ATTR"]


def check(library: str, part: str = "") -> None:
    """LibraryError unless the library has all names of this part of its table. Looks once."""
    if (library, part) in _checked:
        return
    table = TABLES[library]
    problems = [problem for name in table.parts[part] if (problem := _problem(table, name)) is not None]
    if problems:
        raise LibraryError(problems, stage="documents", exit_code=4)
    _checked.add((library, part))


def check_model(modules: Iterable[Any], tensors: Iterable[Any] = ()) -> None:
    """Checks every library that these modules and tensors show signs of."""
    for one in modules:
        _check_class(type(one))
        if "forward" in one.__dict__ and "accelerate.hooks" in sys.modules:  # accelerate's hooks replace it
            check("accelerate")
    for one in tensors:
        _check_class(type(one))
    if "torch.distributed.optim.apply_optimizer_in_backward" in sys.modules:
        check("torch", "optimizer in backward")
    comm = sys.modules.get("deepspeed.comm.comm")  # imported, as PEFT does it, is not in use
    if comm is not None and getattr(comm, "cdb", comm) is not None:
        check("deepspeed")


def needed(value: Any, name: str, library: str) -> Any:
    """An attribute that an object of this library has in every version that the front works with."""
    try:
        return getattr(value, name)
    except AttributeError:
        table = TABLES[library]
        known = next((one for part in table.parts.values() for one in part if one.path.endswith(f".{name}")), None)
        kind = f"{type(value).__module__}:{type(value).__qualname__}.{name}"
        problem = _refused(table, Name(kind, known.why if known is not None else "fill this model"), "has no")
        raise LibraryError(problem, stage="documents", exit_code=4) from None


def version_of(library: str) -> str:
    return str(getattr(importlib.import_module(library), "__version__", "of an unknown version"))


def is_of_version(library: str, name: Name) -> bool:
    """Whether the installed version should have the name."""
    there = _numbers(version_of(library))
    return not (name.since and there < _numbers(name.since)) and not (name.before and there >= _numbers(name.before))


def difference(name: Name) -> tuple[str, str]:
    """What is wrong with a name: "has no", or "changed the parameters of" and what they are now. "" if nothing is."""
    module, _, path = name.path.partition(":")
    *owners, last = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for one in owners:
            owner = _Anywhere(owner) if one == "()" else getattr(owner, one)
    except (ImportError, AttributeError):
        return "has no", ""
    if not _has(owner, last):
        return "has no", ""
    found = _parameters(getattr(owner, last, None)) if name.parameters else None
    if found is not None and tuple(found[: len(name.parameters)]) != name.parameters:
        return "changed the parameters of", ", ".join(found)
    return "", ""


@dataclasses.dataclass(frozen=True)
class _Anywhere:
    """All code of a module."""

    module: types.ModuleType

    def __getattr__(self, name: str) -> Any:
        """Of names that the module holds as the value of a constant."""
        if any(type(one) is str and one == name for one in vars(self.module).values()):
            return name
        raise AttributeError(name)


def _problem(table: Table, name: Name) -> Problem | None:
    if name.otherwise or not is_of_version(table.library, name):
        return None
    what, found = difference(name)
    return _refused(table, name, what, found) if what else None


def _refused(table: Table, name: Name, what: str, found: str = "") -> Problem:
    shown = name.path.replace(":().", ":").replace(":", ".")
    return Problem(
        f"{table.library}_version",
        f"{table.library} {version_of(table.library)} {what} {shown}, which lading needs to {name.why}",
        expected=", ".join(name.parameters) if found else "",
        found=found,
        remedy=f"Install {table.library} {table.versions}, which this lading works with, or a newer lading "
        "(docs/reference/compatibility.md).",
    )


@functools.lru_cache(maxsize=4096)
def _check_class(cls: type) -> None:
    for base in cls.__mro__:
        sign = _SIGNS.get(base.__name__)
        if sign is not None and base.__module__.split(".")[0] == sign[0]:
            check(*sign)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:2])


def _parameters(function: Any) -> list[str] | None:
    """Without self. None of what does not say."""
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return found[1:] if found[:1] in (["self"], ["cls"], ["_cls"]) else found


def _has(owner: Any, name: str) -> bool:
    """Whether it has the attribute, or its code gives it to objects."""
    if hasattr(owner, name):
        return True
    if isinstance(owner, type) and any(name in vars(base).get("__annotations__", ()) for base in owner.__mro__):
        return True
    return any(_gives(code, name) for code in _codes(owner))


def _codes(owner: Any) -> Iterator[types.CodeType]:
    """The code of a function, of a class, or of a whole module if the path says so (`_Anywhere`)."""
    if isinstance(owner, type):
        members: Iterable[Any] = (one for base in owner.__mro__ for one in vars(base).values())
    else:
        members = vars(owner.module).values() if isinstance(owner, _Anywhere) else (owner,)
    for one in members:
        if isinstance(one, type):
            if isinstance(owner, _Anywhere) and one.__module__ == owner.module.__name__:
                yield from _codes(one)
            continue
        if isinstance(one, (property, classmethod, staticmethod)):
            one = one.fget if isinstance(one, property) else one.__func__
        code = getattr(inspect.unwrap(one), "__code__", None) if callable(one) else None
        if isinstance(code, types.CodeType):
            yield code


def _gives(code: types.CodeType, name: str) -> bool:
    """Whether it sets an attribute of this name, functions inside it too. What it only reads somebody else must set."""
    if name in code.co_names and code.co_names.index(name) in _stored(code):
        return True
    is_set = "setattr" in code.co_names or "__setattr__" in code.co_names
    inside = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return (is_set and name in code.co_consts) or any(_gives(one, name) for one in inside)


def _stored(code: types.CodeType) -> Iterator[int]:
    """Places in co_names of the attributes that are set. `dis` would tell too, in fifty times the time."""
    high = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation == dis.EXTENDED_ARG:
            high = (high | argument) << 8
            continue
        if operation == _STORE:
            yield high | argument
        high = 0
