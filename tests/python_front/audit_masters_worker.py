"""Copies of parameters that DeepSpeed's optimizers keep, and adapters, on real ranks: weights that are written after
`deepspeed.initialize` in a way that the optimizer does not see, and what `lading.audit` says of them."""

import importlib
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import deepspeed
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from safetensors.torch import save_file
from torch import nn

import lading

RANKS_DEADLINE_S = 100
WEIGHTS = {"0.weight": torch.arange(25.0).reshape(5, 5), "1.weight": torch.arange(10.0).reshape(2, 5) + 100}


def main():
    folder = Path(os.environ["LADING_SCRATCH"])
    save_file(WEIGHTS, folder / "model.safetensors")
    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.logger.setLevel(50)
    save_adapter(folder)
    by_rank = run_ranks(2, run, RANKS_DEADLINE_S, folder)
    return {name: [answer[name] for answer in by_rank] for name in by_rank[0]}


def run(rank, folder):
    deepspeed.init_distributed("gloo")
    answers = {}
    for stage in (0, 1, 2, 3):
        for dtype in (torch.float32, torch.bfloat16):
            for how in ("stale", "right"):
                name = f"stage {stage}, {str(dtype).removeprefix('torch.')}, {how}"
                try:
                    answers[name] = loaded(folder / "model.safetensors", stage, dtype, how)
                except BaseException:
                    answers[name] = {"failed": traceback.format_exc()[-2000:]}
                dist.barrier()
    for way in ("plain", "fsdp1", "fsdp2", "zero3"):
        try:
            answers[f"adapters, {way}"] = adapters(rank, folder, way)
        except BaseException:
            answers[f"adapters, {way}"] = {"failed": traceback.format_exc()[-2000:]}
        dist.barrier()
    return answers


def config(stage, dtype):
    fields = {"train_batch_size": 2, "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    fields |= {"zero_force_ds_cpu_optimizer": False}
    return fields | ({"bf16": {"enabled": True}} if dtype == torch.bfloat16 else {})


def loaded(path, stage, dtype, how):
    """Weights are -5 at `initialize`, and the checkpoint's before it (right), or only after it (stale)."""
    settings = config(stage, dtype)
    model = build(settings, stage)
    if how != "stale":
        write(model, stage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    if how == "stale":
        write(model, stage)
    contract = {"dtype": dtype, "cast": "exact", "timeout": 60}
    report = lading.audit(engine, path, **contract)
    step(engine, dtype)
    after = whole(model.get_parameter("1.weight"), stage)
    answer = {
        "found": sorted({(one.code, one.tensor) for one in report.problems}),
        "text": str(report),
        "is_kept": bool((after - WEIGHTS["1.weight"]).abs().max() < 20),
    }
    if how == "right":  # without a checkpoint: copies and parameters move together
        answer["stepped"] = [str(one) for one in lading.audit(engine, timeout=60).problems]
    return answer


def build(settings, stage):
    def make():
        return nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 2, bias=False))

    if stage < 3:
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(-5.0)
        return model
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = make()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        for parameter in model.parameters():
            parameter.data.fill_(-5.0)
    return model


def write(model, stage):
    """As its users do it: for ZeRO-3 under GatheredParameters, otherwise in place."""
    parameters = dict(model.named_parameters())
    if stage < 3:
        for name, parameter in parameters.items():
            parameter.data.copy_(WEIGHTS[name])
        return
    with deepspeed.zero.GatheredParameters(list(parameters.values()), modifier_rank=0):
        for name, parameter in parameters.items():
            parameter.data.copy_(WEIGHTS[name])


def step(engine, dtype):
    engine.backward(engine(torch.ones(1, 5, dtype=dtype)).float().sum() * 1e-3)
    engine.step()


def whole(parameter, stage):
    if stage < 3:
        return parameter.detach().float().clone()
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.data.float().clone()


# ---- adapters on ranks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 3)
        self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)


def save_adapter(folder):
    """A base and an adapter that were trained, with a trained copy of the head."""
    import peft

    torch.manual_seed(0)
    model = Net()
    save_file(model.state_dict(), folder / "base.safetensors")
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["fc"], r=2, modules_to_save=["head"]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    model.save_pretrained(folder / "adapter")


def shard(model, way):
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if way == "fsdp1":
        options = {"param_init_fn": lading.empty_parameters, "device_id": torch.device("cpu"), "use_orig_params": True}
        return FullyShardedDataParallel(model, **options)
    if way == "fsdp2":
        fully_shard(model)
    elif way == "zero3":
        lading.zero3_init(model, config(3, torch.float32))
    return model


def adapters(rank, folder, way):
    """Silent after a right load, with the adapter's files and without; then one element is changed on a rank."""
    import peft

    with lading.skeleton():
        model = peft.get_peft_model(Net(), peft.PeftConfig.from_pretrained(folder / "adapter"))
    model = shard(model, way)
    options = {"adapter": folder / "adapter", "timeout": 60}
    lading.materialize(model, folder / "base.safetensors", progress=False, device="cpu", **options)
    with_files = lading.audit(model, folder / "base.safetensors", **options)
    without = lading.audit(model, folder / "base.safetensors", timeout=60)
    for name, parameter in model.named_parameters():
        if rank == 1 and "lora_B" in name:
            change(parameter, model, way)
    changed = lading.audit(model, folder / "base.safetensors", **options)
    return {
        "right": [str(one) for one in (*with_files.problems, *with_files.warnings, *without.problems)],
        "checked": [with_files.checked["with the checkpoint"], without.checked["with the checkpoint"]],
        "notes": list(without.notes),
        "found": sorted({(one.code, one.tensor) for one in changed.problems}),
    }


def change(parameter, model, way):
    memory = parameter.ds_tensor if way == "zero3" else getattr(parameter, "_local_tensor", parameter)
    memory.detach().reshape(-1)[-1] += 1.0
