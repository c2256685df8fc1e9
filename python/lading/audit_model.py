"""`lading.audit`: whether a model in memory holds what it should, whoever loaded it.

    report = lading.audit(model, "path/to/checkpoint")
    print(report)                                       # one line for each thing that is wrong
    lading.audit(model, path, raise_on="error")         # or an exception that lists them

Nothing is changed. Values are compared bit for bit with what the engine reads from the checkpoint, buffers that no
file holds with what the model's constructor makes. On several ranks all of them must call it; each checks its own
parts, and parts that are replicas of each other are compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import huggingface
from .agreement import TIMEOUT_S, Agreement, agreed
from .audit_adapters import AdapterFacts, Altered, adapter_dtypes, adapter_facts, is_near
from .audit_config import compare_configs, config_of_checkpoint
from .audit_masters import engine_copies, masters
from .audit_offload import offloaded
from .audit_parts import Difference, difference, digest, flat_parts, is_flat, part_like, place_of, why_not_judged
from .audit_report import AuditReport, Findings, kind_name
from .audit_structure import absent, as_constructed, on_meta, stale_flat_weights, tied_apart
from .audit_twin import Constructed, Made, constructed
from .audit_values import Expected, Wanted, without_adapters
from .conversion import Conversion, conversion_of
from .devices import rank_device
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .huggingface_view import Library, View
from .inventory import ATTRIBUTE, NON_PERSISTENT, PARAMETER, Entry, parts_of, take_inventory
from .options import Options
from .patterns import matches
from .placements import Placements, is_elsewhere, is_foreign, local_of, read_placements
from .recording import SkeletonError


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
    adapter: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    raise_on: str | None = None,
    group: Any = None,
    timeout: float = TIMEOUT_S,
) -> AuditReport:
    """Looks for what is wrong with a loaded model: left on meta, on another device, of another dtype than the contract
    says, different from the checkpoint or from what the constructor makes, deleted, of another kind, tied or untied,
    un-frozen, different in an optimizer's copy, or different between ranks that should hold the same.

        report = lading.audit(model, "path/to/checkpoint")
        print(report)                                       # one line for each thing that is wrong
        lading.audit(model, "path/to/checkpoint", raise_on="error")

    Args:
        model: as it is in memory, sharded or not. A list of modules is a model in parts.
        checkpoint: to compare with. Without one, values of parameters and persistent buffers are not judged.
        like: the same model built under `lading.skeleton()`, or real as its constructor leaves it. It is the measure
            for buffers that no file holds and for frozen parameters. A model of transformers, and one that was built
            under `lading.skeleton()`, need none; the former is built from the checkpoint's config.
        device: where everything should be. None: where the parameters are.
        adapter: of a PeftModel: the file or directory of its adapter, or one for each adapter by name, as in
            `lading.materialize`. Without it adapters are not judged.
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
        adapter=adapter,
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
        self.findings = Findings(ranks.ranks[ranks.rank] if ranks.size > 1 else None)
        self.entries: list[Entry] = []
        self.whole: list[Entry] = []  # without what is shared out flattened
        self.by_name: dict[str, Entry] = {}
        self.known = Constructed({}, [], [])
        self.adapters = AdapterFacts()
        self.offloaded: dict[str, Callable[[], torch.Tensor]] = {}
        self.absent: dict[str, str] = {}
        self.differing: set[str] = set()  # names whose values are not the checkpoint's

    def look(self, location: str | None, twins: list[nn.Module]) -> None:
        """Ranks agree after each step, so that one that fails does not leave the others waiting."""
        wanted: Wanted | None = None
        with agreed(self.ranks, "the model to audit") as step:
            wanted = self._without_files(location, twins)
            step.message = {"asks": wanted is not None, "absent": sorted(self.absent)}
        self._absent([set(answer["absent"]) for answer in step.answers])
        if location is not None:
            self._with_files(wanted, location, [answer["asks"] for answer in step.answers])
        self._tied()
        self._replicas()

    def report(self) -> AuditReport:
        return self.findings.report(self.ranks.ranks[self.ranks.rank], self.ranks.size)

    def _without_files(self, location: str | None, twins: list[nn.Module]) -> Wanted | None:
        """All checks that need no value of the checkpoint, and what is to be asked of it, if anything can be."""
        everything = self._take(location, twins)
        self._meta(everything)
        modules = [module for part in self.parts for module in part.modules()]
        placements = read_placements(self.whole, self.ranks.ranks, modules)
        self.findings.problems += placements.problems
        self._devices(placements)
        conversion = self._conversion(location, everything)
        self.findings.problems += conversion.problems
        conversion.ties += [tie for tie in self.known.ties if tie not in conversion.ties]
        self._frozen()
        self._untied(conversion)
        self._masters()
        self._derived()
        self._adapter_values()
        if location is None or placements.problems:
            return None
        dtypes = {name: made.dtype for name, made in self.known.made.items()}
        judged = [entry for entry in self.entries if entry.name not in self.adapters.names]
        conversion = without_adapters(conversion, self.adapters.names)
        return Wanted.of(judged, placements.layout, conversion, dtypes)

    # ---- what there is to look at

    def _take(self, location: str | None, twins: list[nn.Module]) -> list[Entry]:
        """All entries, of the kinds by which they are judged; and the facts that the checks need."""
        unlisted: list[SkeletonError] = []
        taken = take_inventory(self.parts, unlisted)
        for error in unlisted:
            self.findings.problem("skeleton", error.tensor, error.reason)
        found = [entry for entry in taken if entry.is_tensor]
        self.known = self._constructed(found, location, twins)
        self.findings.notes += self.known.notes
        found = as_constructed(found, self.known.made, self.findings)
        self.entries = [entry for entry in found if not is_elsewhere(entry.value) and not is_foreign(entry)]
        self.whole = [entry for entry in self.entries if not is_flat(entry.value)]
        self.by_name = {entry.name: entry for entry in self.entries}
        self.adapters = adapter_facts(self.parts, found, self.options.adapter)
        self.findings.problems += self.adapters.problems
        self.findings.notes += self.adapters.notes
        self.absent = absent(self.parts, found, self.known.made, self.adapters.plain_modules)
        held = offloaded(self.parts)
        places = {entry.name: (id(entry.module), entry.attribute) for entry in self.entries}
        self.offloaded = {name: held[place] for name, place in places.items() if place in held}
        others = [entry for entry in taken if not entry.is_tensor]
        return [*found, *others]

    def _constructed(self, entries: list[Entry], location: str | None, twins: list[nn.Module]) -> Constructed:
        """A model of transformers is built from the checkpoint's config, with which its own is compared."""
        library = Library.find()
        view = View.of(self.parts, library, entries) if library is not None else None
        if view is None or location is None:
            return constructed(self.parts, entries, twins)
        config, reason = config_of_checkpoint(view.config, location)
        known = constructed(self.parts, entries, twins, config)
        if config is None:
            self.findings.notes.append(f"the model's config was not judged: {reason}")
        else:
            compare_configs(known.config or config, view.config, self.findings, rope_is_wrong=not twins)
        return known

    def _conversion(self, location: str | None, entries: list[Entry]) -> Conversion:
        if location is not None:
            return conversion_of(self.parts, location, entries)
        return huggingface.declarations(self.parts, entries) or Conversion()

    def _held(self, entry: Entry) -> torch.Tensor:
        """This rank's part of a tensor: of an offloaded one what its hook holds."""
        return self.offloaded[entry.name]() if entry.name in self.offloaded else local_of(entry.value)

    def _has_value(self, entry: Entry) -> bool:
        return entry.name in self.offloaded or not entry.is_meta

    # ---- what can be seen without values

    def _meta(self, everything: list[Entry]) -> None:
        for entry in self.entries:
            if not self._has_value(entry):
                text = f"a {kind_name(entry.kind)} that was never loaded: it is still on meta"
                self.findings.problem("meta", entry.name, text, rule="R2")
        for name in on_meta(self.parts, everything):
            self.findings.problem("meta", name, "a tensor of the model that was never made: it is on meta", rule="R2")

    def _absent(self, answers: list[set[str]]) -> None:
        """Stages have parts of a model: what one of them has is not gone."""
        for name in sorted(set.intersection(*answers)):
            kind = kind_name(self.absent.get(name, ""))
            text = f"its constructor makes it a {kind}, and the model has it no more"
            self.findings.problem("absent", name, text, rule="R6")

    def _devices(self, placements: Placements) -> None:
        real = [entry for entry in self.whole if not entry.is_meta and entry.name not in self.offloaded]
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
            self.findings.notes.append(f"most of the model is on {device}, which is taken for where it should be")
        moved = {key for unit in placements.units if unit.is_offloaded for key in unit.shard_dims}
        for entry in real:
            there = local_of(entry.value).device
            wanted = torch.device("cpu") if id(entry.value) in moved else device
            if there.type != wanted.type or (wanted.index is not None and there.index != wanted.index):
                text = f"a {kind_name(entry.kind)} is on the wrong device"
                self.findings.of(entry, "device", text, rule="R35", expected=str(wanted), found=str(there))

    def _frozen(self) -> None:
        for entry in self.entries:
            made = self.known.made.get(entry.name)
            if made is not None and entry.kind == PARAMETER and entry.requires_grad and not made.requires_grad:
                self.findings.of(
                    entry, "unfrozen", "its constructor freezes it, but it is trainable", rule="R61",
                    expected="requires_grad=False", found="requires_grad=True",
                )  # fmt: skip

    def _untied(self, conversion: Conversion) -> None:
        for tie in conversion.ties:
            self._one_tensor([self.by_name[name] for name in tie if name in self.by_name])
        for name, own in stale_flat_weights(self.parts):
            text = f"forward uses it for {own}, and it is another tensor"
            self.findings.problem("untied", name, text, rule="R49", remedy="Call flatten_parameters() of its module.")

    def _one_tensor(self, members: list[Entry]) -> None:
        """Members that are offloaded have no identity: each is judged by its value."""
        for other in members[1:]:
            first = members[0]
            if first.value is other.value or (first.tie_class is not None and first.tie_class == other.tie_class):
                continue
            if first.name in self.offloaded and other.name in self.offloaded:
                continue
            self.findings.of(other, "untied", f"it should be one tensor with {first.name}, and is another", rule="R49")

    def _tied(self) -> None:
        """Two tensors that are one: by the constructor, or because the checkpoint has two values."""
        for names in tied_apart(self.entries, self.known.made):
            wrong = [name for name in names if name in self.differing] or names[1:]
            first = next((name for name in names if name not in wrong), names[0])
            for name in wrong:
                text = f"it is one tensor with {first}, and should be one of its own"
                self.findings.problem("tied", name, text, rule="R49")

    def _masters(self) -> None:
        """An optimizer's copies: its next step writes them back."""
        seen: set[int] = set()
        copies = engine_copies(self.parts)
        for entry in self.entries:
            if entry.kind != PARAMETER or id(entry.value) in seen:
                continue
            seen.add(id(entry.value))
            for master in masters(entry.value, copies):
                where = f" of this rank's copy, which begins at {master.begin} of the flattened"
                found = difference(master.parameter, master.copy, where)
                if found is not None:
                    text = "the optimizer's copy of it holds another value, which its next step brings back: "
                    text += found.message
                    self.findings.problem("master", entry.name, text, expected=found.expected, found=found.found)

    # ---- values

    def _derived(self) -> None:
        for entry in self.whole:
            made = self.known.made.get(entry.name)
            if entry.kind not in (NON_PERSISTENT, ATTRIBUTE) or not self._has_value(entry) or entry.view_of is not None:
                continue
            if entry.kind == ATTRIBUTE and entry.tie_class is not None:
                continue
            if made is None or not made.values:
                if entry.kind == NON_PERSISTENT:
                    self.findings.notes.append(f"{entry.name} was not judged: nothing says what its constructor makes")
                continue
            self._compare_derived(entry, made)

    def _compare_derived(self, entry: Entry, made: Made) -> None:
        first: Difference | None = None
        for value in made.values:
            try:
                wanted = part_like(value().cpu(), entry.value)
            except SkeletonError as error:
                self.findings.notes.append(f"{entry.name} was not judged: {error.reason}")
                return
            if wanted is None:
                self.findings.notes.append(f"{entry.name} was not judged: it is shared out in a way that is not known")
                return
            found = difference(wanted, self._held(entry), _where(entry))
            first = first or found
            if found is None:
                first = None
                break
        self.findings.checked["with their derivation"] += 1
        if first is not None:
            text = f"a {kind_name(entry.kind)} is not what its constructor makes: {first.message}"
            rule = "R29" if first.code == "dtype" else "R6"
            self.findings.of(entry, first.code, text, rule=rule, expected=first.expected, found=first.found)

    def _adapter_values(self) -> None:
        requested = None if self.options.dtype == "auto" else torch_dtype(self.options.dtype)
        for name, value in self.adapters.values.items():
            entry = self.by_name.get(name)
            if entry is None or not self._has_value(entry):
                continue
            dtypes = adapter_dtypes(value, requested)
            value = value.to(entry.dtype if entry.dtype in dtypes else dtypes[0])
            part = value if is_flat(entry.value) else part_like(value, entry.value)
            if part is None:
                self.findings.problem("not_judged", name, "it is shared out in a way that is not known")
                continue
            for there, wanted, where in self._pairs(entry, part):
                self._compare(entry, wanted, there, where, "the adapter's file")

    def _with_files(self, wanted: Wanted | None, location: str, asks: list[bool]) -> None:
        if not all(asks):
            ranks = ", ".join(str(self.ranks.ranks[place]) for place, one in enumerate(asks) if not one)
            text = f"no tensor was compared with the checkpoint: how rank {ranks} holds its own is not known"
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
        expected = Expected(wanted, self.options, location, self.ranks, self.findings.problems)
        for names, value in expected.values():
            for name in names:
                entry = self.by_name.get(name)
                if entry is None or not self._has_value(entry) or name in wanted.misplaced:
                    continue
                changed = self.adapters.altered.get(name)
                if changed is not None:
                    self._altered(entry, value, changed)
                    continue
                for there, part, where in self._pairs(entry, value):
                    self._compare(entry, part, there, where)

    def _pairs(self, entry: Entry, value: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
        """What this rank holds of a tensor, what it should hold, and what their indices count in."""
        if not is_flat(entry.value):
            yield self._held(entry), value, _where(entry)
            return
        reason = why_not_judged(entry.value)
        if reason:
            self._not_judged(entry.name, reason)
            return
        for part in flat_parts(entry.value, self.ranks.ranks[self.ranks.rank]):
            yield (part.memory, part.of(value), f" of this rank's part, which begins at {part.begin} of the flattened")

    def _altered(self, entry: Entry, value: torch.Tensor, changed: Altered) -> None:
        """A base weight that PEFT has written."""
        if changed.expected is None:
            if not changed.is_right_unchanged or difference(value, self._held(entry)) is not None:
                self._not_judged(entry.name, changed.why, changed.remedy, changed.code)
            return
        try:
            wanted = changed.expected(value)
        except Exception as error:  # noqa: BLE001 - PEFT's own code, on a copy of the layer
            self._not_judged(entry.name, f"{changed.why} ({type(error).__name__}: {error})", changed.remedy)
            return
        if is_near(wanted, self._held(entry)):
            self.findings.checked["with the checkpoint"] += 1
        else:
            self._compare(entry, wanted, self._held(entry), _where(entry), "what PEFT makes of the checkpoint")

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
        real = [entry for entry in self.whole if not entry.is_meta]
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
                        Problem("replicas", message, tensor=key.partition("\0")[0], rule="R17")
                    )


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
