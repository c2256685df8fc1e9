"""Ranks that hold different parts of one model, such as pipeline stages: one skeleton and one layout of all of them.

The verdict on a checkpoint is over the union of what all ranks hold: a key that only another stage reads is not
unexpected. Documents travel over the store only where ranks differ, each different one once. A name that several
ranks have must be the same tensor on each of them.

    pipe = pipeline(model, mb_args=(ids,), split_spec=split)
    lading.materialize(pipe.get_stage_module(rank), "checkpoint", whole=model)

What a stage was cut from (`whole`) knows more than the stage: which names are one tensor although no stage has both
(R51), which buffers are in no file, how the checkpoint's keys are converted, and what was cut away because no stage
computes with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from .agreement import Agreement, ranges
from .conversion import Conversion, ignored_key, target_of, unbraced
from .errors import LadingError, Problem
from .inventory import Entry, take_inventory
from .inventory_json import tie_classes
from .placements import Layout, Span, Spot


_ONE_MESH = "Build all meshes of one model from one DeviceMesh."
_SAME_MODEL = "Pass as whole= the model that the stages were cut from."
_SAME_TIES = "Tie the same tensors, or none, on every rank that has both."


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
                        f"ranks {holders[name][0]} and {rank} hold this tensor differently",
                        tensor=name,
                        rule="R30",
                        remedy="Build and shard the same model on every rank.",
                    )
                )
            holders.setdefault(name, []).append(rank)
        names |= {
            Span(size, stride): name for size, stride, name in document["names"] if Span(size, stride) not in names
        }
        ties += [tie for tie in document["ties"] if tie not in ties]
        pins += [pin for pin in document["pins"] if pin not in pins]
    ties = joined_classes(ties)
    problems += _different_ties(ties, documents)
    problems += _cut_over_ranks_without_them(spots, holders)
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
        problem = Problem("layout", joined_layout.axes.problem, rule="R43", remedy=_ONE_MESH)
        raise LadingError(problem, stage="agreement", exit_code=4)
    return whole, joined_layout


def _cut_over_ranks_without_them(spots: dict[str, Spot], holders: dict[str, list[int]]) -> Iterator[Problem]:
    """Tensors of which a part belongs to a rank that has no such tensor."""
    for name, spot in sorted(spots.items()):
        sharers = set(holders[name])
        for span in {span for cut in spot.all_cuts() for span in cut.spans}:
            sharers |= {other for rank in holders[name] for other in span.line(rank)}
        if without := sorted(sharers.difference(holders[name])):
            yield Problem(
                "ranks_differ",
                f"the tensor is cut over ranks {ranges(sorted(sharers))}",
                tensor=name,
                rule="R30",
                found=f"no such tensor on rank{'s' if len(without) > 1 else ''} {ranges(without)}",
                remedy="Build the same layers on all ranks of the mesh that shards them.",
            )


def _different_ties(ties: Sequence[Sequence[str]], documents: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Names that are one tensor on some ranks, or by way of several, and two tensors on a rank that has both."""
    known: dict[int, tuple[set[str], dict[str, int]]] = {}  # by document: its names, and the class of those with ties
    for one in documents:
        if id(one) not in known:
            own = {name: place for place, names in enumerate(joined_classes(one["ties"])) for name in names}
            known[id(one)] = ({tensor["name"] for tensor in one["tensors"]}, own)
    for tie in ties:
        parts: dict[tuple[tuple[str, ...], ...], list[int]] = {}  # how the class is on ranks that have some of it
        for rank, one in enumerate(documents):
            held, own = known[id(one)]
            classes: dict[int | str, list[str]] = {}
            for name in tie:
                if name in held:
                    classes.setdefault(own.get(name, name), []).append(name)
            parts.setdefault(tuple(map(tuple, classes.values())), []).append(rank)
        if all(len(classes) < 2 for classes in parts):
            continue
        found = "; ".join(
            f"{' and '.join(' = '.join(names) for names in classes)} on ranks {ranges(ranks)}"
            for classes, ranks in parts.items()
            if classes
        )
        message = "the ranks' models have different ties"
        yield Problem("ranks_differ", message, tensor=tie[0], rule="R30", found=found, remedy=_SAME_TIES)


def _elsewhere(tensor: dict[str, Any]) -> dict[str, Any]:
    """A tensor that this rank does not have. If it is real there, its device is there too, and no matter here."""
    return tensor if tensor.get("presence", "meta") == "meta" else tensor | {"device": "cpu"}


# ---- what parts were cut from


@dataclasses.dataclass
class Origin:
    """Where the facts about parts of a model come from: the parts themselves, or the model that they were cut from.

    Attributes:
        parts: the modules that libraries are asked about.
        entries: all tensors of these.
        held: those of them that this rank has.
    """

    parts: list[nn.Module]
    entries: list[Entry]
    held: list[Entry]
    is_whole: bool = False

    @classmethod
    def of(cls, parts: list[nn.Module], held: list[Entry], whole: nn.Module | None) -> Origin:
        """With a `whole`, what cutting lost is put back into the parts' own entries."""
        if whole is None:
            return cls(parts, held, held)
        known = {entry.name: entry for entry in take_inventory(whole)}
        unknown = [entry.name for entry in held if entry.name not in known]
        if unknown:
            text = "the model of `whole` has no such tensor"
            problems = [Problem("layout", text, tensor=name, remedy=_SAME_MODEL) for name in unknown]
            raise LadingError(problems, stage="documents", exit_code=4)
        if problems := [problem for entry in held if (problem := _other_shape(entry, known[entry.name]))]:
            raise LadingError(problems, stage="documents", exit_code=4)
        for entry in held:
            origin = known[entry.name]
            entry.kind, entry.random_name, entry.problem = (origin.kind, origin.random_name, origin.problem)
            entry.recorded = origin.recorded
        return cls([whole], list(known.values()), [known[entry.name] for entry in held], is_whole=True)

    def complete(self, prepared: Any) -> None:
        """Adds to a load's documents what the whole knows. `prepared` has those of all ranks."""
        if not self.is_whole:
            return
        skeleton, layout, conversion = (prepared.skeleton, prepared.layout, prepared.conversion)
        held = {tensor["name"]: tensor for tensor in skeleton["tensors"]}
        ties = joined_classes([*tie_classes(self.entries), *conversion.ties])
        spots, holders = dict(layout.spots), dict(layout.holders)
        kinds = {entry.name: entry.kind for entry in self.entries}
        aliases = []
        for tie in ties:
            present = [name for name in tie if name in held]
            for name in tie if present else ():
                if name not in held:  # another name of what is there: its key may be the one in the file
                    plain = {key: value for key, value in held[present[0]].items() if key not in ("init", "derivation")}
                    aliases.append(plain | {"name": name, "kind": kinds.get(name, plain["kind"])})
                    spots[name], holders[name] = (spots[present[0]], holders.get(present[0], tuple(range(layout.size))))
        skeleton["tensors"] = sorted([*skeleton["tensors"], *aliases], key=lambda tensor: tensor["name"])
        names = {tensor["name"] for tensor in skeleton["tensors"]}
        skeleton["ties"] = [known for tie in ties if len(known := [name for name in tie if name in names]) > 1]
        prepared.layout = Layout(layout.size, spots, layout.names, holders)
        gone = {entry.name for entry in self.entries if entry.is_tensor} - names
        prepared.conversion = _without(conversion, gone)


def _other_shape(entry: Entry, origin: Entry) -> Problem | None:
    if not entry.is_tensor or not origin.is_tensor or entry.shape == origin.shape:
        return None
    return Problem(
        "layout",
        "the model of `whole` has it in another shape",
        tensor=entry.name,
        rule="R41",
        expected=str(list(entry.shape)),
        found=str(list(origin.shape)),
        remedy="Pass the model that this part was cut from.",
    )


def joined_classes(classes: Sequence[Sequence[str]]) -> list[list[str]]:
    """Classes that have a name in common are one."""
    found: list[set[str]] = []
    for names in classes:
        apart = [one for one in found if not one & set(names)]
        found = [*apart, set(names).union(*(one for one in found if one & set(names)))]
    return sorted(sorted(names) for names in found)


def _without(conversion: Conversion, gone: set[str]) -> Conversion:
    """No rank has these tensors: what would be read for them is ignored, by a rule with their name."""
    rules = conversion.mapping["rules"] if conversion.mapping is not None else []
    kept = [rule for rule in rules if target_of(rule) not in gone]
    read = {key for rule in kept for key in _keys(rule)}
    named = {key for rule in rules for key in _keys(rule)}
    unread = (named - read) | (gone - named)
    ignore = [ignored_key("stages.cut_away", key, optional=True) for key in sorted(unread)]
    mapping = conversion.mapping | {"rules": kept} if conversion.mapping is not None and kept else None
    return dataclasses.replace(conversion, mapping=mapping, ignore=[*conversion.ignore, *ignore])


def _keys(rule: dict[str, Any]) -> Iterator[str]:
    """The keys that a rule reads."""
    if rule["kind"] == "rename":
        yield rule["from"]

    def strings(expression: Any) -> Iterator[str]:
        if isinstance(expression, str):
            yield unbraced(expression)
        elif isinstance(expression, dict):
            for name, value in expression.items():
                if name != "over":
                    yield from strings(value)
        elif isinstance(expression, list):
            for item in expression:
                yield from strings(item)

    yield from strings(rule.get("expression"))
