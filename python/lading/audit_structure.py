"""Whether a model has the tensors that its constructor makes, of the kinds that it makes, each one a tensor of its own.

A parameter that became a buffer is not trained, a buffer that became a plain attribute does not follow the model to
another device, a buffer that was deleted is missed at the next forward pass, and an LSTM computes with a list of its
weights that may not be its weights any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from .audit_report import Findings, kind_name
from .audit_twin import Made
from .inventory import (
    _WRAPPERS,
    ATTRIBUTE,
    NON_PERSISTENT,
    PARAMETER,
    Entry,
    _class_names,
    canonical_modules,
)
from .reach import stranded
from .recording import snapshots_of


def as_constructed(entries: Sequence[Entry], made: Mapping[str, Made], findings: Findings) -> list[Entry]:
    """The entries, of the kinds that the constructor gives them: by these they are judged. Other kinds are findings."""
    found = []
    for entry in entries:
        known = made.get(entry.name)
        if known is None or not known.kind or known.kind == entry.kind or _is_computed(entry.module, entry.attribute):
            found.append(entry)
            continue
        text = f"its constructor makes it a {kind_name(known.kind)}, and it is a {kind_name(entry.kind)}"
        is_wrong = PARAMETER in (known.kind, entry.kind) and known.kind != ATTRIBUTE
        tell = findings.problem if is_wrong else findings.warning
        tell("kind", entry.name, text, expected=kind_name(known.kind), found=kind_name(entry.kind))
        found.append(dataclasses.replace(entry, kind=known.kind))
    return found


def absent(
    parts: Sequence[nn.Module], entries: Sequence[Entry], made: Mapping[str, Made], plain_modules: Mapping[str, str]
) -> tuple[dict[str, str], bool]:
    """Names that the constructor makes in modules of this model, and that are gone, with their kinds; and whether the
    model has all modules that the constructor makes: a stage has not."""
    names = {entry.name for entry in entries}
    modules: dict[str, nn.Module] = {}
    found: dict[str, str] = {}
    for part in parts:
        for prefix, module in canonical_modules(part):
            modules.setdefault(plain_modules.get(prefix, prefix), module)
            for attribute, snapshot in snapshots_of(module).items():
                name = f"{prefix}.{attribute}" if prefix else attribute
                # The file's keys say whether a parameter is missing: to take one away may be meant.
                is_missed = snapshot.kind == NON_PERSISTENT and name not in names
                if is_missed and not _is_computed(module, attribute):
                    found[name] = snapshot.kind
    is_complete = True
    for name, one in made.items():
        owner, _, attribute = name.rpartition(".")
        if name in names or one.kind in ("", ATTRIBUTE):
            continue
        is_complete = is_complete and owner in modules
        if owner in modules and not _is_computed(modules[owner], attribute):
            found[name] = one.kind
    return found, is_complete


def _is_computed(module: nn.Module, attribute: str) -> bool:
    """By a parametrization, a weight norm or a pruning, which keep what it is computed from under other names."""
    if attribute in getattr(module, "parametrizations", ()):
        return True
    return any(f"{attribute}{suffix}" in module._parameters for suffix in ("_g", "_v", "_orig"))


def stale_flat_weights(parts: Sequence[nn.Module]) -> Iterator[tuple[str, str]]:
    """Of recurrent modules: a place in the list that forward uses whose tensor is not the module's, and that one."""
    for part in parts:
        for prefix, module in canonical_modules(part):
            if not isinstance(module, nn.RNNBase):
                continue
            dot = f"{prefix}." if prefix else ""
            for place, (name, held) in enumerate(zip(module._flat_weights_names, module._flat_weights, strict=False)):
                own = module._parameters.get(name)
                if own is not None and held is not own and not _is_same_memory(own, held):
                    yield f"{dot}_flat_weights[{place}]", f"{dot}{name}"


def _is_same_memory(one: Any, other: Any) -> bool:
    """True also where it cannot be said: of what ranks share out, the list may hold what was gathered."""
    if other is None or hasattr(one, "ds_shape") or hasattr(one, "device_mesh") or one.is_meta or not one.numel():
        return True
    return other.device == one.device and other.data_ptr() == one.data_ptr() and other.stride() == one.stride()


def tied_apart(entries: Sequence[Entry], made: Mapping[str, Made]) -> list[list[str]]:
    """Names that are one tensor here, and several of the constructor's."""
    classes: dict[int, list[str]] = {}
    for entry in entries:
        known = made.get(entry.name)
        if entry.tie_class is not None and entry.kind not in (ATTRIBUTE, NON_PERSISTENT) and known is not None:
            classes.setdefault(entry.tie_class, []).append(entry.name)
    found = []
    for names in classes.values():
        identities = {made[name].identity for name in names}
        if len(identities) > 1 and None not in identities:
            found.append(sorted(names))
    return sorted(found)


def on_meta(parts: Sequence[nn.Module], entries: Sequence[Entry]) -> Iterator[str]:
    """Tensors without values that the inventory does not list."""
    known = {id(entry.value) for entry in entries}
    for part in parts:
        modules = [pair for pair in canonical_modules(part) if not _class_names(pair[1]) & _WRAPPERS]
        yield from (name for name, tensor in stranded(modules, known) if not hasattr(tensor, "ds_id"))
