"""Master weights of DeepSpeed's optimizers, which its step writes over the parameters.

`deepspeed.initialize` copies every trained parameter: flat, often in F32, and with ZeRO shared out over the ranks.
Those of ZeRO-3 hang on the parameters (zero3.py). Stages 0, 1 and 2 make parameters views of a flat buffer, and the
optimizer can make its copy again from that buffer: `refresh_fp32_params`, as after DeepSpeed's own loads. The masters
are then what they would be had the model been loaded before `deepspeed.initialize`.

DeepSpeed is never imported here.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import zero3
from .errors import Problem
from .holders_common import Refresh, Seen, problem
from .inventory import PARAMETER
from .private_names import check

# By class: its groups of parameters, and the flat buffers that these are views of.
_KNOWN = {
    "FP16_Optimizer": ("fp16_groups", "fp16_groups_flat"),
    "FP16_UnfusedOptimizer": ("fp16_groups", ""),
    "BF16_Optimizer": ("bf16_groups", "bf16_groups_flat"),
    "DeepSpeedZeroOptimizer": ("bit16_groups", "bit16_groups_flat"),
}
_BEFORE = "Load before deepspeed.initialize."


def masters(seen: Seen) -> Iterator[Problem | Refresh]:
    if "deepspeed" not in sys.modules:
        return
    found = list(_masters(seen))
    if any(isinstance(one, Problem) for one in found):
        gc.collect()  # an optimizer that nobody has any more refuses nothing
        found = list(_masters(seen))
    yield from found
    yield lambda: zero3.tell_optimizers(seen.entries)  # those of ZeRO-3


def _masters(seen: Seen) -> Iterator[Problem | Refresh]:
    names: dict[int, str] = {}
    for entry in seen.entries:
        if entry.kind == PARAMETER and entry.is_tensor:
            names.setdefault(id(entry.value), entry.name)
    yield from _engines(seen)
    optimizers = _optimizers(seen, names)
    yield from _unknown(seen, optimizers)
    for optimizer in optimizers:
        problems = list(_refusals(optimizer, seen, names))
        yield from problems
        if not problems and not _is_zero3(optimizer):
            yield optimizer.refresh_fp32_params


def _engines(seen: Seen) -> Iterator[Problem]:
    for _ in seen.of_class("DeepSpeedHybridEngine"):
        yield problem(None, "DeepSpeed's hybrid engine has a second copy of the weights, for inference", _BEFORE)


def _unknown(seen: Seen, optimizers: Iterable[Any]) -> Iterator[Problem]:
    """Parameters with the mark of an optimizer that was not found."""
    known = {id(value) for optimizer in optimizers for value in _parameters(optimizer)}
    for entry in seen.entries:
        if getattr(entry.value, "_hp_mapping", None) is not None and id(entry.value) not in known:
            yield problem(entry.name, "a DeepSpeed optimizer that lading did not find has a copy of it", _BEFORE)


def _optimizers(seen: Seen, names: dict[int, str]) -> list[Any]:
    """Those that have a parameter of this model: the engine's, those that parameters know, or any in the process."""
    base = getattr(sys.modules.get("deepspeed.runtime.base_optimizer"), "DeepSpeedOptimizer", None)
    if base is None or getattr(sys.modules.get("deepspeed.comm.comm"), "cdb", None) is None:
        return []  # imported, as PEFT does it, and not in use
    check("deepspeed", "masters")
    engines: list[Any] = [module for _, module in seen.of_class("DeepSpeedEngine")]
    found = [engine.optimizer for engine in engines]
    trained = [entry.value for entry in seen.entries if entry.kind == PARAMETER and entry.requires_grad]
    found += [getattr(value, name, None) for value in trained for name in ("_z3_optimizer", "_zero_optimizer")]
    if not engines and any(not zero3.is_partitioned(value) and not value.is_meta for value in trained):
        # FP16_Optimizer leaves no mark on a parameter, so all objects are looked at: a third of a second.
        found += [one for one in gc.get_objects() if issubclass(type(one), base)]
    mine = {id(one): one for one in found if issubclass(type(one), base)}
    return [one for one in mine.values() if any(id(value) in names for value in _parameters(one))]


def _parameters(optimizer: Any) -> Iterable[torch.Tensor]:
    for groups in ("bit16_groups", "bf16_groups", "fp16_groups"):
        for group in getattr(optimizer, groups, ()):
            yield from group


def _refusals(optimizer: Any, seen: Seen, names: dict[int, str]) -> Iterator[Problem]:
    kind = type(optimizer).__name__
    if getattr(optimizer, "zenflow", None) or (kind not in _KNOWN and not _is_zero3(optimizer)):
        message = f"{kind} of DeepSpeed keeps copies of the parameters in a way that lading does not support"
        yield problem(None, message, _BEFORE)
        return
    if getattr(optimizer, "offloaded_states", None):
        yield problem(None, f"{kind} of DeepSpeed has offloaded its state", "Call engine.reload_states() first.")
        return
    if _is_zero3(optimizer):
        return
    groups, flats = (getattr(optimizer, name, ()) for name in _KNOWN[kind])
    replaced = {id(entry.value) for entry in seen.entries if entry.is_tensor and seen.is_replaced(entry)}
    for place, group in enumerate(groups):
        for value in group:
            if id(value) not in names:
                continue
            flat = flats[place] if flats else value
            if flat.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or id(value) in replaced:
                message = f"its memory is not, or would not stay, a part of the buffer of DeepSpeed's {kind}"
                yield problem(names[id(value)], message, _BEFORE)


def _is_zero3(optimizer: Any) -> bool:
    return any(base.__name__ == "DeepSpeedZeroOptimizer_Stage3" for base in type(optimizer).__mro__)
