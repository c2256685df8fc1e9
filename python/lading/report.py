"""What a load did: `Report`, the answer of `lading.materialize`."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import logging
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .errors import Problem, shown

_FEW, _SHOWN = 8, 20
_UNEXPECTED = "R39"


class LoadedFrom(NamedTuple):
    """What a save needs to know to write what a load has read."""

    location: Any  # as the user named it; None: the model started without a checkpoint
    naming: Any  # what the user said about names
    quantized: str
    place: Any  # the same, wherever the working directory, a link or a branch leads later


class OfWhole(NamedTuple):
    """What a load of pipeline stages was told of the model that they were cut from, for a save of them."""

    conversion: Any  # of the checkpoint's keys
    ties: list[list[str]]
    not_in_files: list[str]  # its non-persistent buffers


class LoadedTensor(NamedTuple):
    """One tensor in this rank's memory."""

    name: str
    provenance: str  # file, host, call, fill, random, kept
    dtype: str  # named as in safetensors
    shape: tuple[int, ...]  # of the whole tensor
    local_shape: tuple[int, ...]
    device: str
    aliases: tuple[str, ...]
    digest: str  # of this part; parts add up to the whole (docs/how-it-works/digests.md)

    @classmethod
    def of(cls, name: str, destination: Any, digest: str) -> LoadedTensor:
        """Under one of the names of a destination of the engine's."""
        return cls(
            name,
            destination.provenance,
            destination.dtype,
            destination.shape,
            destination.local_shape,
            destination.device,
            tuple(other for other in (destination.name, *destination.aliases) if other != name)
            if destination.aliases
            else (),
            digest,
        )


class HostMemory(NamedTuple):
    """Host memory that a load takes on this rank beside the model, as planned before it begins, in bytes."""

    staging: int = 0  # for reading: within `budget`
    handed_in: int = 0  # for values that are in no file, beside the user's own
    exchange: int = 0  # for bytes on their way between ranks

    @property
    def total(self) -> int:
        return sum(self)

    def notes(self, budget: int | None) -> list[str]:
        """That it is more than the budget, which holds for reading only."""
        if budget is None or self.total <= budget or not (self.handed_in or self.exchange):
            return []
        parts = ", ".join(f"{size / 1e6:.1f} MB for {what}" for what, size in zip(_USES, self, strict=True) if size)
        return [f"the load takes more host memory than its budget of {budget / 1e6:.1f} MB: {parts}"]


_USES = ("reading", "values that are in no file", "the exchange")


@dataclasses.dataclass
class Report:
    """A completed load on this rank.

        report = lading.materialize(model, path, device="cuda:0")
        print(report)                                   # 291 tensors, 16.1 GB, 0.4 s …
        report.tensors["lm_head.weight"].provenance     # "file"

    Attributes:
        tensors: this rank's, by every name, aliases too.
        missing_keys: parameters, persistent buffers and extra state that the checkpoint lacks: they were initialised,
            or kept the value that they had. Not what `external`, `keep` or an adapter file gives, and not what the
            model's library does not expect in a file.
        unexpected_keys: keys of the checkpoint that were not read, where that was allowed.
        mismatched_keys: tensors with another shape in the checkpoint, where that was allowed; they were not read.
        initialized: parameters, persistent buffers and extra state that no file gives a value: an initialiser or a
            recipe made it. Among them are those of `missing_keys` and `mismatched_keys` that had no value before,
            and adapters without a file.
        notes: what lading decided, in sentences.
        warnings: results that may be unintended, such as requests that were not followed.
        optimizer: of the load of the optimizer's state tensors, by keys of their own; None without `optimizer=`, or if
            there are none.

    The four lists of names are of the whole model, and the same on every rank.
    """

    tensors: dict[str, LoadedTensor]
    rank: int
    ranks: int
    device: str
    plan_digest: str
    bytes: int
    read_bytes: int
    planning_seconds: float
    loading_seconds: float
    total_seconds: float
    notes: tuple[str, ...]
    warnings: tuple[Problem, ...]
    missing_keys: list[str]
    unexpected_keys: list[str]
    mismatched_keys: list[str]
    initialized: list[str]
    verification: dict[str, Any] | None = None
    memory: HostMemory = HostMemory()
    optimizer: Report | None = None
    _engine_report: Any = dataclasses.field(default=None, repr=False)
    _has_checkpoint: bool = dataclasses.field(default=True, repr=False)
    _whole: OfWhole | None = dataclasses.field(default=None, repr=False)
    _source: LoadedFrom = dataclasses.field(default=LoadedFrom(None, None, "dequantize", None), repr=False)

    @functools.cached_property
    def ledger(self) -> str:
        """The bill of lading of docs/schema/ledger.md, as JSON text. It is made on request."""
        return self._engine_report.ledger()

    def by_provenance(self) -> dict[str, list[str]]:
        """Names by where their values came from."""
        found: dict[str, list[str]] = collections.defaultdict(list)
        for name, tensor in self.tensors.items():
            found[tensor.provenance].append(name)
        return dict(found)

    def to_json(self) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name[0] != "_"}
        fields["tensors"] = {name: tensor._asdict() for name, tensor in self.tensors.items()}
        fields["memory"] = self.memory._asdict()
        fields["warnings"] = [dataclasses.asdict(warning) for warning in self.warnings]
        fields["optimizer"] = None if self.optimizer is None else json.loads(self.optimizer.to_json())
        return json.dumps(fields, indent=2)

    def __str__(self) -> str:
        return "\n  ".join(text for _, text in self.lines())

    def lines(self) -> list[tuple[int, str]]:
        """What `str` shows, each line with its level of logging: first a summary, then what a person needs first."""
        counts = ", ".join(f"{len(names)} {word}" for word, names in sorted(self.by_provenance().items()))
        speed = self.bytes / self.total_seconds / 1e9 if self.total_seconds else 0.0
        head = f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""
        size = f"{self.bytes / 1e6:.1f} MB in {self.total_seconds:.2f} s ({speed:.2f} GB/s)"
        told = [warning for warning in self.warnings if warning.rule != _UNEXPECTED]  # they are listed
        more = [f"and {len(told) - _SHOWN} more warnings"] if len(told) > _SHOWN else []
        return [
            (logging.INFO, f"{head}{len(self.tensors)} tensors ({counts}), {size}"),
            *self._lacking(),
            *((logging.INFO, text) for text in [*self.notes, *(f"warning: {one}" for one in told[:_SHOWN]), *more]),
        ]

    def _lacking(self) -> list[tuple[int, str]]:
        made, missing, mismatched = set(self.initialized), set(self.missing_keys), set(self.mismatched_keys)
        shape = "of another shape in the checkpoint"
        without = ", which checkpoints do not usually have" if self._has_checkpoint else ""
        warning, info = logging.WARNING, logging.INFO
        lines = [
            (warning, missing & made, "tensor", "missing from the checkpoint, and initialised"),
            (warning, mismatched & made, "tensor", f"{shape}, and initialised"),
            (warning, missing - made, "tensor", "missing from the checkpoint, and kept as before"),
            (warning, mismatched - made, "tensor", f"{shape}, and not read"),
            (info, set(self.unexpected_keys), "key", "in the checkpoint, not read"),
            (info, made - missing - mismatched, "tensor", f"initialised{without}"),
        ]
        return [
            (level, f"{len(names)} {what}{'s' if len(names) > 1 else ''} {text}: {folded(sorted(names))}")
            for level, names, what, text in lines
            if names
        ]


def folded(names: Iterable[str]) -> str:
    """Names in a line. Of many, those that differ in numbers alone are one: layers.*.norm.weight (32)."""
    listed = list(names)
    if len(listed) > _FEW:
        groups: dict[str, list[str]] = collections.defaultdict(list)
        for name in listed:
            groups[re.sub(r"(?<![^.])\d+(?![^.])", "*", name)].append(name)
        listed = [f"{one} ({len(group)})" if len(group) > 1 else group[0] for one, group in groups.items()]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(map(shown, listed[:_SHOWN])) + more
