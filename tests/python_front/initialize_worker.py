"""`lading.initialize` on real gloo ranks: digests of whole tensors in every layout.

    python initialize_worker.py RESULT.json DEADLINE_S
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import torch
from geometry.launch import run_ranks
from torch import nn

import lading

SEED = 11


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24)
        self.turn = nn.Linear(24, 24, bias=False)
        nn.init.orthogonal_(self.turn.weight)  # not elementwise
        self.gate = nn.Parameter(torch.randn(7, 24) * 0.3)
        self.register_buffer("steps", torch.arange(24).float() / 7, persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x)))) + self.turn(x) * self.steps


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 24, padding_idx=3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.memory = nn.LSTM(24, 10, num_layers=2, bidirectional=True)  # which lists its weights a second time
        for name, weight in self.memory.named_parameters():
            if name.startswith("weight_hh"):
                nn.init.orthogonal_(weight)  # not elementwise: made on the host, under the same key
        self.head = nn.Linear(24, 31, bias=False)
        self.head.weight = self.embed.weight


def skeleton():
    with lading.skeleton():
        return Model()


def digests(model):
    """Of whole tensors, buffers that no state dict has included."""
    found = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        text = whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found[name] = hashlib.sha256(text).hexdigest()[:16]
    return found


def replicated(model, _world):
    return model


def fsdp2(model, _world):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def tp(model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(), "turn": RowwiseParallel()})
    return model


def zero3(model, world):
    import deepspeed

    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # it would compile for a minute
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": world, "zero_optimization": {"stage": 3}}
    return lading.zero3_init(model, config)


def gathered(model):
    """Where whole parameters are to be seen."""
    if not any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(model.parameters()))


def outcome(rank, shard, world):
    torch.manual_seed(100 + rank)  # processes that were seeded differently
    model = shard(skeleton(), world)
    before = torch.get_rng_state()
    lading.initialize(model, seed=SEED, device="cpu", progress=False, timeout=30)
    untouched = torch.equal(before, torch.get_rng_state())
    with gathered(model):
        found = digests(model)
    return {"digests": found, "rng_untouched": untouched, "tied": model.head.weight is model.embed.weight}


def one_starts_from_a_checkpoint(rank, folder):
    model = fsdp2(skeleton(), 2)
    try:
        if rank == 0:
            lading.initialize(model, seed=SEED, device="cpu", progress=False, timeout=30)
        else:
            lading.materialize(model, folder, seed=SEED, device="cpu", progress=False, timeout=30)
    except lading.LadingError as error:
        return error.full_text()
    return "loaded"


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    torch.set_num_threads(1)
    answers = {}
    layouts = [("ddp", replicated, (1, 2)), ("fsdp2", fsdp2, (1, 2, 3)), ("tp", tp, (2,))]
    if importlib.util.find_spec("deepspeed") is not None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        importlib.import_module("deepspeed")  # once, and not on every rank
        layouts.append(("zero3", zero3, (2,)))
    for name, shard, worlds in layouts:
        for world in worlds:
            answers[f"{name} on {world}"] = run_ranks(world, lambda rank, s=shard, w=world: outcome(rank, s, w), 100)
    from safetensors.torch import save_file

    folder = Path(result).parent / "checkpoint"
    folder.mkdir()
    save_file({name: value.clone() for name, value in Model().state_dict().items()}, folder / "model.safetensors")
    answers["mixed"] = run_ranks(2, lambda rank: one_starts_from_a_checkpoint(rank, str(folder)), 100)
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
