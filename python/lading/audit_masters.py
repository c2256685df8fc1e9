"""Copies of parameters that an optimizer keeps in another precision. A step writes the parameter from its copy, so a
copy that is not the parameter's value brings the old weights back.

    copies = engine_copies(parts)                       # of a DeepSpeedEngine among the parts
    for master in masters(parameter, copies):
        difference(master.parameter, master.copy)       # None: a step continues from what the parameter holds

DeepSpeed is never imported here: all facts are read off parameters and engines. ZeRO-3 parameters know their optimizer;
those of stages 1 and 2 and of the BF16 optimizer have `_hp_mapping`; without ZeRO only the engine knows the copies.
Megatron, Apex and others hang a copy on the parameter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import zero3
from .inventory import _class_names

_NAMES = ("main_param", "master_param", "master_weight", "fp32_param")

@dataclasses.dataclass(frozen=True)
class Master:
    """This rank's stretch of a flattened parameter, and the copy of it, in the parameter's dtype."""

    parameter: torch.Tensor
    copy: torch.Tensor
    begin: int


def masters(value: Any, copies: Mapping[int, torch.Tensor]) -> Iterator[Master]:
    """What optimizers hold of a parameter on this rank."""
    if zero3.is_partitioned(value):
        yield from _zero3(value)
        return
    if getattr(value, "_hp_mapping", None) is not None:
        mapping = value._hp_mapping
        begin, elems = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
        yield _master(value.detach().reshape(-1)[begin : begin + elems], mapping.hp_fragment, begin)
    for copy in (copies.get(id(value)), *(getattr(value, name, None) for name in _NAMES)):
        if isinstance(copy, torch.Tensor) and type(value) is nn.Parameter and copy.numel() == value.numel():
            yield _master(value.detach().reshape(-1), copy, 0)


def engine_copies(parts: Sequence[nn.Module]) -> dict[int, torch.Tensor]:
    """By the id of a parameter, its copy in a DeepSpeed optimizer without ZeRO."""
    found: dict[int, torch.Tensor] = {}
    for part in parts:
        for module in part.modules():
            optimizer: Any = getattr(module, "optimizer", None) if "DeepSpeedEngine" in _class_names(module) else None
            groups = getattr(optimizer, "fp16_groups", ())
            for parameters, copies in zip(groups, getattr(optimizer, "fp32_groups", ()), strict=False):
                found |= {id(one): copy for one, copy in zip(parameters, copies, strict=True)}
            for parameters, flat in zip(groups, getattr(optimizer, "fp32_groups_flat", ()), strict=False):
                pieces = flat.detach()[: sum(one.numel() for one in parameters)].split([one.numel() for one in parameters])
                found |= {id(one): copy for one, copy in zip(parameters, pieces, strict=True)}
    return found


def _zero3(value: Any) -> Iterator[Master]:
    optimizer = getattr(value, "_z3_optimizer", None)
    if optimizer is None or not value.requires_grad or not hasattr(optimizer, "get_local_fp32_param"):
        return
    if optimizer.get_param_id(value) not in optimizer.grad_position:  # it was left out of the optimizer
        return
    held = value.ds_tensor.detach().reshape(-1)
    begin = _begin(value, held.numel())
    elems = max(0, torch.Size(value.ds_shape).numel() - begin)  # the rest is padding
    yield _master(held[:elems], optimizer.get_local_fp32_param(value)[:elems], begin)


def _begin(value: Any, elems: int) -> int:
    ranks = torch.distributed.get_process_group_ranks(value.ds_process_group)
    return ranks.index(torch.distributed.get_rank()) * elems


def _master(parameter: torch.Tensor, copy: torch.Tensor, begin: int) -> Master:
    return Master(parameter.cpu(), copy.detach().reshape(-1).to(parameter.dtype).cpu(), begin)
