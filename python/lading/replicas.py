"""Ranks that hold the same bytes compare them after a load (R17).

    sets = replica_sets(loaded, options.keep)                # of this rank
    refuse_different_replicas(ranks, sets, everybody)        # everybody: combined(sets) of all ranks

Digests are the engine's: of what was read from files while it was written, of everything else as it lies in memory. One
word per set of ranks goes over the store; digests of single tensors follow only where sets differ, to name them.

A value that the model had before, and that nothing else has a source for, is compared too: replicas that begin with
different values stay different for ever, and no framework says so. Only the names in `keep=` are the user's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from . import _engine
from .agreement import Agreement, agreed, ranges
from .errors import LadingError, Problem
from .patterns import Pattern, matches

Sets = dict[str, dict[str, str]]  # "0-3, 7": the digest of each tensor that just these ranks hold alike


_KEPT = ", kept"
_SAME = "Give it the same value on these ranks before the load, or list it in keep= if it should differ."


def replica_sets(loaded: _engine.Report, keep: Sequence[Pattern] = ()) -> Sets:
    """`keep`: patterns of names whose values are the user's own, on every rank."""
    sets: Sets = {}
    for destination, digest in zip(loaded.destinations, loaded.digests, strict=True):
        if len(destination.replicas) < 2 or not digest:
            continue
        is_kept = destination.provenance == "kept"
        if is_kept and any(matches(pattern, name) for pattern in keep for name in _names(destination)):
            continue
        digests = sets.setdefault(ranges(destination.replicas), {})
        digests[_label(destination)] = digest + _KEPT if is_kept else digest
    return sets


def combined(sets: Sets) -> dict[str, str]:
    return {
        key: hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:32] for key, digests in sets.items()
    }


def refuse_different_replicas(ranks: Agreement, sets: Sets, everybody: Sequence[Mapping[str, str]]) -> None:
    """`everybody` is the same list on all ranks, and so they all come here or none does."""
    words: dict[str, set[str]] = {}
    for said in everybody:
        for key, word in said.items():
            words.setdefault(key, set()).add(word)
    differing = sorted(key for key, found in words.items() if len(found) > 1)
    if not differing:
        return
    answers = ranks.say("replicas that differ", {key: sets[key] for key in differing if key in sets})
    with agreed(ranks, "replicas"):
        raise LadingError(_problems(answers), stage="loading", exit_code=5)


def _problems(answers: Sequence[Mapping[str, Mapping[str, str]]]) -> list[Problem]:
    holders: dict[tuple[str, str], dict[str, list[int]]] = {}
    for rank, sets in enumerate(answers):
        for key, digests in sets.items():
            for name, digest in digests.items():
                holders.setdefault((name, key), {}).setdefault(digest, []).append(rank)
    problems = []
    for (name, key), found in sorted(holders.items()):
        if len(found) > 1:
            shares = "; ".join(f"{digest} on {ranges(members)}" for digest, members in found.items())
            message = f"ranks {key} must have the same bytes of this tensor, but do not"
            remedy = _SAME if any(digest.endswith(_KEPT) for digest in found) else ""
            problems.append(Problem("values_differ", message, tensor=name, rule="R17", found=shares, remedy=remedy))
    return problems


def _names(destination: _engine.Destination) -> tuple[str, ...]:
    return (destination.name, *destination.aliases)


def _label(destination: _engine.Destination) -> str:
    return f"{destination.name} ({destination.slot})" if destination.slot else destination.name
