"""What a model should hold by its checkpoint: the engine plans a load of it as if it were on meta, and loads that into
memory of its own, a part at a time; the model is only looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from . import _engine
from .agreement import Agreement
from .audit_report import Findings
from .conversion import Catalog, Conversion, target_of
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .inventory import BUFFER, EXTRA_STATE, PARAMETER, Entry
from .inventory_json import dtype_name, skeleton_document
from .naming import Naming
from .options import Options
from .placements import Layout, Spot
from .recording import SkeletonError
from .stages import joined

BATCH_BYTES = 512 << 20
_UNEXPECTED = "R39"


@dataclasses.dataclass
class Wanted:
    """What to ask the engine for: a skeleton in which nothing has a value, and how ranks share it out.

    FSDP2's units are left out: whether a unit can run is not the question here, and each tensor is judged by itself.
    `misplaced` are names that should be one tensor with others and lie elsewhere than these; `left_out` those that
    ranks hold differently, or in a way that no plan can say, which `problems` tell.
    """

    skeleton: dict[str, Any]
    layout: Layout
    conversion: Conversion
    misplaced: set[str]
    left_out: set[str] = dataclasses.field(default_factory=set)

    problems: list[Problem] = dataclasses.field(default_factory=list)

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        layout: Layout,
        conversion: Conversion,
        dtypes: dict[str, torch.dtype],
        keys: set[str],
        left_out: set[str],
    ) -> Wanted:
        """Of parameters and persistent buffers, and of extra state that the checkpoint has as a tensor."""
        kept = [entry for entry in entries if entry.kind in (PARAMETER, BUFFER) and entry.name not in left_out]
        kept += [entry for entry in entries if entry.kind == EXTRA_STATE and entry.name in keys]
        problems = [problem for entry in kept if (problem := _unnamed_dtype(entry)) is not None]
        left_out = left_out | {problem.tensor or "" for problem in problems}
        kept = [entry for entry in kept if entry.name not in left_out]
        skeleton = _skeleton(kept, conversion, dtypes)
        is_meta = {entry.name: entry.is_meta for entry in kept}
        # What is shared out flattened has no place in the layout: it is read whole, and compared by pieces.
        spots = {
            entry.name: dataclasses.replace(layout.spots.get(entry.name, Spot()), unit="", is_offloaded=False)
            for entry in kept
        }
        misplaced: set[str] = set()
        for tie in skeleton["ties"]:
            first = min(tie, key=lambda name: is_meta[name])
            misplaced |= {name for name in tie if spots[name] != spots[first]}
            spots |= dict.fromkeys(tie, spots[first])
        own = Layout(layout.size, spots, layout.names)
        return cls(skeleton, own, conversion, misplaced, left_out, problems)

    def join(self, ranks: Agreement) -> list[Problem]:
        """With what other ranks hold. Tensors that ranks hold differently are problems, the same on all ranks, and
        are left out."""
        problems: list[Problem] = []
        while True:
            try:
                self.skeleton, self.layout = joined(ranks, self.skeleton, self.layout)
                return problems
            except LadingError as error:
                if error.code != "ranks_differ" or not error.tensors:
                    raise
                problems += error.problems
                self.left_out |= set(error.tensors)
                self.skeleton = _without(self.skeleton, set(error.tensors))
                spots = {name: spot for name, spot in self.layout.spots.items() if name not in error.tensors}
                self.layout = Layout(self.layout.size, spots, self.layout.names)


class Expected:
    """The plan of a model's parameters and persistent buffers. The findings get what the checkpoint itself lacks, and
    what cannot be read of it; the other tensors are read all the same."""

    def __init__(self, wanted: Wanted, options: Options, location: str, ranks: Agreement, findings: Findings) -> None:
        self._conversion, self._options, self._location, self._ranks = (wanted.conversion, options, location, ranks)
        self._skeleton = wanted.skeleton
        self._is_strict = options.strict and not wanted.left_out  # whose keys would be unexpected
        self._layout = wanted.layout.document(["cpu"] * ranks.size)
        self._problems = findings.problems
        self._plan = self._planned()
        if self._plan is not None and not options.strict:  # keys that nothing reads, which the user allows
            findings.warnings += [warning for warning in self._plan.warnings if warning.rule == _UNEXPECTED]

    def values(self) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
        """(names, this rank's part) of every tensor that comes from the file. The part is on the CPU, and
        good until the next."""
        if self._plan is None:
            return
        batch: list[Any] = []
        for destination in self._plan.destinations:
            if destination.provenance != "file":
                continue
            if batch and sum(one.size_bytes for one in batch) + destination.size_bytes > BATCH_BYTES:
                yield from self._loaded(batch)
                batch = []
            batch.append(destination)
        if batch:
            yield from self._loaded(batch)

    def _planned(self) -> _engine.Plan | None:
        """All problems at once; then again without the tensors that have them, for the values of the rest."""
        request = self._request(self._skeleton, strict=self._is_strict)
        try:
            return _engine.plan(request)
        except LadingError as error:
            told = {problem.tensor for problem in self._conversion.problems}
            self._problems += [problem for problem in error.problems if problem.tensor not in told]
            if error.stage == "checkpoint":
                return None
            bad = set(error.tensors)
        while True:
            rest = _without(self._skeleton, bad)
            if not rest["tensors"]:
                return None
            try:
                return _engine.plan(self._request(rest, strict=False, is_part=True))
            except LadingError as error:
                self._problems += [one for one in error.problems if one not in self._problems]
                if not set(error.tensors) - bad:
                    return None
                bad |= set(error.tensors)

    def _request(
        self, skeleton: dict[str, Any], *, strict: bool, is_part: bool = False, ties: str = "keep"
    ) -> dict[str, Any]:
        policy = self._options.policy(self._conversion) | {"ties": ties}
        policy["unexpected"] = "strict" if strict else "report"
        names = {tensor["name"] for tensor in skeleton["tensors"]}
        rules = [rule for rule in self._layout["rules"] if rule["name"] in names]
        if is_part and "subtree_dtypes" in policy:
            subtrees = policy["subtree_dtypes"].items()
            policy["subtree_dtypes"] = {prefix: dtype for prefix, dtype in subtrees if _has(names, prefix)}
        mapping = self._conversion.mapping_document()
        if mapping is not None and is_part:
            concerned = [rule | {"optional": True} for rule in mapping["rules"] if _concerns(rule, names)]
            mapping = {**mapping, "rules": concerned}
        return {
            "checkpoint": self._location,
            "skeleton": skeleton,
            "layout": self._layout | {"rules": rules},
            "policy": policy,
            "mapping": mapping,
            "part_of_model": is_part,
            "ranks": [self._ranks.rank],
            "digests": False,
            "compare_ties": False,  # values are judged one by one
        }

    def _loaded(self, batch: list[Any]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
        """Reports and omits tensors that cannot be loaded. Where the keys of a tie differ, each member is read from
        its own: the model is compared with both."""
        names = {name for one in batch for name in (one.name, *one.aliases)}
        everything = {tensor["name"] for tensor in self._skeleton["tensors"]}
        ties = "keep"
        while names:
            part = _without(self._skeleton, everything - names)
            try:
                plan = _engine.plan(self._request(part, strict=False, is_part=True, ties=ties))
                memories = [torch.empty(one.local_shape, dtype=torch_dtype(one.dtype)) for one in plan.destinations]
                plan.load([(memory.data_ptr(), memory.numel() * memory.element_size()) for memory in memories])
            except LadingError as error:
                if error.code == "values_differ" and ties == "keep":
                    ties = "untie"
                    continue
                self._problems += error.problems
                if not names & set(error.tensors):
                    return
                names -= set(error.tensors)
                continue
            for one, memory in zip(plan.destinations, memories, strict=True):
                yield (one.name, *one.aliases), memory
            return


def keys_of(location: str, naming: Naming | None, tensors: Iterable[str] | None) -> set[str]:
    """The checkpoint's keys, as the user calls them; none if it cannot be read, which the plan says. `tensors`: as for
    `Catalog.of`."""
    try:
        catalog = naming.read(location, tensors).catalog if naming is not None else Catalog.of(location, tensors)
        return set(catalog.shapes)
    except LadingError:
        return set()


def _unnamed_dtype(entry: Entry) -> Problem | None:
    try:
        dtype_name(entry.dtype)
    except SkeletonError as error:
        return Problem("skeleton", error.reason, tensor=entry.name, remedy=error.remedy)
    return None


def _skeleton(entries: Sequence[Entry], conversion: Conversion, dtypes: dict[str, torch.dtype]) -> dict[str, Any]:
    """As if nothing had a value: the file's value is compared with the current one."""
    document = skeleton_document(entries, pins=conversion.pins)
    for tensor in document["tensors"]:
        tensor.pop("device", None)
        tensor["presence"] = "meta"
        if tensor["name"] in dtypes:
            tensor["dtype"] = dtype_name(dtypes[tensor["name"]])
        tensor.setdefault("init", {"kind": "fill", "value": 0})
    names = {tensor["name"] for tensor in document["tensors"]}
    document["ties"] = [
        known
        for tie in (*document["ties"], *conversion.ties)
        if len(known := [name for name in tie if name in names]) > 1
    ]
    shape = {tensor["name"]: (tensor["shape"], tensor["dtype"]) for tensor in document["tensors"]}
    for tie in document["ties"]:  # a tie that a loader broke may have two dtypes: that is found where they are compared
        for name in tie[1:]:
            if shape[name][1] != shape[tie[0]][1]:
                next(t for t in document["tensors"] if t["name"] == name)["dtype"] = shape[tie[0]][1]
    return document


def _without(skeleton: dict[str, Any], names: set[str]) -> dict[str, Any]:
    ties = [[name for name in tie if name not in names] for tie in skeleton["ties"]]
    return skeleton | {
        "tensors": [tensor for tensor in skeleton["tensors"] if tensor["name"] not in names],
        "ties": [tie for tie in ties if len(tie) > 1],
    }


def _has(names: set[str], prefix: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for name in names)


def without_adapters(conversion: Conversion, adapters: set[str]) -> Conversion:
    """Adapters and trained copies of modules are not the base checkpoint's: no rule of its keys is for them."""
    if conversion.mapping is None or not adapters:
        return conversion
    rules = [rule for rule in conversion.mapping["rules"] if target_of(rule) not in adapters]
    mapping = conversion.mapping | {"rules": rules} if rules else None
    not_expected = [name for name in conversion.not_expected if name not in adapters]
    return dataclasses.replace(conversion, mapping=mapping, not_expected=not_expected)


def _concerns(rule: dict[str, Any], names: set[str]) -> bool:
    target = target_of(rule)
    return target is None or target in names
