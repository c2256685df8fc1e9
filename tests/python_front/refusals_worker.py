"""Checkpoints whose keys are wrong in every way, and what `materialize` says of them and leaves of the model; in one
process, and on forked ranks."""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import torch
import torch.distributed as dist
import zoo
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere
from ranks_models import tensors
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard

import lading

RANKS_DEADLINE_S = 60
TYPE = "mixtral"  # its experts are made of several keys each
EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"
NORM = "model.layers.0.input_layernorm.weight"
WRONG = {
    "model.norm.weight": "does not have this parameter",
    "surplus.weight": "the model does not have",
    "lm_head.weight": "the shape of this parameter differs",
    NORM: "the tensor has two sources",
    EXPERTS: "conversion of this tensor",
}


def main(worlds):
    """{case: [what is wrong]}; one process is a world of 0."""
    folder = Path(os.environ["LADING_SCRATCH"])
    save(folder)
    cases = (into_memory, into_meta, in_two_shards)
    answers = {}
    for world in worlds:
        by_rank = run_ranks(world, run, RANKS_DEADLINE_S, cases, folder) if world else [run(0, cases, folder)]
        for case in cases:
            answers[f"{case.__name__}, {world}"] = [text for answer in by_rank for text in answer[case.__name__]]
    return answers


def run(rank, cases, folder):
    found = {}
    for case in cases:
        try:
            found[case.__name__] = [f"rank {rank}: {problem}" for problem in case(folder)]
        except Exception:
            found[case.__name__] = [traceback.format_exc()[-3000:]]
        if dist.is_initialized():
            dist.barrier()
    return found


def save(folder):
    good = folder / "good"
    zoo.make(TYPE, str(good))
    state = {}
    for path in sorted(good.glob("*.safetensors")):
        state |= load_file(path)
    spoil(state)
    bad = folder / "bad"
    write(bad, {"model.safetensors": state})
    names = sorted(state)
    shards = {
        "model-00001-of-00002.safetensors": {name: state[name] for name in names[:20]},
        "model-00002-of-00002.safetensors": {name: state[name] for name in names[18:]},  # two of them again
    }
    write(folder / "twice", shards)
    index = {name: shard for shard, part in reversed(shards.items()) for name in part}
    (folder / "twice" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    for path in (bad, folder / "twice"):
        (path / "config.json").write_bytes((good / "config.json").read_bytes())


def spoil(state):
    """Missing, unexpected, mismatched, duplicate and half-loaded."""
    del state["model.norm.weight"]
    state["surplus.weight"] = torch.zeros(2)
    state["lm_head.weight"] = state["lm_head.weight"][:-1].contiguous()
    state[NORM.removeprefix("model.")] = state[NORM] + 1  # transformers reads both as the same
    del state["model.layers.1.block_sparse_moe.experts.1.w1.weight"]


def write(folder, files):
    folder.mkdir()
    for name, state in files.items():
        save_file(state, folder / name, {"format": "pt"})


def build(device):
    """With values that no checkpoint has, or on meta; sharded, where there are ranks."""
    model = zoo.build(TYPE, device)
    if device != "meta":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    if dist.is_initialized():
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def held(model):
    """Each object, and its bits; those on meta have none."""
    found = {}
    for name, tensor in tensors(model).items():
        local = getattr(tensor, "_local_tensor", tensor).detach()
        bits = b"" if local.is_meta else local.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[name] = (id(tensor), local.data_ptr() if not local.is_meta else 0, bits)
    return found


def refusal(model, checkpoint):
    """(the error, what is wrong with how it was told and with what it left)"""
    before = held(model)
    error = refused(lambda: lading.materialize(model, checkpoint, device="cpu", progress=False, timeout=60))
    problems = same_everywhere(error.full_text()) if dist.is_initialized() else []
    if error.begun or lading.is_incomplete(model):
        problems.append("it says that it has begun")
    problems += [f"{name} was changed" for name, now in held(model).items() if now != before[name]]
    return error, problems


def all_are_told(error):
    by_name = {problem.tensor: problem.message for problem in error.problems}
    problems = [f"{name}: {by_name.get(name)}" for name, text in WRONG.items() if text not in by_name.get(name, "")]
    return problems + [f"{name} is told too" for name in by_name if name not in WRONG]


def into_memory(folder):
    """R39: nothing of a model that has values changes; and it can still be loaded."""
    model = build("cpu")
    error, problems = refusal(model, folder / "bad")
    problems += all_are_told(error)
    lading.materialize(model, folder / "good", device="cpu", progress=False, timeout=60)
    report = lading.audit(model, folder / "good", timeout=60)
    return problems + ([] if report.ok else [str(report)])


def into_meta(folder):
    model = build("meta")
    error, problems = refusal(model, folder / "bad")
    problems += all_are_told(error)
    return problems + ([] if all(one.is_meta for one in model.parameters()) else ["it is not on meta any more"])


def in_two_shards(folder):
    """R45: which of two tensors of one name is meant, nobody can say, nor then what else is wrong. Both are named."""
    error, problems = refusal(build("cpu"), folder / "twice")
    names = sorted(load_file(folder / "bad" / "model.safetensors"))[18:20]
    told = sorted({problem.tensor for problem in error.problems})
    return problems + ([] if told == names and error.rule == "R45" else [error.full_text()])
