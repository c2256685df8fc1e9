"""What a constructor would have made: the measure for tensors that no file holds, and for frozen parameters.

A twin is the same class built again under `lading.skeleton()`: on meta, with its ops recorded, so that any of its
buffers can be derived. A model of transformers can be built from its own config; of any other model the caller hands
a twin in (`like=`), or the model was built under `lading.skeleton()` itself and its record is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from . import huggingface
from .audit_rope import rope_of_forward
from .huggingface_view import Library, View, original_class
from .inventory import ATTRIBUTE, BUFFER, EXTRA_STATE, NON_PERSISTENT, PARAMETER, Entry, take_inventory
from .recording import snapshot_of
from .replay import Seeds, is_random, value_of
from .telling import logger
from .twin_values import main_dtype


@dataclasses.dataclass
class Made:
    """One tensor as the constructor left it. `values` gives what it may be: under one default dtype or another.
    `identity` is the same for names of one tensor; None: it does not count, since ties that are made later are meant.
    """

    requires_grad: bool
    dtype: torch.dtype
    values: list[Callable[[], torch.Tensor]]
    kind: str = ""
    identity: Any = None


@dataclasses.dataclass
class Constructed:
    """What is known of a model's tensors, by name; names that were one tensor; notes about what is not known. `config`
    is that of the twin, once its constructor has run."""

    made: dict[str, Made]
    ties: list[list[str]]
    notes: list[str]
    config: Any = None


def constructed(
    parts: Sequence[nn.Module], entries: Sequence[Entry], like: Sequence[nn.Module], config: Any = None
) -> Constructed:
    """As the twin has it, or else the record. A twin is built from `config`, or from the model's own."""
    twins, notes = ([list(like)], []) if like else _twins(parts, entries, config)
    made: dict[str, Made] = {}
    classes: dict[Any, list[str]] = {}
    held = {entry.name: entry for entry in entries}
    for number, twin in enumerate(twins):
        for name, entry in _by_name(twin, parts, entries).items():
            identity = ("twin", entry.name if entry.tie_class is None else entry.tie_class)
            known = made.setdefault(name, Made(entry.requires_grad, entry.dtype, [], entry.kind, identity))
            if entry.kind in (NON_PERSISTENT, ATTRIBUTE) and not entry.problem and not entry.is_random():
                known.values.append(_value_of_entry(entry))
                known.values += rope_of_forward(entry, held.get(name))
            if number == 0 and entry.kind in (PARAMETER, BUFFER) and entry.tie_class is not None:
                classes.setdefault(identity, []).append(name)
    for entry in entries:
        if entry.name not in made and entry.is_tensor and (found := _recorded(entry)) is not None:
            made[entry.name] = found[0]
            if entry.kind in (PARAMETER, BUFFER):
                classes.setdefault(found[1], []).append(entry.name)
    ties = sorted(sorted(names) for names in classes.values() if len(names) > 1)
    own_config = getattr(twins[0][0], "config", None) if twins and not like else None
    return Constructed(made, ties, notes, own_config)


def _value_of_entry(entry: Entry) -> Callable[[], torch.Tensor]:
    return (lambda: entry.derive()) if entry.is_meta else (lambda: entry.value.detach())


def _recorded(entry: Entry) -> tuple[Made, Any] | None:
    """Of a model that was itself built under lading.skeleton(), whose record outlives the load. Names that were one
    tensor have the same second."""
    if entry.kind == EXTRA_STATE or (snapshot := snapshot_of(entry.module, entry.attribute)) is None:
        return None
    operand = snapshot.operand
    values = []
    if operand.version is not None and not is_random(operand.version) and tuple(operand.size) == entry.shape:
        values.append(lambda: value_of(operand, Seeds(0, entry.name)))
    identity = ("record", operand.cell, operand.size, operand.stride, operand.offset, operand.dtype)
    return Made(snapshot.requires_grad, operand.dtype, values, snapshot.kind), identity


def _by_name(
    twin: Sequence[nn.Module], parts: Sequence[nn.Module], entries: Sequence[Entry]
) -> dict[str, Entry]:
    """The twin's entries by the names that they have in the model, which may be wrapped by PEFT."""
    made = {entry.name: entry for entry in take_inventory(list(twin)) if entry.is_tensor}
    library = Library.find()
    view = View.of(parts, library, entries) if library is not None else None
    if view is None:
        return made
    return {name: entry for plain, entry in made.items() for name in view.names.get(plain, [plain])}


def _twins(
    parts: Sequence[nn.Module], entries: Sequence[Entry], config: Any
) -> tuple[list[list[nn.Module]], list[str]]:
    library = Library.find()
    view = View.of(parts, library, entries) if library is not None else None
    if view is None:
        return [], []
    twins: list[list[nn.Module]] = []
    for dtype in dict.fromkeys((main_dtype(entries), torch.float32)):
        try:
            own = view.config if config is None else config
            twins.append([huggingface.build(original_class(view.model), own, dtype, cast="exact")])
        except Exception as error:  # a constructor that wants more than its config
            text = f"{original_class(view.model).__name__} could not be built from its config"
            logger.info(text, exc_info=error)
            return [], [f"{text}: {type(error).__name__}: {error}"]
    return twins, []
