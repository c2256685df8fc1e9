"""The engine's skeleton document (docs/schema/skeleton.md) of a model.

    Path("skeleton.json").write_text(lading.skeleton_json(model))

and then `lading plan CHECKPOINT --skeleton skeleton.json`. What the constructor did is in it: non-persistent buffers
and attributes have a `derivation`, parameters and persistent buffers an `init`, as recipes of the engine where they
are, as `host` (the front supplies the value) where not. What has no known value has neither, and the engine refuses
it by name if no file has it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry, take_inventory
from .patterns import Pattern, fields_json
from .recording import SkeletonError

SCHEMA = "lading.skeleton/1"

_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """As safetensors calls it."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise SkeletonError("unknown_dtype", f"safetensors has no name for {dtype}")
    return _DTYPES[name]


def skeleton_json(
    model: nn.Module | Sequence[nn.Module] | Sequence[Entry],
    *,
    pins: Iterable[tuple[Pattern, str]] = (),
    is_adapter: Callable[[str], bool] = lambda name: False,
    data: Mapping[str, str] | None = None,
) -> str:
    """The document as text. `pins` are (pattern, strength) pairs; `is_adapter` says which names no base checkpoint has;
    `data` are values of tensors whose recipe is `host`, in base64.

        with lading.skeleton():
            model = Model()
        Path("skeleton.json").write_text(lading.skeleton_json(model))    # for lading plan --skeleton

    `model` may also be an inventory that was taken before.
    """
    document = skeleton_document(_inventory(model), pins=pins, is_adapter=is_adapter)
    for tensor in document["tensors"]:
        if data is not None and tensor["name"] in data:
            tensor["data"] = data[tensor["name"]]
    lines = ",\n".join("    " + json.dumps(tensor, allow_nan=False) for tensor in document["tensors"])
    ties, pin_list = json.dumps(document["ties"]), json.dumps(document["pins"])
    return f'{{\n  "schema": "{SCHEMA}",\n  "tensors": [\n{lines}\n  ],\n  "ties": {ties},\n  "pins": {pin_list}\n}}\n'


def skeleton_document(
    entries: Sequence[Entry],
    *,
    pins: Iterable[tuple[Pattern, str]] = (),
    is_adapter: Callable[[str], bool] = lambda name: False,
    without_init: Collection[str] = (),
) -> dict[str, Any]:
    """The same document of an inventory, for those who go on with it. `without_init`: parameters and persistent buffers
    whose initial value is not needed."""
    return {
        "schema": SCHEMA,
        "tensors": [_tensor(entry, is_adapter, without_init) for entry in entries if entry.is_tensor],
        "ties": tie_classes(entries),
        "pins": [fields_json(pattern) | {"strength": strength} for pattern, strength in pins],
    }


def _inventory(model: nn.Module | Sequence[nn.Module] | Sequence[Entry]) -> list[Entry]:
    if isinstance(model, nn.Module):
        return take_inventory(model)
    entries = [item for item in model if isinstance(item, Entry)]
    return entries if entries else take_inventory([item for item in model if isinstance(item, nn.Module)])


def tie_classes(entries: Iterable[Entry]) -> list[list[str]]:
    """Names that are one tensor, each class sorted."""
    classes: dict[int, list[str]] = {}
    for entry in entries:
        if entry.tie_class is not None:
            classes.setdefault(entry.tie_class, []).append(entry.name)
    return sorted(sorted(names) for names in classes.values() if len(names) > 1)  # others may be views, not listed


def _tensor(entry: Entry, is_adapter: Callable[[str], bool], without_init: Collection[str]) -> dict[str, Any]:
    tensor: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "shape": list(entry.shape),
        "dtype": _named_dtype(entry),
    }
    if entry.requires_grad:
        tensor["requires_grad"] = True
    if is_adapter(entry.name):
        tensor["adapter"] = True
    if entry.presence != "meta":
        tensor["presence"] = entry.presence
        tensor["device"] = str(entry.device)
    if entry.kind not in (PARAMETER, BUFFER) or entry.name not in without_init:
        tensor.update(recipe_fields(entry))
    return tensor


def recipe_fields(entry: Entry) -> dict[str, Any]:
    if entry.kind in (NON_PERSISTENT, ATTRIBUTE) and entry.view_of is not None:
        return {"derivation": {"kind": "call", "inputs": [entry.view_of]}}
    recipe = entry.recipe()
    if recipe is None:
        return {}
    if entry.kind not in (NON_PERSISTENT, ATTRIBUTE) or entry.is_random():
        return {"init": recipe.to_json()}
    fields: dict[str, Any] = {"derivation": recipe.to_json()}
    assert entry.recorded is not None
    if entry.recorded.dtype != entry.dtype:
        fields["declared_dtype"] = dtype_name(entry.recorded.dtype)
    return fields


def _named_dtype(entry: Entry) -> str:
    try:
        return dtype_name(entry.dtype)
    except SkeletonError as error:
        raise error.at(entry.name) from None
