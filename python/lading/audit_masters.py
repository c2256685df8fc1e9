"""Copies of parameters that an optimizer keeps in another precision. A step writes the parameter from its copy, so a
copy that is not the parameter's value brings the old weights back.

    for master in masters(parameter):
        difference(master.parameter, master.copy)       # None: a step continues from what the parameter holds

DeepSpeed is never imported here: all facts are read off the parameters. ZeRO-3 parameters know their optimizer; those of
stages 1 and 2 and of the BF16 optimizer have `_hp_mapping`; Megatron's have `main_param`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from . import zero3


@dataclasses.dataclass(frozen=True)
class Master:
    """This rank's stretch of a flattened parameter, and the copy of it, in the parameter's dtype."""

    parameter: torch.Tensor
    copy: torch.Tensor
    begin: int


def masters(value: Any) -> Iterator[Master]:
    """What optimizers hold of a parameter on this rank."""
    if zero3.is_partitioned(value):
        yield from _zero3(value)
    elif getattr(value, "_hp_mapping", None) is not None:
        mapping = value._hp_mapping
        begin, elems = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
        yield _master(value.detach().reshape(-1)[begin : begin + elems], mapping.hp_fragment, begin)
    elif isinstance(copy := getattr(value, "main_param", None), torch.Tensor) and copy.numel() == value.numel():
        yield _master(value.detach().reshape(-1), copy, 0)


def _zero3(value: Any) -> Iterator[Master]:
    optimizer = getattr(value, "_z3_optimizer", None)
    if optimizer is None or not value.requires_grad or not hasattr(optimizer, "get_local_fp32_param"):
        return
    if not any(one is value for group in optimizer.fp16_groups for one in group):
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
