"""FSDP2: shard a model on meta, then every rank reads its own part. `--tp 2` puts it over tensor parallelism.

torchrun --nproc-per-node 2 examples/python/fsdp2.py
torchrun --nproc-per-node 4 examples/python/fsdp2.py --tp 2
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(101, 32)  # 101 rows: the last rank has fewer
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x


parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
options = parser.parse_args()

kind = "cuda" if torch.cuda.is_available() else "cpu"
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
mesh = init_device_mesh(kind, (dist.get_world_size() // options.tp, options.tp), mesh_dim_names=("dp", "tp"))

torch.manual_seed(0)
trained = Model().to(kind)
with tempfile.TemporaryDirectory() as folder:
    shared = [folder]
    dist.broadcast_object_list(shared)  # all ranks use the first one's
    if dist.get_rank() == 0:
        from safetensors.torch import save_file

        save_file(trained.state_dict(), Path(shared[0]) / "model.safetensors")
    dist.barrier()

    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        if options.tp > 1:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    report = lading.materialize(model, shared[0])  # the device is the mesh's
    print(report)
    dist.barrier()

ids = torch.arange(16, device=kind)
difference = (model(ids) - trained(ids)).abs().max().item()
assert difference < 1e-5, difference
if dist.get_rank() == 0:
    print(f"the output differs by {difference:.1e} from that of one process")
dist.destroy_process_group()
