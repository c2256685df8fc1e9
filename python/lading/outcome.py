"""What a person must know of a load that succeeded, beside its keys: dtypes that are not those of the constructor, and
requests that the engine did not follow."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import _engine
from .errors import Problem
from .inventory import BUFFER, EXTRA_STATE, PARAMETER
from .options import Options
from .report import Report

if TYPE_CHECKING:
    from .preparing import Prepared

_IN_FILES = (PARAMETER, BUFFER, EXTRA_STATE)


def unexpected_keys(plan: _engine.Plan, prepared: Prepared) -> list[str]:
    """Keys that nothing reads, those of other parts of the checkpoint's model among them; sorted."""
    return sorted({*plan.answer["unexpected_keys"], *prepared.conversion.other_parts})


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


def unfollowed(warnings: Iterable[Problem]) -> list[Problem]:
    """Requests for a dtype that the engine did not follow: its warnings of that code (docs/schema/request.md)."""
    return [one for one in warnings if one.code == "dtype"]


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"
