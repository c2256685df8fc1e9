"""`lading.cast_frozen`: frozen towers in the dtype that is computed in, so that they promote no activation.

    lading.cast_frozen(model, torch.bfloat16)       # {"vision.std_bias": torch.bfloat16, …}

FSDP2 casts parameters when it gathers them, and nothing else: an F32 buffer of a frozen tower makes F32 of every
activation that meets it. Which tensors are meant is the engine's word (R28, docs/dtypes.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from . import huggingface
from .dtypes import requested_dtype, torch_dtype
from .errors import LadingError, Problem
from .huggingface_view import Library, View, original_class
from .inventory import NON_PERSISTENT, Entry, parts_of, take_inventory
from .options import Options
from .placements import fsdp_states, is_dtensor
from .resolving import TensorDTypes, resolve
from .skeleton_recorder import skeleton
from .words import DType, Pins


def cast_frozen(
    model: nn.Module | Sequence[nn.Module], compute_dtype: DType, *, pins: Pins = ()
) -> dict[str, torch.dtype]:
    """Casts the maximal subtrees without a trainable parameter to `compute_dtype`, buffers included.

        for parameter in model.vision_tower.parameters():
            parameter.requires_grad_(False)
        lading.cast_frozen(model, torch.bfloat16)

    In place: tensors keep their identity, and ties stay. Pinned ones stay F32, and so do tables that a constructor
    makes in a dtype of their own (R29), as far as that is known: of models of transformers, and of what was built under
    `lading.skeleton()`. A sharded parameter is not touched: FSDP2 gathers it in `compute_dtype`. One that is gathered
    in another dtype, or not by FSDP2, is an error, and then nothing is cast.

    What `materialize(…, compute_dtype=…)` allocated has the right dtype already.

    Args:
        model: with its values.
        compute_dtype: the `param_dtype` of the mixed-precision policy.
        pins: further names that stay F32: patterns, or (pattern, strength) (docs/schema/skeleton.md).

    Returns:
        The names that were cast, and what to.
    """
    parts = parts_of(model)
    dtype = torch_dtype(requested_dtype(compute_dtype))
    options = Options.of(
        device=None, dtype="auto", cast="promote", compute_dtype=dtype, pins=pins, strict=True,
        allow_missing=(), allow_unexpected=(), allow_mismatch=(),
    )  # fmt: skip
    entries = [entry for entry in take_inventory(parts) if entry.is_tensor]
    decided = resolve(parts, None, options, declared=_declared_tables(parts, entries, dtype))
    chosen = [entry for entry in entries if entry.name in decided and _is_meant(entry, decided[entry.name])]
    problems = _cannot_be(parts, chosen, dtype)
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    plain = [entry for entry in chosen if not is_dtensor(entry.value)]
    _cast(plain, dtype)
    return {entry.name: dtype for entry in plain}


def _is_meant(entry: Entry, decided: TensorDTypes) -> bool:
    """What is on meta would be allocated in the compute dtype by a load that is told of it."""
    would_be = decided.follows_tower and decided.storage != entry.dtype
    return decided.cast is not None or (entry.is_meta and would_be)


def _cast(entries: Iterable[Entry], dtype: torch.dtype) -> None:
    made: dict[Any, torch.Tensor] = {}  # tensors of one tie class go on sharing one storage
    for entry in entries:
        key = id(entry.value) if entry.tie_class is None else ("tie", entry.tie_class)
        if key not in made:
            made[key] = entry.value.detach().to(dtype)
        entry.value.data = made[key]


def _cannot_be(parts: Sequence[nn.Module], entries: Iterable[Entry], dtype: torch.dtype) -> list[Problem]:
    """What stays in another dtype than the tower around it would get."""
    gathered = {
        id(member.sharded_param): group.mp_policy.param_dtype
        for part in parts
        for _, groups in fsdp_states(part.modules())
        for group in groups
        for member in group.fsdp_params
    }
    problems = []
    for entry in entries:
        found = remedy = ""
        if is_dtensor(entry.value) and gathered.get(id(entry.value)) != dtype:
            found = f"{entry.dtype}, and it is sharded"
            remedy = "Shard it with this param_dtype (lading.shard_by_dtype), or cast before it is sharded"
        elif entry.is_meta:
            found = "no memory yet"
            remedy = "Pass compute_dtype to lading.materialize, or call this afterwards"
        if found:
            message = "it is frozen, and cannot be cast to what the subtree around it computes in"
            wanted = str(dtype)
            problems.append(
                Problem("dtype", message, tensor=entry.name, rule="R28", expected=wanted, found=found, remedy=remedy)
            )
    return problems


def _declared_tables(parts: Sequence[nn.Module], entries: Iterable[Entry], dtype: torch.dtype) -> set[str]:
    """Buffers of no file that the constructor makes in this dtype whatever the default is, as RoPE's in F32."""
    unknown = [entry for entry in entries if entry.kind == NON_PERSISTENT and entry.recorded is None]
    library = Library.find()
    view = View.of(list(parts), library) if library is not None and unknown else None
    if view is None:
        return set()
    try:
        with huggingface.construction(view.config, dtype, cast="exact") as config, skeleton():
            twin = original_class(view.model)(config)
    except Exception:  # noqa: BLE001  # a constructor that wants more than its config: nothing is known
        return set()
    made = {name: entry.dtype for entry in take_inventory(twin) for name in view.names.get(entry.name, [entry.name])}
    return {entry.name for entry in unknown if made.get(entry.name) == entry.dtype != dtype}
