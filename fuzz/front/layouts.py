"""How a model is shared out over ranks: the frameworks' own calls, the same for the oracle and the subject."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .frameworks import Tools, fsdp1, zero3, zero12
from .pieces import Json

_MESHES: dict[str, Any] = {}


def mesh_of(ranks: Any, names: tuple[str, ...] | None = None) -> Any:
    """A DeviceMesh, made once per process: every rank asks for the same meshes in the same order."""
    from torch.distributed.device_mesh import DeviceMesh

    key = json.dumps([ranks, names])
    if key not in _MESHES:
        _MESHES[key] = DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=names)
    return _MESHES[key]


def mesh_count() -> int:
    return len(_MESHES)


def blocks_of(model: nn.Module, picks: list[int]) -> list[nn.Module]:
    """Children of the body that become units of their own, each once."""
    root = inner(model)
    body = root._modules.get(root.names["body"])  # type: ignore[union-attr,index,arg-type]
    children = [child for child in body._modules.values() if child is not None] if body is not None else []
    chosen = [children[pick % len(children)] for pick in picks] if children else []
    unique = {id(child): child for child in chosen if next(child.parameters(), None) is not None}
    return list(unique.values())


def inner(model: nn.Module) -> nn.Module:
    """The Root inside of wrappers."""
    from .build import Root

    while not isinstance(model, Root):
        for name in ("_orig_mod", "_fsdp_wrapped_module", "module"):
            if name in model._modules:
                model = model._modules[name]  # type: ignore[assignment]
                break
        else:
            model = model.get_base_model()  # type: ignore[operator]
    return model


def _fully_shard(model: nn.Module, layout: Json, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": layout.get("reshard", True)}
    size = mesh.size(mesh.ndim - 1)
    if layout.get("shard1"):

        def place(parameter: nn.Parameter) -> Any:
            return Shard(1) if parameter.dim() > 1 and parameter.shape[1] % size == 0 else None

        options["shard_placement_fn"] = place
    for block in blocks_of(model, layout["units"]):
        if not shares(block, model):
            fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def shares(block: nn.Module, model: nn.Module) -> bool:
    """Whether a parameter of the block is also outside of it: FSDP2 wants tied parameters in one unit."""
    own = {id(parameter) for parameter in block.parameters()}
    inside = {id(module) for module in block.modules()}
    return any(
        id(parameter) in own
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
    )


def _fsdp2(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    return _fully_shard(model, layout, _sliced(layout))


def _sliced(layout: Json) -> Any:
    names = tuple(layout["dims"]) if layout.get("dims") else None
    mesh = mesh_of(layout["mesh"], names)
    return mesh[layout["slice"]] if layout.get("slice") else mesh


def _plan(model: nn.Module, mesh: Any, layout: Json) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from .modules import Mlp

    for module in list(model.modules()):
        if isinstance(module, Mlp):
            parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    root = inner(model)
    embedding = root._modules.get(root.names["embed"])  # type: ignore[union-attr,index,arg-type]
    if layout.get("embed") and embedding is not None and layout["embed"] != "none":
        from torch.distributed.tensor import Replicate

        styles = {
            "rows": RowwiseParallel(input_layouts=Replicate()),
            "columns": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(embedding, mesh, styles[layout["embed"]])


def _tp(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    _plan(model, _sliced(layout), layout)
    return model


def _fsdp2_tp(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    mesh = mesh_of(layout["mesh"], ("dp", "tp"))
    _plan(model, mesh["tp"], layout)
    return _fully_shard(model, layout, mesh["dp"])


def _dtensor(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    """Every parameter and buffer by `distribute_tensor`, placements drawn one after another."""
    from torch.distributed.tensor import distribute_tensor

    mesh = _sliced(layout)
    done: dict[int, Any] = {}
    at = 0
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    words = layout["placements"][at % len(layout["placements"])]
                    at += 1
                    if words == "plain":
                        done[id(tensor)] = tensor
                        continue
                    chosen = [_placement(word, tensor.dim()) for word in words[: mesh.ndim]]
                    shared = distribute_tensor(tensor.detach(), mesh, chosen, src_data_rank=None)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    done[id(tensor)] = nn.Parameter(shared, tensor.requires_grad) if is_parameter else shared
                table[name] = done[id(tensor)]
    return model


def _placement(word: Any, dims: int) -> Any:
    """"r", or a dim to cut, or [dim, split factor] for a strided cut."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if word == "r" or not dims:
        return Replicate()
    if isinstance(word, list):
        return _StridedShard(word[0] % dims, split_factor=word[1])
    return Shard(word % dims) if word >= 0 else Shard(-1)


def _ddp(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def _stages(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    """Each rank keeps some children of the body; names are those of the whole model."""
    root = inner(model)
    body = root._modules[root.names["body"]]  # type: ignore[union-attr,index,arg-type]
    assert body is not None
    names = list(body._modules)
    owners = {name: layout["owners"][at % len(layout["owners"])] % layout["ranks"] for at, name in enumerate(names)}
    for name in names:
        if owners[name] != rank:
            body._modules[name] = nn.Identity()
    for part, owner in (("embed", 0), ("head", layout["ranks"] - 1)):
        key = root.names[part]  # type: ignore[union-attr,index]
        if key in root._modules and owner != rank:
            del root._modules[key]  # type: ignore[arg-type]
    return model


def _same(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    return model


LAYOUTS: dict[str, Callable[[nn.Module, Json, int, Tools], nn.Module]] = {
    "single": _same, "replicas": _same, "different": _same, "ddp": _ddp, "fsdp2": _fsdp2, "hsdp": _fsdp2, "tp": _tp,
    "fsdp2_tp": _fsdp2_tp, "dtensor": _dtensor, "stages": _stages, "fsdp1": fsdp1, "zero3": zero3,
    "zero12": zero12,
}  # fmt: skip


def shard(model: nn.Module, layout: Json, rank: int, tools: Tools | None = None) -> nn.Module:
    """`tools` are the functions that a loader brings along for models on meta."""
    return LAYOUTS[layout["kind"]](model, layout, rank, tools or {})
