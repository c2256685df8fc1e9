"""`lading.save` of models that PEFT has wrapped, on forked gloo ranks. The models are sharded by their frameworks, from
real values. What is written is compared with what transformers and PEFT write in one process."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import deepspeed
import peft_models
import save_models as models
import torch
import torch.distributed as dist
import zero3_worker as zero3
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere, shard
from save_worker import guarded, made_checkpoints, written
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import lading

RANKS_DEADLINE_S = 200
RANKS = 2
NAMES = ("llama_tied", "qwen3_moe", "small")


def main():
    """{case: [problem of a rank, …]}"""
    folder, scratch = made_checkpoints()
    for name in NAMES:
        peft_models.wrapped(name).save_pretrained(scratch / "theirs" / name)
        peft_models.wrapped(name).merge_and_unload()
    answers = {}
    for rank, found in enumerate(run_ranks(RANKS, run, RANKS_DEADLINE_S, folder, scratch / "theirs", scratch / "out")):
        for case, problems in found.items():
            answers.setdefault(case, []).extend(f"rank {rank}: {one}" for one in problems)
    return answers


def run(rank, folder, theirs, out):
    out.mkdir(exist_ok=True)
    dist.barrier()
    found = {}
    for layout, make in LAYOUTS.items():
        for name in NAMES:
            target = out / f"{layout}-{name}"
            found[f"{layout}, {name}"] = guarded(
                lambda make=make, name=name, target=target: saved(make(name), rank, name, folder, theirs, target)
            )
    for case in CASES:
        found[case.__name__] = guarded(lambda case=case: case(rank, folder, out / case.__name__))
    return found


def saved(model, rank, name, folder, theirs, out):
    """The base, in the files of the original and as in it; and the adapter."""
    adapter, based = out.with_name(f"{out.name}-adapter"), out.with_name(f"{out.name}-based")
    problems = written(lading.save(model, out, timeout=60), rank)
    lading.save(model, based, base=folder / name, timeout=60)
    problems += written(lading.save(model, adapter, adapter="default", timeout=60), rank)
    if rank == 0:
        problems += models.differences(out, folder / name) + models.differences(based, folder / name)
        problems += peft_models.adapter_differences(adapter, theirs / name)
    return problems


# ---- layouts


def fsdp2(name):
    return blockwise(peft_models.wrapped(name))


def blockwise(model):
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def blocks(model):
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.blocks if hasattr(inner, "blocks") else inner.model.layers


def tp(name):
    """Base and adapters, where the helper of the tests cuts them."""
    model = peft_models.wrapped(name)
    shard(model, "tp", init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",)))
    return model


def fsdp1(name):
    return FullyShardedDataParallel(peft_models.wrapped(name), use_orig_params=True, device_id=torch.device("cpu"))


def ddp(name):
    return torch.nn.parallel.DistributedDataParallel(peft_models.wrapped(name))


def partitioned(name):
    """By ZeRO-3, base and adapters."""
    model = peft_models.wrapped(name)
    deepspeed.zero.Init(module=model, config_dict_or_path=zero3.config(torch.float32))
    return model


LAYOUTS = {"ddp": ddp, "fsdp2": fsdp2, "tp": tp, "fsdp1": fsdp1, "zero3": partitioned}


# ---- cases


def merged_after_sharding(rank, folder, out):
    """PEFT merges DTensors; what it makes of them is saved."""
    model = fsdp2("llama_tied").merge_and_unload()
    lading.save(model, out, timeout=60)
    values = {name: value.full_tensor() for name, value in model.state_dict().items()}
    dist.barrier()
    found = models.load_file(out / "model.safetensors") if rank == 0 else {}
    return [f"{key} differs" for key, value in found.items() if not torch.equal(value, values[key])]


def merged_before_sharding(rank, folder, out):
    model = blockwise(peft_models.wrapped("qwen3_moe").merge_and_unload())
    lading.save(model, out, timeout=60)
    wanted = out.with_name("merged-theirs")
    if rank == 0:
        peft_models.wrapped("qwen3_moe").merge_and_unload().save_pretrained(wanted)
    dist.barrier()
    return models.differences(out, wanted) if rank == 0 else []


def another_adapter_on_a_rank(rank, folder, out):
    model = fsdp2("small")
    error = refused(lambda: lading.save(model, out, adapter="default" if rank else None, timeout=60))
    return same_everywhere(error.full_text()) + ([] if not out.exists() and "adapter" in str(error) else [str(error)])


def merged_on_ranks(rank, folder, out):
    model = fsdp2("llama_tied")
    model.merge_adapter()
    error = refused(lambda: lading.save(model, out, timeout=60))
    problems = same_everywhere(error.full_text())
    return problems + ([] if not out.exists() and "merged default" in str(error) else [error.full_text()])


CASES = (merged_after_sharding, merged_before_sharding, another_adapter_on_a_rank, merged_on_ranks)
