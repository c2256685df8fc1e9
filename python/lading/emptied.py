"""Tensors that got memory without a value since the model was built.

`to_empty` gives every tensor that is on meta memory, and whatever is in it looks like a value from then on. What a file
has is overwritten; what no file has would be kept. Where the model was built under `lading.skeleton()`, it is known
what should be there, so other bits are refused rather than kept: they are rubbish, or the user's, and then `keep` says
so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from . import fsdp1
from .bits import same_bits
from .errors import Problem
from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry
from .patterns import Pattern, matches
from .recording import SkeletonError, snapshot_of
from .replay import Seeds, forget_derivations, value_of
from .watch import is_dtensor, is_emptied, was_recorded

_LOADED = "_lading_loaded"


def emptied(entries: Iterable[Entry], spoken_for: Sequence[Pattern]) -> list[Problem]:
    """A problem for each such buffer, but for those that match a pattern. A model that was loaded before has none; nor
    has one with parameters on meta, or whose parameters alone were given memory: there a real buffer is the user's."""
    entries = list(entries)
    parameters = [entry for entry in entries if entry.kind == PARAMETER]
    if any(entry.is_meta or hasattr(entry.value, "ds_shape") for entry in parameters):
        return []
    problems = []
    for entry in entries:
        if _was_loaded(entry.module) or not _is_changed(entry):
            continue
        if not any(matches(pattern, entry.name) for pattern in spoken_for):
            message = "no file has this tensor, and its value is not the one that its constructor computed"
            remedy = (
                "Leave it on meta: give parameters memory by lading.empty_parameters instead of to_empty. "
                "If you assigned the value, list the tensor in keep=."
            )
            problems.append(Problem("skeleton", message, tensor=entry.name, rule="R6", remedy=remedy))
    return problems


def kept_unwritten(kept: Iterable[str], entries: Iterable[Entry], spoken_for: Sequence[Pattern]) -> list[Problem]:
    """A problem for each parameter and persistent buffer that a plan keeps, of a model that was built under
    `lading.skeleton()` and never loaded: it has not been written since it got memory."""
    names = set(kept)
    problems = []
    for entry in entries:
        if (
            entry.kind not in (PARAMETER, BUFFER)
            or entry.name not in names
            or _was_loaded(entry.module)
            or any(matches(pattern, entry.name) for pattern in spoken_for)
        ):
            continue
        # FSDP1 copies parameters into a buffer when it wraps: what it copied then, nobody can tell.
        is_new = entry.is_real and (type(entry.value) is fsdp1.FlatMember or is_emptied(entry.value))
        if is_new and (snapshot_of(entry.module, entry.attribute) is not None or was_recorded(entry.module)):
            message = "the checkpoint does not have this tensor; it was built on meta, and got memory, but no value"
            remedy = "Leave it on meta, so that it is initialised. If you assigned the value, list the tensor in keep=."
            problems.append(Problem("skeleton", message, tensor=entry.name, rule="R13", remedy=remedy))
    return problems


def say_what_was_assigned(tensors: Iterable[dict[str, Any]], parts: Sequence[nn.Module], entries: Iterable[Entry]) -> None:
    """Says in the skeleton's tensors which of them were given a value after the model was built without any: such a
    value is meant, so no missing key hides behind it (R14). Memory that `to_empty` made has none."""
    recorded = {id(module) for part in parts if was_recorded(part) for module in part.modules()}
    assigned = {
        entry.name
        for entry in entries
        if entry.kind in (PARAMETER, BUFFER)
        and entry.is_tensor
        and entry.is_real
        and type(entry.value) is not fsdp1.FlatMember
        and (id(entry.module) in recorded or was_recorded(entry.module))
        and not _was_loaded(entry.module)
        and not is_emptied(entry.value)
    }
    for tensor in tensors:
        if tensor["name"] in assigned and tensor.get("presence") == "real":
            tensor["assigned"] = True


def _was_loaded(module: nn.Module) -> bool:
    """Each module answers for itself: a part that was loaded earlier says nothing of what it was put into."""
    return _LOADED in vars(module) or fsdp1.EMPTY in vars(module)


def mark_loaded(parts: Sequence[nn.Module]) -> None:
    """From now on the value of a buffer is intended, and how it was made counts no more."""
    for part in parts:
        for module in part.modules():
            module.__dict__[_LOADED] = True
            forget_derivations(module)
        fsdp1.mark_filled(part.modules())


def _is_changed(entry: Entry) -> bool:
    if entry.kind not in (NON_PERSISTENT, ATTRIBUTE) or not entry.is_tensor or not entry.is_real:
        return False
    snapshot = snapshot_of(entry.module, entry.attribute)
    is_cut = is_dtensor(entry.value)  # its record is that of the tensor it was cut from, whose memory had no value
    if not is_cut and (entry.recorded is not None or type(entry.value) is not torch.Tensor):
        return False
    if snapshot is None:  # a copy of a recorded module has no record: nobody knows what it should hold
        return was_recorded(entry.module) and entry.kind == NON_PERSISTENT
    if is_cut:
        return True
    if tuple(snapshot.operand.size) != entry.shape or snapshot.operand.dtype != entry.dtype:
        return True
    try:
        wanted = value_of(snapshot.operand, Seeds())
    except SkeletonError:  # the constructor gave it no value either
        return False
    return not same_bits(wanted, entry.value)
