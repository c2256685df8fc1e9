"""Tensor parallelism: every rank reads the rows or columns that its linears have.

torchrun --nproc-per-node 2 examples/python/tp.py
"""

import torch.distributed as dist
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

kind = start()
with sample(kind) as (checkpoint, trained):
    mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("tp",))
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    print(lading.materialize(model, checkpoint))

    compare(model, trained)
