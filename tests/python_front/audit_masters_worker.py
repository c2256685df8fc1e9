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
