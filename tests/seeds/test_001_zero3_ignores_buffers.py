"""Seed 001, transformers#45402: under ZeRO-3 `from_pretrained` walked over parameters only. Buffers of the checkpoint,
Gemma4's clamps and scalars, kept what the constructor had put there, and were called missing.

On two real ranks: with that bug planted again, transformers' loader is wrong; as it is today, it is right but for the RoPE
tables, which `zero.Init` rounds to bf16; lading is right everywhere, and so are the first gradients.
"""

import pytest

from geometry.launch import require, run_ranks, run_worker, wrong_in

require("torch", "deepspeed", exactly=False)
DEADLINE_S = 200


@pytest.fixture(scope="module")
def found():
    return run_worker("test_001_zero3_ignores_buffers", DEADLINE_S, package="seeds")


def endings(names):
    return {name.rpartition(".")[2] for name in names}


def test_the_bug_planted_again(found):
    for rank in found:
        assert {"input_max", "output_min", "layer_scalar"} <= endings(rank["planted"])


@wrong_in("transformers", "deepspeed")
def test_transformers_today_rounds_what_no_file_has(found):
    """DeepSpeed#4932: wrong on every rank, in every table that zero.Init saw as bf16."""
    for rank in found:
        assert "inv_freq" in endings(rank["transformers"])
        assert not {"input_max", "output_min", "layer_scalar"} & endings(rank["transformers"])


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_R4_R5_R29_R38_every_rank_has_every_buffer_and_its_partitions(found, dtype):
    for rank in found:
        assert rank[dtype]["wrong"] == []
        assert rank[dtype]["clamps"] == [-42.0, 0.5, 42.0]


def test_gradients_are_finite_after_the_first_step(found):
    for rank in found:
        assert rank["gradients are finite"]


# ---- on the ranks


def main():
    import os
    import tempfile

    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import zoo
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    from seeds import tiny_gemma4

    folder = tempfile.mkdtemp()
    zoo.save(tiny_gemma4.original(), folder)
    want = {
        dtype: zoo.tensors(Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32)
    }
    return run_ranks(2, on_a_rank, DEADLINE_S - 40, folder, want)


def on_a_rank(_rank, folder, want):
    import importlib
    import logging

    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    logging.disable(logging.WARNING)
    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    get_accelerator().is_fp16_supported = lambda: True  # or zero.Init makes everything bf16 on a CPU, asked or not
    found = {"planted": wrong(by_transformers(folder, is_planted=True), want[torch.bfloat16])}
    found["transformers"] = wrong(by_transformers(folder), want[torch.bfloat16])
    for dtype, tensors in want.items():
        model = ours(folder, dtype)
        clamps = [float(one) for name, one in model.named_buffers() if name.endswith(("input_max", "output_min", "scalar"))]
        found[str(dtype).removeprefix("torch.")] = {"wrong": wrong(model, tensors), "clamps": sorted(set(clamps))}
    return found | {"gradients are finite": one_step(model)}


def settings(dtype):
    fields = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "zero_optimization": {"stage": 3}}
    return fields | {"bf16": {"enabled": dtype.itemsize == 2}, "zero_allow_untested_optimizer": True}


def by_transformers(folder, *, is_planted=False):
    from unittest import mock

    import torch
    from transformers import modeling_utils
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    kept = HfDeepSpeedConfig(settings(torch.bfloat16))  # it counts as long as it lives
    real = modeling_utils._load_state_dict_into_zero3_model

    def parameters_only(model, state, *arguments, **options):
        buffers = dict(model.named_buffers())
        return real(model, {name: value for name, value in state.items() if name not in buffers}, *arguments, **options)

    load = parameters_only if is_planted else real
    with mock.patch.object(modeling_utils, "_load_state_dict_into_zero3_model", load):
        model = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    del kept
    return model


def ours(folder, dtype):
    import deepspeed
    from transformers import initialization
    from transformers.modeling_utils import set_zero3_state

    import lading
    from seeds import tiny_gemma4

    init = deepspeed.zero.Init(config_dict_or_path=settings(dtype))
    with initialization.no_init_weights(), set_zero3_state(), init:  # transformers' initialisers know no partitions
        model = tiny_gemma4.build()
    model.tie_weights()
    lading.materialize(model, folder, cast="destination", progress=False, timeout=100)
    return model


def wrong(model, want):
    """Parameters as ZeRO-3 gathers them, buffers as they are, against transformers in one process, without ZeRO-3."""
    import deepspeed
    import zoo

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return [
            name
            for name, (_, tensor) in zoo.tensors(model).items()
            if not zoo.same_bits(want[name][1].detach(), tensor.detach())
        ]


def one_step(model):
    import deepspeed
    import torch

    trained = [one for name, one in model.named_parameters() if "language_model" in name]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(trained, lr=0.1), config=settings(torch.float32))
    ids = torch.arange(8, 20)[None]
    loss = engine(input_ids=ids, labels=ids, mm_token_type_ids=torch.zeros_like(ids)).loss
    engine.backward(loss)
    engine.step()
    partitions = [parameter.ds_tensor for parameter in model.parameters()]
    return bool(loss.isfinite()) and all(bool(part.isfinite().all()) for part in partitions)
