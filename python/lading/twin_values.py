"""Values that a constructor computed on plain meta, where they were lost: a twin computes them again.

A model of transformers is its class and its config, so the class can be built once more under `lading.skeleton()`.
What the twin's constructor computed for a buffer or a plain attribute is the value of the one with the same name, if
shape, dtype and the module's class are the same, and if it does not depend on random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .bits import same_bits
from .huggingface_build import REQUESTABLE, build
from .huggingface_view import Library, View, original_class
from .inventory import PARAMETER, Entry, take_inventory
from .recording import SkeletonError


def twin_values(
    parts: Sequence[nn.Module], entries: Sequence[Entry], wanted: Sequence[Entry]
) -> dict[str, torch.Tensor]:
    """By name, on the CPU, as far as a twin can be built and knows them. `entries`: the inventory of the parts."""
    library = Library.find()
    view = View.of(list(parts), library, entries) if library is not None else None
    if view is None or getattr(view, "config", None) is None:
        return {}
    values: dict[str, torch.Tensor] = {}
    differ: set[str] = set()
    for dtype in dict.fromkeys((main_dtype(entries), torch.float32)):
        try:
            twin = build(original_class(view.model), view.config, dtype, cast="exact")
        except Exception:  # a constructor that wants more than its config: its values stay unknown
            continue
        made = {entry.name: entry for entry in take_inventory([twin]) if entry.is_tensor}
        by_name = {name: entry for plain, entry in made.items() for name in view.names.get(plain, [plain])}
        for entry in wanted:
            value = _value_like(entry, by_name.get(entry.name))
            if value is not None and not same_bits(values.setdefault(entry.name, value), value):
                differ.add(entry.name)  # it depends on a default dtype that nobody knows any more
    return {name: value for name, value in values.items() if name not in differ}


def _value_like(entry: Entry, twin: Entry | None) -> torch.Tensor | None:
    if twin is None or twin.problem or twin.is_random() or original_class(twin.module) is not original_class(entry.module):
        return None
    if tuple(twin.shape) != tuple(entry.shape) or twin.dtype != entry.dtype:
        return None
    try:
        return twin.derive() if twin.is_meta else twin.value.detach().cpu()
    except SkeletonError:
        return None


def main_dtype(entries: Sequence[Entry]) -> torch.dtype:
    """The dtype that most elements of floating parameters have."""
    counts: dict[torch.dtype, int] = {}
    for entry in entries:
        if entry.kind == PARAMETER and entry.dtype in REQUESTABLE:
            counts[entry.dtype] = counts.get(entry.dtype, 0) + max(1, torch.Size(entry.shape).numel())
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
