"""`lading.audit`: whether a model in memory holds what it should, whoever loaded it.

    report = lading.audit(model, "path/to/checkpoint")
    print(report)                                       # every problem; many of one kind are one line
    lading.audit(model, path, raise_on="error")         # or an exception that lists them

Nothing is changed. Values are compared bit for bit with what the engine reads from the checkpoint, buffers that no
file holds with what the model's constructor makes. On several ranks all of them must call it; each checks its own
parts, and parts that are replicas of each other are compared.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import nn

from . import huggingface
from .agreement import TIMEOUT_S, Agreement, agreed
from .audit_adapters import Altered, adapter_dtypes, is_near
from .audit_checks import look_at, where_in
from .audit_parts import difference, digest, flat_parts, is_flat, part_like, place_of, why_not_judged
from .audit_report import AuditReport, Findings, kind_name
from .audit_structure import tied_apart
from .audit_subject import Subject
from .audit_values import Expected, Wanted, keys_of, without_adapters
from .conversion import Conversion, conversion_of, tensors_of
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .holders import seen_in
from .inventory import ATTRIBUTE, Entry, parts_of
from .load_hooks import hooked
from .locating import located_if_any, revision_of
from .options import Options
from .patterns import matches
from .placements import local_of, read_placements
from .words import Adapter, Arithmetic, Cast, Device, DType, Group, Pins, Renaming, StrPath


_RELOAD = "Load the model again on all ranks."
_PINNED = "R36"  # memory that cannot be pinned is no matter of values


def audit(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: StrPath | None = None,
    *,
    revision: str | None = None,
    like: nn.Module | Sequence[nn.Module] | None = None,
    device: Device | None = None,
    dtype: DType = "auto",
    cast: Cast = "promote",
    compute_dtype: DType | None = None,
    pins: Pins = (),
    subtree_dtypes: Mapping[str, DType] | None = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    mapping: Renaming | None = None,
    key_mapping: Mapping[str, str] | None = None,
    adapter: Adapter | None = None,
    arithmetic: Arithmetic = "exact",
    raise_on: Literal["error", "warning"] | None = None,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> AuditReport:
    """Checks a model that any loader filled, and reports every wrong tensor: left on meta, on another device, of
    another dtype than the contract says, with other values than the checkpoint or the constructor gives, deleted, of
    another kind, tied or untied, un-frozen, different in an optimizer's copy, or different between replicas.

        report = lading.audit(model, "path/to/checkpoint")
        print(report)                                       # every problem; many of one kind are one line
        lading.audit(model, "path/to/checkpoint", raise_on="error")

    Args:
        model: the model in memory, sharded or not. A list of modules is a model in parts.
        checkpoint: the files to compare with, quantized or not. Without it, values of parameters and persistent
            buffers are not checked.
        revision: of a repository in the Hugging Face cache, as in `lading.materialize`.
        like: the same model built under `lading.skeleton()`, or real as its constructor leaves it. It is the reference
            for buffers that are in no file and for frozen parameters. A model of transformers, and one that was built
            under `lading.skeleton()`, need none; the former is built from the checkpoint's config.
        device: the device on which every tensor should be. None: the device of the parameters.
        adapter: of a PeftModel: the file or directory of its adapter, or one for each adapter by name, as in
            `lading.materialize`. Without it, adapters are not checked.
        dtype, cast, compute_dtype, pins, subtree_dtypes, strict, allow_missing, allow_unexpected, allow_mismatch,
            mapping, key_mapping, arithmetic: what the model was loaded with, as in `lading.materialize`.
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
        mapping=mapping,
        key_mapping=key_mapping,
        adapter=adapter,
        arithmetic=arithmetic,
    )
    with Agreement.of(group, timeout) as ranks:
        audited = _Audit(parts, options, ranks)
        audited.look(located_if_any(checkpoint, revision), twins)
        report = audited.report()
        _raise(report, raise_on, ranks)
    return report


class _Audit:
    """One audit on one rank: every check adds to what was found."""

    def __init__(self, parts: list[nn.Module], options: Options, ranks: Agreement) -> None:
        self.parts, self.options, self.ranks = parts, options, ranks
        self.findings = Findings(ranks.ranks[ranks.rank] if ranks.size > 1 else None)
        self.subject: Subject
        self.differing: set[str] = set()  # names whose values are not the checkpoint's

    def look(self, location: str | None, twins: list[nn.Module]) -> None:
        """Ranks agree after each step, so that one that fails does not leave the others waiting."""
        wanted: Wanted | None = None
        with agreed(self.ranks, "the model to audit") as step:
            self.subject = Subject(self.parts, self.options, self.ranks, self.findings, location, twins)
            wanted = self._without_files(location)
            step.message = {"asks": wanted is not None, "absent": sorted(self.subject.absent)}
            step.message["revision"] = None if location is None else revision_of(location)
            step.must_match = ["revision"]
        self._absent([set(answer["absent"]) for answer in step.answers])
        if location is not None:
            self._with_files(wanted, location, [answer["asks"] for answer in step.answers])
        self._tied()
        self._replicas()

    def report(self) -> AuditReport:
        return self.findings.report(self.ranks.ranks[self.ranks.rank], self.ranks.size)

    def _without_files(self, location: str | None) -> Wanted | None:
        """All checks that need no value of the checkpoint, and what is to be asked of it, if anything can be."""
        subject = self.subject
        modules = [module for part in self.parts for module in part.modules()]
        placements = read_placements(subject.whole, self.ranks.ranks, modules)
        misplaced = [problem for problem in placements.problems if problem.rule != _PINNED]
        self.findings.problems += misplaced
        if location is not None:
            conversion = conversion_of(
                self.parts,
                location,
                subject.everything,
                naming=self.options.naming,
                quantized=self.options.quantized,
            )
        else:
            conversion = huggingface.declarations(self.parts, subject.everything) or Conversion()
        self.findings.problems += conversion.problems
        conversion.ties += [tie for tie in subject.known.ties if tie not in conversion.ties]
        look_at(subject, placements, conversion)
        self._adapter_values()
        tensors = tensors_of(subject.everything, self.options.quantized)
        keys = keys_of(location, self.options.naming, tensors) if location is not None else set()
        self.findings.notes += subject.adapters.unjudged(keys)
        self._unjudged(conversion, keys)
        if location is None or any(problem.tensor is None for problem in misplaced):
            return None
        adapters = subject.adapters.names - keys
        dtypes = {name: made.dtype for name, made in subject.known.made.items()}
        judged = [entry for entry in subject.entries if entry.name not in adapters]
        conversion = without_adapters(conversion, subject.adapters.names)
        in_adapters = sorted(subject.adapters.values.keys() - adapters)  # of the base: its file may lack them
        conversion = dataclasses.replace(conversion, not_expected=[*conversion.not_expected, *in_adapters])
        left_out = {one.tensor or "" for one in misplaced} | subject.wrapped.keys()
        wanted = Wanted.of(judged, placements.layout, conversion, dtypes, keys, left_out)
        self.findings.problems += wanted.problems
        return wanted

    def _unjudged(self, conversion: Conversion, keys: set[str]) -> None:
        """A tensor that no file should have, and that one has: whatever passes its key over leaves it unjudged."""
        options = self.options
        passed_over = {rule["id"].partition(":")[2] for rule in conversion.ignore}
        if not options.strict:
            passed_over |= {key for key in keys if not any(matches(one, key) for one in options.allow_unexpected)}
        for name, reason in self.subject.unjudged.items():
            if any(name == key or name.endswith(f".{key}") for key in passed_over):
                self._not_judged(name, reason)
            elif self.subject.by_name[name].kind != ATTRIBUTE:
                self.findings.notes.append(f"{name} was not judged: {reason}")

    def _absent(self, answers: list[set[str]]) -> None:
        """Stages have parts of a model: what one of them has is not gone."""
        gone = set(self.subject.absent) if self.subject.is_complete else set.intersection(*answers)
        for name in sorted(gone):
            kind = kind_name(self.subject.absent.get(name, ""))
            text = f"the constructor makes this a {kind}, but the model no longer has it"
            self.findings.problem("absent", name, text, rule="R6")

    def _tied(self) -> None:
        """Tensors that the constructor makes apart, and that are one."""
        for names in tied_apart(self.subject.entries, self.subject.known.made):
            wrong = [name for name in names if name in self.differing] or names[1:]
            first = next((name for name in names if name not in wrong), names[0])
            for name in wrong:
                text = f"the tensor is the same as {first}, but should be a separate one"
                self.findings.problem("tied", name, text, rule="R49")

    # ---- values

    def _adapter_values(self) -> None:
        requested = None if self.options.dtype == "auto" else torch_dtype(self.options.dtype)
        adapters = self.subject.adapters
        base = [entry for entry in self.subject.entries if entry.is_tensor and entry.name not in adapters.names]
        of_base = {entry.dtype for entry in base if entry.dtype.is_floating_point}
        for name, value in adapters.values.items():
            entry = self.subject.by_name.get(name)
            if entry is None or not self.subject.has_value(entry):
                continue
            dtypes = adapter_dtypes(value, requested)
            if (name in adapters.copies or name not in adapters.names) and value.is_floating_point():
                dtypes += of_base  # it is computed with the base
            value = value.to(entry.dtype if entry.dtype in dtypes else dtypes[0])
            part = value if is_flat(entry.value) else part_like(value, entry.value)
            if part is None:
                self.findings.problem("not_judged", name, "lading does not know how it is sharded")
                continue
            for there, wanted, where in self._pairs(entry, part):
                self._compare(entry, wanted, there, where, "the adapter's file")

    def _with_files(self, wanted: Wanted | None, location: str, asks: list[bool]) -> None:
        if not all(asks):
            ranks = ", ".join(str(self.ranks.ranks[place]) for place, one in enumerate(asks) if not one)
            text = f"no tensor was compared with the checkpoint: how the tensors are sharded on rank {ranks} is unknown"
            self.findings.problem("not_judged", None, text)
            return
        assert wanted is not None
        try:
            self.findings.problems += wanted.join(self.ranks)
        except LadingError as error:
            if error.code != "layout":  # the same on all ranks
                raise
            self.findings.problems += error.problems
            return
        with agreed(self.ranks, "the values", while_alive=True):
            self._values(wanted, location)

    def _values(self, wanted: Wanted, location: str) -> None:
        expected = Expected(wanted, self.options, location, self.ranks, self.findings)
        by_hooks = self._hooked()
        passed_over = wanted.misplaced | self._by_adapters()
        for names, value in expected.values():
            for name in names:
                entry = self.subject.by_name.get(name)
                if entry is None or not self.subject.has_value(entry) or name in passed_over:
                    continue
                if name in by_hooks:
                    self._not_judged(name, by_hooks[name], code="hooks")
                    continue
                changed = self.subject.adapters.altered.get(name)
                if changed is not None:
                    self._altered(entry, value, changed)
                    continue
                for there, part, where in self._pairs(entry, value):
                    self._compare(entry, part, there, where)

    def _by_adapters(self) -> set[str]:
        """All names of tensors that an adapter file has: it was their judge, even if the base checkpoint has them."""
        values = self.subject.adapters.values
        ties = {entry.tie_class for entry in self.subject.entries if entry.name in values} - {None}
        return values.keys() | {entry.name for entry in self.subject.entries if entry.tie_class in ties}

    def _hooked(self) -> dict[str, str]:
        """Tensors of modules whose own code may change what a file holds, and why they cannot be judged."""
        found: dict[str, str] = {}
        seen = seen_in(self.parts, self.subject.entries, torch.device("cpu"))
        for _, module, what in hooked(seen):
            inner = {id(one) for one in module.modules()}
            reason = f"its module has {what[0]}, which may make it other than the file's"
            found |= {entry.name: reason for entry in seen.entries if id(entry.module) in inner}
        return found

    def _pairs(self, entry: Entry, value: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
        """What this rank holds of a tensor, what it should hold, and what their indices count in."""
        if not is_flat(entry.value):
            held = self._read(entry)
            if held is not None:
                yield held, value, where_in(entry)
            return
        reason = why_not_judged(entry.value)
        if reason:
            self._not_judged(entry.name, reason)
            return
        for part in flat_parts(entry.value, self.ranks.ranks[self.ranks.rank]):
            yield (part.memory, part.of(value), f" of this rank's part, which begins at {part.begin} of the flattened")

    def _read(self, entry: Entry) -> torch.Tensor | None:
        """This rank's part; None, and a finding, if an offload map does not have it."""
        try:
            return self.subject.held(entry)
        except Exception as error:  # noqa: BLE001 - a map may read files
            reason = f"its offload hook does not return its value ({type(error).__name__}: {error})"
            self._not_judged(entry.name, reason)
            return None

    def _altered(self, entry: Entry, value: torch.Tensor, changed: Altered) -> None:
        """A base weight that PEFT has written."""
        held = self._read(entry)
        if held is None:
            return
        if changed.expected is None:
            if not changed.is_right_unchanged or difference(value, held) is not None:
                self._not_judged(entry.name, changed.why, changed.remedy, changed.code)
            return
        try:
            wanted = changed.expected(value)
        except Exception as error:  # noqa: BLE001 - PEFT's own code, on a copy of the layer
            self._not_judged(entry.name, f"{changed.why} ({type(error).__name__}: {error})", changed.remedy)
            return
        if is_near(wanted, held):
            self.findings.checked["with the checkpoint"] += 1
        else:
            self._compare(entry, wanted, held, where_in(entry), "what PEFT makes of the checkpoint")

    def _not_judged(self, name: str, reason: str, remedy: str = "", code: str = "not_judged") -> None:
        if any(matches(pattern, name) for pattern in self.options.allow_mismatch):
            self.findings.notes.append(f"{name} was not judged: {reason}")
        else:
            self.findings.not_judged(name, reason, remedy, code)

    def _compare(
        self, entry: Entry, wanted: torch.Tensor, there: torch.Tensor, where: str, source: str = "the checkpoint"
    ) -> None:
        self.findings.checked["with the checkpoint"] += 1
        if there.numel() == 0 and wanted.numel() == 0:
            return
        found = difference(wanted, there, where)
        if found is not None:
            self.differing.add(entry.name)
            rule = {"dtype": "R23", "rounded": "R24", "shape": "R54"}.get(found.code, "R1")
            text = f"a {kind_name(entry.kind)} differs from {source}: {found.message}"
            self.findings.of(entry, found.code, text, rule=rule, expected=found.expected, found=found.found)

    def _replicas(self) -> None:
        """Parts that are replicas must have the same bits (R17). A digest of each goes over the store."""
        if self.ranks.size == 1:
            return
        real = [entry for entry in self.subject.whole if not entry.is_meta]
        mine = {f"{entry.name}\0{place_of(entry.value)}": digest(local_of(entry.value)) for entry in real}
        answers = self.ranks.documents("replicas", json.dumps(mine, sort_keys=True))
        first: dict[str, tuple[int, str]] = {}
        for rank, text in zip(self.ranks.ranks, answers, strict=True):
            for key, bits in json.loads(text).items():
                other, known = first.setdefault(key, (rank, bits))
                self.findings.checked["between ranks"] += key in mine and other != rank
                if known != bits:
                    message = f"ranks {other} and {rank} hold copies of it that differ"
                    self.findings.problems.append(
                        Problem("replicas", message, tensor=key.partition("\0")[0], rule="R17", remedy=_RELOAD)
                    )


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
