"""Types of the arguments that several functions of the front take. `options.py` checks the words at run time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ._engine import Progress

StrPath: TypeAlias = str | os.PathLike[str]
Device: TypeAlias = torch.device | str | int  # a number is the index of a GPU
DType: TypeAlias = torch.dtype | str  # "auto", torch.bfloat16, "bfloat16", "bf16", "BF16"
Cast: TypeAlias = Literal["promote", "exact", "destination"]
ComputeRecord: TypeAlias = Literal["checkpoint", "ignore"]
Ties: TypeAlias = Literal["keep", "untie"]
Quantized: TypeAlias = Literal["dequantize", "keep"]
Arithmetic: TypeAlias = Literal["exact", "reference"]
Verify: TypeAlias = bool | Literal["auto", "full"]
ExchangeScope: TypeAlias = Literal["never", "node", "job", "auto"]
Exist: TypeAlias = Literal["refuse", "replace"]
Unmapped: TypeAlias = Literal["refuse", "keep", "drop"]
Pins: TypeAlias = Iterable[str | tuple[str, str]]  # patterns, or (pattern, strength)
External: TypeAlias = Mapping[str, torch.Tensor | nn.Module]
Renaming: TypeAlias = Mapping[str, Any] | StrPath  # names by pattern, or a mapping document, or its path
Adapter: TypeAlias = StrPath | Mapping[str, StrPath]
Showing: TypeAlias = "bool | Callable[[Progress], Any]"
Group: TypeAlias = "ProcessGroup | Literal[False] | None"
