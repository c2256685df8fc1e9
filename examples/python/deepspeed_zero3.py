"""DeepSpeed ZeRO-3: build on meta, give the parameters to ZeRO-3, and every rank fills its own partitions.

torchrun --nproc-per-node 2 examples/python/deepspeed_zero3.py

A model that was built under deepspeed.zero.Init, or by transformers under HfDeepSpeedConfig, is filled as well, before
or after deepspeed.initialize: call `materialize` on it, or on the engine.
"""

import deepspeed
import torch
import torch.distributed as dist
from common import Model, compare, sample, start

import lading

kind = start()
deepspeed.init_distributed(dist_backend="nccl" if kind == "cuda" else "gloo", verbose=False)
with sample(kind) as (checkpoint, trained):
    config = {"train_batch_size": dist.get_world_size(), "zero_optimization": {"stage": 3}}
    with lading.skeleton():
        model = Model()
    lading.zero3_init(model, config)
    print(lading.materialize(model, checkpoint))

    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    compare(engine, trained)
