"""From the document of a model to the model: with plain torch, in whatever context the caller has entered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import modules as parts
from .hooked import hooked
from .pieces import FLOATS, Json, dtype_of

BATCH = 3


class Root(nn.Module):
    """Embedding (or nothing), a body of modules in a container, a head (or nothing)."""

    def __init__(self, model: Json) -> None:
        super().__init__()
        width, embed, names = model["width"], model["embed"], model["names"]
        self.names = dict(names)
        if embed:
            self.add_module(names["embed"], nn.Embedding(embed["vocab"], width))
        self.add_module(names["body"], body_of(model))
        if embed:
            head = nn.Linear(width, embed["vocab"], bias=False)
            if embed["tie"]:
                head.weight = self._modules[names["embed"]].weight  # type: ignore[union-attr]
            self.add_module(names["head"], head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._modules.get(self.names["embed"]) is not None:
            x = self._modules[self.names["embed"]](x)  # type: ignore[misc]
        for child in list(self._modules[self.names["body"]]._modules.values()):  # type: ignore[union-attr]
            x = child(x) if child is not None else x
        if self._modules.get(self.names["head"]) is not None:
            x = self._modules[self.names["head"]](x)  # type: ignore[misc]
        return x


def body_of(model: Json) -> nn.Module:
    children = _children(model["nodes"], model["width"])
    only = [child for _, child in children]
    box = model["box"]
    if box == "list":
        return nn.ModuleList(only)
    if box == "dict":
        return nn.ModuleDict(dict(children))
    return nn.Sequential(*only) if box == "sequential" else parts.Plain(children)


def _children(nodes: list[Json], width: int) -> list[tuple[str, nn.Module]]:
    made: list[tuple[str, nn.Module]] = []
    for node in nodes:
        if node["kind"] == "ref":  # one module under two names
            earlier = [module for _, module in made]
            if earlier:
                made.append((node["name"], earlier[node["of"] % len(earlier)]))
            continue
        made.append((node["name"], _module(node, width)))
    return made


def _module(node: Json, width: int) -> nn.Module:
    kind = node["kind"]
    if kind == "linear":
        return nn.Linear(width, width, bias=node["bias"])
    if kind == "norm":
        return {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "rms": nn.RMSNorm}[node["which"]](width)
    if kind == "mlp":
        return parts.Mlp(width, node["hidden"], bias=node["bias"])
    if kind == "rope":
        return parts.Rope(width, scale=node["scale"])
    if kind == "conv":
        return parts.Conv(width, channels_last=node["channels_last"])
    if kind == "rnn":
        return parts.Recurrent(node["which"], width, node["layers"], bias=node["bias"])
    if kind == "bag":
        return parts.Bag(node["pieces"])
    if kind == "chain":
        return parts.Chain(node["box"], node["inner"], _children(node["nodes"], width))
    if kind == "param":
        return parts.parametrized(node["which"], width)
    if kind == "hooked":
        return hooked(node["which"], width)
    if kind == "extra":
        return parts.Extra(width, node["which"])
    if kind == "lazy":
        return nn.LazyLinear(width)
    if kind == "own":
        return parts.Own(width)
    raise ValueError(kind)


@contextlib.contextmanager
def built_in(dtype: str) -> Iterator[None]:
    """Constructors run under this default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype_of(dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(spec: Json, context: Any = None, seed: int | None = None) -> nn.Module:
    """The model, as its constructor leaves it."""
    torch.default_generator.manual_seed(spec["seed"] if seed is None else seed)  # alone: no other device is asked
    with context if context is not None else contextlib.nullcontext(), built_in(spec["model"]["dtype"]):
        return Root(spec["model"])


def input_for(spec: Json, model: nn.Module) -> torch.Tensor:
    """What both models are run on."""
    embed = spec["model"]["embed"]
    has_embedding = embed and any(isinstance(module, nn.Embedding) for module in model.modules())
    if has_embedding:
        return torch.arange(BATCH) % embed["vocab"]
    width = spec["model"]["width"]
    floats = [dtype_of(name) for name in FLOATS]
    dtype = next((one.dtype for one in model.parameters() if one.dtype in floats and one.dim() > 1), torch.float32)
    return (torch.arange(BATCH * width, dtype=torch.float32).reshape(BATCH, width).remainder(5) / 4 - 0.5).to(dtype)
