"""A state dict in the place of a model: tensors by name, each of which is filled in the memory that it has.

Nothing else is known of them: no modules, no constructors, no kinds. They count as parameters, and `in_place` of the
options refuses what would need other memory: the state dict's tensors are views of a model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn


class StateDict:
    """`read` returns the tensors by name. It is called once the ranks have met: what it raises on one rank, all get."""

    def __init__(self, read: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._read = read

    def part(self) -> nn.Module:
        holder = nn.Module()
        holder._parameters.update(self._read())  # type: ignore[arg-type]  # names have dots, tensors are no nn.Parameter
        return holder
