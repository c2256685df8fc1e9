"""What a person must know of a load that succeeded: keys that are missing, unexpected or of another shape, dtypes that
are not those of the constructor, and requests that a policy did not follow."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import _engine
from .dtypes import torch_dtype
from .errors import Problem
from .huggingface import OTHER_PART
from .inventory import BUFFER, EXTRA_STATE, PARAMETER
from .options import Options
from .report import Report

if TYPE_CHECKING:
    from .preparing import Prepared

_IN_FILES = (PARAMETER, BUFFER, EXTRA_STATE)
_MISMATCH, _USERS_WORD = "R21", "R14"  # docs/schema/request.md, not_from_file
_NO_ROUNDING, _RECORD = "R23", "R26"


@dataclasses.dataclass(frozen=True)
class Keys:
    """Of the whole model, the same on every rank; sorted. `Report` says what they mean."""

    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]
    initialized: list[str]


def keys_of(plan: _engine.Plan, prepared: Prepared) -> Keys:
    """As the engine's plan has it. What a library does not expect in a file (adapters) is not missing there."""
    unasked = {tensor["name"] for tensor in prepared.skeleton["tensors"] if tensor.get("adapter")}
    unasked.update(prepared.conversion.allow_missing)
    records = [one for one in plan.answer.get("not_from_file", ()) if one["kind"] in _IN_FILES]
    mismatched = {one["name"] for one in records if one["rule"] == _MISMATCH}
    mismatched |= {one.tensor for one in plan.warnings if one.rule == _MISMATCH and one.tensor is not None}
    lacking = [one for one in records if one["rule"] != _USERS_WORD]
    expected = {one["name"] for one in lacking} if plan.answer["path"] else set()  # without a checkpoint: nothing is
    missing = expected - mismatched - unasked
    initialized = {one["name"] for one in lacking if one["provenance"] != "kept"}
    of_other_parts = [one["key"] for one in plan.answer["ignored_keys"] if one["rule"].startswith(OTHER_PART)]
    unexpected = [*plan.answer["unexpected_keys"], *of_other_parts]
    return Keys(sorted(missing), sorted(unexpected), sorted(mismatched), sorted(initialized))


def passed_over(plan: _engine.Plan, report: Report) -> list[str]:
    """Keys that a rule ignores, but for those that the report names."""
    named = {*report.unexpected_keys, *report.mismatched_keys}
    return [one["key"] for one in plan.answer["ignored_keys"] if one["key"] not in named]


def dtype_notes(plan: _engine.Plan, prepared: Prepared, options: Options) -> list[str]:
    """One line for each pair of dtypes: as the constructor made tensors of this rank, and as they are now."""
    built = {tensor["name"]: tensor["dtype"] for tensor in prepared.skeleton["tensors"] if tensor["kind"] in _IN_FILES}
    counts: dict[tuple[str, str, str], int] = collections.Counter()
    for one in plan.destinations:
        was = built.get(one.name, one.dtype)
        if one.slot or was == one.dtype:
            continue
        if one.provenance == "file" and one.checkpoint_dtype == one.dtype and one.checkpoint == 0:
            why = "as the checkpoint has them"
        else:
            why = "as requested" if one.dtype == options.dtype else "as lading.resolve_dtypes explains"
        counts[was, one.dtype, why] += 1 + len(one.aliases)
    return [f"{_tensors(n)}: built as {was}, loaded as {now}, {why}" for (was, now, why), n in sorted(counts.items())]


# ---- requests that were not followed


def kept_wide(plan: _engine.Plan, options: Options) -> list[Problem]:
    """A request that the files' own dtypes outdo is easily taken for one that was heard."""
    if options.dtype == "auto" or options.cast != "promote":
        return []
    asked = torch_dtype(options.dtype)
    read = [one.dtype for one in plan.destinations if one.provenance == "file" and one.checkpoint == 0]
    found = [dtype for dtype in read if _is_wider(dtype, asked.itemsize)]
    if not found:
        return []
    stay = f"{_tensors(len(found))} of the checkpoint stay{'' if len(found) > 1 else 's'}"
    why = 'by default (cast="promote") a request never rounds'
    message = f"dtype {options.dtype} was requested, but {stay} {', '.join(sorted(set(found)))}: {why}"
    remedy = 'Pass cast="exact" to round them, except those that the model keeps in F32.'
    return [Problem("dtype", message, rule=_NO_ROUNDING, remedy=remedy)]


def in_python(warnings: Iterable[Problem]) -> tuple[Problem, ...]:
    """The engine's warnings, with the remedy as an argument of Python where it has one."""
    remedy = 'Pass compute_record="ignore" to compute them in that dtype, except those that the model keeps in F32.'
    return tuple(dataclasses.replace(one, remedy=remedy) if one.rule == _RECORD else one for one in warnings)


def unfollowed(warnings: Iterable[Problem]) -> list[Problem]:
    """Of a report's warnings: a dtype that `cast` does not round to, a compute dtype that the record overrides."""
    return [one for one in warnings if one.code == "dtype" and one.rule in (_NO_ROUNDING, _RECORD)]


def _is_wider(dtype: str, itemsize: int) -> bool:
    found = torch_dtype(dtype)
    return found.is_floating_point and found.itemsize > itemsize


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"
