"""`lading.plan`: what `lading.materialize` would do, without doing it.

    print(lading.plan(model, "path/to/checkpoint", device="cuda:0"))

It goes as far as `materialize` goes before memory is allocated: the model is read, the ranks agree, the engine plans
and proves. Of the files only headers are read, the keys of ties and, on several ranks, samples.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from .agreement import TIMEOUT_S, Agreement
from .allocate import memory_problems
from .errors import Problem
from .exiting import ending_before_python
from .host_values import Recipe
from .loading import Ready, plan_together
from .outcome import dtype_notes, unexpected_keys
from .quantized import notes_of
from .words import Adapter, Arithmetic, Cast, ComputeRecord, Device, DType, External, Group, Pins, Quantized
from .words import Renaming, StrPath, Ties

_SHOWN = 8
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class PlannedTensor(NamedTuple):
    """One tensor in the memory that this rank will have."""

    name: str
    provenance: str  # file, host, call, fill, random, kept
    dtype: str  # named as in safetensors
    shape: tuple[int, ...]  # of the whole tensor
    local_shape: tuple[int, ...]
    device: str
    aliases: tuple[str, ...]


class RankTotals(NamedTuple):
    """The bytes of one rank."""

    bytes: int  # memory of the model, padding included
    read_bytes: int  # of files, if no other rank reads for this one
    staging_bytes: int  # host memory beside the model, at most


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a load would do on this rank.

        plan = lading.plan(model, path, device="cuda:0")
        print(plan)                                     # 291 tensors (290 file, 1 host), 16.1 GB …
        plan.tensors["lm_head.weight"].dtype            # "BF16"
        plan.missing_keys                               # parameters and persistent buffers that no file has

    Attributes:
        tensors: by name, aliases too.
        totals: of every rank of the group, in their order; this rank's are `bytes`, `read_bytes`, `staging_bytes`.
        missing_keys: parameters and persistent buffers whose value does not come from a file.
        unexpected_keys: keys of the checkpoint that the load would not read.
        plan_digest: equal on all ranks, and equal to that of the load's report.
        warnings: of the engine, and too little free memory.
    """

    tensors: dict[str, PlannedTensor]
    rank: int
    ranks: int
    device: str
    totals: tuple[RankTotals, ...]
    bytes: int
    read_bytes: int
    staging_bytes: int
    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    plan_digest: str
    notes: tuple[str, ...]
    warnings: tuple[Problem, ...]

    def by_provenance(self) -> dict[str, list[str]]:
        """Names by where their values will come from."""
        return self._names_by("provenance")

    def by_dtype(self) -> dict[str, list[str]]:
        """Names by the dtype that they will be stored in, named as in safetensors."""
        return self._names_by("dtype")

    def _names_by(self, field: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = collections.defaultdict(list)
        for name, tensor in self.tensors.items():
            found[getattr(tensor, field)].append(name)
        return dict(found)

    def to_json(self) -> str:
        """Everything as JSON text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["tensors"] = {name: tensor._asdict() for name, tensor in self.tensors.items()}
        fields["totals"] = [one._asdict() for one in self.totals]
        fields["warnings"] = [dataclasses.asdict(warning) for warning in self.warnings]
        return json.dumps(fields, indent=2)

    def __str__(self) -> str:
        head = f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""
        lines = [f"{head}{len(self.tensors)} tensors ({_counted(self.by_provenance())}), {_size(self.bytes)}"]
        beside = f"at most {_size(self.staging_bytes)} of host memory beside the model"
        lines.append(f"  reads {_size(self.read_bytes)}, and uses {beside}")
        if self.ranks > 1:
            of_all, most = sum(one.bytes for one in self.totals), max(one.bytes for one in self.totals)
            read = sum(one.read_bytes for one in self.totals)
            lines.append(f"  all ranks: {_size(of_all)}, at most {_size(most)} on one; they read {_size(read)}")
        lines.append(f"  dtypes: {_counted(self.by_dtype())}")
        for word, names in (("not in a file", self.missing_keys), ("keys that are not read", self.unexpected_keys)):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                lines.append(f"  {word}: {', '.join(names[:_SHOWN])}{more}")
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"  plan {self.plan_digest}"])


def _counted(names: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{len(members)} {word}" for word, members in sorted(names.items()))


def _size(count: int) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if count >= unit), _UNITS[-1])
    return f"{count / unit:.1f} {name}"


@ending_before_python
def plan(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: StrPath,
    *,
    revision: str | None = None,
    device: Device | None = None,
    dtype: DType = "auto",
    cast: Cast = "promote",
    compute_dtype: DType | None = None,
    compute_record: ComputeRecord = "checkpoint",
    pins: Pins = (),
    subtree_dtypes: Mapping[str, DType] | None = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    keep: Sequence[str] = (),
    external: External | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    mapping: Renaming | None = None,
    key_mapping: Mapping[str, str] | None = None,
    adapter: Adapter | None = None,
    whole: nn.Module | None = None,
    ties: Ties = "keep",
    quantized: Quantized = "dequantize",
    arithmetic: Arithmetic = "exact",
    seed: int = 0,
    budget: int | None = None,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> Plan:
    """A dry run of `lading.materialize`: the same checks and the same plan, but no memory is allocated, no weights are
    read, and the model stays as it is.

        with lading.skeleton():
            model = Model()
        plan = lading.plan(model, "path/to/checkpoint", device="cuda:0")
        print(plan)                                         # 291 tensors (290 file, 1 host), 16.1 GB …

    All ranks of the group must call it, and agree as for a load. A device that does not exist or has too little
    memory is a warning of the plan: it may be made on another machine than the load.

    Args:
        model, checkpoint, revision, device, dtype, cast, compute_dtype, compute_record, pins, subtree_dtypes, strict,
            allow_missing, allow_unexpected, allow_mismatch, keep, external, recipes, mapping, key_mapping, adapter,
            whole, ties, quantized, arithmetic, seed, budget: as in `lading.materialize`.
        group: the process group whose ranks plan together; None means the default group, False this process.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.

    Raises:
        LadingError: all problems for which `materialize` would refuse the load before it begins.
    """
    with Agreement.of(group, timeout) as ranks:
        ready = plan_together(
            model,
            checkpoint,
            revision,
            ranks,
            "plan",
            allocates=False,
            device=device,
            dtype=dtype,
            cast=cast,
            compute_dtype=compute_dtype,
            compute_record=compute_record,
            pins=pins,
            subtree_dtypes=subtree_dtypes,
            strict=strict,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            allow_mismatch=allow_mismatch,
            keep=keep,
            external=external,
            recipes=recipes,
            mapping=mapping,
            key_mapping=key_mapping,
            adapter=adapter,
            whole=whole,
            ties=ties,
            quantized=quantized,
            arithmetic=arithmetic,
            seed=seed,
            budget=budget,
        )
        return _report(ready, ranks)


def _report(ready: Ready, ranks: Agreement) -> Plan:
    plan, prepared = ready.plan, ready.prepared
    tensors = {}
    for one in plan.destinations:
        if not one.slot:
            for name in (names := (one.name, *one.aliases)):
                others = tuple(other for other in names if other != name)
                tensors[name] = PlannedTensor(
                    name, one.provenance, one.dtype, one.shape, one.local_shape, one.device, others
                )
    totals = [RankTotals(one["bytes"], one["read_bytes"], one["staging_bytes"]) for one in ready.totals]
    return Plan(
        tensors=dict(sorted(tensors.items())),
        rank=ranks.ranks[ranks.rank],
        ranks=ranks.size,
        device=str(prepared.device),
        totals=tuple(totals),
        bytes=totals[ranks.rank].bytes,
        read_bytes=totals[ranks.rank].read_bytes,
        staging_bytes=totals[ranks.rank].staging_bytes,
        missing_keys=tuple(plan.answer["missing_keys"]),
        unexpected_keys=tuple(unexpected_keys(plan, prepared)),
        plan_digest=plan.answer["plan_digest"],
        notes=(*dtype_notes(plan, prepared, ready.options), *notes_of(plan), *prepared.notes),
        warnings=(*plan.warnings, *memory_problems(plan.destinations, prepared.entries)),
    )
