"""FSDP2 over tensor parallelism: first tensor parallelism, then `fully_shard`, then the load.

torchrun --nproc-per-node 4 examples/python/fsdp2_tp.py
"""

import torch.distributed as dist
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

kind = start()
with sample(kind) as (checkpoint, trained):
    mesh = init_device_mesh(kind, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    print(lading.materialize(model, checkpoint))

    compare(model, trained)
