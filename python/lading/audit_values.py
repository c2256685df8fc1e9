"""What a model should hold by its checkpoint: the engine plans a load of it as if it were on meta, and loads that into
memory of its own, a part at a time; the model is only looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import _engine
from .agreement import Agreement
from .conversion import Conversion
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .inventory import BUFFER, PARAMETER, Entry
from .inventory_json import dtype_name, skeleton_json
from .options import Options
from .placements import Layout
from .stages import joined

BATCH_BYTES = 512 << 20


class Expected:
    """The plan of a model's parameters and persistent buffers. `problems` is what the checkpoint itself lacks."""

    def __init__(
        self,
        entries: Sequence[Entry],
        layout: Layout,
        conversion: Conversion,
        options: Options,
        location: str,
        ranks: Agreement,
        dtypes: dict[str, torch.dtype],
    ) -> None:
        self._conversion, self._options, self._location, self._ranks = conversion, options, location, ranks
        self._skeleton, self._layout = joined(
            ranks, _skeleton([e for e in entries if e.kind in (PARAMETER, BUFFER)], conversion, dtypes), layout
        )
        self.problems: list[Problem] = []
        self._plan = self._planned()

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
        request = self._request(self._skeleton, strict=self._options.strict)
        try:
            return _engine.plan(request)
        except LadingError as error:
            self.problems = list(error.problems)
            if error.stage == "checkpoint":
                return None
            bad = set(error.tensors)
        for _ in range(3):
            rest = _without(self._skeleton, bad)
            if not rest["tensors"]:
                return None
            try:
                return _engine.plan(self._request(rest, strict=False, is_part=True))
            except LadingError as error:
                if not set(error.tensors) - bad:
                    self.problems += [one for one in error.problems if one not in self.problems]
                    return None
                bad |= set(error.tensors)
        return None

    def _request(self, skeleton: dict[str, Any], *, strict: bool, is_part: bool = False) -> dict[str, Any]:
        policy = self._options.policy(self._conversion)
        policy["unexpected"] = "strict" if strict else "report"
        mapping = self._conversion.mapping_document()
        if mapping is not None and is_part:
            names = {tensor["name"] for tensor in skeleton["tensors"]}
            rules = [rule | {"optional": True} for rule in mapping["rules"] if _concerns(rule, names)]
            mapping = {**mapping, "rules": rules}
        return {
            "checkpoint": self._location,
            "skeleton": skeleton,
            "layout": self._layout.document(["cpu"] * self._ranks.size),
            "policy": policy,
            "mapping": mapping,
            "ranks": [self._ranks.rank],
            "digests": False,
        }

    def _loaded(self, batch: list[Any]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
        names = {name for one in batch for name in (one.name, *one.aliases)}
        everything = {tensor["name"] for tensor in self._skeleton["tensors"]}
        part = _without(self._skeleton, everything - names)
        plan = _engine.plan(self._request(part, strict=False, is_part=True))
        memories = [torch.empty(one.local_shape, dtype=torch_dtype(one.dtype)) for one in plan.destinations]
        plan.load([(memory.data_ptr(), memory.numel() * memory.element_size()) for memory in memories])
        for one, memory in zip(plan.destinations, memories, strict=True):
            yield (one.name, *one.aliases), memory


def _skeleton(entries: Sequence[Entry], conversion: Conversion, dtypes: dict[str, torch.dtype]) -> dict[str, Any]:
    """As if nothing had a value: what the file has is to be compared with what is there."""
    document = json.loads(skeleton_json(list(entries), pins=conversion.pins))
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


def _concerns(rule: dict[str, Any], names: set[str]) -> bool:
    if rule["kind"] == "build":
        return rule["to"].replace("{{", "{").replace("}}", "}") in names
    return rule["kind"] != "rename" or rule["to"] in names
