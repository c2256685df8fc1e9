"""What a library knows about its own checkpoints, beyond names: the seam between `materialize` and the library's front.

`huggingface.describe(model, checkpoint)` answers one for a model of transformers, and None for any other. Without
one, every tensor takes the key of its own name.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from . import _engine
from .errors import Problem
from .inventory import Entry, take_inventory
from .patterns import Pattern


class NoCheckpoint:
    """In the place of a checkpoint: `lading.initialize`. None would be taken for a path that was forgotten."""


NO_CHECKPOINT = NoCheckpoint()


@dataclasses.dataclass
class Conversion:
    """Everything may be left out.

    Attributes:
        mapping: a document of docs/schema/mapping.md.
        ignore: further rules of it, for keys that are not read (R46).
        pins: (pattern, strength) pairs: names that stay F32 (docs/schema/skeleton.md).
        ties: names that the library declares to be one tensor.
        may_untie: names of ties that the checkpoint's own config takes apart: they are tensors of their own if their
            keys hold other values than the rest (docs/schema/policy.md).
        constructed_dtypes: of parameters and persistent buffers, as the constructor made them (docs/schema/policy.md).
        not_expected: names that the library itself does not expect in a file.
        other_parts: keys of parts of the checkpoint's model that this one does not have; `ignore` has rules for them.
        adapters: names that no base checkpoint has, such as LoRA matrices (R65).
        with_key: names that some key is read for: unless a mismatch is allowed, no other value of them is needed.
        problems: what the library could not convert, told with all that the plan refuses.
        notes: for the report.
    """

    mapping: dict[str, Any] | None = None
    ignore: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    pins: list[tuple[Pattern, str]] = dataclasses.field(default_factory=list)
    ties: list[list[str]] = dataclasses.field(default_factory=list)
    may_untie: list[str] = dataclasses.field(default_factory=list)
    constructed_dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    not_expected: list[str] = dataclasses.field(default_factory=list)
    other_parts: list[str] = dataclasses.field(default_factory=list)
    adapters: list[str] = dataclasses.field(default_factory=list)
    with_key: set[str] = dataclasses.field(default_factory=set)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def mapping_document(self) -> dict[str, Any] | None:
        if self.mapping is None and not self.ignore:
            return None
        document = dict(self.mapping or {"schema": "lading.mapping/1", "rules": []})
        document["rules"] = [*document["rules"], *self.ignore]
        return document


def ignored_key(rule: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    """A rule of the mapping: this key is not read, on purpose (R46)."""
    document = {"id": f"{rule}:{key}", "kind": "ignore_key", "from": key}
    return document | {"optional": True} if optional else document


def braced(name: str) -> str:
    """A name as a template that has no variables: braces stand for themselves."""
    return name.replace("{", "{{").replace("}", "}}")


def unbraced(template: str) -> str:
    return template.replace("{{", "{").replace("}}", "}")


def target_of(rule: dict[str, Any]) -> str | None:
    """The tensor that a rule of the mapping makes, where it is a rule for one: a template such as `blocks.{i}.weight` is
    not."""
    if rule["kind"] == "build":
        literal = rule["to"].replace("{{", "").replace("}}", "")
        return None if "{" in literal else unbraced(rule["to"])
    return rule["to"] if rule["kind"] == "rename" else None


@dataclasses.dataclass(frozen=True)
class Catalog:
    """A checkpoint's keys and their shapes, and the folder that holds it: None if it is still to be written. Only
    headers are read."""

    shapes: dict[str, tuple[int, ...]]
    folder: Path | None = None

    @classmethod
    def of(cls, checkpoint: str, tensors: Iterable[str] | None = None) -> Catalog:
        """`tensors`: names of the model's tensors. For a model that has none for a packed weight's parts, the weight has
        the name and the shape that an ordinary checkpoint would have, and its parts are left out. None: keys as they
        are in the files."""
        answer = _engine.inspect(checkpoint)
        shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in answer["tensors"]}
        held = {_leaf(name) for name in tensors or ()}
        for weight in answer.get("packed_weights", ()) if tensors is not None else ():
            payload, scales = weight["keys"][:2]
            if _leaf(payload) in held and _leaf(scales) in held:
                continue
            for key in weight["keys"]:
                shapes.pop(key, None)  # several weights may share a scale
            shapes[weight["name"]] = tuple(weight["shape"])
        return cls(shapes, Path(answer["path"]).parent)


def _leaf(name: str) -> str:
    """What it is called in its module: prefixes differ between a model and its checkpoint."""
    return name.rpartition(".")[2]


def conversion_of(
    parts: Sequence[nn.Module],
    checkpoint: str | None,
    entries: Sequence[Entry] | None = None,
    *,
    naming: Any = None,
    quantized: str = "dequantize",
) -> Conversion:
    """What is known about these parts of a model, whose inventory this is, and this checkpoint, if there is one.
    `naming`: what the user says about names (naming.py). `quantized`: what is done with packed weights."""
    if checkpoint is None:
        return _declared(parts, entries)
    entries = take_inventory(list(parts)) if entries is None else entries
    tensors = tensors_of(entries, quantized)
    if naming is not None:
        named = naming.read(checkpoint, tensors)
        applied: Conversion = named.applied(_known(parts, checkpoint, entries, named.catalog))
        return applied
    return _known(parts, checkpoint, entries, Catalog.of(checkpoint) if tensors is None else None)


def tensors_of(entries: Sequence[Entry], quantized: str) -> list[str] | None:
    """The names that a catalog is read for. None: payloads are kept, so keys are those of the files."""
    return None if quantized == "keep" else [entry.name for entry in entries]


def _declared(parts: Sequence[nn.Module], entries: Sequence[Entry] | None) -> Conversion:
    huggingface = importlib.import_module(".huggingface", __package__)
    peft = importlib.import_module(".peft", __package__)
    declared: Conversion = huggingface.declarations(list(parts), entries) or Conversion()
    if peft.unwrapped(parts, take_inventory(list(parts)) if entries is None else entries) is not None:
        message = "PEFT's adapters start from the base model's weights, which do not exist yet"
        remedy = "Initialize the base model, then call get_peft_model: PEFT initialises its adapters itself."
        declared.problems.append(Problem("policy", message, rule="R65", remedy=remedy))
    return declared


def _known(
    parts: Sequence[nn.Module], checkpoint: str, entries: Sequence[Entry], catalog: Catalog | None
) -> Conversion:
    huggingface = importlib.import_module(".huggingface", __package__)
    peft = importlib.import_module(".peft", __package__)
    described: Conversion | None = huggingface.describe(
        parts[0] if len(parts) == 1 else list(parts), checkpoint, entries, catalog
    )
    wrapped = peft.unwrapped(parts, entries)
    if wrapped is None:
        return described or Conversion()
    by_names: Conversion = described or peft.conversion(wrapped, catalog or Catalog.of(checkpoint, [entry.name for entry in entries]))
    with_names: Conversion = peft.with_copies(by_names, wrapped, entries)
    with_names.adapters = sorted(set(wrapped.adapters) - set(wrapped.copies))
    return with_names
