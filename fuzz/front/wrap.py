"""What is put around a model before it is sharded, and what holds on to it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .build import input_for
from .pieces import Json

WRAPPERS = ("compile", "peft", "offload", "to_empty")
HOLDERS = ("optimizer", "forward", "load_before")


def _cuts(spec: Json, kind: str) -> list[Json]:
    return [cut for cut in spec["surgery"] if cut["kind"] == kind]


def wrap(model: nn.Module, spec: Json, folder: Path, *, is_subject: bool) -> nn.Module:
    """Before sharding."""
    return model


def wrap_sharded(model: nn.Module, spec: Json) -> nn.Module:
    """After sharding."""
    for _ in _cuts(spec, "compile"):
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    return model


def learner(model: nn.Module) -> Any:
    """An optimizer over what can learn, or None."""
    every = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(every, lr=0.125) if every else None


def run(model: nn.Module, spec: Json) -> torch.Tensor:
    output: torch.Tensor = model(input_for(spec, model))
    return output
