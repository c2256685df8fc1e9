"""Dtypes: ask which dtype each tensor will have, shard by it, and load.

torchrun --nproc-per-node 2 examples/python/dtypes.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from common import shared_folder, start
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import lading


class Decay(nn.Module):
    """Computes in F32: the checkpoint stores its parameter in F32."""

    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        return x * torch.exp(-torch.exp(self.log))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.decay = Decay()
        self.down = nn.Linear(16, 16)

    def forward(self, x):
        return self.down(self.decay(self.up(x)))


def save(folder):
    tensors = Model().state_dict()
    stored = {name: tensor if name == "decay.log" else tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(stored, Path(folder) / "model.safetensors")


kind = start()
with shared_folder(save) as checkpoint:
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    with lading.skeleton():
        model = Model()
    dtypes = lading.resolve_dtypes(model, checkpoint, torch.bfloat16, compute_dtype=torch.bfloat16)
    print(dtypes["decay.log"].storage, dtypes["decay.log"].storage_rule)  # torch.float32 R23: a request never narrows

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    lading.shard_by_dtype(model, mesh, policy, dtypes=dtypes)  # decay becomes a unit of its own, in F32
    print(lading.materialize(model, checkpoint, dtype=torch.bfloat16, compute_dtype=torch.bfloat16))

    assert model.up.weight.dtype == torch.bfloat16 and model.decay.log.dtype == torch.float32
    assert model(torch.ones(2, 16, device=kind)).dtype == torch.bfloat16
