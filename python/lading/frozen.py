"""`lading.cast_frozen`: frozen towers in the dtype that is computed in, so that they promote no activation.

    lading.cast_frozen(model, torch.bfloat16)       # {"vision.std_bias": torch.bfloat16, …}

FSDP2 casts parameters when it gathers them, and nothing else: an F32 buffer of a frozen tower makes F32 of every
activation that meets it. Which tensors are meant is the engine's word (R28, docs/guides/dtypes.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from .telling import logger
from .words import DType, Pins


def cast_frozen(
    model: nn.Module | Sequence[nn.Module],
    compute_dtype: DType,
    *,
    subtree_dtypes: Mapping[str, DType] | None = None,
    pins: Pins = (),
) -> dict[str, torch.dtype]:
    """Casts the maximal subtrees without a trainable parameter to `compute_dtype`, buffers included.

        for parameter in model.vision_tower.parameters():
            parameter.requires_grad_(False)
        lading.cast_frozen(model, torch.bfloat16, subtree_dtypes={"vision_tower.pooler": torch.float32})

    In place: tensors keep their identity, and ties stay. Pinned ones stay F32, and so do tables that a constructor
    makes in a dtype of their own (R29), as far as that is known: of models of transformers, and of what was built under
    `lading.skeleton()`. A sharded parameter is not touched: FSDP2 gathers it in `compute_dtype`. One that is gathered
    in another dtype, or not by FSDP2, is an error, and then nothing is cast.

    What `materialize(…, compute_dtype=…)` allocated has the right dtype already.

    Args:
        model: with its values.
        compute_dtype: the `param_dtype` of the mixed-precision policy.
        subtree_dtypes: compute dtypes of frozen modules by name, which go before `compute_dtype`; the longest name
            wins.
        pins: further names that stay F32: patterns, or (pattern, strength) (docs/schema/skeleton.md).

    Returns:
        The names that were cast, and what to.
    """
    parts = parts_of(model)
    entries = [entry for entry in take_inventory(parts) if entry.is_tensor]
    compute = torch_dtype(requested_dtype(compute_dtype))
    subtrees = {name: torch_dtype(requested_dtype(dtype)) for name, dtype in (subtree_dtypes or {}).items()}
    chosen: dict[str, tuple[Entry, torch.dtype]] = {}
    problems: list[Problem] = []
    for dtype in dict.fromkeys((compute, *subtrees.values())):
        options = Options.of(
            device=None, dtype="auto", cast="promote", compute_dtype=dtype, pins=pins, strict=True,
            allow_missing=(), allow_unexpected=(), allow_mismatch=(),
        )  # fmt: skip
        decided = resolve(parts, None, options, declared=_declared_tables(parts, entries, dtype))
        problems = problems or list(_not_frozen(subtrees, decided.frozen_subtrees))
        for entry in entries:
            is_asked = subtrees.get(_subtree(entry.name, subtrees), compute) == dtype
            if is_asked and entry.name in decided and _is_meant(entry, decided[entry.name]):
                chosen[entry.name] = (entry, dtype)
    problems += [*_cannot_be(parts, chosen.values()), *_torn_apart(entries, subtrees, chosen)]
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    plain = [(entry, dtype) for entry, dtype in chosen.values() if not is_dtensor(entry.value)]
    _cast(plain)
    return {entry.name: dtype for entry, dtype in plain}


def _subtree(name: str, subtrees: Iterable[str]) -> str | None:
    """The longest of these modules' names that the tensor is under."""
    return max((one for one in subtrees if not one or name.startswith(f"{one}.")), key=len, default=None)


def _not_frozen(subtrees: Iterable[str], frozen: Sequence[str]) -> Iterator[Problem]:
    """Names of modules that nothing frozen is in: a typo, or a tower that nobody froze."""
    for name in subtrees:
        if not any(_is_within(name, tower) or _is_within(tower, name) for tower in frozen):
            towers = ", ".join(tower or "the whole model" for tower in frozen) or "none"
            wanted = f"a frozen subtree, or a part of one: {towers}"
            remedy = "Correct the name, or freeze it: module.requires_grad_(False)."
            message = f"subtree_dtypes: {name!r} is no frozen module, and has none inside"
            yield Problem("policy", message, rule="R28", expected=wanted, remedy=remedy)


def _is_within(name: str, outer: str) -> bool:
    return name == outer or not outer or name.startswith(f"{outer}.")


def _torn_apart(
    entries: Iterable[Entry], subtrees: Iterable[str], chosen: Mapping[str, tuple[Entry, torch.dtype]]
) -> Iterator[Problem]:
    """Names of one memory that would get several dtypes."""
    ties: dict[Any, dict[str, torch.dtype]] = {}
    for entry in entries:
        key = id(entry.value) if entry.tie_class is None else ("tie", entry.tie_class)
        ties.setdefault(key, {})[entry.name] = chosen[entry.name][1] if entry.name in chosen else entry.dtype
    for names in ties.values():
        if len(set(names.values())) > 1:
            found = ", ".join(f"{name} in {dtype}" for name, dtype in sorted(names.items()))
            remedy = "Give the modules that share it one dtype in subtree_dtypes."
            yield Problem("dtype", "its names share one memory, and would compute in several dtypes", tensor=min(names),
                          rule="R28", found=found, remedy=remedy)


def _is_meant(entry: Entry, decided: TensorDTypes) -> bool:
    """What is on meta would be allocated in the compute dtype by a load that is told of it."""
    would_be = decided.follows_tower and decided.storage != entry.dtype
    return decided.cast is not None or (entry.is_meta and would_be)


def _cast(chosen: Iterable[tuple[Entry, torch.dtype]]) -> None:
    made: dict[Any, torch.Tensor] = {}  # tensors of one tie class go on sharing one storage
    for entry, dtype in chosen:
        key = id(entry.value) if entry.tie_class is None else ("tie", entry.tie_class)
        if key not in made:
            made[key] = entry.value.detach().to(dtype)
        entry.value.data = made[key]


def _cannot_be(parts: Sequence[nn.Module], chosen: Iterable[tuple[Entry, torch.dtype]]) -> list[Problem]:
    """What stays in another dtype than the tower around it would get."""
    gathered = {
        id(member.sharded_param): group.mp_policy.param_dtype
        for part in parts
        for _, groups in fsdp_states(part.modules())
        for group in groups
        for member in group.fsdp_params
    }
    problems = []
    for entry, dtype in chosen:
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
    except Exception as error:  # noqa: BLE001  # a constructor that wants more than its config: nothing is known
        text = "%s could not be built from its config, so tables that it keeps in a dtype of their own are not known"
        logger.warning(text, original_class(view.model).__name__, exc_info=error)
        return set()
    made = {name: entry.dtype for entry in take_inventory(twin) for name in view.names.get(entry.name, [entry.name])}
    return {entry.name for entry in unknown if made.get(entry.name) == entry.dtype != dtype}
