"""FP8 checkpoints on real ranks, where a rank's cut does not meet a block's edge: what transformers makes of them, what
lading makes of them, and what `lading.audit` says. Each case answers on every rank."""

import gc
import os
import shutil
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import quantized_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

RANKS_DEADLINE_S = 80


def main(cases):
    """{"case on N": [what each rank answers]} of these cases."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock is shared by all processes that are forked
    assert transformers.LlamaForCausalLM and transformers.FineGrainedFP8Config  # imported before ranks are forked
    scratch = Path(os.environ["LADING_SCRATCH"])
    folders = {
        2: models.make(scratch / "two", 256, 384),  # 192 rows a rank
        3: models.make(scratch / "three", 192, 320),  # and ragged edges in both dims
        4: models.make(scratch / "four", 512, 1792),  # 448 rows a rank
    }
    answers = {}
    for ranks in sorted({int(case.rpartition(" on ")[2]) for case in cases}):
        names = [case.rpartition(" on ")[0] for case in cases if case.endswith(f" on {ranks}")]
        by_rank = run_ranks(ranks, run, RANKS_DEADLINE_S, names, folders[ranks])
        answers |= {f"{name} on {ranks}": [answer[name] for answer in by_rank] for name in names}
    return answers


def run(rank, names, folder):
    found = {}
    for name in names:
        try:
            found[name] = globals()[name](folder)
        except BaseException:
            found[name] = {"failed": traceback.format_exc()[-3000:]}
        dist.barrier()
        gc.collect()
    return found


def judged(model, folder):
    """What the oracle and the audit find; both gather or agree, so all ranks call it."""
    report = lading.audit(model, folder, dtype=torch.bfloat16)
    return {
        "wrong": models.wrong(model, models.oracle(folder)),
        "audit": sorted({problem.tensor or "" for problem in report.problems}),
    }


# ---- transformers


def _by_transformers(folder, **sizes):
    from transformers.distributed.configuration_utils import DistributedConfig

    model = models.by_transformers(folder, distributed_config=DistributedConfig(**sizes))
    return judged(model, folder)


def transformers_fsdp(folder):
    return _by_transformers(folder, fsdp_size=dist.get_world_size())


def transformers_tp(folder):
    return _by_transformers(folder, tp_size=dist.get_world_size())


# ---- lading


def _by_lading(folder, shard, **options):
    options |= {"dtype": torch.bfloat16, "progress": False, "timeout": 60}
    model = lading.from_pretrained(folder, parallelize=shard, **options)
    assert not hasattr(model.config, "quantization_config")
    return judged(model, folder)


def _fsdp2(model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _tensor_parallel(model, mesh):
    plan = {
        "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
    }  # fmt: skip
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


def lading_fsdp2(folder):
    return _by_lading(folder, lambda model: _fsdp2(model, init_device_mesh("cpu", (dist.get_world_size(),))))


def lading_tp(folder):
    return _by_lading(folder, lambda model: _tensor_parallel(model, init_device_mesh("cpu", (dist.get_world_size(),))))


def lading_fsdp2_over_tp(folder):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))

    def shard(model):
        _tensor_parallel(model, mesh["tp"])
        _fsdp2(model, mesh["dp"])

    return _by_lading(folder, shard)


def lading_hsdp_exchanged(folder):
    """Replicas get what one rank has read, and dequantize nothing twice."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return _by_lading(folder, lambda model: _fsdp2(model, mesh), exchange="node")


def lading_peft(folder):
    """LoRA over a dequantized base, sharded afterwards."""
    from peft import LoraConfig, get_peft_model

    def shard(model):
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
        _fsdp2(model, init_device_mesh("cpu", (dist.get_world_size(),)))
        return wrapped

    model = lading.from_pretrained(folder, parallelize=shard, dtype=torch.bfloat16, progress=False, timeout=60)
    assert not hasattr(model.config, "quantization_config")
    wanted, wrong = models.oracle(folder), {}
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            key = name.removeprefix("base_model.model.").replace(".base_layer", "")
            if not torch.equal(parameter.detach().full_tensor(), wanted[key]):
                wrong[name] = 1.0
    report = lading.audit(model, folder, dtype=torch.bfloat16)
    return {"wrong": wrong, "audit": sorted({problem.tensor or "" for problem in report.problems})}


def a_scale_of_one_rank(folder):
    """The last scale, which only the last rank reads, is not a number: all ranks fail alike, and nothing was filled."""
    from safetensors.torch import load_file, save_file

    key = "model.layers.0.mlp.up_proj.weight_scale_inv"
    spoilt = folder.with_name("spoilt")
    if dist.get_rank() == 0:
        shutil.copytree(folder, spoilt)
        scales = load_file(spoilt / "model-00002-of-00002.safetensors")
        scales[key][-1, -1] = float("nan")
        save_file(scales, spoilt / "model-00002-of-00002.safetensors")
    dist.barrier()
    held = []

    def shard(model):
        held.append(model)
        _fsdp2(model, init_device_mesh("cpu", (dist.get_world_size(),)))

    error = refused(
        lambda: lading.from_pretrained(spoilt, parallelize=shard, dtype=torch.bfloat16, progress=False, timeout=60)
    )
    is_filled = any(not parameter.is_meta for parameter in held[0].parameters())
    told = [(problem.code, problem.tensor) for problem in error.problems]
    wrong = {} if told == [("scale", key)] and not is_filled else {str(error): 1.0}
    return {"wrong": wrong, "audit": same_everywhere(str(error))}


def an_element_of_one_rank(folder):
    """Planted on the last rank: only there it is found."""
    model = lading.from_pretrained(
        folder, parallelize=lambda model: _fsdp2(model, None), dtype=torch.bfloat16, progress=False, timeout=60
    )
    if dist.get_rank() == dist.get_world_size() - 1:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight._local_tensor[-1, -1] += 1
    return judged(model, folder)


def lading_zero3(folder):
    """Partitions are flat: they meet no block's edge."""
    import deepspeed
    from lading.huggingface import construction
    from transformers import AutoConfig, LlamaForCausalLM

    fields = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": dist.get_world_size()}
    fields |= {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    with construction(AutoConfig.from_pretrained(folder), torch.bfloat16) as config, lading.skeleton():
        model = LlamaForCausalLM(config)
    lading.zero3_init(model, fields)
    lading.materialize(model, folder, dtype=torch.bfloat16, cast="exact", progress=False, timeout=60)
    assert not hasattr(model.config, "quantization_config")
    problems = {}
    wanted = models.oracle(folder)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if parameter.dtype != torch.bfloat16 or not torch.equal(parameter.data, wanted[name]):
                problems[name] = 1.0
    report = lading.audit(model, folder, dtype=torch.bfloat16, cast="exact")
    return {"wrong": problems, "audit": sorted({problem.tensor or "" for problem in report.problems})}
