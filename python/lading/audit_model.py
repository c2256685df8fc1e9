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
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .audit_parts import Difference, difference, digest, flat_parts, is_flat, part_like, place_of, why_not_judged
from .audit_twin import Made, constructed
from .audit_values import Expected, Wanted
from .conversion import Conversion, conversion_of
from .devices import rank_device
from .errors import LadingError, Problem
from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry, parts_of, take_inventory
from .options import Options
from .placements import Placements, is_elsewhere, is_foreign, local_of, read_placements
from .recording import SkeletonError

_SHOWN = 40


@dataclasses.dataclass
class AuditReport:
    """What an audit found on this rank.

        report = lading.audit(model, "path/to/checkpoint")
        print(report)                                       # one line for each thing that is wrong
        assert report.ok, report.tensors

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
        verdict = "nothing wrong" if self.ok else f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"
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
    pins: Iterable[str | tuple[str, str]] = (),
    subtree_dtypes: Mapping[str, Any] | None = None,
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

        report = lading.audit(model, "path/to/checkpoint")
        print(report)                                       # one line for each thing that is wrong
        lading.audit(model, "path/to/checkpoint", raise_on="error")

    Args:
        model: as it is in memory, sharded or not. A list of modules is a model in parts.
        checkpoint: to compare with. Without one, values of parameters and persistent buffers are not judged.
        like: the same model built under `lading.skeleton()`, or real as its constructor leaves it. It is the measure
            for buffers that no file holds and for frozen parameters. A model of transformers, and one that was built
            under `lading.skeleton()`, need none.
        device: where everything should be. None: where the parameters are.
        dtype, cast, compute_dtype, pins, subtree_dtypes, strict, allow_missing, allow_unexpected, allow_mismatch: what
            the model was to be loaded with, as in `lading.materialize`.
        raise_on: "error" or "warning" raises LadingError, on every rank, if any rank found one; its `report` is the
            report.
        group, timeout: as in `lading.materialize`.
    """
    if raise_on not in (None, "error", "warning"):
        raise ValueError(f'raise_on is {raise_on!r}; it should be None, "error" or "warning"')
    parts = parts_of(model)
    twins = [] if like is None else [like] if isinstance(like, nn.Module) else list(like)
    options = Options.of(
        device=device,
        dtype=dtype,
        cast=cast,
        compute_dtype=compute_dtype,
        pins=pins,
        subtree_dtypes=subtree_dtypes,
        strict=strict,
        allow_missing=allow_missing,
        allow_unexpected=allow_unexpected,
        allow_mismatch=allow_mismatch,
    )
    with Agreement.of(group, timeout) as ranks:
        audited = _Audit(parts, options, ranks)
        audited.look(os.fspath(checkpoint) if checkpoint is not None else None, twins)
        report = audited.report()
        _raise(report, raise_on, ranks)
    return report


class _Audit:
    """One audit on one rank: every check adds to what was found."""

    def __init__(self, parts: list[nn.Module], options: Options, ranks: Agreement) -> None:
        self.parts, self.options, self.ranks = parts, options, ranks
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.notes: list[str] = []
        self.checked = dict.fromkeys(("with the checkpoint", "with their derivation", "between ranks"), 0)
        self.entries: list[Entry] = []
        self.whole: list[Entry] = []  # without what is shared out flattened
        self.by_name: dict[str, Entry] = {}
        self.made: dict[str, Made] = {}
        self.made_ties: list[list[str]] = []

    def look(self, location: str | None, twins: list[nn.Module]) -> None:
        """Ranks agree after each step, so that one that fails does not leave the others waiting."""
        wanted: Wanted | None = None
        with agreed(self.ranks, "the model to audit") as step:
            wanted = self._without_files(location, twins)
            step.message = {"asks": wanted is not None}
        if location is not None and all(answer["asks"] for answer in step.answers):
            assert wanted is not None
            self.problems += wanted.join(self.ranks)
            with agreed(self.ranks, "the values", while_alive=True):
                self._values(wanted, location)
        self._replicas()

    def _without_files(self, location: str | None, twins: list[nn.Module]) -> Wanted | None:
        """All checks that need no value of the checkpoint, and what is to be asked of it, if anything can be."""
        self._take(twins)
        self._meta()
        modules = [module for part in self.parts for module in part.modules()]
        placements = read_placements(self.whole, self.ranks.ranks, modules)
        self.problems += placements.problems
        self._devices(placements)
        conversion = conversion_of(self.parts, location) if location is not None else self._declared()
        self.problems += conversion.problems
        conversion.ties += [tie for tie in self.made_ties if tie not in conversion.ties]
        self._frozen()
        self._ties(conversion)
        self._derived()
        if location is None or placements.problems:
            return None
        dtypes = {name: made.dtype for name, made in self.made.items()}
        return Wanted.of(self.entries, placements.layout, conversion, dtypes)

    def _take(self, twins: list[nn.Module]) -> None:
        found = [entry for entry in take_inventory(self.parts) if entry.is_tensor]
        self.entries = [entry for entry in found if not is_elsewhere(entry.value) and not is_foreign(entry)]
        self.whole = [entry for entry in self.entries if not is_flat(entry.value)]
        self.by_name = {entry.name: entry for entry in self.entries}
        known = constructed(self.parts, self.entries, twins)
        self.made, self.made_ties = known.made, known.ties
        self.notes += known.notes

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
            if made is None or not made.values:
                if entry.kind == NON_PERSISTENT:
                    self.notes.append(f"{entry.name} was not judged: nothing says what its constructor makes")
                continue
            self._compare_derived(entry, made)

    def _compare_derived(self, entry: Entry, made: Made) -> None:
        found: Difference | None = None
        for value in made.values:
            try:
                wanted = part_like(value().cpu(), entry.value)
            except SkeletonError as error:
                self.notes.append(f"{entry.name} was not judged: {error.reason}")
                return
            if wanted is None:
                self.notes.append(f"{entry.name} was not judged: it is shared out in a way that is not known")
                return
            found = difference(wanted, local_of(entry.value), _where(entry))
            if found is None:
                break
        self.checked["with their derivation"] += 1
        if found is not None:
            rule = "R29" if found.code == "dtype" else "R6"
            text = f"a {_kind(entry)} is not what its constructor makes: {found.message}"
            self._found(found.code, entry, text, rule, found.expected, found.found)

    def _values(self, wanted: Wanted, location: str) -> None:
        expected = Expected(wanted, self.options, location, self.ranks)
        self.problems += expected.problems
        for names, value in expected.values():
            for name in names:
                entry = self.by_name.get(name)
                if entry is None or entry.is_meta or name in wanted.misplaced:
                    continue
                for there, part, where in self._pairs(entry, value):
                    self._compare(entry, part, there, where)

    def _pairs(self, entry: Entry, value: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
        """What this rank holds of a tensor, what it should hold, and what their indices count in."""
        if not is_flat(entry.value):
            yield local_of(entry.value), value, _where(entry)
            return
        reason = why_not_judged(entry.value)
        if reason:
            self.notes.append(f"{entry.name} was not judged: {reason}")
            return
        for part in flat_parts(entry.value, self.ranks.ranks[self.ranks.rank]):
            yield (part.memory, part.of(value), f" of this rank's part, which begins at {part.begin} of the flattened")

    def _compare(self, entry: Entry, wanted: torch.Tensor, there: torch.Tensor, where: str) -> None:
        self.checked["with the checkpoint"] += 1
        if there.numel() == 0 and wanted.numel() == 0:
            return
        found = difference(wanted, there, where)
        if found is not None:
            rule = {"dtype": "R23", "rounded": "R24", "shape": "R54"}.get(found.code, "R1")
            text = f"a {_kind(entry)} differs from the checkpoint: {found.message}"
            self._found(found.code, entry, text, rule, found.expected, found.found)

    def _replicas(self) -> None:
        """Parts that are replicas must have the same bits (R17). A digest of each goes over the store."""
        if self.ranks.size == 1:
            return
        real = [entry for entry in self.whole if not entry.is_meta]
        mine = {f"{entry.name}\0{place_of(entry.value)}": digest(local_of(entry.value)) for entry in real}
        answers = self.ranks.documents("replicas", json.dumps(mine, sort_keys=True))
        first: dict[str, tuple[int, str]] = {}
        for rank, text in zip(self.ranks.ranks, answers, strict=True):
            for key, bits in json.loads(text).items():
                other, known = first.setdefault(key, (rank, bits))
                self.checked["between ranks"] += key in mine and other != rank
                if known != bits:
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


def _where(entry: Entry) -> str:
    return " of this rank's part" if tuple(local_of(entry.value).shape) != entry.shape else ""


def _raise(report: AuditReport, raise_on: str | None, ranks: Agreement) -> None:
    if raise_on is None:
        return
    found = list(report.problems) + (list(report.warnings) if raise_on == "warning" else [])
    failure = LadingError(found, stage="audit", exit_code=6, report=report) if found else None
    if ranks.size == 1:
        if failure is not None:
            raise failure
        return
    ranks.say("the audit", {}, failure=failure)
