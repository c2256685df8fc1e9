"""`lading.audit` in one process: each kind of wrong, planted. What real loaders do is in test_audit_loaders.py and
test_audit_ranks.py."""

import json
import struct

import audit_models as models
import pytest
import torch
from audit_models import original, twin
from safetensors.torch import load_file, save_file
from torch import nn

import lading


@pytest.fixture
def folder(tmp_path):
    return models.save(tmp_path, is_mixed=True)


def audit(model, folder, **options):
    return lading.audit(model, folder, like=twin(), **options)


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


@pytest.fixture
def loaded(folder):
    model = twin()
    lading.materialize(model, folder, device="cpu", progress=False)
    return model


# ---- right loads


def test_a_right_load_is_right(loaded, folder):
    report = audit(loaded, folder, raise_on="warning")
    assert report.ok and report.problems == report.warnings == ()
    assert report.checked == {"with the checkpoint": 8, "with their derivation": 2, "between ranks": 0}


def test_a_record_is_as_good_as_a_twin(loaded, folder):
    assert lading.audit(loaded, folder).ok
    loaded.softcap.fill_(49.0)
    assert flagged(lading.audit(loaded, folder)) == {("value", "softcap")}


def test_nothing_is_changed(loaded, folder):
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    rng = torch.get_rng_state()
    audit(loaded, folder)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())


def test_what_nothing_says_is_a_note_and_no_problem(folder):
    model = original(is_mixed=True)
    report = lading.audit(model, folder)
    assert report.ok
    assert any("softcap was not judged" in note for note in report.notes)


# ---- each kind of wrong


def test_left_on_meta(loaded, folder):
    loaded.norm.weight = nn.Parameter(loaded.norm.weight.detach().to("meta"))
    loaded.layer_scalar = loaded.layer_scalar.to("meta")
    assert flagged(audit(loaded, folder)) == {("meta", "norm.weight"), ("meta", "layer_scalar")}


def test_wrong_value_by_its_first_index(loaded, folder):
    with torch.no_grad():
        loaded.embed.weight[2, 3] += 1
        loaded.embed.weight[4, 0] += 1
    report = audit(loaded, folder)
    assert {problem.tensor for problem in report.problems} == {"embed.weight", "head.weight"}
    assert "2 of 24 elements, the first at [2, 3]" in report.problems[0].message


def test_a_single_bit_of_a_zero(loaded, folder):
    """-0.0 equals 0.0, and is another value."""
    state = load_file(folder / "model.safetensors")
    state["frozen"] = torch.zeros(4)
    save_file(state, folder / "model.safetensors")
    with torch.no_grad():
        loaded.frozen.copy_(torch.tensor([0.0, 0.0, -0.0, 0.0]))
    (problem,) = audit(loaded, folder).problems
    assert problem.tensor == "frozen" and "[2]" in problem.message


def test_a_nan_of_the_file_is_right(loaded, folder):
    state = load_file(folder / "model.safetensors")
    nan = torch.tensor(struct.unpack("i", struct.pack("I", 0x7FC00123))[0], dtype=torch.int32).view(torch.float32)
    state["layer_scalar"] = nan.clone()
    save_file(state, folder / "model.safetensors")
    loaded.layer_scalar.view(torch.int32).fill_(0x7FC00123)
    assert audit(loaded, folder).ok


def test_wrong_dtype_and_what_was_asked_for(loaded, folder):
    loaded.lin.float()
    assert flagged(audit(loaded, folder)) == {("dtype", "lin.weight")}
    assert audit(loaded, folder, dtype="fp32").ok


def test_dtype_restored_and_bits_gone(loaded, folder):
    """fp32 → bf16 → fp32: the dtype is right again, and the value is not (R24)."""
    with torch.no_grad():
        loaded.A_log.copy_(loaded.A_log.bfloat16().float())
    report = audit(loaded, folder, dtype="bf16")
    assert flagged(report) == {("rounded", "A_log")}
    assert "rounding to bfloat16" in report.problems[0].message


def test_derived_buffer_in_another_dtype(loaded, folder):
    loaded.inv_freq = loaded.inv_freq.bfloat16()
    assert flagged(audit(loaded, folder)) == {("dtype", "inv_freq")}


def test_untied_and_equal(loaded, folder):
    loaded.head.weight = nn.Parameter(loaded.embed.weight.detach().clone())
    assert flagged(audit(loaded, folder)) == {("untied", "head.weight")}


def test_unfrozen(loaded, folder):
    loaded.frozen.requires_grad_(True)
    assert flagged(audit(loaded, folder)) == {("unfrozen", "frozen")}
    assert flagged(lading.audit(loaded, folder)) == {("unfrozen", "frozen")}  # by the record of lading.skeleton()
    loaded.frozen.requires_grad_(False)
    loaded.lin.weight.requires_grad_(False)  # to freeze more is the user's own affair
    assert audit(loaded, folder).ok


def test_wrong_device(loaded, folder):
    (problem, *more) = audit(loaded, folder, device="cuda:0").problems
    assert problem.code == "device" and len(more) == 9


def test_keys_of_the_checkpoint(loaded, folder):
    state = load_file(folder / "model.safetensors")
    del state["norm.weight"]
    state["surplus"] = torch.zeros(2)
    state["frozen"] = torch.zeros(5)
    save_file(state, folder / "model.safetensors")
    report = audit(loaded, folder)
    assert {"norm.weight", "frozen"} <= set(report.tensors) and "surplus" in str(report)
    with torch.no_grad():
        loaded.A_log[0] = 0  # the rest is looked at all the same
    assert "A_log" in audit(loaded, folder).tensors


def test_raise_on_lists_everything(loaded, folder):
    loaded.frozen.requires_grad_(True)
    loaded.softcap.zero_()
    with pytest.raises(lading.LadingError) as failure:
        audit(loaded, folder, raise_on="error")
    assert [problem.tensor for problem in failure.value.problems] == ["frozen", "softcap"]
    assert all(f'tensor "{name}"' in str(failure.value) for name in ("frozen", "softcap"))
    assert failure.value.exit_code == 6 and not failure.value.report.ok
    assert json.loads(failure.value.report.to_json())["schema"] == "lading.audit/1"
    with pytest.raises(ValueError, match="raise_on"):
        audit(loaded, folder, raise_on="always")


# ---- how it is asked


CONTRACT = {"dtype": "bf16", "cast": "exact", "pins": ["A_log"], "subtree_dtypes": {"norm": "fp32"}}


def test_pins_and_subtrees_are_part_of_the_contract(folder):
    """A model that was loaded with them is judged with them."""
    model = twin()
    lading.materialize(model, folder, device="cpu", progress=False, **CONTRACT)
    assert audit(model, folder, **CONTRACT).ok
    unasked = flagged(audit(model, folder, dtype="bf16", cast="exact"))
    assert unasked == {("dtype", "A_log"), ("dtype", "norm.weight")}


def test_a_part_at_a_time(folder, monkeypatch):
    """What is compared is loaded in batches, each planned by itself, with what concerns it."""
    from lading import audit_values

    monkeypatch.setattr(audit_values, "BATCH_BYTES", 20)
    model = twin()
    lading.materialize(model, folder, device="cpu", progress=False, **CONTRACT)
    report = audit(model, folder, **CONTRACT)
    assert report.ok and report.checked["with the checkpoint"] == 8
    with torch.no_grad():
        model.norm.weight[3] = 0
    assert flagged(audit(model, folder, **CONTRACT)) == {("value", "norm.weight")}
