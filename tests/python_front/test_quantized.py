"""Quantized payloads through the PyTorch front: refused without their scales, loaded and audited with them (R48)."""

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
def test_R48_a_model_without_the_scale_is_not_loaded(checkpoint, allowance):
    with lading.skeleton():
        model = Plain()
    with pytest.raises(LadingError) as refused:
        lading.materialize(model, checkpoint, device="cpu", **ALLOWANCES[allowance])
    assert [(problem.rule, problem.tensor) for problem in refused.value.problems] == [("R48", "linear.weight")]
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("options", [{}, {"strict": False}], ids=["strict", "not strict"])
def test_R48_an_audit_reports_a_payload_that_was_loaded_raw(checkpoint, tensors, options):
    model = Plain()
    model.load_state_dict({"linear.weight": tensors["linear.weight"].float()}, strict=False)
    report = lading.audit(model, checkpoint, **options)
    assert not report.ok
    assert [(problem.rule, problem.tensor) for problem in report.problems] == [("R48", "linear.weight")]


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
