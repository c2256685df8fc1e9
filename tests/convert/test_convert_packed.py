"""Packed weights: a model that is loaded from the converted checkpoint has the bits of one that is loaded from the
quantized checkpoint itself, in another layout (R48)."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import save_file


def codes(*shape, dtype=torch.int32):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)


def gptq():
    order = torch.arange(64, dtype=torch.int32) // 16
    tensors = {"qweight": codes(8, 48), "qzeros": codes(4, 6), "scales": torch.rand(4, 48).half() + 0.5}
    return {**tensors, "g_idx": order[torch.randperm(64)]}, {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}


def awq():
    tensors = {"qweight": codes(64, 6), "qzeros": codes(4, 6), "scales": torch.rand(4, 48).half() + 0.5}
    return tensors, {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}


def packed_integers():
    tensors = {"weight_packed": codes(48, 8), "weight_scale": torch.rand(48, 4).bfloat16() + 0.5, "weight_shape": torch.tensor([48, 64])}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return tensors, {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


def mxfp4():
    tensors = {"up_blocks": codes(3, 10, 2, 16, dtype=torch.uint8), "up_scales": torch.randint(120, 130, (3, 10, 2), dtype=torch.uint8)}
    return tensors, {"quant_method": "mxfp4"}


SCHEMES = {"gptq": (gptq, "m.weight"), "awq": (awq, "m.weight"), "int4": (packed_integers, "m.weight"), "mxfp4": (mxfp4, "m.up")}


def run(lading, *arguments):
    done = subprocess.run([lading.command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("scheme", SCHEMES)
def test_R48_the_converted_checkpoint_loads_to_the_same_bits(lading, tmp_path, scheme):
    torch.manual_seed(3)
    make, name = SCHEMES[scheme]
    parts, quantization = make()
    folder = tmp_path / "in"
    folder.mkdir()
    norm = torch.randn(8).bfloat16()
    save_file({"norm.weight": norm} | {f"m.{key}": tensor for key, tensor in parts.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "quantization_config": quantization}))
    answer = json.loads(run(lading, "convert", folder, tmp_path / "out", "--json"))
    assert answer["dequantized"] == 1 and [key["key"] for key in answer["keys"]] == [name, "norm.weight"]
    assert "quantization" not in (tmp_path / "out" / "config.json").read_text()

    tensors = [{"name": key["key"], "kind": "parameter", "shape": key["shape"], "dtype": "BF16"} for key in answer["keys"]]
    skeleton = tmp_path / "skeleton.json"
    skeleton.write_text(json.dumps({"schema": "lading.skeleton/1", "tensors": tensors}))
    run(lading, "load", folder, "--skeleton", skeleton, "--mesh", "dp=3", "--strategy", "fsdp2", "--ledger", tmp_path / "a.json")
    run(lading, "load", tmp_path / "out", "--skeleton", skeleton, "--ledger", tmp_path / "b.json")
    assert run(lading, "diff", tmp_path / "a.json", tmp_path / "b.json").startswith("equal: 2 tensors")


def test_R48_what_is_not_dequantized_is_refused(lading, tmp_path):
    (tmp_path / "in").mkdir()
    weight = {"m.weight": codes(8, 1, dtype=torch.uint8), "m.weight.absmax": torch.rand(1), "m.weight.quant_map": torch.rand(16)}
    weight["m.weight.quant_state.bitsandbytes__nf4"] = codes(70, dtype=torch.uint8)
    save_file(weight, tmp_path / "in" / "model.safetensors")
    (tmp_path / "in" / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "bitsandbytes"}}))
    done = subprocess.run([lading.command, "convert", tmp_path / "in", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 4 and "R48" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
