"""Modules of a world: all of them map [batch, width] to [batch, width], so that any of them can be left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from .pieces import Json, hold, make_tensor, unboxed, weigh, whole


class Bag(nn.Module):
    """Tensors of every kind. Each of them weighs in the output."""

    def __init__(self, pieces: list[Json]) -> None:
        super().__init__()
        made: list[torch.Tensor] = []
        for piece in pieces:
            tensor = make_tensor(piece, made)
            hold(self, piece, tensor)
            made.append(tensor)
        self.held = [piece["name"] for piece in pieces]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.held:
            for tensor in unboxed(getattr(self, name, None)):
                x = x + weigh(tensor).to(x.dtype)
        return x


class Own(nn.Module):
    """A linear layer that gathers its weight itself: the one that works on any DTensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        nn.init.uniform_(self.weight, -0.5, 0.5)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ whole(self.weight).t() * whole(self.scale)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, *, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Rope(nn.Module):
    """A table that the constructor computes and no file holds."""

    def __init__(self, width: int, *, scale: float) -> None:
        super().__init__()
        table = 1.0 / (10000.0 ** (torch.arange(0, width, dtype=torch.int64).float() / width))
        self.register_buffer("inv_freq", table * scale, persistent=False)
        self.register_buffer("ids", torch.arange(width).expand((1, -1)), persistent=False)
        self.original = self.inv_freq

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.inv_freq * self.ids).to(x.dtype) + self.original.sum().to(x.dtype)


class Conv(nn.Module):
    def __init__(self, width: int, *, channels_last: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        if channels_last:
            self.conv = self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x[:, :, None, None])[:, :, 0, 0]


class Recurrent(nn.Module):
    def __init__(self, kind: str, width: int, layers: int, *, bias: bool) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(width, width, num_layers=layers, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rnn(x[None])[0][0]


class Extra(nn.Module):
    """A module with extra state: a tensor, which a file can hold, or an object, which it cannot."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.kind, self.state = kind, torch.arange(3.0) if kind == "tensor" else {"steps": 3}

    def get_extra_state(self) -> Any:
        return self.state.clone() if isinstance(self.state, torch.Tensor) else dict(self.state)

    def set_extra_state(self, state: Any) -> None:
        self.state = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.state.sum() if isinstance(self.state, torch.Tensor) else self.state["steps"]
        return x * self.weight + seen


class Chain(nn.Module):
    """Other modules one after another, in a container of torch's."""

    def __init__(self, box: str, name: str, children: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        modules = [child for _, child in children]
        self.inner_name = name
        if box == "list":
            self.add_module(name, nn.ModuleList(modules))
        elif box == "dict":
            self.add_module(name, nn.ModuleDict(dict(children)))
        elif box == "sequential":
            self.add_module(name, nn.Sequential(*modules))
        else:
            self.add_module(name, Plain(children))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self._modules[self.inner_name].children_in_order():  # type: ignore[union-attr,operator]
            x = child(x)
        return x


class Plain(nn.Module):
    """A module with its children as attributes of any name."""

    def __init__(self, children: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        for name, child in children:
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self._modules.values():
            x = child(x) if child is not None else x
        return x


def _children_in_order(module: nn.Module) -> list[nn.Module]:
    return [child for child in module._modules.values() if child is not None]


for _container in (nn.ModuleList, nn.ModuleDict, nn.Sequential, Plain):
    _container.children_in_order = _children_in_order  # type: ignore[attr-defined]


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


def parametrized(kind: str, width: int) -> nn.Module:
    linear = nn.Linear(width, width)
    if kind == "weight_norm":
        return parametrizations.weight_norm(linear)
    if kind == "weight_norm_old":
        return nn.utils.weight_norm(linear)
    if kind == "spectral_norm":
        return parametrizations.spectral_norm(linear)
    if kind == "spectral_norm_old":
        return nn.utils.spectral_norm(linear)
    parametrize.register_parametrization(linear, "weight", Symmetric() if kind == "symmetric" else Scaled(width))
    return linear
