"""Models of the zoo under wrappers that the other checkers do not have, on two CPU ranks: every parameter and buffer.

    python tests/zoo/wrappers_zoo.py [--only llama,gemma4] [--ways fsdp1,pipeline] [--out RESULTS_wrappers.md]

Ways: fsdp1 (use_orig_params), fsdp1_flat (without), pipeline (two stages, cut in the middle of the list of modules, so
that ties and conversions cross the cut), peft_fsdp2 (LoRA on all linears, initialised), offload (FSDP2, CPU offload).
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent, HERE.parent / "python_front", HERE.parents[1] / "python"):
    sys.path.insert(0, str(folder))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import lading
import peft
import torch
import wrappers_worker as wrappers
import zoo
from geometry.launch import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy

TYPES = ("llama", "gpt2", "gemma4", "mixtral", "qwen3_moe", "mamba2", "t5", "whisper", "clip", "qwen2_vl")
RANKS = 2
DEADLINE_S = 120


class NotApplicable(Exception):
    """The framework itself, not lading, cannot treat this model."""


def own_blocks(model):
    """Lists of blocks that share no parameter with the rest."""
    count = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        count[id(parameter)] = count.get(id(parameter), 0) + 1
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            own = [parameter for block in module for parameter in block.parameters()]
            nested = any(isinstance(inner, nn.ModuleList) for block in module for inner in block.modules())
            if own and not nested and all(count[id(parameter)] == 1 for parameter in own):
                yield module


def flattened(model_type, folder, *, use_orig_params, then=None):
    model = zoo.build(model_type, "meta")
    if not use_orig_params:
        model.requires_grad_(True)
    try:
        for blocks in list(own_blocks(model)):
            for place, block in enumerate(blocks):
                if any(True for _ in block.parameters()):
                    blocks[place] = wrappers.flat(block, use_orig_params=use_orig_params)
        model = wrappers.flat(model, use_orig_params=use_orig_params)
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise NotApplicable(zoo.describe(error)) from error
    report = lading.materialize(model, folder, timeout=60)
    if then is not None:
        then((model, report))
    return wrappers.same_gathered(model, zoo.build(model_type))


def fsdp1(rank, model_type, folder):
    return flattened(model_type, folder, use_orig_params=True)


def fsdp1_flat(rank, model_type, folder):
    return flattened(model_type, folder, use_orig_params=False)


def part_of_modules(model, stage, stages):
    """The tensors of one stretch of the model's modules, under their names."""
    named = [(name, module) for name, module in model.named_modules() if module._parameters or module._buffers]
    begin, end = (len(named) * place // stages for place in (stage, stage + 1))
    root = nn.Module()
    for name, module in named[begin:end]:
        there = root
        for step in name.split(".") if name else ():
            if step not in there._modules:
                there._modules[step] = nn.Module()
            there = there._modules[step]
        there._parameters, there._buffers = (dict(module._parameters), dict(module._buffers))
        there._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    return root


def pipeline(rank, model_type, folder):
    model = zoo.build(model_type, "meta")
    part = part_of_modules(model, rank, RANKS)
    lading.materialize(part, folder, device="cpu", whole=model, timeout=60)
    held = wrappers.named(part)
    return wrappers.same(part, {k: v for k, v in wrappers.named(zoo.build(model_type)).items() if k in held})


def peft_fsdp2(rank, model_type, folder):
    def build():
        try:
            options = {"target_modules": "all-linear", "r": 2}
            return peft.get_peft_model(zoo.build(model_type, "meta"), peft.LoraConfig(**options))
        except (ValueError, KeyError, AttributeError) as error:
            raise NotApplicable(zoo.describe(error)) from error

    whole, model = build(), build()
    try:
        wrappers.shard_blocks(model, init_device_mesh("cpu", (RANKS,)))
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise NotApplicable(zoo.describe(error)) from error
    lading.materialize(model, folder, timeout=60)
    lading.materialize(whole, folder, device="cpu", group=False)
    base = {name: tensor for name, tensor in wrappers.named(whole).items() if name not in wrappers.adapters_of(whole)}
    plain = {name.replace("base_model.model.", "", 1).replace(".base_layer", ""): v for name, v in base.items()}
    original = wrappers.named(zoo.build(model_type))
    wrong = [name for name in original if not zoo.same_bits(plain[name].detach(), original[name].detach())]
    return wrong + wrappers.same(model, whole) + wrappers.check_adapters(model)


def offload(rank, model_type, folder):
    model = zoo.build(model_type, "meta")
    try:
        wrappers.shard_blocks(
            model, init_device_mesh("cpu", (RANKS,)), offload_policy=CPUOffloadPolicy(pin_memory=False)
        )
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise NotApplicable(zoo.describe(error)) from error
    lading.materialize(model, folder, timeout=60)
    return wrappers.same(model, zoo.build(model_type))


WAYS = {way.__name__: way for way in (fsdp1, fsdp1_flat, pipeline, peft_fsdp2, offload)}


def on_a_rank(rank, way, model_type, folder):
    try:
        problems = WAYS[way](rank, model_type, folder)
    except NotApplicable as error:
        return "n/a", str(error)
    except Exception:
        return "error", traceback.format_exc()[-600:]
    return ("wrong", "; ".join(problems)[:400]) if problems else ("correct", "")


def verdict(way, model_type, folder):
    try:
        answers = run_ranks(RANKS, on_a_rank, DEADLINE_S, way, model_type, folder)
    except RuntimeError as error:
        return "died", str(error)
    for word in ("wrong", "error", "n/a"):
        for rank, (found, text) in enumerate(answers):
            if found == word:
                return word, f"rank {rank}: {text}"
    return "correct", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--list", help="file with one model type per line")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", help="a Markdown table")
    arguments = parser.parse_args()
    ways, types = arguments.ways.split(","), zoo.chosen(arguments) or TYPES
    torch.set_num_threads(1)
    began, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="lading_zoo_") as scratch:
        os.environ["LADING_SCRATCH"] = scratch
        for model_type in types:
            folder = os.path.join(scratch, model_type)
            zoo.make(model_type, folder)
            for way in ways:
                found[model_type, way] = verdict(way, model_type, folder)
                print(
                    f"{found[model_type, way][0]:8s} {way:12s} {model_type:12s} {found[model_type, way][1]}", flush=True
                )
    rows = [f"| {model_type} | " + " | ".join(found[model_type, way][0] for way in ways) + " |" for model_type in types]
    notes = [f"- {kind}, {way}: {word}: {text}" for (kind, way), (word, text) in found.items() if word != "correct"]
    table = [f"| | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|", *rows, "", *notes]
    print(*table, f"{time.monotonic() - began:.0f} s", sep="\n")
    if arguments.out:
        Path(arguments.out).write_text("\n".join(table).rstrip() + "\n")
    return int(any(word not in ("correct", "n/a") for word, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
