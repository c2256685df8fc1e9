"""A model that starts without a checkpoint: every rank makes its own part, and the bits are those of one process.

torchrun --nproc-per-node 2 examples/python/from_nothing.py
"""

import torch
import torch.distributed as dist
from common import Model, start, this_device
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

kind = start()
mesh = init_device_mesh(kind, (dist.get_world_size(),))
with lading.skeleton():
    model = Model()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
print(lading.initialize(model, seed=17))

with lading.skeleton():
    alone = Model()
lading.initialize(alone, seed=17, device=this_device(kind), group=False)
same = all(torch.equal(part.full_tensor(), alone.get_parameter(name)) for name, part in model.named_parameters())
print("the same bits as in one process" if same else "OTHER BITS than in one process")
