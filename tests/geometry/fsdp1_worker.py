"""FSDP1: what a FlatParameter's shard holds on each rank. Where tensors begin in it is FSDP1's own record."""

from random import Random

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from .launch import run_ranks
from .torch_tools import indices, random_shape


class Module(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        for i, shape in enumerate(shapes):
            self.register_parameter(f"p{i}", nn.Parameter(torch.zeros(shape)))


def offsets_of(flat):
    """Where each parameter begins in the unsharded buffer, alignment gaps counted."""
    offset, offsets = 0, []
    for elems, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            offsets.append(offset)
        offset += elems
    return offsets, offset


def on_a_rank(rank, world, units, use_orig_params):
    facts = []
    for name, shapes in enumerate(units):
        module = Module(shapes)
        begin = 1000
        begins = []
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.arange(begin, begin + parameter.numel()).reshape(parameter.shape))
                begins.append(begin)
                begin += parameter.numel()
        wrapped = FullyShardedDataParallel(module, use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        flat = wrapped._handle.flat_param
        offsets, total = offsets_of(flat)
        members = []
        for shape, offset, value in zip(shapes, offsets, begins, strict=True):
            cut = {"flat_group": {"unit": str(name), "offset": offset, "elems": total}, "axes": ["dp"]}
            members.append({"shape": shape, "cuts": [cut], "first_value": value})
        facts.append({"mesh": [("dp", world)], "rank": rank, "members": members, "shard": indices(flat)})
    return facts


def main(seed, worlds, count, rank_deadline_s):
    random = Random(seed)
    results = []
    for world in worlds:
        for use_orig_params in (True, False):
            units = [[random_shape(random, 9, empty=False) for _ in range(random.randint(1, 6))] for _ in range(count)]
            ranks = run_ranks(world, on_a_rank, rank_deadline_s, world, units, use_orig_params)
            results += [fact for facts in ranks for fact in facts]
    return results
