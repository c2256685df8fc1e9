"""What a rank knows of the model that it saves, before anybody agrees on anything: its tensors and how they are shared
out, and the checkpoint that is to be written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _engine, zero3
from .allocate import is_made_with
from .bits import same_bits
from .conversion import Conversion, conversion_of
from .devices import SEVERAL, rank_device
from .errors import LadingError, Problem
from .holders import seen_in
from .inventory import (
    ATTRIBUTE,
    NON_PERSISTENT,
    PARAMETER,
    Entry,
    canonical_modules,
    is_sharded,
    take_inventory,
    tensors_of,
)
from .inventory_json import SCHEMA, dtype_name, tie_classes
from .load_hooks import hooked
from .locating import Location
from .placements import Layout, Placements, is_elsewhere, is_foreign, read_placements
from .preparing import resharded
from .quantized import LOAD_FIRST, refuse_wrapped
from .recording import NESTED, SkeletonError
from .report import OfWhole
from .save_adapters import SavedAdapter, chosen
from .save_memory import refuse_without_value
from .save_names import SavedTensor, in_files, model_keys, parameter_count

_TABLES = (NON_PERSISTENT, ATTRIBUTE)
_ONE_DEVICE = "Move the whole model to one device, and save it then."
_DEEPSPEED = "Save with DeepSpeed's own save_16bit_model or save_checkpoint."
_FOR_SAVES = {  # by remedies of a load, of what a save finds too
    zero3.OUTSIDE: "Save outside forward passes and outside deepspeed.zero.GatheredParameters.",
    zero3.BEFORE: _DEEPSPEED,
    zero3.BEFORE_WITHOUT_NVME: _DEEPSPEED,
    zero3.BEFORE_QUANTIZED: _DEEPSPEED,
    LOAD_FIRST: "Save with the library that made the class, or convert the tensor to a plain one first.",
    NESTED: "Store it as plain tensors.",
    SEVERAL: _ONE_DEVICE,
}


@dataclasses.dataclass
class Base:
    """The checkpoint that a save follows, and what was said about its names when it was loaded. `named`: as the user
    named it, which may be a path that means another place by now, or on another rank."""

    location: Location
    naming: Any
    quantized: str
    named: Location
    whole: OfWhole | None = None


@dataclasses.dataclass
class Subject:
    """A model on this rank. `keys` is None where the base checkpoint says which there are. `whole_parts` and
    `whole_entries` are the model itself, and where ranks have parts of one, what stands for all of it (save_stages.py).
    """

    entries: list[Entry]
    parts: list[nn.Module]
    skeleton: dict[str, Any]
    layout: Layout
    device: torch.device
    whole_parts: list[nn.Module]
    whole_entries: list[Entry]
    conversion: Conversion = dataclasses.field(default_factory=Conversion)
    keys: dict[str, list[SavedTensor]] | None = None  # by file
    folder: Path | None = None  # of the base
    notes: list[str] = dataclasses.field(default_factory=list)
    beside: dict[str, bytes] = dataclasses.field(default_factory=dict)  # further files, by name
    adapter: SavedAdapter | None = None  # that is saved instead of the base
    is_wrapped: bool = False  # by PEFT

    def choose_keys(
        self, base: Base | None, dtype: str | None, max_bytes: int | None, known: Conversion | None = None
    ) -> None:
        """`dtype`: of floats in the files, where that is neither the base's nor the memory's. `known`: how the base's
        keys are converted, if a load knew it."""
        if self.adapter is not None:
            self.keys, self.conversion = self.adapter.files(self.entries, dtype), self.adapter.conversion()
            return
        found = _checkpoint(self.whole_parts, self.whole_entries, base, dtype, max_bytes, known)
        self.keys, self.conversion, self.folder = found[:3]
        self.notes = [*self.notes, *found[3]]

    def request(self, rank: int, devices: Sequence[str], base: Base | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """docs/schema/request.md"""
        request = {
            "skeleton": self.skeleton,
            "layout": self.layout.document(devices),
            "mapping": self.conversion.mapping_document(),
            "ranks": [rank],
            "index_metadata": {"total_parameters": parameter_count(self.whole_entries)},
            **asked,
        }
        if self.keys is None:
            assert base is not None
            return request | {"checkpoint": base.location}
        keys = [
            {"key": one.key, "shape": one.shape, "dtype": one.dtype, "file": file}
            for file, tensors in self.keys.items()
            for one in tensors
        ]
        return request | {"keys": keys, "max_shard_bytes": None}

    def file_dtype(self, keys: Iterable[Mapping[str, Any]]) -> str:
        """What the config says of the files: the dtype there of the model's first floating parameter; "" without one.
        """
        made = {name: str(one["dtype"]) for one in keys for name in one["tensors"]}
        floats = {one.name for one in self.whole_entries if one.kind == PARAMETER and one.value.is_floating_point()}
        ordered = (name for part in self.whole_parts for name, _ in tensors_of(canonical_modules(part)))
        return next((made[name] for name in (*ordered, *sorted(floats)) if name in floats and name in made), "")


def subject_of(parts: list[nn.Module], ranks: Sequence[int], adapter: str | None = None) -> Subject:
    """What can be said without the other ranks: all but the keys. `adapter`: what is saved of a model of PEFT's."""
    try:
        modules = resharded(parts)
        of_model = chosen(parts, _inventory(parts), adapter)
        entries = of_model.entries
        refuse_without_value(entries)
        _refuse_hooks(parts, entries)
        held = [entry for entry in entries if _may_be_in_files(entry)]
        refuse_wrapped(held, ())
        placements = read_placements(held, ranks, modules)
        if placements.problems:
            raise LadingError(placements.problems, stage="documents", exit_code=4)
        device = _device(placements, held)
        skeleton = _skeleton(held)
    except SkeletonError as error:
        problem = Problem("skeleton", error.reason, tensor=error.tensor or None, remedy=_fitting(error.remedy))
        raise LadingError(problem, stage="documents", exit_code=4) from error
    except LadingError as error:
        problems = [dataclasses.replace(one, remedy=_fitting(one.remedy)) for one in error.problems]
        kept = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "not_listed")}
        raise LadingError(problems, **kept) from error
    spots = {name: dataclasses.replace(spot, slots=()) for name, spot in placements.layout.spots.items()}
    layout = Layout(placements.layout.size, spots, placements.layout.names)
    subject = Subject(entries, parts, skeleton, layout, device, parts, entries)
    subject.adapter, subject.is_wrapped, subject.notes = of_model.adapter, of_model.is_wrapped, of_model.notes
    return subject


def _inventory(parts: list[nn.Module]) -> list[Entry]:
    """Stages that were cut from copies of a model have a copy each of its tables, such as those of rotary embeddings."""
    problems: list[SkeletonError] = []
    entries = take_inventory(parts, problems)
    copies: dict[str, list[Entry]] = {}
    for part in parts if problems else ():
        for entry in take_inventory(part):
            copies.setdefault(entry.name, []).append(entry)
    for error in problems:
        first, *others = copies[error.tensor]
        if first.kind not in _TABLES or first.is_meta or not all(_is_copy(one, first) for one in others):
            raise error
    return entries


def _is_copy(one: Entry, other: Entry) -> bool:
    return one.kind == other.kind and one.device == other.device and same_bits(one.value, other.value)


def _fitting(remedy: str) -> str:
    return _FOR_SAVES.get(remedy, remedy)


def _device(placements: Placements, held: list[Entry]) -> torch.device:
    """This rank's. Of a model that nothing shards, its first parameter's: what is elsewhere is refused by name."""
    if any(is_sharded(one.value) for one in held):
        return rank_device(None, placements, held)[0]
    first = next((one for one in held if one.kind == PARAMETER), held[0] if held else None)
    return torch.device("cpu") if first is None else first.device


def _refuse_hooks(parts: list[nn.Module], entries: list[Entry]) -> None:
    """Code that would change what `state_dict` returns, or what `load_state_dict` makes of it again."""
    problems = []
    for name, module, found in hooked(seen_in(parts, entries, torch.device("cpu")), without_tensors=True):
        where = f"the module {name!r}" if name else "the model itself"
        message = f"{where} ({type(module).__name__}) has {' and '.join(found)}, which lading does not run"
        remedy = "Remove it before the save if the file should have the tensors as the module does."
        problems.append(Problem("hooks", message, remedy=remedy))
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)


def _may_be_in_files(entry: Entry) -> bool:
    """Non-persistent buffers too, as long as they are plain and have a value: old checkpoints have keys of some."""
    return (
        entry.is_tensor
        and entry.kind != ATTRIBUTE
        and not (entry.kind == NON_PERSISTENT and entry.is_meta)
        and not is_elsewhere(entry.value)
        and not is_foreign(entry)
        and not is_made_with(entry)
    )


def _checkpoint(
    parts: list[nn.Module],
    entries: list[Entry],
    base: Base | None,
    dtype: str | None,
    max_bytes: int | None,
    known: Conversion | None,
) -> tuple[dict[str, list[SavedTensor]] | None, Conversion, Path | None, list[str]]:
    """The keys by file, if no base says which there are; how they are loaded; the base's folder; notes."""
    answer = _engine.inspect(base.location) if base is not None else None
    folder = Path(answer["path"]).parent if answer is not None else None
    if base is not None and answer is not None and not _is_unpacked(answer, entries):
        how = {"naming": base.naming, "quantized": base.quantized}
        conversion = known or conversion_of(parts, base.location, entries, **how)
        if conversion.problems:
            raise LadingError(conversion.problems, stage="documents", exit_code=4)
        return None, conversion, folder, []
    tensors, conversion = model_keys(parts, entries, dtype)
    if conversion.problems:
        raise LadingError(conversion.problems, stage="documents", exit_code=4)
    notes = ["the base checkpoint has packed weights and the model has not: the keys are the model's own"]
    notes = notes if base is not None else []
    return in_files(tensors, max_bytes or 5 * 10**9), conversion, folder, notes


def _is_unpacked(answer: Mapping[str, Any], entries: Iterable[Entry]) -> bool:
    """Whether the checkpoint has packed codes where the model has numbers: no key of its can hold those."""
    own = {entry.name.rpartition(".")[2] for entry in entries}
    parts = ({key.rpartition(".")[2] for key in weight["keys"][:2]} for weight in answer.get("packed_weights", ()))
    return any(not part <= own for part in parts)


def _skeleton(entries: Sequence[Entry]) -> dict[str, Any]:
    """docs/schema/skeleton.md: what is in memory, with the dtypes of that. Ties are those of memory, whatever the
    model's class declares: two tensors have two keys, as `save_pretrained` has it."""
    tensors = [
        {"name": one.name, "kind": one.kind, "shape": list(one.shape), "dtype": dtype_name(one.dtype)}
        for one in entries
    ]
    names = {tensor["name"] for tensor in tensors}
    known = [held for tie in tie_classes(entries) if len(held := [name for name in tie if name in names]) > 1]
    return {"schema": SCHEMA, "tensors": tensors, "ties": known, "pins": []}
