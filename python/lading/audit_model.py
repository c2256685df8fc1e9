"""`lading.audit`: whether a model in memory holds what it should, whoever loaded it.

    report = lading.audit(model, "path/to/checkpoint")
    print(report)                                       # one line for each thing that is wrong
    lading.audit(model, path, raise_on="error")         # or an exception that lists them

Nothing is changed. Values are compared bit for bit with what the engine reads from the checkpoint, buffers that no
file holds with what the model's constructor makes. On several ranks all of them must call it; each checks its own
parts, and parts that are replicas of each other are compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .agreement import Agreement
from .audit_twin import Made, constructed
from .audit_values import Expected
from .conversion import Conversion, conversion_of
from .devices import rank_device
from .errors import LadingError, Problem
from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry, take_inventory
from .options import Options
from .placements import Placements, is_dtensor, is_elsewhere, is_foreign, local_of, read_placements
from .recording import SkeletonError

TIMEOUT_S = 600.0
_SHOWN = 40


@dataclasses.dataclass
class AuditReport:
    """What an audit found on this rank.

    `problems` are wrong: the model does not hold what it should. `warnings` may be meant so. `notes` say what was
    taken for granted, or could not be looked at.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]
    checked: dict[str, int]  # how many tensors were compared with what
    rank: int
    ranks: int

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names that something is wrong with, once."""
        return tuple(dict.fromkeys(problem.tensor for problem in self.problems if problem.tensor is not None))

    def codes(self) -> set[str]:
        return {problem.code for problem in self.problems}

    def to_json(self) -> str:
        fields = dataclasses.asdict(self) | {"schema": "lading.audit/1", "ok": self.ok}
        return json.dumps(fields, indent=2)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.checked.items() if count)
        verdict = "nothing wrong" if self.ok else f"{len(self.problems)} problems"
        head = f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""
        lines = [f"{head}{verdict}; checked {counts or 'nothing'}"]
        lines += [f"  {problem}" for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"  and {len(self.problems) - _SHOWN} more")
        lines += [f"  warning: {warning}" for warning in self.warnings[:_SHOWN]]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def audit(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    like: nn.Module | Sequence[nn.Module] | None = None,
    device: Any = None,
    dtype: Any = "auto",
    cast: str = "promote",
    compute_dtype: Any = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    raise_on: str | None = None,
    group: Any = None,
    timeout: float = TIMEOUT_S,
) -> AuditReport:
    """Looks for what is wrong with a loaded model: left on meta, on another device, of another dtype than the contract
    says, different from the checkpoint or from what the constructor makes, untied, un-frozen, or different between
    ranks that should hold the same.

    Args:
        model: as it is in memory, sharded or not. A list of modules is a model in parts.
        checkpoint: to compare with. Without one, values of parameters and persistent buffers are not judged.
        like: the same model built under `lading.skeleton()`, or real as its constructor leaves it. It is the measure
            for buffers that no file holds and for frozen parameters. A model of transformers, and one that was built
            under `lading.skeleton()`, need none.
        device: where everything should be. None: where the parameters are.
        dtype, cast, compute_dtype, strict, allow_missing, allow_unexpected, allow_mismatch: what the model was to be
            loaded with, as in `lading.materialize`.
        raise_on: "error" or "warning" raises LadingError, on every rank, if any rank found one; its `report` is the
            report.
        group, timeout: as in `lading.materialize`.
    """
    if raise_on not in (None, "error", "warning"):
        raise ValueError(f'raise_on is {raise_on!r}; it should be None, "error" or "warning"')
    parts = [model] if isinstance(model, nn.Module) else list(model)
    twins = [] if like is None else [like] if isinstance(like, nn.Module) else list(like)
    options = Options.of(
        device=device,
        dtype=dtype,
        cast=cast,
        compute_dtype=compute_dtype,
        strict=strict,
        allow_missing=allow_missing,
        allow_unexpected=allow_unexpected,
        allow_mismatch=allow_mismatch,
    )
    ranks = Agreement.of(group, timeout)
    audited = _Audit(parts, options, ranks, twins)
    audited.look(os.fspath(checkpoint) if checkpoint is not None else None)
    report = audited.report()
    _raise(report, raise_on, ranks)
    return report


class _Audit:
    """One audit on one rank: every check adds to what was found."""

    def __init__(self, parts: list[nn.Module], options: Options, ranks: Agreement, twins: list[nn.Module]) -> None:
        self.parts, self.options, self.ranks = parts, options, ranks
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.notes: list[str] = []
        self.checked = dict.fromkeys(("with the checkpoint", "with their derivation", "between ranks"), 0)
        entries = [entry for entry in take_inventory(parts) if entry.is_tensor]
        self.entries = [entry for entry in entries if not is_elsewhere(entry.value) and not is_foreign(entry)]
        self.whole = [entry for entry in self.entries if not hasattr(entry.value, "ds_shape")]
        self.by_name = {entry.name: entry for entry in self.entries}
        known = constructed(parts, self.entries, twins)
        self.made, self.made_ties = known.made, known.ties
        self.notes += known.notes

    def look(self, location: str | None) -> None:
        self._meta()
        modules = [module for part in self.parts for module in part.modules()]
        placements = read_placements(self.whole, self.ranks.ranks, modules)
        self.problems += placements.problems
        self._devices(placements)
        conversion = conversion_of(self.parts, location) if location is not None else self._declared()
        conversion.ties += [tie for tie in self.made_ties if tie not in conversion.ties]
        self._frozen()
        self._ties(conversion)
        self._derived()
        if location is not None and not placements.problems:
            self._values(placements, conversion, location)
        self._replicas()

    def report(self) -> AuditReport:
        return AuditReport(
            tuple(dict.fromkeys(self.problems)),
            tuple(dict.fromkeys(self.warnings)),
            tuple(self.notes),
            self.checked,
            self.ranks.ranks[self.ranks.rank],
            self.ranks.size,
        )

    def _found(self, code: str, entry: Entry, message: str, rule: str, expected: str = "", found: str = "") -> None:
        rank = self.ranks.ranks[self.ranks.rank] if self.ranks.size > 1 else None
        problem = Problem(code, message, tensor=entry.name, rank=rank, rule=rule, expected=expected, found=found)
        (self.warnings if entry.kind == ATTRIBUTE and code != "meta" else self.problems).append(problem)

    # ---- what can be seen without values

    def _meta(self) -> None:
        for entry in self.entries:
            if entry.is_meta:
                self._found("meta", entry, f"a {_kind(entry)} that was never loaded: it is still on meta", "R2")

    def _devices(self, placements: Placements) -> None:
        real = [entry for entry in self.whole if not entry.is_meta]
        if not real:
            return
        try:
            device, _ = rank_device(self.options.device, placements, real)
        except LadingError:
            counts: dict[torch.device, int] = {}
            for entry in real:
                if entry.kind == PARAMETER:
                    counts[entry.device] = counts.get(entry.device, 0) + entry.value.numel()
            device = max(counts, key=lambda one: counts[one], default=real[0].device)
            self.notes.append(f"most of the model is on {device}, which is taken for where it should be")
        offloaded = {key for unit in placements.units if unit.is_offloaded for key in unit.shard_dims}
        for entry in real:
            there = local_of(entry.value).device
            wanted = torch.device("cpu") if id(entry.value) in offloaded else device
            if there.type != wanted.type or (wanted.index is not None and there.index != wanted.index):
                self._found("device", entry, f"a {_kind(entry)} is on the wrong device", "R35", str(wanted), str(there))

    def _frozen(self) -> None:
        for entry in self.entries:
            made = self.made.get(entry.name)
            if made is not None and entry.kind == PARAMETER and entry.requires_grad and not made.requires_grad:
                self._found(
                    "unfrozen", entry, "its constructor freezes it, but it is trainable", "R61",
                    "requires_grad=False", "requires_grad=True",
                )  # fmt: skip

    def _declared(self) -> Conversion:
        from . import huggingface

        return huggingface.declarations(self.parts) or Conversion()

    def _ties(self, conversion: Conversion) -> None:
        for tie in conversion.ties:
            members = [self.by_name[name] for name in tie if name in self.by_name]
            self._one_tensor(members)

    def _one_tensor(self, members: list[Entry]) -> None:
        for other in members[1:]:
            first = members[0]
            if first.value is other.value or (first.tie_class is not None and first.tie_class == other.tie_class):
                continue
            self._found("untied", other, f"it should be one tensor with {first.name}, and is another", "R49")

    # ---- values

    def _derived(self) -> None:
        for entry in self.whole:
            made = self.made.get(entry.name)
            if entry.kind not in (NON_PERSISTENT, ATTRIBUTE) or entry.is_meta or entry.view_of is not None:
                continue
            if entry.kind == ATTRIBUTE and entry.tie_class is not None:
                continue
            if made is None or not made.values or is_dtensor(entry.value):
                if entry.kind == NON_PERSISTENT:
                    self.notes.append(f"{entry.name} was not judged: nothing says what its constructor makes")
                continue
            self._compare_derived(entry, made)

    def _compare_derived(self, entry: Entry, made: Made) -> None:
        differences = []
        for value in made.values:
            try:
                wanted = value()
            except SkeletonError as error:
                self.notes.append(f"{entry.name} was not judged: {error.reason}")
                return
            difference = _difference(wanted.cpu(), local_of(entry.value))
            if difference is None:
                self.checked["with their derivation"] += 1
                return
            differences.append(difference)
        self.checked["with their derivation"] += 1
        code, message, expected, found = differences[-1]
        rule = "R29" if code == "dtype" else "R6"
        text = f"a {_kind(entry)} is not what its constructor makes: {message}"
        self._found(code, entry, text, rule, expected, found)

    def _values(self, placements: Placements, conversion: Conversion, location: str) -> None:
        dtypes = {name: made.dtype for name, made in self.made.items()}
        expected = Expected(self.entries, placements.layout, conversion, self.options, location, self.ranks, dtypes)
        self.problems += expected.problems
        for names, expected_value in expected.values():
            for name in names:
                wanted = expected_value
                entry = self.by_name.get(name)
                if entry is None or entry.is_meta:
                    continue
                self.checked["with the checkpoint"] += 1
                there = local_of(entry.value)
                if hasattr(there, "ds_tensor") and entry.presence == "empty":
                    there, wanted = _zero3_part(there, wanted)
                if there.numel() == 0 and wanted.numel() == 0:
                    continue
                if tuple(there.shape) != tuple(wanted.shape):
                    self._found(
                        "shape", entry, "it has another shape than its part of the checkpoint", "R54",
                        str(list(wanted.shape)), str(list(there.shape)),
                    )  # fmt: skip
                    continue
                difference = _difference(wanted, there)
                if difference is not None:
                    code, message, want, found = difference
                    rule = "R23" if code == "dtype" else "R24" if code == "rounded" else "R1"
                    text = f"a {_kind(entry)} differs from the checkpoint: {message}"
                    self._found(code, entry, text, rule, want, found)

    def _replicas(self) -> None:
        """Parts that are replicas must have the same bits (R17). A digest of each goes over the store."""
        if self.ranks.size == 1:
            return
        real = [entry for entry in self.whole if not entry.is_meta]
        mine = {f"{entry.name}\0{_part(entry)}": _digest(local_of(entry.value)) for entry in real}
        answers = self.ranks.documents("replicas", json.dumps(mine, sort_keys=True))
        first: dict[str, tuple[int, str]] = {}
        for rank, text in zip(self.ranks.ranks, answers, strict=True):
            for key, digest in json.loads(text).items():
                other, known = first.setdefault(key, (rank, digest))
                self.checked["between ranks"] += key in mine and other != rank
                if known != digest:
                    name = key.partition("\0")[0]
                    message = f"ranks {other} and {rank} hold copies of it that differ"
                    self.problems.append(Problem("replicas", message, tensor=name, rule="R17"))


def _kind(entry: Entry) -> str:
    return {
        PARAMETER: "parameter",
        BUFFER: "persistent buffer",
        NON_PERSISTENT: "non-persistent buffer",
        ATTRIBUTE: "plain tensor attribute",
    }.get(entry.kind, entry.kind)


def _part(entry: Entry) -> str:
    """Which part of the whole a rank holds: replicas have the same."""
    if not is_dtensor(entry.value):
        return ""
    coordinate = entry.value.device_mesh.get_coordinate()
    cuts = [place for place, one in enumerate(entry.value.placements) if not one.is_replicate()]
    return ",".join(f"{place}:{coordinate[place]}" for place in cuts)


def _zero3_part(parameter: Any, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's partition without its padding, and what should be there. ZeRO-3 cuts the flat tensor."""
    import torch.distributed as dist

    group = getattr(parameter, "ds_process_group", None)
    rank = dist.get_rank(group) if dist.is_initialized() else 0
    partition = parameter.ds_tensor.detach().reshape(-1)
    part = wanted.reshape(-1)[rank * partition.numel() :][: partition.numel()]
    return partition[: part.numel()], part


def _digest(tensor: torch.Tensor) -> str:
    flat = _bytes(tensor)
    return hashlib.blake2b(flat.numpy().tobytes() + str(tensor.dtype).encode(), digest_size=12).hexdigest()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def _difference(wanted: torch.Tensor, there: torch.Tensor) -> tuple[str, str, str, str] | None:
    """(code, message, expected, found), or None if both are the same to the last bit."""
    there = there.detach().resolve_conj().resolve_neg().cpu()
    if tuple(wanted.shape) != tuple(there.shape):
        return "shape", "its shape", str(list(wanted.shape)), str(list(there.shape))
    if wanted.dtype != there.dtype:
        return "dtype", "its dtype", _short(wanted.dtype), _short(there.dtype)
    if wanted.numel() == 0:
        return None
    width = wanted.element_size()
    differs = (_bytes(wanted) != _bytes(there)).view(-1, width).any(dim=1)
    count = int(differs.sum())
    if count == 0:
        return None
    place = int(differs.nonzero()[0])
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), wanted.shape)] if wanted.dim() else []
    want, found = wanted.reshape(-1)[place].item(), there.reshape(-1)[place].item()
    where = f"at {index}" if index else "in its value"
    rounded = wanted.dtype.is_floating_point and _is_rounded(wanted, there)
    text = f"{count} of {wanted.numel()} elements, the first {where}"
    if rounded:
        text += f", and it holds what rounding to {rounded} leaves"
    return "rounded" if rounded else "value", text, repr(want), repr(found)


def _is_rounded(wanted: torch.Tensor, there: torch.Tensor) -> str:
    for dtype in (torch.bfloat16, torch.float16):
        if wanted.dtype.itemsize > dtype.itemsize:
            rounded = wanted.to(dtype).to(wanted.dtype)
            if torch.equal(_bytes(rounded), _bytes(there)):
                return _short(dtype)
    return ""


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _raise(report: AuditReport, raise_on: str | None, ranks: Agreement) -> None:
    if raise_on is None:
        return
    found = list(report.problems) + (list(report.warnings) if raise_on == "warning" else [])
    failure = LadingError(found, stage="audit", exit_code=6, report=report) if found else None
    if ranks.size == 1:
        if failure is not None:
            raise failure
        return
    ranks.exchange("the audit", {}, failure=failure)


