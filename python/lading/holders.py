"""Copies and flags that others keep of what a load fills: optimizers, wrappers, hooks and caches.

A load that fills a parameter is worth nothing if the next forward pass or optimizer step uses somebody's older copy of
it. `HOLDERS` lists everyone who is known to keep one. A holder is recognised by facts about modules, parameters and
optimizers, never by a model's name. Its copy is either refreshed once everything is loaded, or the load is refused
before anything is written. docs/guides/wrappers.md has the same list for users; each holder names its tests.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import holders_deepspeed
from .errors import LadingError, Problem
from .holders_common import Refresh, Seen, problem
from .inventory import PARAMETER, Entry, canonical_modules, is_sharded
from .load_hooks import load_hooks

_OPTIMIZER_REMEDY = "Load before the optimizer is built"
_OFFLOAD_REMEDY = (
    "Load first and offload afterwards, or call accelerate.hooks.remove_hook_from_module(model, recurse=True) first"
)


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who keeps what of a load. `find` yields a problem where the copy cannot be refreshed, and otherwise how it is."""

    what: str
    find: Callable[[Seen], Iterable[Problem | Refresh]]
    tests: tuple[str, ...]  # names of cases in test_holders.py and holders_worker.py


def find(
    parts: Sequence[nn.Module], entries: Sequence[Entry], device: torch.device, spoken_for: Sequence[str]
) -> list[Refresh]:
    """What to call once these parts are loaded on this device. LadingError where somebody's copy would stay stale, or
    where a module has code for loading that lading does not run (load_hooks.py)."""
    seen = seen_in(parts, entries, device, spoken_for)
    found = [one for holder in HOLDERS for one in holder.find(seen)]
    problems = [*(one for one in found if isinstance(one, Problem)), *load_hooks(seen)]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
    return [one for one in found if not isinstance(one, Problem)]


def seen_in(
    parts: Sequence[nn.Module], entries: Sequence[Entry], device: torch.device, spoken_for: Sequence[str] = ()
) -> Seen:
    modules: dict[int, tuple[str, nn.Module]] = {}
    for part in parts:
        for name, module in canonical_modules(part):
            modules.setdefault(id(module), (name, module))
    return Seen(list(modules.values()), entries, device, spoken_for)


# ---- torch


def _hooks_that_compute(seen: Seen) -> Iterator[Refresh]:
    """Weight norm, spectral norm and pruning of the old style compute an attribute before each forward pass. Others
    read it before that: an RNN's list of weights, attention's `out_proj.weight`."""
    from torch.nn.utils import prune, spectral_norm, weight_norm

    old = [(weight_norm, "WeightNorm"), (spectral_norm, "SpectralNorm")]  # functions hide the modules of this name
    classes = (prune.BasePruningMethod, *(getattr(sys.modules[function.__module__], name) for function, name in old))
    sharded: set[int] | None = None
    for _, module in seen.modules:
        hooks = [one for one in module._forward_pre_hooks.values() if isinstance(one, classes)]
        if hooks and sharded is None:
            sharded = {id(entry.module) for entry in seen.entries if entry.is_tensor and is_sharded(entry.value)}
        if hooks and id(module) not in (sharded or ()):  # else the next forward pass has the whole, and computes
            yield functools.partial(_compute, module, hooks)


def _compute(module: nn.Module, hooks: Iterable[Any]) -> None:
    with torch.enable_grad():
        for hook in hooks:
            if hasattr(hook, "n_power_iterations"):  # in training a call would change the buffers that were loaded
                setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
            else:
                hook(module, None)


def _own(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from (one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None)


def _has_tensors(module: nn.Module) -> bool:
    return any(True for one in module.modules() for _ in _own(one))


def _lists_of_rnns(seen: Seen) -> Iterator[Refresh]:
    """LSTM, GRU and RNN compute with `_flat_weights`, a list of their parameters."""
    for _, module in seen.of_class("RNNBase"):
        if isinstance(module, nn.RNNBase) and "_flat_weights" in vars(module):
            yield functools.partial(_list_again, module)


def _list_again(module: Any) -> None:
    """What is no parameter of this module any more, such as a normed weight, is its hook's to set."""
    for place, name in enumerate(module._flat_weights_names):
        parameter = module._parameters.get(name)
        if parameter is not None and module._flat_weights[place] is not parameter:
            setattr(module, name, parameter)  # torch's own way: it updates the list


def _cached_parametrizations(seen: Seen) -> Iterator[Refresh]:
    """Under `torch.nn.utils.parametrize.cached()` computed tensors are kept until the block ends."""
    from torch.nn.utils import parametrize

    cache: dict[tuple[int, str], Any] = parametrize._cache
    if not cache:
        return
    ours = {id(module) for _, module in seen.modules}

    def forget() -> None:
        for key in [key for key in cache if key[0] in ours]:
            del cache[key]

    yield forget


def _scripted(seen: Seen) -> Iterator[Problem]:
    """A scripted module has its tensors in C++: they can be written, and not be replaced."""
    scripted = {id(module) for _, module in seen.of_class("ScriptModule")}
    for entry in seen.entries if scripted else ():
        if id(entry.module) in scripted and seen.is_replaced(entry):
            message = f"TorchScript holds its memory on {entry.device}, and the load is to put it on {seen.device}"
            yield problem(entry.name, message, "Load before torch.jit.script, or move the scripted module first")


def _gradient_buckets(seen: Seen) -> Iterator[Problem]:
    """DDP reduces the gradients of the memory that parameters had when it wrapped them."""
    wrapped = {id(module) for _, root in seen.of_class("DistributedDataParallel") for module in root.modules()}
    for entry in seen.entries if wrapped else ():
        if entry.kind == PARAMETER and id(entry.module) in wrapped and seen.is_replaced(entry):
            message = f"DistributedDataParallel knows it on {entry.device}, and the load is to put it on {seen.device}"
            yield problem(entry.name, message, "Load before the model is wrapped, or wrap a model on its device")


# ---- optimizers


_MASTERS = ("main_param", "master_param", "master_weight", "fp32_param", "_fp32_from_fp16")


def _copies_on_parameters(seen: Seen) -> Iterator[Problem]:
    """Megatron's optimizers, Apex and others hang master weights on a parameter, under names of their own. A tensor
    that equals the parameter, in whatever dtype, is a copy; so is what has the name of one."""
    for entry in seen.entries:
        if entry.kind != PARAMETER or not entry.value.__dict__:
            continue
        value = entry.value
        for name, held in value.__dict__.items():
            if isinstance(held, torch.Tensor) and (name in _MASTERS or _is_copy(name, held, value)):
                message = f"its attribute {name} holds a copy of its value, which the load does not change"
                yield problem(entry.name, message, f"{_OPTIMIZER_REMEDY}, or delete the attribute")


def _steps_in_backward(seen: Seen) -> Iterator[Problem]:
    """torch's `_apply_optimizer_in_backward` hangs the step on the graph node of the memory that a parameter has."""
    for entry in seen.entries:
        if entry.kind == PARAMETER and "_in_backward_optimizers" in entry.value.__dict__ and seen.is_replaced(entry):
            message = "an optimizer steps in its backward pass, and knows the memory that the load replaces"
            yield problem(entry.name, message, "Call _apply_optimizer_in_backward after the load")


def _is_copy(name: str, held: torch.Tensor, parameter: torch.Tensor) -> bool:
    if "grad" in name or type(parameter) is not nn.Parameter or type(held) not in (nn.Parameter, torch.Tensor):
        return False
    if name == "_mp_param":  # DDP's mixed precision copies anew before each forward pass
        return False
    if held.shape != parameter.shape or held.is_meta or parameter.is_meta:
        return False
    if held.device != parameter.device or not held.is_floating_point() or not held.numel():
        return False
    if held.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr():
        return False
    return torch.equal(held.detach().to(parameter.dtype), parameter.detach())


# ---- wrappers


def _offload_hooks(seen: Seen) -> Iterator[Problem]:
    """accelerate's hooks put parameters back on meta after a forward pass, and take them from a map of their own."""
    for name, module, hook in seen.with_attribute("_hf_hook"):
        hooks = getattr(hook, "hooks", (hook,))  # a SequentialHook has several
        if any(getattr(one, "offload", False) for one in hooks) and _has_tensors(module):
            where = f"the module {name!r}" if name else "the model"
            message = f"accelerate offloads {where}, and its hook keeps the weights elsewhere"
            yield problem(None, message, _OFFLOAD_REMEDY)


def _merged_adapters(seen: Seen) -> Iterator[Problem]:
    """PEFT has added the adapter to the base weight, and will subtract it again."""
    for name, layer in seen.of_class("BaseTunerLayer"):
        if merged := getattr(layer, "merged_adapters", None):
            message = f"PEFT has merged {', '.join(merged)} into the base weights of the module {name!r}"
            yield problem(None, message, "Call unmerge_adapter() first, and merge_adapter() after the load")


def _cached_norms(seen: Seen) -> Iterator[Refresh]:
    """PEFT can cache the norms and products of DoRA layers between forward passes."""
    for _, _, cache in seen.with_attribute("_dora_cache"):
        yield cache.clear


HOLDERS = (
    Holder("hooks that compute a weight", _hooks_that_compute, ("forward_and_step_use_what_was_loaded",)),
    Holder("lists of RNNs", _lists_of_rnns, ("flat_weights_are_the_parameters",)),
    Holder("parametrize.cached()", _cached_parametrizations, ("cached_parametrizations_are_computed_again",)),
    Holder("scripted modules", _scripted, ("scripted_modules_are_filled_in_place",)),
    Holder("DistributedDataParallel", _gradient_buckets, ("ddp_and_its_buckets",)),
    Holder("master weights of DeepSpeed", holders_deepspeed.masters, ("deepspeed_masters", "deepspeed_refusals")),
    Holder("tensors on parameters", _copies_on_parameters, ("copies_on_parameters_are_refused",)),
    Holder("steps in the backward pass", _steps_in_backward, ("steps_in_the_backward_pass",)),
    Holder("accelerate's offload", _offload_hooks, ("accelerate_offload_is_refused",)),
    Holder("merged adapters", _merged_adapters, ("merged_adapters_are_refused",)),
    Holder("cached norms of DoRA", _cached_norms, ("dora_caches_are_cleared",)),
)
