"""accelerate's offload hooks: a forward pass takes the values of an offloaded tensor from the hook's map, whatever the
module itself holds, so these are the values to judge.

    values = offloaded(parts)                           # by module and attribute, read when they are asked for
    values[id(module), "weight"]()

accelerate is never imported here: all facts are read off the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

Offloaded = dict[tuple[int, str], Callable[[], torch.Tensor]]


def offloaded(parts: Sequence[nn.Module]) -> Offloaded:
    found: Offloaded = {}
    for part in parts:
        for module in part.modules():
            for hook in _hooks(getattr(module, "_hf_hook", None)):
                if getattr(hook, "offload", False) and getattr(hook, "weights_map", None) is not None:
                    found |= dict(_of_hook(module, hook))
    return found


def _hooks(hook: Any) -> Iterator[Any]:
    """A hook, or those of a sequence of them."""
    if hook is None:
        return
    yield hook
    for one in getattr(hook, "hooks", ()):
        yield from _hooks(one)


def _of_hook(module: nn.Module, hook: Any) -> Iterator[tuple[tuple[int, str], Callable[[], torch.Tensor]]]:
    """As `AlignDevicesHook.pre_forward` looks them up: by the name below the module that has the hook."""
    for prefix, owner in module.named_modules() if hook.place_submodules else [("", module)]:
        names = [name for name, value in owner._parameters.items() if value is not None]
        if hook.offload_buffers:
            hidden = owner._non_persistent_buffers_set
            names += [name for name, value in owner._buffers.items() if value is not None and name not in hidden]
        for name in names:
            key = f"{prefix}.{name}" if prefix else name
            yield (id(owner), name), lambda key=key: hook.weights_map[key].detach()
