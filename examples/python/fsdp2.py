"""FSDP2: shard a model on meta, then every rank reads its own part.

torchrun --nproc-per-node 2 examples/python/fsdp2.py
"""

import torch.distributed as dist
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

kind = start()
with sample(kind) as (checkpoint, trained):
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    print(lading.materialize(model, checkpoint))  # the device is the mesh's

    compare(model, trained)
