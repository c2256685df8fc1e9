"""HSDP: FSDP2 on a mesh of two dims. Parts are sharded over the second and the same along the first.

torchrun --nproc-per-node 4 examples/python/hsdp.py
"""

import torch.distributed as dist
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

kind = start()
with sample(kind) as (checkpoint, trained):
    mesh = init_device_mesh(kind, (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    print(lading.materialize(model, checkpoint))

    compare(model, trained)
