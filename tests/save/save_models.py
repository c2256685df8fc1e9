"""Models for the tests of saving, and what transformers itself writes of them in one process: the measure of every
layout."""

import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_front"))

import ranks_models
import torch
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SHARD_BYTES = 20_000  # of which every model here has several


def qwen3_moe():
    """Experts in numeric order, 10 after 9, fused in memory and apart in files."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "intermediate_size": 44}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **sizes, head_dim=8))


def mixtral():
    """Square experts: gate and up are told apart by their order alone."""
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3, intermediate_size=32))


def bfloat16():
    """With one norm and one persistent buffer in another dtype."""
    model = ranks_models.MODELS["llama"]().bfloat16()
    model.model.norm.float()
    return model


MODELS = {name: ranks_models.MODELS[name] for name in ("small", "small_untied", "llama", "llama_tied")}
MODELS |= {"qwen3_moe": qwen3_moe, "mixtral": mixtral, "bfloat16": bfloat16}
TIED = {"small": ("head.weight",)}  # names of tensors that are saved under another
OF_TRANSFORMERS = tuple(name for name in MODELS if not name.startswith("small"))


def original(name):
    torch.manual_seed(0)
    return ranks_models.fill(MODELS[name]())


def make_checkpoints(scratch):
    """NAME of what is in one file, NAME-shards of what is in several."""
    folder = scratch / "checkpoints"
    for name in MODELS:
        model = original(name)
        if name in OF_TRANSFORMERS:
            model.save_pretrained(folder / name)
            model.save_pretrained(folder / f"{name}-shards", max_shard_size=SHARD_BYTES)
        else:
            (folder / name).mkdir(parents=True)
            tensors = {key: tensor for key, tensor in model.state_dict().items() if key not in TIED.get(name, ())}
            save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
    return folder


def header(path):
    """Of a safetensors file: its JSON in the order of the file."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size), object_pairs_hook=list)


def tensors_in(folder):
    """{key: (dtype, shape, bytes)} of all files."""
    found = {}
    for path in folder.glob("*.safetensors"):
        for key, value in load_file(path).items():
            bits = value.reshape(-1).view(torch.uint8) if value.numel() else value
            found[key] = (value.dtype, tuple(value.shape), bytes(bits.numpy()))
    return found


def differences(found, wanted, besides=()):
    """Of two checkpoints: every file of weights and the index, byte by byte; configs by what they say. `besides`: files
    that only the second one has."""
    problems = []
    names = {path.name for path in wanted.iterdir()} - set(besides)
    if names != {path.name for path in found.iterdir()} - {"lading.ledger.json"}:
        problems.append(f"the files are {sorted(path.name for path in found.iterdir())}, not {sorted(names)}")
    for name in sorted(names & {path.name for path in found.iterdir()}):
        one, other = (found / name).read_bytes(), (wanted / name).read_bytes()
        if name in ("config.json", "generation_config.json"):
            if json.loads(one) != json.loads(other):
                problems.append(f"{name} is {one.decode()}, not {other.decode()}")
        elif one != other:
            problems.append(f"{name}: {_why(found / name, wanted / name)}")
    return problems


def _why(found, wanted):
    if found.suffix != ".safetensors":
        return f"{found.read_text()[:800]} for {wanted.read_text()[:800]}"
    if header(found) != header(wanted):
        return f"the header is {header(found)[:6]}, not {header(wanted)[:6]}"
    one, other = load_file(found), load_file(wanted)
    wrong = [key for key in other if not torch.equal(one[key], other[key])]
    return f"other values of {wrong[:6]}" if wrong else "other bytes"
