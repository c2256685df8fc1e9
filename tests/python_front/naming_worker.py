"""A checkpoint under other names on two ranks: FSDP2 and tensor parallelism.

    python naming_worker.py RESULT.json DEADLINE_S
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import naming_models as models
import torch
from geometry.launch import run_ranks

import lading


def fsdp2(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tp(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "out": RowwiseParallel()})


def outcome(shard, options, folder):
    from torch.distributed.device_mesh import init_device_mesh

    with lading.skeleton():
        model = models.Decoder().eval()
    shard(model, init_device_mesh("cpu", (2,)))
    lading.materialize(model, folder, device="cpu", progress=False, timeout=30, **options)
    wanted = models.original().state_dict()
    problems = [
        f"{name} differs" for name, tensor in model.state_dict().items()
        if not torch.equal(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor, wanted[name])
    ]  # fmt: skip
    if model.head.weight is not model.embed.weight:
        problems.append("the head is not tied")
    audited = lading.audit(model, folder, timeout=30, **options)
    return problems + ([] if audited.ok else [str(audited)])


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    torch.set_num_threads(1)
    folder = models.save(Path(tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])) / "renamed")

    def run(rank):
        os.environ["LOCAL_RANK"] = str(rank)
        layouts = {"fsdp2": fsdp2, "tp": tp}
        return {f"{name}, {way}": outcome(shard, options, folder)
                for name, shard in layouts.items() for way, options in models.WAYS.items()}  # fmt: skip

    answers = {}
    for rank, found in enumerate(run_ranks(2, run, 150)):
        for case, problems in found.items():
            answers.setdefault(case, []).extend(f"rank {rank}: {problem}" for problem in problems)
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
