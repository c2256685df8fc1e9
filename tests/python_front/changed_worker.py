"""Ranks whose models change between `lading.skeleton()` and sharding: ties made and taken apart, values written,
parameters replaced. FSDP2, tensor parallelism, ZeRO-3 and FSDP1, each on forked ranks.

    python changed_worker.py RESULT.json DEADLINE_S
"""

import importlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
from geometry.launch import run_ranks
from safetensors.torch import save_file
from torch import nn

import lading

RANKS = 2
EMBED = torch.arange(24.0).reshape(6, 4)
FILES = {
    "embed only": {"embed.weight": EMBED},
    "both equal": {"embed.weight": EMBED, "head.weight": EMBED.clone()},
    "both differ": {"embed.weight": EMBED, "head.weight": EMBED + 100},
}
# What is done, with which file, and what must come out: head's first value and whether it is tied, or words of a refusal
CASES = [
    ("tie", "embed only", (0.0, True)),
    ("tie", "both equal", (0.0, True)),
    ("tie", "both differ", "two keys of one tie have different values"),
    ("untie", "embed only", "the checkpoint does not have this parameter"),
    ("untie", "both differ", (100.0, False)),
    ("nothing", "both differ", (100.0, False)),
    ("tied from the start", "embed only", (0.0, True)),
    ("init", "embed only", "written on meta after"),
    ("init through .data", "embed only", "written on meta after"),
    ("replace", "embed only", "no source for its value"),
    ("replace, recorded", "embed only", (9.0, False)),
]


# Of a tie, only the embedding is sharded: the head is a tensor of its own from then on, and needs a key of its own.
ONE_OF_TWO = [
    ("tied from the start", "both equal", (0.0, False)),
    ("tied from the start", "both differ", (100.0, False)),
    ("tied from the start", "embed only", "no source for its value"),
]


# What is written to a DTensor on meta counts as little as what was recorded before.
AFTER = [
    ("init after sharding", "embed only", "written on meta after"),
    (".data after sharding", "embed only", "written on meta after"),
    ("nothing after sharding", "both differ", (100.0, False)),
]


class Model(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def changed(what):
    with lading.skeleton():
        model = Model(tie=what in ("untie", "tied from the start"))
    if what == "tie":
        model.head.weight = model.embed.weight
    elif what == "untie":
        model.head.weight = nn.Parameter(torch.empty(6, 4, device="meta"))
    elif what == "init":
        nn.init.constant_(model.head.weight, 3.0)
    elif what == "init through .data":
        model.head.weight.data.fill_(3.0)
    elif what == "replace":
        model.head.weight = nn.Parameter(torch.full((6, 4), 9.0, device="meta"))
    elif what == "replace, recorded":
        with lading.skeleton():
            model.head.weight = nn.Parameter(torch.full((6, 4), 9.0))
    return model


def fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    return model, lambda: model.head.weight.full_tensor()


def tensor_parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)
    return model, lambda: model.head.weight.full_tensor()


def embedding_parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    plan = {"embed": RowwiseParallel(input_layouts=Replicate())}
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)
    return model, lambda: model.head.weight


def zero3(model):
    import deepspeed

    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.logger.setLevel(50)
    deepspeed.init_distributed("gloo")
    lading.zero3_init(model, {"train_batch_size": RANKS, "zero_optimization": {"stage": 3}})

    def whole():
        with deepspeed.zero.GatheredParameters([model.head.weight]):
            return model.head.weight.detach().clone()

    return model, whole


def fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = FullyShardedDataParallel(
        model, use_orig_params=True, param_init_fn=lading.empty_parameters, device_id=torch.device("cpu")
    )

    def whole():
        with FullyShardedDataParallel.summon_full_params(wrapped):
            return model.head.weight.detach().clone()

    return wrapped, whole


# parallelize_module and fully_shard of single modules make two DTensors of one tied parameter: no object is shared then.
LAYOUTS = {
    "fsdp2": (fsdp2, True, CASES),
    "tp": (tensor_parallel, False, CASES),
    "zero3": (zero3, True, CASES),
    "fsdp1": (fsdp1, True, CASES),
    "tp of the embedding": (embedding_parallel, False, ONE_OF_TWO),
    "fsdp2, then": (fsdp2, True, AFTER),
    "tp, then": (tensor_parallel, False, AFTER),
}


def outcome(shard, what, file):
    model, whole = shard(changed(what))
    if what == "init after sharding":
        nn.init.constant_(model.head.weight, 3.0)
    elif what == ".data after sharding":
        model.head.weight.data.fill_(3.0)
    missing = ["head.*"] if what.startswith(("init", "replace", "tied", ".data")) else []
    try:
        lading.materialize(model, file, progress=False, device="cpu", allow_missing=missing, timeout=30)
    except lading.LadingError as error:
        return error.full_text()
    value = whole()
    names = dict(model.named_parameters(remove_duplicate=False))
    head, embed = (next(one for name, one in names.items() if part in name) for part in ("head.weight", "embed.weight"))
    rows = value[:, 0].tolist()
    if rows != [rows[0] + (4 * row if rows[0] != 9.0 else 0) for row in range(6)]:
        return f"wrong rows: {rows}"
    return [rows[0], head is embed]


def judged(found, wanted, keeps_objects):
    if isinstance(wanted, str):
        return isinstance(found, str) and wanted in found
    value, tied = wanted
    return found == [value, tied and keeps_objects]


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"]))
    for name, tensors in FILES.items():
        save_file(tensors, folder / f"{name}.safetensors")
    answers = {}
    for layout, (shard, keeps_objects, cases) in LAYOUTS.items():
        def run(rank, shard=shard, cases=cases):
            os.environ["LOCAL_RANK"] = str(rank)
            return [outcome(shard, what, folder / f"{file}.safetensors") for what, file, _ in cases]

        by_rank = run_ranks(RANKS, run, 100)
        for place, (what, file, wanted) in enumerate(cases):
            found = [of_rank[place] for of_rank in by_rank]
            wrong = [one for one in found if not judged(one, wanted, keeps_objects)]
            answers[f"{layout}: {what}, {file}"] = [f"{one!r}, and should be {wanted!r}" for one in wrong]
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
