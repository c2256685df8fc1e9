"""Checkpoints with so many scales that a load reads them batch by batch, in less memory than all of them take (R48, R64)."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lading
from lading.errors import LadingError

FP8 = torch.float8_e4m3fn
LAYERS, SIZE, BLOCK = 6, 2048, 2
SCALE_BYTES = SIZE * SIZE // BLOCK * 4  # of one layer
BUDGET = 32 << 20


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))


@pytest.fixture(scope="module")
def stored():
    """Scales are powers of two, so that torch's own product is the exact one."""
    made, random = {}, torch.Generator().manual_seed(1)
    for layer in range(LAYERS):
        name = f"layers.{layer}.weight"
        made[name] = torch.randn(SIZE, SIZE, generator=random).to(FP8)
        made[f"{name}_scale_inv"] = torch.exp2(torch.randint(-9, 9, (SIZE, SIZE // BLOCK), generator=random).float())
    return made


def checkpoint(folder, tensors):
    save_file(tensors, folder / "model.safetensors")
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [1, BLOCK]}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def skeleton() -> Stack:
    with lading.skeleton():
        return Stack()


def test_R48_R64_more_scales_than_memory(tmp_path, stored):
    assert LAYERS * SCALE_BYTES > BUDGET
    model = skeleton()
    report = lading.materialize(model, checkpoint(tmp_path, stored), device="cpu", dtype=torch.bfloat16, budget=BUDGET)
    for layer in range(LAYERS):
        name = f"layers.{layer}.weight"
        scales = stored[f"{name}_scale_inv"].repeat_interleave(BLOCK, 1)
        right = (stored[name].float() * scales).to(torch.bfloat16)
        assert torch.equal(model.layers[layer].weight, right), name
    assert report.memory.staging <= BUDGET
    assert lading.audit(model, tmp_path, dtype=torch.bfloat16).ok


@pytest.mark.parametrize("layer", [0, LAYERS - 1])
def test_R48_a_scale_that_is_not_finite_fails_the_load_in_any_batch(tmp_path, stored, layer):
    key = f"layers.{layer}.weight_scale_inv"
    scales = stored[key].clone()
    scales[-1, -1] = torch.inf
    folder = checkpoint(tmp_path, stored | {key: scales})
    model = skeleton()
    with pytest.raises(LadingError, match="not finite") as caught:
        lading.materialize(model, folder, device="cpu", dtype=torch.bfloat16, budget=BUDGET)
    assert key in str(caught.value) and "R48" in str(caught.value)
    assert all(parameter.is_meta for parameter in model.parameters()) or lading.is_incomplete(model)
