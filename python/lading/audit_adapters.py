"""PEFT in an audit: adapters against their files, and base weights that PEFT has changed.

No base checkpoint has adapters, nor trained copies of modules (`modules_to_save`): the adapter's files have them. Three
things of PEFT write base weights: merging, PiSSA and OLoRA, which take the initial adapter away from the weight, and
initialisers that cannot be repeated (CorDA, LoftQ, fast PiSSA). The first and the last cannot be judged by a file; the
second is computed again, by PEFT's own code.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import _engine, peft
from .audit_parts import is_flat
from .dtypes import torch_dtype
from .errors import Problem
from .inventory import Entry
from .peft_files import REMEDY, AdapterFile, adapter_files
from .placements import is_dtensor

_PARTS_IN = 1e-4  # of the largest element: other processors compute a singular value decomposition otherwise


@dataclasses.dataclass
class Altered:
    """A base weight that is not the file's. `why`: it cannot be judged; otherwise `expected` makes it of the file's."""

    why: str = ""
    remedy: str = ""
    code: str = "not_judged"
    is_right_unchanged: bool = False
    expected: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclasses.dataclass
class AdapterFacts:
    """`names` are tensors of adapters, `copies` those of them that are copies of base tensors; `values` are what
    adapter files have, whole. `was_asked`: the user named adapter files."""

    names: set[str] = dataclasses.field(default_factory=set)
    copies: set[str] = dataclasses.field(default_factory=set)
    values: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    altered: dict[str, Altered] = dataclasses.field(default_factory=dict)
    plain_modules: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    was_asked: bool = False

    def unjudged(self, keys: set[str]) -> list[str]:
        """A note about adapters that neither an adapter file nor the checkpoint, whose keys these are, has."""
        told = {problem.tensor for problem in self.problems}
        names = sorted(self.names - keys - self.values.keys() - told)
        if not names:
            return []
        count = f"{len(names)} adapter tensor{'s were' if len(names) > 1 else ' was'} not judged"
        reason = "no adapter file has them" if self.was_asked else "pass adapter= to check them"
        return [f"{count} ({', '.join(names[:3])}{', …' * (len(names) > 3)}): {reason}"]


def adapter_facts(parts: Sequence[nn.Module], entries: Sequence[Entry], adapter: Any) -> AdapterFacts:
    """Of a model that PEFT may have wrapped; `adapter` as in `lading.materialize`."""
    wrapped = peft.unwrapped(parts, entries)
    found = AdapterFacts(was_asked=adapter is not None)
    if adapter is not None:
        models = wrapped.models if wrapped is not None else []
        files, found.notes = adapter_files(models, adapter, entries, found.problems)
        by_name = {entry.name: entry for entry in entries if entry.is_tensor}
        for file in files:
            found.values |= _read(file, by_name, found.problems)
    if wrapped is None:
        return found
    tensors = {entry.name for entry in entries if entry.is_tensor}
    found.names, found.plain_modules = tensors & set(wrapped.adapters), wrapped.plain_modules
    found.copies = tensors & wrapped.copies.keys()
    configs = {name: config for model in wrapped.models for name, config in model.peft_config.items()}  # type: ignore[union-attr, operator]
    by_place = {(id(entry.module), entry.attribute): entry for entry in entries}
    for layer in wrapped.layers:
        _find_altered(layer, configs, by_place, found.altered)
    ties = {entry.tie_class: found.altered[entry.name] for entry in entries if entry.name in found.altered}
    for entry in entries:
        if entry.tie_class is not None and entry.tie_class in ties:  # other names of such a weight
            found.altered.setdefault(entry.name, ties[entry.tie_class])
    return found


def _read(file: AdapterFile, entries: Mapping[str, Entry], problems: list[Problem]) -> dict[str, torch.Tensor]:
    """The tensors of an adapter's file by the model's names, whole: what another loader made of them is not known."""
    plan = _engine.plan({"checkpoint": file.path, "digests": False})
    missing = dict(file.names)
    wanted: dict[str, str] = {}  # by key
    for one in plan.destinations:
        name = missing.pop(one.name, one.name)
        if name not in entries:
            text = "the adapter's file has this tensor, but the model does not"
            problems.append(Problem("adapter", text, tensor=one.name, file=file.path, remedy=REMEDY))
        elif one.shape != entries[name].shape:
            text = f"the adapter's file has this tensor as {list(one.shape)}, the model as {list(entries[name].shape)}"
            problems.append(Problem("adapter", text, tensor=name, file=file.path, rule="R41", remedy=REMEDY))
        else:
            wanted[one.name] = name
    for name in missing.values():
        text = "the adapter's file does not have this tensor"
        problems.append(Problem("adapter", text, tensor=name, file=file.path, rule="R39", remedy=REMEDY))
    memories = [torch.empty(one.local_shape, dtype=torch_dtype(one.dtype), device="cpu") for one in plan.destinations]
    plan.load([(memory.data_ptr(), memory.nbytes) for memory in memories])
    read = zip(plan.destinations, memories, strict=True)
    return {wanted[one.name]: memory for one, memory in read if one.name in wanted}


def _find_altered(
    layer: nn.Module, configs: dict[str, Any], by_place: dict[tuple[int, str], Entry], altered: dict[str, Altered]
) -> None:
    base = layer.get_base_layer() if hasattr(layer, "get_base_layer") else None
    entry = by_place.get((id(base), "weight"))
    if entry is None:
        return
    merged = list(getattr(layer, "merged_adapters", None) or ())
    initialised = {name: word for name in getattr(layer, "lora_A", {}) if (word := _initialiser(configs.get(name)))}
    if merged:
        why = f"PEFT merged the adapter{'s' * (len(merged) > 1)} {', '.join(merged)} into this weight"
        altered[entry.name] = Altered(why, "Load again, and audit before merge_adapter().", code="merged")
    elif initialised:
        altered[entry.name] = _of_initialisers(layer, initialised, entry)


def _initialiser(config: Any) -> str:
    """The word of an initialiser that writes the base weight, or ""."""
    word = getattr(config, "init_lora_weights", None)
    word = word.lower() if isinstance(word, str) else ""
    return word if word.startswith(("pissa", "corda")) or word in ("olora", "loftq", "lora_ga") else ""


def _of_initialisers(layer: Any, words: dict[str, str], entry: Entry) -> Altered:
    ((adapter, word), *more) = words.items()
    why = f"the initialiser of the adapter ({', '.join(words.values())}) changed this weight"
    remedy = "Pass allow_mismatch= with its name if this is intended."
    is_whole = not is_dtensor(entry.value) and not is_flat(entry.value)
    if more or word not in ("pissa", "olora") or not is_whole:
        return Altered(why, remedy, is_right_unchanged=set(words.values()) == {"lora_ga"})

    def expected(value: torch.Tensor) -> torch.Tensor:
        clone = copy.deepcopy(layer)  # where PEFT has computed it: other devices give other last bits
        with torch.no_grad():
            clone.get_base_layer().weight.data = value.to(entry.device, copy=True)
            if word == "pissa":
                clone.pissa_init(adapter, word)
            else:
                clone.olora_init(adapter)
        return clone.get_base_layer().weight.detach().cpu()

    return Altered(why, remedy, expected=expected)


def is_near(wanted: torch.Tensor, there: torch.Tensor) -> bool:
    """Of what was computed: within what processors differ by."""
    if wanted.shape != there.shape or wanted.dtype != there.dtype:
        return False
    one, other = wanted.double(), there.detach().cpu().double()
    allowed = max(_PARTS_IN, 4 * torch.finfo(wanted.dtype).eps) * float(one.abs().max()) if one.numel() else 0.0
    return bool((one - other).abs().max() <= allowed) if one.numel() else True


def adapter_dtypes(value: torch.Tensor, requested: torch.dtype | None) -> list[torch.dtype]:
    """The dtypes that an adapter may have: the file's, the requested one, and F32, to which PEFT widens."""
    wide = [torch.float32] if value.is_floating_point() and value.dtype.itemsize < 4 else []
    asked = [requested] if requested is not None and value.is_floating_point() else []
    return list(dict.fromkeys([value.dtype, *wide, *asked]))
