"""The FSDP2 program of the README: rank 0 writes a checkpoint, and each rank reads its own part of it.

torchrun --nproc-per-node 2 examples/python/sharded.py
"""

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading


def build():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))


kind = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
mesh = init_device_mesh(kind, (dist.get_world_size(),))
if dist.get_rank() == 0:
    save_file(build().state_dict(), "sharded.safetensors")
dist.barrier()

with lading.skeleton():  # no rank ever holds the whole model
    model = build()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
print(lading.materialize(model, "sharded.safetensors"))  # each rank reads its own part
dist.destroy_process_group()
