"""Load a checkpoint into an FSDP2 model, train it, and save it: every rank writes its own part of the new checkpoint.

torchrun --nproc-per-node 2 examples/python/save.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

kind = start()
with sample(kind) as (checkpoint, _):
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loaded = lading.materialize(model, checkpoint)

    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        ids = torch.randint(101, (2, 16), device=kind)
        model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            report = lading.save(model, Path(checkpoint, f"step-{step}"), base=loaded)
            print(report)

    pending = lading.save(model, Path(checkpoint, "last"), base=loaded, exist="replace", background=True)
    optimizer.step()
    print(pending.result())

    trained = Model().to(kind)  # whole, and not sharded
    lading.materialize(trained, report.path)
    compare(model, trained)
