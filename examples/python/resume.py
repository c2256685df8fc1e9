"""Train an FSDP2 model, save it with its optimizer, and go on in a process of another layout: with the same losses.

torchrun --nproc-per-node 2 examples/python/resume.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from common import Model, sample, start, this_device
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading


def train(model, optimizer, steps, kind):
    losses = []
    for step in steps:
        ids = (torch.arange(32, device=kind) * (step + 1) % 101).reshape(2, 16)
        loss = model(ids).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sharded(mesh):
    with lading.skeleton():
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


kind = start()
with sample(kind) as (checkpoint, _):
    model = sharded(init_device_mesh(kind, (dist.get_world_size(),)))
    lading.materialize(model, checkpoint)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, range(5), kind)
    saved = lading.save(model, Path(checkpoint, "step-5"), optimizer=optimizer)
    expected = train(model, optimizer, range(5, 10), kind)

    # Another day, and no shards: the optimizer is made as before, and gets its state.
    model = Model().to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    report = lading.materialize(model, saved.path, device=this_device(kind), optimizer=optimizer)
    print(report)
    losses = train(model, optimizer, range(5, 10), kind)
    assert all(abs(one - other) < 1e-5 * abs(other) for one, other in zip(losses, expected, strict=True)), losses
    print(f"the losses go on: {', '.join(f'{loss:.5f}' for loss in losses)}")
