"""What a rank knows of its model before anybody agrees on anything: all that `lading.materialize` asks the engine for,
but the devices of other ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from . import _engine, fsdp1, holders, peft, zero3
from .agreement import Agreement
from .allocate import is_made_with
from .conversion import Conversion, conversion_of
from .devices import rank_device
from .emptied import emptied, say_what_was_assigned
from .errors import LadingError, Problem
from .exchange import node_name
from .holders_common import Refresh
from .host_values import HostValues
from .inventory import EXTRA_STATE, Entry, take_inventory
from .inventory_json import skeleton_document
from .last_look import refuse_stranded
from .options import POLICY_FIELDS, Options
from .patterns import Name, matches
from .peft_files import AdapterFile
from .placements import Layout, Placements, fsdp_states, is_elsewhere, is_foreign, local_of, read_placements
from .private_names import needed
from .quantized import refuse_wrapped
from .recording import SkeletonError
from .report import folded
from .stages import Origin


@dataclasses.dataclass
class Prepared:
    entries: list[Entry]
    origin: Origin
    placements: Placements
    layout: Layout  # of all ranks, once they have agreed
    device: torch.device
    values: HostValues
    skeleton: dict[str, Any]
    conversion: Conversion
    notes: list[str]
    left_on_meta: list[str]  # patterns of tensors that no load fills, and that the user named in keep
    refreshes: list[Refresh]  # of copies that others keep, once everything is loaded
    adapters: list[AdapterFile]


def prepare(parts: list[nn.Module], location: str | None, options: Options, ranks: Agreement) -> Prepared:
    modules = resharded(parts)
    try:
        entries = take_inventory(parts)
        held = [entry for entry in entries if not is_elsewhere(entry.value) and not is_foreign(entry)]
        zero3.refuse_partitions_on_meta(held)
        refuse_wrapped(held, options.keep)
        left_on_meta = refuse_stranded(parts, entries, options.keep)
        names = [entry.name for entry in entries]
        options.keep = [
            pattern
            for pattern in options.keep
            if pattern not in left_on_meta or any(matches(pattern, name) for name in names)
        ]
        if lost := emptied(held, options.spoken_for()):
            raise LadingError(lost, stage="documents", exit_code=4)
        origin = Origin.of(parts, held, options.whole)
        adapters = peft.prepare(parts, held, options.adapter, options.spoken_for())
        placements = read_placements(held, ranks.ranks, modules)
        if placements.problems:
            raise LadingError(placements.problems, stage="documents", exit_code=4)
        device, note = rank_device(options.device, placements, entries, in_place=options.in_place)
        if options.in_place and device.type != "cpu":
            placements.layout.leave_on_cpu(entry.name for entry in held if local_of(entry.value).device.type == "cpu")
        of_adapters = [Name(name) for file in adapters.files for name in sorted(file.held)]
        refreshes = holders.find(parts, held, device, [*options.spoken_for(), *of_adapters])
        conversion = conversion_of(
            origin.parts, location, origin.entries, naming=options.naming, quantized=options.quantized
        )
        given = {"external": options.external, "recipes": options.recipes, "seed": options.seed}
        values = HostValues(origin.parts, origin.held, **given)
        values.failures |= adapters.failures
        restored = zero3.restored(parts, held, values)
        values.hand_in(restored.values)
        conversion.constructed_dtypes |= restored.dtypes
        skeleton = model_skeleton(held, conversion, values, () if options.allow_mismatch else conversion.with_key)
        say_what_was_assigned(skeleton["tensors"], parts, held)
        zero3.say_what_has_values(skeleton["tensors"], held, options.keep, conversion.adapters)
    except SkeletonError as error:
        problem = Problem("skeleton", error.reason, tensor=error.tensor or None, remedy=error.remedy)
        raise LadingError(problem, stage="documents", exit_code=4) from error
    return Prepared(
        entries,
        origin,
        placements,
        placements.layout,
        device,
        values,
        skeleton,
        conversion,
        [note, *_extra_state_notes(entries), *conversion.notes, *adapters.notes, *restored.notes],
        left_on_meta,
        refreshes,
        adapters.files,
    )


def resharded(parts: list[nn.Module]) -> list[nn.Module]:
    """All modules of the parts. After a forward pass parameters of FSDP2 and FSDP1 may still be gathered: no longer."""
    modules = [module for part in parts for module in part.modules()]
    for module, groups in fsdp_states(modules):
        if groups:
            _drop_gathered(groups)
            module.reshard()  # type: ignore[operator]
            _shard_anyway(groups)
    fsdp1.reshard(modules)
    return modules


def _extra_state_notes(entries: Sequence[Entry]) -> list[str]:
    """A file of tensors cannot have it, and nothing is known of it."""
    states = (entry for entry in entries if entry.kind == EXTRA_STATE and not entry.is_tensor)
    names = [entry.name for entry in states if entry.value is not None]
    return [f"extra state that is not a tensor stays as it is: {folded(names)}"] if names else []


def _shard_anyway(groups: Sequence[Any]) -> None:
    """After a forward pass that failed, FSDP2 believes to be in it, and `reshard()` does nothing."""
    for group in groups:
        if not group.is_sharded:
            group._to_sharded()


def _drop_gathered(groups: Sequence[Any]) -> None:
    """A gather that was begun ahead of a forward pass, and not used, would be used by the next one: with old values."""
    for group in groups:
        pending = needed(group, "_all_gather_result", "torch")
        if pending is None:
            continue
        if (event := getattr(pending, "all_gather_event", None)) is not None:
            torch.accelerator.current_stream().wait_event(event)
        if isinstance(work := getattr(pending, "all_gather_work", None), torch.distributed.Work):
            work.wait()
        group._all_gather_result = None


def model_skeleton(
    entries: Sequence[Entry], conversion: Conversion, values: HostValues, without_init: Collection[str] = ()
) -> dict[str, Any]:
    """docs/schema/skeleton.md, less the views of other tensors, which come with these."""
    own = [entry for entry in entries if not is_made_with(entry)]
    adapters = set(conversion.adapters)
    document = skeleton_document(
        own, pins=conversion.pins, is_adapter=adapters.__contains__, without_init=without_init
    )
    values.documents(document["tensors"])
    names = {tensor["name"] for tensor in document["tensors"]}
    document["ties"] += [known for tie in conversion.ties if len(known := [name for name in tie if name in names]) > 1]
    return document


def rank_facts(prepared: Prepared, options: Options, location: str | None) -> dict[str, Any]:
    """What ranks must have in common, beside the model. The budget may differ, and where files are mounted."""
    policy = options.policy(prepared.conversion)
    return {
        "version": _engine.version(),
        "device": str(prepared.device),
        **{f"policy: {name}": _said(policy.get(name)) for name in POLICY_FIELDS},
        "mapping": _digest(prepared.conversion.mapping_document()),
        "checkpoint": location,
        "exchange": options.exchange,
        "node": node_name(),
    }


def _said(value: Any) -> str:
    """As it is, or if that is long its digest."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 80 else _digest(value)


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]
