"""Packed codes on real ranks, whose parts begin within groups, words and bytes: what lading makes of them, and what
`lading.audit` says. A case is "LAYOUT of SCHEME on RANKS", and answers on every rank."""

import functools
import gc
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import packed_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

RANKS_DEADLINE_S = 150
CONFIGS = {"mxfp4": models.gpt_oss_config, "experts": models.qwen_config}


def main(cases):
    """{case: [what each rank answers]} of these cases."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock is shared by all processes that are forked
    assert transformers.LlamaForCausalLM and transformers.Qwen3MoeForCausalLM and transformers.GptOssForCausalLM
    scratch, folders = Path(os.environ["LADING_SCRATCH"]), {}
    for case in cases:
        scheme = case.split(" of ", 1)[1].rpartition(" on ")[0]
        if scheme not in folders:
            config = CONFIGS.get(scheme.partition(" of ")[0], models.llama_config)
            folders[scheme] = models.make(scratch / str(len(folders)), scheme_of(scheme), config())
            models.ordinary(folders[scheme], scheme_of(scheme))
    answers = {}
    for ranks in sorted({int(case.rpartition(" on ")[2]) for case in cases}):
        names = [case.rpartition(" on ")[0] for case in cases if case.endswith(f" on {ranks}")]
        by_rank = run_ranks(ranks, run, RANKS_DEADLINE_S, names, folders)
        answers |= {f"{name} on {ranks}": [answer[name] for answer in by_rank] for name in names}
    return answers


def scheme_of(name):
    """ "experts of int4" is that scheme in a mixture of experts."""
    return models.SCHEMES[name.removeprefix("experts of ")]


def run(rank, names, folders):
    found = {}
    for name in names:
        layout, scheme = name.split(" of ", 1)
        try:
            found[name] = globals()[layout](folders[scheme], scheme_of(scheme))
        except BaseException:
            found[name] = {"failed": traceback.format_exc()[-3000:]}
        dist.barrier()
        gc.collect()
    return found


def judged(model, folder, scheme):
    """What the oracle and the audit find; both gather or agree, so all ranks call it."""
    report = lading.audit(model, folder, dtype=torch.bfloat16)
    return {
        "wrong": models.wrong(model, models.ordinary(folder, scheme)),
        "audit": sorted({problem.tensor or problem.message for problem in report.problems}),
    }


def loaded(folder, scheme, shard, **options):
    options |= {"dtype": torch.bfloat16, "progress": False, "timeout": 60}
    model = lading.from_pretrained(folder, parallelize=shard, **options)
    assert not hasattr(model.config, "quantization_config")
    return judged(model, folder, scheme)


def whole_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def by_layers(model, mesh, **options):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh):
    plan = {
        "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
    }  # fmt: skip
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


def fsdp2(folder, scheme):
    return loaded(folder, scheme, lambda model: by_layers(model, whole_mesh()))


def _inner(dim, parameter):
    return Shard(dim) if parameter.dim() == 3 else None


def experts_by_dim_1(folder, scheme):
    """Along another dim than that of the experts, which cuts groups of 32."""
    return loaded(folder, scheme, lambda model: by_layers(model, whole_mesh(), shard_placement_fn=functools.partial(_inner, 1)))


def experts_by_dim_2(folder, scheme):
    return loaded(folder, scheme, lambda model: by_layers(model, whole_mesh(), shard_placement_fn=functools.partial(_inner, 2)))


def tp(folder, scheme):
    return loaded(folder, scheme, lambda model: tensor_parallel(model, whole_mesh()))


def fsdp2_over_tp(folder, scheme):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))

    def shard(model):
        tensor_parallel(model, mesh["tp"])
        by_layers(model, mesh["dp"])

    return loaded(folder, scheme, shard)


def hsdp_exchanged(folder, scheme):
    """Replicas get what one rank has read, and dequantize nothing twice."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return loaded(folder, scheme, lambda model: by_layers(model, mesh), exchange="node")


def peft(folder, scheme):
    """LoRA over a dequantized base, sharded afterwards."""
    from peft import LoraConfig, get_peft_model

    def shard(model):
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
        by_layers(model, whole_mesh())
        return wrapped

    model = lading.from_pretrained(folder, parallelize=shard, dtype=torch.bfloat16, progress=False, timeout=60)
    wanted, wrong = models.ordinary(folder, scheme), {}
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            key = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if not torch.equal(parameter.detach().full_tensor(), wanted[key]):
                wrong[name] = 1.0
    report = lading.audit(model, folder, dtype=torch.bfloat16)
    return {"wrong": wrong, "audit": sorted({problem.tensor or "" for problem in report.problems})}


def planted(folder, scheme):
    """One element of the last rank: only there it is found."""
    model = lading.from_pretrained(
        folder, parallelize=lambda model: by_layers(model, whole_mesh()), dtype=torch.bfloat16, progress=False, timeout=60
    )
    if dist.get_rank() == dist.get_world_size() - 1:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight._local_tensor[-1, -1] += 1
    return judged(model, folder, scheme)


def zero3(folder, scheme):
    """Partitions are flat: they begin in the middle of a byte."""
    import deepspeed
    from lading.huggingface import construction
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": dist.get_world_size()}
    fields |= {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    read = AutoConfig.from_pretrained(folder)
    with construction(read, torch.bfloat16) as config, lading.skeleton():
        model = AutoModelForCausalLM._model_mapping[type(config)](config)
    lading.zero3_init(model, fields)
    lading.materialize(model, folder, dtype=torch.bfloat16, cast="exact", progress=False, timeout=60)
    problems, wanted = {}, models.ordinary(folder, scheme)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if parameter.dtype != torch.bfloat16 or not torch.equal(parameter.data, wanted[name]):
                problems[name] = 1.0
    report = lading.audit(model, folder, dtype=torch.bfloat16, cast="exact")
    return {"wrong": problems, "audit": sorted({problem.tensor or "" for problem in report.problems})}
