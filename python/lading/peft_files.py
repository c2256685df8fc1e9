"""Files of PEFT's adapters: which of them go with a model, and which tensor of the model each of their keys is.

    files, notes = adapter_files([model], "my_adapter", entries)
    request["adapters"] = [file.request() for file in files]

Which keys a file has is asked of PEFT's own code for saving. The engine reads the files as further checkpoints of the
load: every key has to have a place, and every tensor of the adapter a key.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _engine
from .errors import LadingError, Problem, shown
from .fsdp1 import clean_name
from .inventory import BUFFER, PARAMETER, Entry
from .peft_base import changes_base

REMEDY = "Pass the adapter that was saved from this model, or correct adapter=."


@dataclasses.dataclass(frozen=True)
class AdapterFile:
    """The file of an adapter: the model's name of each key that PEFT would save, the names that the file has, and the
    configs that PEFT saved beside it (beside a link, and beside what it leads to)."""

    path: str
    names: dict[str, str]
    held: frozenset[str]
    configs: tuple[dict[str, Any], ...] = ()

    def request(self) -> dict[str, Any]:
        """docs/schema/request.md, `adapters`"""
        return {"checkpoint": self.path, "mapping": self.names}


def adapter_files(
    models: Sequence[nn.Module], adapter: Any, entries: Sequence[Entry], told: list[Problem] | None = None
) -> tuple[list[AdapterFile], list[str]]:
    """The files of adapters, and notes for the report.

    `models` are those of PEFT in the model; `adapter` is a path, or paths by the names of adapters. Of the files only
    headers are read. Where a file cannot go with the model, whatever its keys are, is raised, or added to `told`.
    """
    if not models:
        raise _refused("adapter= was passed, but the model is not a PeftModel")
    if any(model is not models[0] for model in models):
        remedy = "Load each PeftModel by itself, or pass the adapters' tensors in external=."
        raise _refused("adapter= was passed, but the model has several PeftModels: which one is meant?", remedy)
    model: Any = models[0]
    if not isinstance(adapter, Mapping):
        names = list(model.peft_config)
        if len(names) != 1:
            has = f"the adapters {', '.join(names)}: pass a path for each, by name" if names else "no adapters"
            raise _refused(f"the model has {has}")
        adapter = {names[0]: adapter}
    files: list[AdapterFile] = []
    problems: list[Problem] = []
    notes: list[str] = []
    for name, place in sorted(adapter.items(), key=lambda item: str(item[0])):  # the same order on all ranks
        path = _path_of(name, place)
        if name not in model.peft_config:
            problems.append(Problem("adapter", f"the model has no adapter {name!r}", remedy=REMEDY))
            continue
        file = _of_file(model, name, path, entries)
        if isinstance(file, Problem):
            problems.append(file)
            continue
        files.append(file)
        notes.append(f"adapter {name}: {len(file.held)} tensors from {shown(path)}")
        notes += _about_config(file, model.peft_config[name], name, path)
    if problems and told is None:
        raise LadingError(problems, stage="checkpoint", exit_code=3)
    if told is not None:
        told += problems
    return files, notes


def _path_of(name: str, place: Any) -> str:
    try:
        return os.fsdecode(place)
    except TypeError:
        text = f"adapter is {place!r} for {name!r}; it should be a path, or a dict of paths by adapter name"
        raise TypeError(text) from None


def _of_file(model: Any, adapter: str, path: str, entries: Sequence[Entry]) -> AdapterFile | Problem:
    from .huggingface import refuse_pickles

    refuse_pickles(path)
    path, found = _found(path)
    configs = []
    for place in _config_places(found["path"]):
        config = _saved_config(place)
        if isinstance(config, Problem):
            return config
        what = changes_base(config)
        if what and not changes_base(vars(model.peft_config[adapter])):  # otherwise the layers' weights are refused
            text = f"its {CONFIG} has {what}, with which PEFT changes base weights, but no file has them changed"
            remedy = "Convert the adapter: save_pretrained with path_initial_model_for_weight_conversion."
            return Problem("adapter", text, file=path, rule="R66", remedy=remedy)
        configs.append(config)
    by_name = {entry.name: entry for entry in entries if entry.is_tensor}
    names, _ = keys_of(model, adapter, by_name, embeddings=False)
    keys = [tensor["name"] for tensor in found["tensors"]]
    held = frozenset(name for key in keys if (name := names.get(key, key)) in by_name)
    return AdapterFile(path, names, held, tuple(configs))


def _found(path: str) -> tuple[str, dict[str, Any]]:
    """What the engine says about an adapter, and the path to pass it. In a folder that has other files too, the adapter
    is chosen by name, as PEFT does."""
    if os.path.isfile(named := os.path.join(path, WEIGHTS)):
        return named, _engine.inspect(named)
    found = _engine.inspect(path)
    named = os.path.join(os.path.dirname(found["path"]), WEIGHTS)
    if os.path.isfile(path) or named == found["path"] or not os.path.isfile(named):
        return path, found
    return named, _engine.inspect(named)  # of a repository in the cache


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def _config_places(file: str) -> Iterator[Path]:
    """The configs beside an adapter's file, and beside each file that it is a link to."""
    while True:
        place = Path(file).parent / CONFIG
        if os.path.lexists(place):
            yield place
        if not os.path.islink(file):
            return
        file = os.path.join(os.path.dirname(file), os.readlink(file))


def _saved_config(place: Path) -> dict[str, Any] | Problem:
    """The config that PEFT saved beside an adapter's tensors: it says whether the base weights belong to them."""
    wrong = "it is not a JSON object"
    try:
        if not place.is_file():  # to open a pipe would wait for its other end
            wrong = "it is not a regular file"
        elif isinstance(config := json.loads(place.read_text(encoding="utf-8")), dict):
            return config
    except RecursionError:
        wrong = "its JSON is nested too deeply"
    except (OSError, ValueError) as error:
        wrong = str(error)
    text = f"the adapter's config cannot be read, so that its method is unknown: {wrong}"
    remedy = f"Restore the {CONFIG} that PEFT saved with the adapter."
    return Problem("adapter", text, file=str(place), rule="R66", remedy=remedy)


# Fields of a config that say nothing about what a layer computes.
_ASIDE = frozenset(
    "auto_mapping base_model_name_or_path inference_mode init_lora_weights init_weights peft_version revision "
    "task_type".split()
)


def _about_config(file: AdapterFile, config: Any, adapter: str, path: str) -> Iterator[str]:
    """A note for each field in which the model's config is not the one that the adapter was saved with."""
    if not file.configs:
        yield f"adapter {adapter}: no {CONFIG} is beside {shown(path)}, so lading took the model's config for it"
    for saved in file.configs[:1]:
        for name, value in vars(config).items():
            if name not in _ASIDE and name in saved and _plain(saved[name]) != _plain(value):
                then, now = shown(str(_plain(saved[name]))), shown(str(_plain(value)))
                yield f"adapter {adapter}: saved with {name} {then}, and the model has {now}"


def _plain(value: Any) -> Any:
    """As JSON has it; sets and empty values alike."""
    if isinstance(value, (set, list, tuple)):
        return sorted(map(str, value)) or None
    if isinstance(value, (bool, int, float, str, Mapping)) or value is None:
        return value or None
    return str(getattr(value, "value", value))


def keys_of(
    model: Any, adapter: str, entries: Mapping[str, Entry], embeddings: Any
) -> tuple[dict[str, str], list[str]]:
    """The keys that PEFT would save this adapter under, and whose names they are; and keys of what it would compute.
    `embeddings`: PEFT's `save_embedding_layers`."""
    from peft import get_peft_model_state_dict

    own: dict[int, list[Entry]] = {}
    for entry in entries.values():
        if entry.kind in (PARAMETER, BUFFER):  # what a state dict has
            own.setdefault(id(entry.module), []).append(entry)
    state, names = {}, {}
    for prefix, module in model.named_modules(remove_duplicate=False):  # with the names of wrappers, as PEFT looks
        for entry in own.get(id(module), ()):
            blank = torch.empty(entry.shape, device="meta")
            state[f"{prefix}.{entry.attribute}" if prefix else entry.attribute] = blank
            names[id(blank)] = entry.name
    try:
        saved = get_peft_model_state_dict(model, state, adapter, save_embedding_layers=embeddings)
    except Exception as error:  # prompt tuning saves what it computes
        text = f"PEFT cannot list the keys of the adapter {adapter!r} without its values: {error}"
        raise _refused(text) from error
    found = {clean_name(key): names[id(tensor)] for key, tensor in saved.items() if id(tensor) in names}
    return found, [key for key, tensor in saved.items() if id(tensor) not in names]


def _refused(message: str, remedy: str = REMEDY) -> LadingError:
    return LadingError(Problem("adapter", message, remedy=remedy), stage="request", exit_code=2)
