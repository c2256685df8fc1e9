"""Ranks that hold different parts of one model, such as pipeline stages: one skeleton and one layout of all of them.

The verdict on a checkpoint is over the union of what all ranks hold: a key that only another stage reads is not
unexpected. Documents travel over the store only where ranks differ, each different one once. A name that several
ranks have must be the same tensor on each of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .agreement import Agreement
from .errors import LadingError, Problem
from .placements import Layout, Span, Spot


def joined(ranks: Agreement, skeleton: dict[str, Any], layout: Layout) -> tuple[dict[str, Any], Layout]:
    """The skeleton and layout of all ranks; this rank's own where all have the same."""
    if ranks.size == 1:
        return skeleton, layout
    own = {
        "tensors": [{key: value for key, value in tensor.items() if key != "device"} for tensor in skeleton["tensors"]],
        "ties": skeleton["ties"],
        "pins": skeleton["pins"],
        "spots": {name: spot.to_json() for name, spot in sorted(layout.spots.items())},
        "names": [[span.size, span.stride, name] for span, name in layout.names.items()],
    }
    texts = ranks.documents("the parts of the model", json.dumps(own, sort_keys=True))
    if len(set(texts)) == 1:
        return skeleton, layout
    documents = {text: json.loads(text) for text in set(texts)}
    return _join(skeleton, layout, [documents[text] for text in texts])


def _join(
    skeleton: dict[str, Any], layout: Layout, documents: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], Layout]:
    tensors: dict[str, dict[str, Any]] = {}
    spots: dict[str, Spot] = {}
    holders: dict[str, list[int]] = {}
    names: dict[Span, str] = {}
    ties: list[list[str]] = []
    pins: list[dict[str, Any]] = []
    problems = []
    for rank, document in enumerate(documents):
        for tensor in document["tensors"]:
            name = tensor["name"]
            spot = Spot.from_json(document["spots"][name])
            known = tensors.setdefault(name, tensor)
            if known != tensor or spots.setdefault(name, spot) != spot:
                problems.append(
                    Problem(
                        "ranks_differ",
                        f"ranks {holders[name][0]} and {rank} hold it differently",
                        tensor=name,
                        rule="R30",
                    )
                )
            holders.setdefault(name, []).append(rank)
        names |= {
            Span(size, stride): name for size, stride, name in document["names"] if Span(size, stride) not in names
        }
        ties += [tie for tie in document["ties"] if tie not in ties]
        pins += [pin for pin in document["pins"] if pin not in pins]
    if problems:
        raise LadingError(list(dict.fromkeys(problems)), stage="agreement", exit_code=4)
    own = {tensor["name"]: tensor for tensor in skeleton["tensors"]}
    whole = skeleton | {
        "tensors": [own.get(name) or _elsewhere(tensor) for name, tensor in sorted(tensors.items())],
        "ties": ties,
        "pins": pins,
    }
    partly = {name: tuple(ranks) for name, ranks in holders.items() if len(ranks) < len(documents)}
    joined_layout = Layout(layout.size, spots, names, partly)
    if joined_layout.axes.problem:
        raise LadingError(Problem("layout", joined_layout.axes.problem, rule="R43"), stage="agreement", exit_code=4)
    return whole, joined_layout


def _elsewhere(tensor: dict[str, Any]) -> dict[str, Any]:
    """A tensor that this rank does not have. If it is real there, its device is there too, and no matter here."""
    return tensor if tensor.get("presence", "meta") == "meta" else tensor | {"device": "cpu"}
