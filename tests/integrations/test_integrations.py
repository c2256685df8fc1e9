"""The integrations under examples/: each trains twenty steps, and its losses are those of the framework's own loader, bit
for bit; those of two ranks are those of one process within rounding."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from geometry.launch import require, run_ranks, run_worker

require("torch", "deepspeed", exactly=False)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"
DEADLINE_S, RANKS_DEADLINE_S = 300, 100
STEPS = 20
ROUNDING = 2e-5  # of a loss of about 4.6: FSDP2 adds up in another order
ROUNDING_ZERO3 = 5e-4  # DeepSpeed scales gradients before it adds them up, and Adam makes much of little; seen: 1.6e-4
ONE_PROCESS = ("peft_lora", "trainer")
TWO_RANKS = ("accelerate_fsdp2", "deepspeed_zero3", "draft_model", "peft_lora", "trainer", "training_loop")


@pytest.fixture(scope="module")
def losses():
    return run_worker("test_integrations", DEADLINE_S, package="integrations")


def test_none_is_forgotten():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"training", *ONE_PROCESS, *TWO_RANKS}


@pytest.mark.parametrize("example", ONE_PROCESS)
def test_one_process_loses_what_the_reference_loses(losses, example):
    assert len(losses["one"][example]) == STEPS
    assert losses["one"][example] == losses["one, reference"][example]


@pytest.mark.parametrize("example", TWO_RANKS)
def test_two_ranks_lose_what_the_reference_loses(losses, example):
    for rank, reference in zip(losses["two"][example], losses["two, reference"][example], strict=True):
        assert len(rank) == STEPS and rank == reference


@pytest.mark.parametrize("example", TWO_RANKS)
def test_two_ranks_lose_what_one_process_loses(losses, example):
    """The plain loop on the whole model, in one process, by transformers alone, unless the example has another model."""
    alone = losses["one, reference"].get(example) or losses.get(example) or losses["plain"]
    for rank in losses["two"][example]:
        assert rank == pytest.approx(alone, abs=ROUNDING_ZERO3 if "zero3" in example else ROUNDING)


# ---- where the frameworks are


def main():
    import logging

    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    logging.disable(logging.WARNING)
    # Otherwise DeepSpeed compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    sys.path.insert(0, str(EXAMPLES))  # as for a script that is there
    modules = {name: importlib.import_module(name) for name in (*ONE_PROCESS, *TWO_RANKS)}
    found = {"plain": plain(), "draft_model": modules["draft_model"].main(lambda folder: draft(folder, is_sharded=False))}
    found["one"] = {name: modules[name].main() for name in ONE_PROCESS}
    found["one, reference"] = {name: modules[name].main(REFERENCES[name]) for name in ONE_PROCESS}
    by_rank = run_ranks(2, on_a_rank, RANKS_DEADLINE_S, modules)
    for which in ("two", "two, reference"):
        found[which] = {name: [rank[which][name] for rank in by_rank] for name in TWO_RANKS}
    return found


def on_a_rank(_rank, modules):
    return {
        "two": {name: modules[name].main() for name in TWO_RANKS},
        "two, reference": {name: modules[name].main(REFERENCES[name]) for name in TWO_RANKS},
    }


def whole_model(path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def plain():
    import training

    with training.shared_folder(training.make_tiny) as path:
        return training.train(whole_model(path))


def accelerate_fsdp2(path, device):
    import accelerate_fsdp2 as example

    return example.prepare(whole_model(path), device)


def deepspeed_zero3(path):
    """transformers' own way into ZeRO-3."""
    import deepspeed_zero3 as example
    from transformers.integrations import HfDeepSpeedConfig

    kept = HfDeepSpeedConfig(example.settings())  # it counts as long as it lives
    model = whole_model(path)
    del kept
    return model


def draft(folder, *, is_sharded):
    """speculators' way: everything real, the verifier's weights by `load_state_dict`, then sharded. What is new comes
    from us, on one process."""
    import draft_model as example
    import lading
    from safetensors.torch import load_file
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(f"{folder}/verifier")
    config._attn_implementation = "sdpa"
    model = example.Draft(config)
    verifier = load_file(f"{folder}/verifier/model.safetensors")
    model.load_state_dict(load_file(f"{folder}/draft/model.safetensors"), strict=False)
    model.embed_tokens.load_state_dict({"weight": verifier["model.embed_tokens.weight"]})
    model.lm_head.load_state_dict({"weight": verifier["lm_head.weight"][model.t2d]})
    with lading.skeleton():
        new = example.Draft(config)
    options = {"allow_missing": "*", "device": "cpu", "group": False, "progress": False}
    lading.materialize(new, f"{folder}/draft", **options)
    model.layers.load_state_dict(new.layers.state_dict())
    if is_sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def peft_lora(path, device):
    """PEFT's own initialisation draws from the process's random numbers: ours are put in its place, from one process."""
    import peft_lora as example
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = example.with_adapters(whole_model(path))
    ranks_before = dist.is_initialized
    try:
        dist.is_initialized = lambda: False
        adapters = example.load(path, "cpu").state_dict()
    finally:
        dist.is_initialized = ranks_before
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(adapters[name])
    if dist.is_initialized():
        for layer in model.get_base_model().model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def trainer(path, device):
    import torch.distributed as dist
    import training

    model = whole_model(path)
    if dist.is_initialized():
        model = training.shard(model)
        model._is_accelerate_prepared = True
    return model


def training_loop(path):
    import training_loop as example

    return example.parallelize(whole_model(path))


REFERENCES = {
    "accelerate_fsdp2": accelerate_fsdp2,
    "deepspeed_zero3": deepspeed_zero3,
    "draft_model": lambda folder: draft(folder, is_sharded=True),
    "peft_lora": peft_lora,
    "trainer": trainer,
    "training_loop": training_loop,
}
