"""Exchange: replicas of HSDP hold the same bytes, so one rank of each node reads them and hands them to the others.

torchrun --nproc-per-node 4 examples/python/exchange.py
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
    report = lading.materialize(model, checkpoint, exchange="node")
    print(report)
    print(f"read {report.read_bytes} bytes for {report.bytes} in memory")

    compare(model, trained)
