"""RoPE tables that a forward pass of transformers writes: after a long sequence the frequencies of dynamic RoPE and of
longrope are others than the constructor's, and right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .inventory import Entry

_TABLE = "inv_freq"


def rope_of_forward(twin: Entry, held: Entry | None) -> list[Callable[[], torch.Tensor]]:
    """What transformers' own functions make of a twin's config, for the length that the model says it has seen."""
    functions = getattr(sys.modules.get("transformers.modeling_rope_utils"), "ROPE_INIT_FUNCTIONS", {})
    prefix = twin.attribute.removesuffix(_TABLE)
    if held is None or not twin.attribute.endswith(_TABLE) or prefix.endswith("original_"):
        return []
    layer_type = prefix.removesuffix("_") or None
    kinds = getattr(twin.module, "rope_type", None)
    kind = kinds.get(layer_type) if isinstance(kinds, dict) else kinds
    length = _length(kind, twin.module, held.module, prefix, layer_type)
    if kind not in functions or length is None:
        return []
    more = {} if layer_type is None else {"layer_type": layer_type}
    length = length.cpu() if isinstance(length, torch.Tensor) else length
    return [lambda: functions[kind](twin.module.config, torch.device("cpu"), seq_len=length, **more)[0]]


def _length(kind: Any, twin: Any, held: Any, prefix: str, layer_type: str | None) -> Any:
    """Of longrope every length beyond the original one gives the same; of dynamic RoPE the longest one counts, as the
    forward pass left it: computed from a tensor the table has other last bits than from a number."""
    if kind == "longrope":
        parameters = twin.config.rope_parameters
        parameters = parameters if layer_type is None else parameters[layer_type]
        return int(parameters["original_max_position_embeddings"]) + 1
    if "dynamic" in (kind or ""):
        longest = getattr(held, f"{prefix}max_seq_len_cached", None)
        return longest if longest is not None and longest > twin.original_max_seq_len else None
    return None
