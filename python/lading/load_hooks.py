"""Code of a module's own that `load_state_dict` or `state_dict` would run, and a load of lading's does not.

A module may transpose, scale or rename what a file holds: by hooks, or by overriding the methods that read and write
its state. lading takes the checkpoint's tensors as they are. So it refuses such a module by name, unless the code is
known to leave values alone where every key is there: torch's own hooks, those of wrappers, those of transformers, whose
`from_pretrained` does not run them either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from .errors import Problem
from .holders_common import Seen
from .inventory import BUFFER, PARAMETER

_METHODS = ("_load_from_state_dict", "load_state_dict", "_save_to_state_dict", "state_dict")
_HOOKS = {
    "_load_state_dict_pre_hooks": "a hook that runs before load_state_dict",
    "_load_state_dict_post_hooks": "a hook that runs after load_state_dict",
    "_state_dict_hooks": "a hook that changes what state_dict returns",
    "_state_dict_pre_hooks": "a hook that runs before state_dict",
}
# Modules of Python whose code of this kind is known, and what it does.
_HARMLESS = (
    "torch.nn.modules.module",
    "torch.nn.modules.batchnorm",  # counts batches from zero where a file of an older version does not
    "torch.nn.modules.instancenorm",  # tells of statistics that the module does not track
    "torch.nn.modules.lazy",  # shapes; what has none yet is refused anyway
    "torch.nn.utils.parametrizations",  # renames keys of the older weight norm
    "torch.nn.utils.spectral_norm",  # computes a vector that files of an older version do not have
    "torch.jit",
    "torch._dynamo",
    "torch.distributed.fsdp",  # shards what was gathered, and names
    "torch.distributed._composable",
    "torch.distributed.algorithms._checkpoint",  # names
    "peft.tuners.lora.layer",  # registers weights again that a forward pass took away
    "transformers",  # names; from_pretrained does not run it
)
_DECORATORS = ("torch.utils._contextlib", "contextlib", "torch._dynamo.decorators")  # @torch.no_grad() and the like
_REMEDY = (
    "Remove it before the load if the file has the tensors as the module does, or pass the module's tensors in "
    "external= or recipes=."
)


def load_hooks(seen: Seen) -> Iterator[Problem]:
    """A problem for each hook and override of a module with parameters or persistent buffers, its own or below it."""
    for name, module, found in hooked(seen):
        where = f"the module {name!r}" if name else "the model itself"
        for what in found:
            message = f"{where} ({type(module).__name__}) has {what}, which lading does not run"
            yield Problem("hooks", message, remedy=f"{_REMEDY}.")


def hooked(seen: Seen, *, without_tensors: bool = False) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """Modules with such code, each with its name and what it has. `without_tensors`: those too that have neither
    parameters nor buffers, whose code may write other things, such as a packed weight."""
    plain = {kind for kind in seen.kinds if not _class_overrides(kind)}
    for name, module in seen.modules:
        own = module.__dict__
        if type(module) in plain and not any(map(own.get, _HOOKS)) and not any(method in own for method in _METHODS):
            continue
        found = [*_overrides(module), *_hooks(module)]
        if found and (without_tensors or _reads_files(module, seen)):
            yield name, module, found


def _reads_files(module: nn.Module, seen: Seen) -> bool:
    below = {id(one) for one in module.modules()}
    return any(
        entry.kind in (PARAMETER, BUFFER) and id(entry.module) in below and not seen.is_spoken_for(entry.name)
        for entry in seen.entries
    )


def _overrides(module: nn.Module) -> Iterator[str]:
    yield from _class_overrides(type(module))
    for name in _METHODS:
        if name in vars(module) and not _is_harmless(vars(module)[name]):
            yield f"a {name} of its own"


@functools.lru_cache(maxsize=4096)
def _class_overrides(kind: type) -> tuple[str, ...]:
    return tuple(
        f"an override of {name} in {base.__name__}"
        for base in kind.__mro__
        for name in _METHODS
        if name in vars(base) and not _is_harmless(vars(base)[name])
    )


def _hooks(module: nn.Module) -> Iterator[str]:
    for registered, what in _HOOKS.items():
        for hook in module.__dict__.get(registered, {}).values():
            if not _is_harmless(hook):
                yield what


def _written_in(code: Any) -> str:
    """The module of Python that a function's code is in. `functools.wraps` copies __module__ of what it wraps."""
    return str(getattr(code, "__globals__", {}).get("__name__", ""))


def _is_harmless(code: Any) -> bool:
    """By where it was written: a function's module, or that of the class whose instance is called."""
    while True:
        if isinstance(code, functools.partial):
            code = code.func
        elif isinstance(code, (staticmethod, classmethod)) or type(code).__name__ == "_WrappedHook":  # torch's
            code = getattr(code, "__func__", None) or getattr(code, "hook", None)
        else:
            break
    code = getattr(code, "__func__", code)
    while _written_in(code) in _DECORATORS and hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    if hasattr(code, "__globals__"):
        where: Any = _written_in(code)
    else:
        where = getattr(code, "__module__", None) if hasattr(code, "__qualname__") else type(code).__module__
    return isinstance(where, str) and any(where == one or where.startswith(f"{one}.") for one in _HARMLESS)
