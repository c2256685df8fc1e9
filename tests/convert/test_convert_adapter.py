"""`lading convert --adapter`: the weights against those of PEFT's own `merge_and_unload`, in F32 and rounded once."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"q": nn.Linear(96, 64), "k": nn.Linear(64, 96, bias=False), "up": nn.Linear(64, 64)}) for _ in range(2))
        self.conv = transformers.pytorch_utils.Conv1D(80, 48)
        self.head = nn.Linear(64, 300, bias=False)


def trained(config, dtype=torch.bfloat16, adapter_dtype=torch.float32):
    """A base, rounded to the dtype, and PEFT's model over it in F32, every matrix of the adapter random."""
    torch.manual_seed(0)
    base = Net()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(torch.randn_like(parameter).to(dtype))
    state = {name: tensor.to(dtype).clone() for name, tensor in base.state_dict().items()}
    model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter).to(adapter_dtype) * 0.3)
    return state, model


def files(tmp_path, state, model, adapter_dtype=torch.float32):
    (tmp_path / "in").mkdir()
    save_file(state, tmp_path / "in" / "model.safetensors")
    model.save_pretrained(tmp_path / "lora")
    weights = tmp_path / "lora" / "adapter_model.safetensors"
    save_file({key: tensor.to(adapter_dtype) for key, tensor in load_file(weights).items()}, weights)
    return tmp_path / "lora"


def convert(lading, tmp_path, *arguments):
    command = [lading.command, "convert", tmp_path / "in", tmp_path / "out", "--adapter", tmp_path / "lora", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def converted(lading, tmp_path, *arguments):
    done = convert(lading, tmp_path, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    verified = subprocess.run([lading.command, "verify", tmp_path / "out", tmp_path / "out" / "lading.ledger.json"], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return json.loads(done.stdout), load_file(tmp_path / "out" / "model.safetensors")


def refused(lading, tmp_path, *arguments, exit_code=4):
    done = convert(lading, tmp_path, *arguments)
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert not (tmp_path / "out").exists()
    return done.stderr


def merged_by_peft(model, dtype):
    return {name: tensor.detach().to(dtype) for name, tensor in model.merge_and_unload().state_dict().items()}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))


CONFIGS = {
    "plain": {"r": 8, "lora_alpha": 16, "target_modules": ["q", "k", "up", "head"]},
    "rslora": {"r": 5, "lora_alpha": 7, "use_rslora": True, "target_modules": ["q", "up"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 6,
        "rank_pattern": {"layers.0.q": 9, "(k|up)": 3},
        "alpha_pattern": {r"layers\.\d\.q": 5, "head": 1.5},
        "target_modules": ["q", "k", "up", "head"],
    },
    "conv": {"r": 8, "lora_alpha": 3, "fan_in_fan_out": True, "target_modules": ["conv"]},
    "mixed": {"r": 8, "init_lora_weights": "gaussian", "target_modules": ["q", "k", "conv", "head"]},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CONFIGS)
def test_R24_the_weights_are_those_of_peft_in_f32_rounded_once(lading, tmp_path, name, dtype):
    state, model = trained(peft.LoraConfig(**CONFIGS[name]), dtype)
    files(tmp_path, state, model)
    answer, after = converted(lading, tmp_path)
    wanted = merged_by_peft(model, dtype)
    assert after.keys() == wanted.keys() == state.keys()
    changed = {one["key"] for one in answer["merged"]}
    assert changed == {key for key in state if not same(state[key], wanted[key])} and changed
    for key, tensor in wanted.items():
        assert same(tensor, after[key]), key


def test_R24_to_another_dtype_from_a_bf16_adapter(lading, tmp_path):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"]), torch.bfloat16, torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(parameter.to(torch.bfloat16))
    files(tmp_path, state, model, torch.bfloat16)
    _, after = converted(lading, tmp_path, "--dtype", "f16", "--threads", "1")
    for key, tensor in merged_by_peft(model, torch.float16).items():
        assert same(tensor, after[key]), key


def test_the_modules_are_named_as_the_new_tensors(lading, tmp_path):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"]))
    files(tmp_path, {f"old.{key}": tensor for key, tensor in state.items()}, model)
    text = refused(lading, tmp_path)
    assert "the new checkpoint does not have" in text and "7 tensors" in text, text
    _, after = converted(lading, tmp_path, "--rename", "old.*=*")
    for key, tensor in merged_by_peft(model, torch.bfloat16).items():
        assert same(tensor, after[key]), key


def test_R65_a_square_weight_among_both_kinds_is_refused(lading, tmp_path):
    state, model = trained(peft.LoraConfig(r=8, target_modules=["up", "conv"], fan_in_fan_out=True))
    files(tmp_path, state, model)
    change_config(tmp_path, fan_in_fan_out=False)
    assert "layers.{0,1}.up.weight" in refused(lading, tmp_path).replace("layers.0.up.weight", "layers.{0,1}.up.weight")


def change_config(tmp_path, **members):
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


@pytest.mark.parametrize(
    "members, words",
    [
        ({"peft_type": "LOHA"}, "is not a LoRA"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "initialisation has changed"),
        ({"init_lora_weights": "pissa", "use_dora": True, "some_new_member": [1]}, "some_new_member"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"bias": "all"}, "bias"),
        ({"r": "8"}, "is not a number"),
        ({"rank_pattern": {"head": 4}}, "rank"),
        ({"rank_pattern": {"(": 4}}, "adapter_config.json"),
    ],
)
def test_R65_what_lading_does_not_merge_is_refused_by_name(lading, tmp_path, members, words):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"]))
    files(tmp_path, state, model)
    change_config(tmp_path, **members)
    assert words in refused(lading, tmp_path)


def test_R65_keys_without_a_place_are_all_listed(lading, tmp_path):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"], modules_to_save=["conv"]))
    files(tmp_path, {key: tensor for key, tensor in state.items() if key != "head.weight"}, model)
    text = refused(lading, tmp_path)
    assert "modules_to_save" in text, text
    change_config(tmp_path, modules_to_save=None)
    text = refused(lading, tmp_path)
    for words in ("base_model.model.conv.weight", "base_model.model.conv.bias", "base_model.model.head.lora_A.weight"):
        assert words in text, text


def test_R65_files_that_are_not_there(lading, tmp_path):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"]))
    folder = files(tmp_path, state, model)
    os.rename(folder / "adapter_config.json", folder / "x.json")
    assert "has no adapter_config.json" in refused(lading, tmp_path, exit_code=3)
    os.rename(folder, tmp_path / "lora2")
    refused(lading, tmp_path, exit_code=3)


def test_the_adapter_is_never_replaced(lading, tmp_path):
    state, model = trained(peft.LoraConfig(**CONFIGS["plain"]))
    files(tmp_path, state, model)
    command = [lading.command, "convert", tmp_path / "in", tmp_path / "lora", "--adapter", tmp_path / "lora", "--exist", "replace"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert (tmp_path / "lora" / "adapter_config.json").exists()
