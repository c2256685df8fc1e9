"""Quantized payloads through the PyTorch front, in models of our own: dequantized, loaded as they are with their scales, or
refused (R48). test_quantized_models.py has those of transformers."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lading
from lading import audit_values
from lading.errors import LadingError

FP8 = torch.float8_e4m3fn
ALLOWANCES = {
    "strict": {},
    "not strict": {"strict": False},
    "allowed": {"allow_unexpected": ["*"]},
    "cast": {"allow_unexpected": ["*"], "dtype": torch.bfloat16, "cast": "exact"},
}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm(8, bias=False)


class Scaled(Plain):
    """Holds payload and scale itself, as a quantized module does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.weight = nn.Parameter(torch.zeros(8, 8, dtype=FP8), requires_grad=False)
        self.linear.weight_scale_inv = nn.Parameter(torch.zeros(1, 1))


@pytest.fixture
def tensors():
    payload = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(FP8)
    return {"linear.weight": payload, "linear.weight_scale_inv": torch.tensor([[3.0]]), "norm.weight": torch.ones(8)}


@pytest.fixture
def checkpoint(tmp_path, tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("allowance", ALLOWANCES)
def test_R48_a_model_without_the_scale_is_dequantized(checkpoint, tensors, allowance):
    """Whatever else is allowed: the scale is no unexpected key."""
    with lading.skeleton():
        model = Plain()
    report = lading.materialize(model, checkpoint, device="cpu", **ALLOWANCES[allowance])
    right = (tensors["linear.weight"].double() * 3).to(model.linear.weight.dtype)
    assert model.linear.weight.dtype == ALLOWANCES[allowance].get("dtype", torch.float32)
    assert torch.equal(model.linear.weight, right)
    assert report.unexpected_keys == [] and lading.audit(model, checkpoint, **ALLOWANCES[allowance]).ok


@pytest.mark.parametrize("allowance", ALLOWANCES)
@pytest.mark.parametrize("why", ["kept", "blocks that nothing says"])
def test_R48_what_is_not_dequantized_is_not_loaded(checkpoint, tensors, allowance, why):
    options = ALLOWANCES[allowance] | ({"quantized": "keep"} if why == "kept" else {})
    if why != "kept":
        save_file(tensors | {"linear.weight_scale_inv": torch.ones(3, 1)}, checkpoint / "model.safetensors")
    with lading.skeleton():
        model = Plain()
    with pytest.raises(LadingError) as refused:
        lading.materialize(model, checkpoint, device="cpu", **options)
    assert [(problem.rule, problem.tensor) for problem in refused.value.problems] == [("R48", "linear.weight")]
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_R48_a_scale_that_is_no_number_fails_the_load(checkpoint, tensors, value):
    save_file(tensors | {"linear.weight_scale_inv": torch.tensor([[value]])}, checkpoint / "model.safetensors")
    with lading.skeleton():
        model = Plain()
    with pytest.raises(LadingError) as failed:
        lading.materialize(model, checkpoint, device="cpu")
    assert [(problem.code, problem.tensor) for problem in failed.value.problems] == [("scale", "linear.weight_scale_inv")]
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("options", [{}, {"strict": False}], ids=["strict", "not strict"])
def test_R48_an_audit_reports_a_payload_that_was_loaded_raw(checkpoint, tensors, options):
    model = Plain()
    model.load_state_dict({"linear.weight": tensors["linear.weight"].float()}, strict=False)
    report = lading.audit(model, checkpoint, **options)
    assert not report.ok
    assert [(problem.code, problem.tensor) for problem in report.problems] == [("value", "linear.weight")]


def test_R48_a_model_that_holds_the_scale_is_loaded_and_audited(checkpoint, tensors, monkeypatch):
    monkeypatch.setattr(audit_values, "BATCH_BYTES", 1)  # payload and scale are compared apart
    with lading.skeleton():
        model = Scaled()
    lading.materialize(model, checkpoint, device="cpu")
    for name, value in model.state_dict().items():
        assert torch.equal(value.view(torch.uint8), tensors[name].view(torch.uint8))
    assert lading.audit(model, checkpoint).ok
    model.linear.weight.data = torch.zeros(8, 8, dtype=FP8)
    assert not lading.audit(model, checkpoint).ok
