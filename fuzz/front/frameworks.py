"""Layouts of DeepSpeed and of FSDP1. `tools` has what the subject brings along for models on meta."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch
from torch import nn

from .pieces import Json

Tools = dict[str, Any]
# DeepSpeed's own are gigabytes, and are not given back.
_BUCKETS = {"reduce_bucket_size": 4096, "allgather_bucket_size": 4096, "stage3_prefetch_bucket_size": 4096}


def import_all() -> None:
    """Everything that ranks would otherwise import one by one, each for itself."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # importing must start no processes
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp", "peft", "accelerate", "deepspeed",
                 "torch.distributed.tensor.parallel", "deepspeed.runtime.zero.stage_1_and_2"):  # fmt: skip
        importlib.import_module(name)
    torch._dynamo.list_backends()
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # it would compile C++
    importlib.import_module("deepspeed").logger.setLevel(50)


@functools.cache
def _deepspeed() -> Any:
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.init_distributed("gloo", verbose=False)
    return deepspeed


def config_of(layout: Json) -> Json:
    ranks = torch.distributed.get_world_size()
    config: Json = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": ranks,
        "zero_optimization": {"stage": layout["stage"], **_BUCKETS, **layout.get("zero", {})},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    return config | ({"bf16": {"enabled": True}} if layout["dtype"] == "bfloat16" else {})


def engine(model: nn.Module, layout: Json) -> nn.Module:
    """DeepSpeed's engine around a model, with an optimizer of its own."""
    every = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(every, lr=0.125)
    made: nn.Module = _deepspeed().initialize(model=model, optimizer=optimizer, config=config_of(layout))[0]
    return made


def zero3(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    deepspeed = _deepspeed()
    if any(parameter.is_meta for parameter in model.parameters()):
        partitioned: nn.Module = tools["zero3_init"](model, config_of(layout))
        return partitioned
    deepspeed.zero.Init(module=model, config_dict_or_path=config_of(layout))
    return model


def zero12(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    return engine(model, layout)


def fsdp1(model: nn.Module, layout: Json, rank: int, tools: Tools) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from .layouts import blocks_of, inner, shares

    options: dict[str, Any] = {
        "use_orig_params": layout["orig"],
        "sharding_strategy": getattr(ShardingStrategy, layout["strategy"]),
        "device_id": torch.device("cpu"),
    }
    if any(tensor.is_meta for tensor in model.parameters()):
        options["param_init_fn"] = tools["empty_parameters"]
    chosen = [id(block) for block in blocks_of(model, layout["units"]) if not shares(block, model)]
    root = inner(model)
    body = root._modules[root.names["body"]]  # type: ignore[union-attr,index]
    for name, child in list(body._modules.items()):  # type: ignore[union-attr]
        if id(child) in chosen:
            body._modules[name] = FullyShardedDataParallel(child, **options)  # type: ignore[union-attr,arg-type]
    return FullyShardedDataParallel(model, **options)
