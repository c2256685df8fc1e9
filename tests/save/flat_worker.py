"""`lading.save` of models whose parameters lie flattened on their ranks: DeepSpeed's ZeRO-3 and FSDP1. What the ranks
hold is filled here, from the originals: nothing of a load takes part. Each case answers what is wrong on this rank."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import save_models as models
import torch
import torch.distributed as dist
import zero3_worker as zero3
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere
from save_worker import guarded, written
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import lading

RANKS_DEADLINE_S = 120
NAMES = [name for name in models.MODELS if name != "bfloat16"]  # of mixed dtypes, which neither can hold


def main():
    """{"case on N ranks": [problem of a rank, …]}"""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    assert transformers.LlamaForCausalLM
    scratch = Path(os.environ["LADING_SCRATCH"])
    folder = models.make_checkpoints(scratch)
    answers = {}
    for world in (2, 4):
        by_rank = run_ranks(world, run, RANKS_DEADLINE_S, folder, scratch / f"out{world}")
        for rank, found in enumerate(by_rank):
            for case, problems in found.items():
                answers.setdefault(f"{case} on {world} ranks", []).extend(f"rank {rank}: {one}" for one in problems)
    return answers


def run(rank, folder, out):
    out.mkdir(exist_ok=True)
    dist.barrier()
    found = {}
    for layout, build in (("zero3", partitioned), ("fsdp1", flattened)):
        for name in NAMES:
            target = out / f"{layout}-{name}"
            found[f"{layout}, {name}"] = guarded(
                lambda build=build, name=name, target=target: saved(build(name), rank, target, folder / name)
            )
    found["zero3, gathered"] = guarded(lambda: gathered(out / "gathered"))
    return found


def gathered(target):
    """Whoever has gathered a parameter may be changing it. The remedy is about the save."""
    import deepspeed

    model = partitioned("small")
    with deepspeed.zero.GatheredParameters([model.embed.weight]):
        error = refused(lambda: lading.save(model, target, timeout=60))
    problems = same_everywhere(error.full_text())
    return problems + ([] if "Save outside" in error.full_text() and not target.exists() else [error.full_text()])


def saved(model, rank, target, wanted):
    problems = written(lading.save(model, target, timeout=60), rank)
    return problems + (models.differences(target, wanted) if rank == 0 else [])


def partitioned(name):
    """By `zero.Init`."""
    want = models.original(name)
    model = zero3.build(models.MODELS[name])
    originals, found = zero3.models.tensors(want), zero3.models.tensors(model)
    with torch.no_grad():
        for key, tensor in found.items():
            is_partitioned = hasattr(tensor, "ds_tensor")
            pairs = zero3.part_of(originals[key], tensor) if is_partitioned else [(tensor, originals[key])]
            for memory, value in pairs:
                memory.copy_(value)
    return model


def flattened(name):
    model = models.original(name)
    blocks = {type(block) for block in (model.blocks if hasattr(model, "blocks") else model.model.layers)}
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy(blocks), use_orig_params=True, device_id=torch.device("cpu")
    )
