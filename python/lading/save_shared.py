"""Values that a save writes once although several ranks hold them: they must be equal.

    warnings = refuse_differences(ranks, subject, devices, plan)        # before anything is written

Beside DTensors, a tensor has one value on all ranks, as far as its layout says. A rank that keeps other experts under
the same names would lose them. An embedding that is tied to the head of another stage, or a tensor that two stages have
under one name, drifts apart if a training loop forgets to add up its gradients. Ranks exchange a digest of each part
(docs/how-it-works/digests.md). Buffers may differ: BatchNorm under DDP counts on each rank for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _engine
from .agreement import Agreement, ranges
from .devices import wait_for
from .errors import LadingError, Problem
from .fingerprints import added_up
from .fsdp1 import FlatMember
from .inventory import BUFFER, NON_PERSISTENT, PARAMETER, Entry
from .placements import Layout
from .save_memory import memories_of
from .save_subject import Subject
from .zero3 import is_partitioned

if TYPE_CHECKING:
    from .save_engine import SavePlan

_COPY = (
    "If each rank has a part of its own (experts), make the tensor a DTensor, which says so. Otherwise copy one rank's "
    "values to the others."
)
_CHECK = "Reduce it over the ranks first, if another value is meant."
_EQUAL = "Add up the gradients of what stages share, or copy one stage's values to the others, and save it then."
_UNSHARD = "Save with FSDP2, or keep what stages share out of FSDP1 and ZeRO-3."


def refuse_differences(
    ranks: Agreement, subject: Subject, devices: Sequence[str], plan: SavePlan
) -> tuple[Problem, ...]:
    """LadingError on all ranks with every tensor whose values differ; for buffers, warnings."""
    if ranks.size == 1:
        return ()
    shared = set(_shared(subject, {name for key in plan.answer["keys"] for name in key["tensors"]}))
    copies = {one.name for one in plan.destinations if len(one.replicas) > 1} - shared
    own = [entry for entry in subject.entries if entry.name in shared]
    problems = [problem for entry in own if (problem := _refusal(entry)) is not None]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
    own += [entry for entry in subject.entries if entry.name in copies and _refusal(entry) is None]
    said = ranks.say("the values that ranks share", _digests(ranks.rank, subject, own, devices))
    buffers = {tensor["name"] for tensor in subject.skeleton["tensors"] if tensor["kind"] in (BUFFER, NON_PERSISTENT)} - shared
    differences = list(_different_copies(said, shared, buffers))
    problems = [*differences, *_different_names(said, subject.skeleton["ties"])]
    if refused := [problem for problem in problems if problem.tensor not in buffers]:
        raise LadingError(refused, stage="agreement", exit_code=4)
    return tuple(differences)


def _shared(subject: Subject, written: set[str]) -> Iterator[str]:
    """Names that ranks with other names have too, and those of ties that ranks do not have together."""
    layout, everywhere = subject.layout, tuple(range(subject.layout.size))
    holders = {
        tensor["name"]: layout.holders.get(tensor["name"], everywhere)
        for tensor in subject.skeleton["tensors"]
        if tensor["kind"] in (PARAMETER, BUFFER) or tensor["name"] in written
    }
    held: dict[int, list[str]] = {rank: [] for rank in everywhere}
    for name, ranks in sorted(holders.items()):
        for rank in ranks:
            held[rank].append(name)
    stages: dict[tuple[str, ...], int] = {}
    stage_of = {rank: stages.setdefault(tuple(names), len(stages)) for rank, names in held.items()}
    for name, ranks in holders.items():
        if len({stage_of[rank] for rank in ranks}) > 1:
            yield name
    for tie in subject.skeleton["ties"]:
        if len({holders[name] for name in tie if name in holders}) > 1:
            yield from (name for name in tie if name in holders)


def _refusal(entry: Entry) -> Problem | None:
    if not isinstance(entry.value, FlatMember) and not is_partitioned(entry.value):
        return None
    message = "stages share the values of this tensor, and those that FSDP1 or ZeRO-3 has flattened are not compared"
    return Problem("layout", message, entry.name, remedy=_UNSHARD)


def _digests(rank: int, subject: Subject, own: Sequence[Entry], devices: Sequence[str]) -> dict[str, list[Any]]:
    """By name: the first rank that has the same part, and the part's digest."""
    wait_for(subject.device)
    found: dict[str, list[Any]] = {}
    for entries in _without_ties(own):
        plan = _engine.plan(_request(rank, subject, entries, devices))
        memories = memories_of(plan.destinations, entries)
        loaded = plan.load(memories.addresses)
        for one, digest in zip(loaded.destinations, loaded.digests, strict=True):
            found[one.name] = [min(one.replicas), digest]
    return found


def _without_ties(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """A plan refuses names of one memory that are no tie, and the names of a tie may have different holders here."""
    left = list(entries)
    while left:
        first = {entry.name if entry.tie_class is None else entry.tie_class: entry for entry in reversed(left)}
        yield list(first.values())
        left = [entry for entry in left if all(entry is not one for one in first.values())]


def _request(rank: int, subject: Subject, entries: Sequence[Entry], devices: Sequence[str]) -> dict[str, Any]:
    """docs/schema/request.md: a load that keeps these tensors as they are, and digests them."""
    own = {entry.name: {"presence": "real", "device": str(entry.device)} for entry in entries}
    tensors = [tensor | own[tensor["name"]] for tensor in subject.skeleton["tensors"] if tensor["name"] in own]
    whole = subject.layout
    spots = {name: whole.spots[name] for name in own}
    holders = {name: ranks for name, ranks in whole.holders.items() if name in own}
    return {
        "start": "nothing",
        "skeleton": subject.skeleton | {"tensors": tensors, "ties": []},
        "layout": Layout(whole.size, spots, whole.names, holders).document(devices),
        "policy": {"schema": "lading.policy/1", "dtype": "auto", "cast": "destination", "keep": ["*"]},
        "ranks": [rank],
    }


def _different_copies(
    said: Sequence[Mapping[str, Any]], shared: Iterable[str], buffers: Iterable[str]
) -> Iterator[Problem]:
    ranks: dict[tuple[str, int], dict[str, list[int]]] = {}  # by name and part: those with each digest
    for rank, own in enumerate(said):
        for name, (first, digest) in own.items():
            ranks.setdefault((name, first), {}).setdefault(digest, []).append(rank)
    told = set()
    for (name, _), by_digest in sorted(ranks.items()):
        if len(by_digest) > 1 and name not in told:
            told.add(name)
            found = "; ".join(f"one value on ranks {ranges(members)}" for members in by_digest.values())
            message, rule, remedy = "the ranks have copies of this tensor, and their values differ", "R17", _COPY
            if name in shared:
                message, rule, remedy = "several stages hold this tensor, and their values differ", "R50", _EQUAL
            if name in buffers:
                message, remedy = "the ranks have different values of this buffer, and that of one rank is saved", _CHECK
            yield Problem("values_differ", message, name, rule=rule, found=found, remedy=remedy)


def _different_names(said: Sequence[Mapping[str, Any]], ties: Sequence[Sequence[str]]) -> Iterator[Problem]:
    parts: dict[str, dict[int, str]] = {}
    for own in said:
        for name, (first, digest) in own.items():
            parts.setdefault(name, {}).setdefault(first, digest)
    for tie in ties:
        known = [name for name in tie if name in parts]
        if len({added_up(parts[name].values()) for name in known}) > 1:
            others = ", ".join(known[1:])
            message = f"the tensor and {others} are tied, so that the checkpoint has one value for them, but their values differ"
            yield Problem("values_differ", message, known[0], rule="R50", remedy=_EQUAL)
