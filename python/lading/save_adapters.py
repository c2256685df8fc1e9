"""What a save writes of a model that PEFT has wrapped: the base model's tensors under the names that they had before
PEFT, or one adapter as PEFT's own `save_pretrained` writes it.

    lading.save(model, "base")                              # without adapters
    lading.save(model, "my_adapter", adapter="default")     # adapter_model.safetensors and adapter_config.json

Which keys an adapter has is asked of PEFT's own code, on tensors without memory; so is its config.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from . import peft
from .conversion import Conversion
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .huggingface_view import original_class
from .inventory import Entry
from .inventory_json import dtype_name
from .peft_base import changes_base
from .peft_files import CONFIG, WEIGHTS, keys_of
from .save_names import SavedTensor

_UNMERGE = "Call unmerge_adapter() first, or merge_and_unload(), and save the result."
_OWN = "Save the adapter with the model's own save_pretrained."


@dataclasses.dataclass
class SavedAdapter:
    """`tensors`: names of the inventory, by key."""

    name: str
    tensors: dict[str, str]
    config: bytes

    def files(self, entries: Sequence[Entry], dtype: str | None) -> dict[str, list[SavedTensor]]:
        """The keys by file. `dtype`: of floats, if not theirs."""
        by_name = {entry.name: entry for entry in entries}
        keys = []
        for key, name in self.tensors.items():
            own = by_name[name].dtype
            asked = torch_dtype(dtype) if dtype is not None and own.is_floating_point else own
            keys.append(SavedTensor(key, dtype_name(asked), by_name[name].shape))
        return {WEIGHTS: keys}

    def conversion(self) -> Conversion:
        rules = [
            {"id": f"peft.adapter:{key}", "kind": "rename", "from": key, "to": name}
            for key, name in self.tensors.items()
        ]
        return Conversion(mapping={"schema": "lading.mapping/1", "rules": rules})

    def config_files(self) -> dict[str, bytes]:
        return {CONFIG: self.config}


@dataclasses.dataclass
class Chosen:
    """What of a model is saved. `is_wrapped`: by PEFT."""

    entries: list[Entry]
    adapter: SavedAdapter | None = None
    is_wrapped: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)


def chosen(parts: Sequence[nn.Module], entries: list[Entry], adapter: str | None) -> Chosen:
    """The tensors of the base, or of the adapter of this name."""
    wrapped = peft.unwrapped(parts, entries)
    if wrapped is None:
        if adapter is not None:
            raise _refused("adapter= was passed, but the model is not a PeftModel", "Save it without adapter=.")
        return Chosen(entries)
    if adapter is not None:
        saved = _adapter(wrapped, adapter, entries)
        held = set(saved.tensors.values())
        return Chosen([entry for entry in entries if entry.name in held], saved, is_wrapped=True)
    _refuse_merged(wrapped.layers)
    notes = []
    if wrapped.adapters:
        count, names = len(wrapped.adapters), ", ".join(_names(wrapped))
        notes.append(f"{count} tensors of adapters ({names}) are not in a checkpoint of the base: adapter= saves one")
    notes += _changed(wrapped)
    return Chosen([entry for entry in entries if entry.name in wrapped.plain], is_wrapped=True, notes=notes)


def _names(wrapped: peft.Wrapped) -> list[str]:
    return sorted({str(name) for model in wrapped.models for name in _configs(model)})


def _configs(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.peft_config
    return found


def _changed(wrapped: peft.Wrapped) -> list[str]:
    found = [(name, changes_base(vars(config))) for model in wrapped.models for name, config in _configs(model).items()]
    return [f"the adapter {name!r} has {what}: PEFT changed base weights for it" for name, what in found if what]


def _refuse_merged(layers: Sequence[Any]) -> None:
    merged = sorted({str(name) for layer in layers for name in getattr(layer, "merged_adapters", None) or ()})
    if merged:
        raise _refused(f"PEFT has merged {', '.join(merged)} into the base weights, which are then not the base's", _UNMERGE)


def _adapter(wrapped: peft.Wrapped, name: str, entries: Sequence[Entry]) -> SavedAdapter:
    models: list[Any] = wrapped.models
    if not models or any(model is not models[0] for model in models):
        has = "several PeftModels" if models else "adapters, but is not a PeftModel"
        raise _refused(f"adapter= was passed, but the model has {has}", _OWN)
    model = models[0]
    if name not in model.peft_config:
        has = ", ".join(map(repr, model.peft_config)) or "none"
        raise _refused(f"the model has no adapter {name!r}; it has {has}", "Pass the name of one of its adapters.")
    with _local_only(model, name):
        names, computed = keys_of(model, name, {entry.name: entry for entry in entries if entry.is_tensor}, "auto")
    if computed or not names:
        what = f"PEFT computes {len(computed)} of its keys" if computed else "PEFT saves no tensor of it"
        raise _refused(f"the adapter {name!r} cannot be saved from its ranks: {what}", _OWN)
    if len(set(names.values())) < len(names):
        raise _refused(f"PEFT saves a tensor of the adapter {name!r} under several keys", _OWN)
    return SavedAdapter(name, names, _config(model, name))


class _local_only:
    """PEFT asks the hub whether the vocabulary was resized; a save asks a local base only."""

    def __init__(self, model: Any, name: str) -> None:
        self._configs, self._name, self._own = model.peft_config, name, model.peft_config[name]

    def __enter__(self) -> None:
        base = getattr(self._own, "base_model_name_or_path", None)
        if base and not os.path.exists(os.path.join(base, "config.json")):
            self._configs[self._name] = copy.copy(self._own)
            self._configs[self._name].base_model_name_or_path = None

    def __exit__(self, *_: object) -> None:
        self._configs[self._name] = self._own


def _config(model: Any, name: str) -> bytes:
    """As PEFT's `save_pretrained` writes it; sets in the order of their names."""
    config = copy.copy(model.peft_config[name])
    inner = model.base_model if config.is_prompt_learning else model.base_model.model
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = inner.__dict__.get("name_or_path", None) or None
    config.inference_mode = True
    for field, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, field, sorted(value))
    cls = original_class(inner)
    mapping = {"base_model_class": cls.__name__, "parent_library": cls.__module__} if config.task_type is None else None
    try:
        with tempfile.TemporaryDirectory(prefix="lading-config-") as folder:
            config.save_pretrained(folder, auto_mapping_dict=mapping)
            return (Path(folder) / CONFIG).read_bytes()
    except OSError as error:
        message, remedy = f"could not write the config: {error.strerror}", "Free space, or set TMPDIR to another directory."
        problem = Problem("write_failed", message, file=str(error.filename or tempfile.gettempdir()), remedy=remedy)
        raise LadingError(problem, stage="documents", exit_code=4) from error


def refuse_stages(is_wrapped: bool) -> None:
    """Which keys the whole has is known of models that PEFT has not wrapped."""
    if is_wrapped:
        message = "the model is in several parts, such as pipeline stages, that PEFT has wrapped"
        raise _refused(message, "Call merge_and_unload() on each part first, or save from one process.")


def _refused(message: str, remedy: str) -> LadingError:
    return LadingError(Problem("adapter", message, remedy=remedy), stage="documents", exit_code=4)
