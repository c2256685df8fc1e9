"""DeepSpeed: what zero.Init leaves of each parameter on each rank, ZeRO++'s second partition included."""

import importlib
from random import Random

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from .launch import run_ranks
from .torch_tools import arange, indices, random_shape


class Module(nn.Module):
    def __init__(self, shapes):
        super().__init__()
        for i, shape in enumerate(shapes):
            self.register_parameter(f"p{i}", nn.Parameter(arange(shape)))


def fact(rank, mesh, shape, cut, partition):
    """The partition as it is; what is in the padding is for the caller to judge."""
    held = indices(torch.nan_to_num(partition.float(), posinf=0, neginf=0))
    return {"mesh": mesh, "shape": shape, "cuts": [cut], "rank": rank, "held": held}


def on_a_rank(rank, world, hpz, shapes):
    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    # By its module name: the attribute deepspeed.comm.torch may be PyTorch itself.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    # On the CPU zero.Init ignores the dtype it is given and makes everything bf16, which counts to 256 only.
    get_accelerator().is_fp16_supported = lambda: True
    config = {"train_batch_size": world, "zero_optimization": {"stage": 3}}
    if hpz > 1:
        config["zero_optimization"]["zero_hpz_partition_size"] = hpz
    with deepspeed.zero.Init(config_dict_or_path=config, remote_device="cpu", dtype=torch.float32):
        module = Module(shapes)
    mesh = [("node", world // hpz), ("local", hpz)]
    facts = []
    for shape, parameter in zip(shapes, module.parameters(), strict=True):
        assert list(parameter.ds_shape) == shape and parameter.ds_tensor.dtype == torch.float32
        primary = fact(rank, mesh, shape, {"flat": {}, "axes": ["node", "local"]}, parameter.ds_tensor)
        facts.append(primary | {"slot": "primary"})
        if hpz > 1:
            cut = {"flat": {"pad_multiple": world}, "axes": ["local"]}
            facts.append(fact(rank, mesh, shape, cut, parameter.ds_secondary_tensor) | {"slot": "secondary"})
    with deepspeed.zero.GatheredParameters(list(module.parameters())):
        gathered = all(torch.equal(p.data, arange(s)) for p, s in zip(module.parameters(), shapes, strict=True))
    return {"facts": facts, "gathered": gathered}


def main(seed, worlds, count, rank_deadline_s):
    random = Random(seed)
    results = []
    for world, hpz in worlds:
        shapes = [random_shape(random, 12, empty=False) for _ in range(count)]
        # No shape without dims: zero.Init of 0.19.8 fails on one, where it broadcasts it as bytes.
        shapes[:5] = [[1], [world], [world + 1], [3, 5], [105]]
        results.append(run_ranks(world, on_a_rank, rank_deadline_s, world, hpz, shapes))
    return results
