"""A training script for `accelerate launch` (test_003): sharded by accelerate, filled by lading, five steps.

accelerate launch --use_fsdp --fsdp_version 2 -m seeds.accelerate_script FOLDER

Without a GPU accelerate knows no FSDP, whatever its launcher was told; there its sharding function is called by hand.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from seeds import tiny_gemma4
from seeds.test_003_fsdp_loading_with_meta_devices import differences, prepared_by_accelerate, watched

STEPS = 5


def prepare(model):
    from accelerate import Accelerator

    if torch.cuda.is_available():
        accelerator = Accelerator()
        # It insists on an optimizer, which it gives the parameters by their addresses; on meta these are all alike.
        return accelerator.prepare(model, torch.optim.SGD(model.parameters()))[0], accelerator.device
    dist.init_process_group("gloo")
    return prepared_by_accelerate(model, init_device_mesh("cpu", (dist.get_world_size(),))), torch.device("cpu")


def train(model, device):
    generator = torch.Generator().manual_seed(4)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        loss = model(**tiny_gemma4.batch(generator, device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(folder):
    import lading

    torch.backends.cudnn.allow_tf32 = False
    with lading.skeleton():
        model = tiny_gemma4.build()
    model, device = prepare(model)
    with watched() as seen:
        lading.materialize(model, f"{folder}/gemma4", progress=False, timeout=60)
    original = tiny_gemma4.original().to(device)
    answer = {
        "rank": dist.get_rank(),
        "device": str(device),
        "launcher": {name: os.environ.get(name) for name in ("ACCELERATE_USE_FSDP", "FSDP_VERSION")},
        "sharded": sum(isinstance(parameter, DTensor) for parameter in model.parameters()),
        "wrong": differences(original, model),
        "losses": train(model, device),
        "losses in one process": train(original, device),
        **seen,
    }
    with open(f"{folder}/rank{dist.get_rank()}.json", "w") as file:
        json.dump(answer, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
