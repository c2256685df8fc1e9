"""Names of dtypes: torch's, and safetensors', which the engine speaks in."""

from __future__ import annotations

from typing import Any

import torch

from .inventory_json import dtype_name

_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}


def _all_dtypes() -> dict[str, torch.dtype]:
    found = {}
    for value in vars(torch).values():
        if isinstance(value, torch.dtype):
            try:
                found[dtype_name(value)] = value
            except Exception:  # safetensors has no such dtype
                continue
    return found


_BY_NAME = _all_dtypes()


def torch_dtype(name: str) -> torch.dtype:
    """Of a safetensors name, such as BF16."""
    if name not in _BY_NAME:
        raise ValueError(f"this torch has no dtype for {name}")
    return _BY_NAME[name]


def requested_dtype(value: Any) -> str:
    """What a user wrote, as the policy document has it: `auto`, a torch dtype, "bfloat16", "bf16", "f32" or "BF16"."""
    if value is None or value == "auto":
        return "auto"
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if not isinstance(value, str):
        raise TypeError(f'dtype is {value!r}; it should be "auto", a torch.dtype, or the name of one')
    if value.upper() in _BY_NAME:
        return value.upper()
    name = value.removeprefix("torch.")
    found = getattr(torch, _SHORT.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f'there is no dtype {value!r}; pass one such as "bfloat16" or torch.bfloat16')
    return dtype_name(found)
