"""What an audit sees without reading the checkpoint: tensors on meta, on the wrong device, un-frozen, untied, with stale
copies in an optimizer, or not what the constructor makes."""

from __future__ import annotations

import torch

from .audit_masters import engine_copies, masters
from .audit_parts import Difference, difference, part_like
from .audit_report import kind_name
from .audit_structure import on_meta, stale_flat_weights
from .audit_subject import Subject
from .audit_twin import Made
from .conversion import Conversion
from .devices import rank_device
from .errors import LadingError
from .inventory import ATTRIBUTE, NON_PERSISTENT, PARAMETER, Entry
from .placements import Placements, local_of
from .recording import SkeletonError


def look_at(subject: Subject, placements: Placements, conversion: Conversion) -> None:
    """All of these checks."""
    _meta(subject)
    _devices(subject, placements)
    _frozen(subject)
    _untied(subject, conversion)
    _masters(subject)
    _derived(subject)


def _meta(subject: Subject) -> None:
    for entry in subject.entries:
        if not subject.has_value(entry):
            text = f"a {kind_name(entry.kind)} was never loaded: it is still on meta"
            subject.findings.problem("meta", entry.name, text, rule="R2")
    for name in on_meta(subject.parts, subject.everything):
        subject.findings.problem("meta", name, "the tensor was never created: it is on meta", rule="R2")


def _devices(subject: Subject, placements: Placements) -> None:
    real = [entry for entry in subject.whole if not entry.is_meta and entry.name not in subject.offloaded]
    if not real:
        return
    try:
        device, _ = rank_device(subject.options.device, placements, real)
    except LadingError:
        counts: dict[torch.device, int] = {}
        for entry in real:
            if entry.kind == PARAMETER:
                counts[entry.device] = counts.get(entry.device, 0) + entry.value.numel()
        device = max(counts, key=lambda one: counts[one], default=real[0].device)
        subject.findings.notes.append(f"most of the model is on {device}, which is taken for where it should be")
    moved = {key for unit in placements.units if unit.is_offloaded for key in unit.shard_dims}
    for entry in real:
        there = local_of(entry.value).device
        wanted = torch.device("cpu") if id(entry.value) in moved else device
        if there.type != wanted.type or (wanted.index is not None and there.index != wanted.index):
            text = f"a {kind_name(entry.kind)} is on the wrong device"
            subject.findings.of(entry, "device", text, rule="R35", expected=str(wanted), found=str(there))


def _frozen(subject: Subject) -> None:
    for entry in subject.entries:
        made = subject.known.made.get(entry.name)
        if made is not None and entry.kind == PARAMETER and entry.requires_grad and not made.requires_grad:
            subject.findings.of(
                entry, "unfrozen", "the constructor freezes this parameter, but it is trainable", rule="R61",
                expected="requires_grad=False", found="requires_grad=True",
            )  # fmt: skip


def _untied(subject: Subject, conversion: Conversion) -> None:
    for tie in conversion.ties:
        members = [subject.by_name[name] for name in tie if name in subject.by_name]
        apart = conversion.with_key.intersection(conversion.may_untie)
        _one_tensor(subject, [entry for entry in members if entry.name not in apart])
    for name, own in stale_flat_weights(subject.parts):
        text = f"forward uses it for {own}, but that is a different tensor now"
        subject.findings.problem("untied", name, text, rule="R49", remedy="Call flatten_parameters() of its module.")


def _one_tensor(subject: Subject, members: list[Entry]) -> None:
    """Members that are offloaded have no identity: each is judged by its value."""
    for other in members[1:]:
        first = members[0]
        if first.value is other.value or (first.tie_class is not None and first.tie_class == other.tie_class):
            continue
        if first.name in subject.offloaded and other.name in subject.offloaded:
            continue
        text = f"the tensor should be the same as {first.name}, but is a different one"
        subject.findings.of(other, "untied", text, rule="R49")


def _masters(subject: Subject) -> None:
    """An optimizer's copies: its next step writes them back."""
    seen: set[int] = set()
    copies = engine_copies(subject.parts)
    for entry in subject.entries:
        if entry.kind != PARAMETER or id(entry.value) in seen:
            continue
        seen.add(id(entry.value))
        try:
            found_copies = list(masters(entry.value, copies))
        except Exception as error:  # noqa: BLE001 - DeepSpeed's own code reads them
            text = f"an optimizer's copy of {entry.name} was not judged: {type(error).__name__}: {error}"
            subject.findings.notes.append(text)
            continue
        for master in found_copies:
            where = f" of this rank's copy, which begins at {master.begin} of the flattened"
            found = difference(master.parameter, master.copy, where)
            if found is not None:
                text = "the optimizer's copy has another value, which its next step restores: "
                text += found.message
                remedy = "Load before the optimizer is built, or update its copies too."
                fields = {"expected": found.expected, "found": found.found, "remedy": remedy}
                subject.findings.problem("master", entry.name, text, **fields)


def _derived(subject: Subject) -> None:
    for entry in subject.whole:
        made = subject.known.made.get(entry.name)
        if entry.kind not in (NON_PERSISTENT, ATTRIBUTE) or not subject.has_value(entry) or entry.view_of is not None:
            continue
        if entry.kind == ATTRIBUTE and entry.tie_class is not None:
            continue
        if made is None or not made.values:
            subject.unjudged[entry.name] = "the value that the constructor makes is unknown"
            continue
        _compare_derived(subject, entry, made)


def _compare_derived(subject: Subject, entry: Entry, made: Made) -> None:
    first: Difference | None = None
    for value in made.values:
        try:
            wanted, held = part_like(value().cpu(), entry.value), subject.held(entry)
        except Exception as error:  # noqa: BLE001 - what a constructor calls may raise anything
            reason = error.reason if isinstance(error, SkeletonError) else f"{type(error).__name__}: {error}"
            subject.unjudged[entry.name] = reason
            return
        if wanted is None:
            subject.unjudged[entry.name] = "lading does not know how it is sharded"
            return
        found = difference(wanted, held, where_in(entry))
        first = first or found
        if found is None:
            first = None
            break
    subject.findings.checked["with their derivation"] += 1
    if first is not None:
        text = f"a {kind_name(entry.kind)} differs from the value that its constructor makes: {first.message}"
        rule = "R29" if first.code == "dtype" else "R6"
        subject.findings.of(entry, first.code, text, rule=rule, expected=first.expected, found=first.found)


def where_in(entry: Entry) -> str:
    """What an index counts in, if not in the whole tensor."""
    return " of this rank's part" if tuple(local_of(entry.value).shape) != entry.shape else ""
