"""Tensors that share memory in a constructor: views that come with another tensor, views that cannot, and copies."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lading


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.make()

    def hold(self, **tensors):
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)


class Expanded(Base):
    def make(self):
        positions = torch.arange(4.0)
        self.hold(positions=positions, grid=positions[:, None].expand(4, 2))


class WithGaps(Base):
    def make(self):
        table = torch.arange(16.0).view(4, 4)
        self.hold(even=table[:, ::2], row=table[1, :2])


class Siblings(Base):
    def make(self):
        both = torch.stack([torch.arange(3.0).cos(), torch.arange(3.0).sin()])
        self.hold(cos=both[0], sin=both[1])


class OtherDtype(Base):
    def make(self):
        base = torch.arange(16, dtype=torch.uint8)
        self.hold(base=base, floats=base.view(torch.float32))


class Conjugate(Base):
    def make(self):
        turns = torch.polar(torch.ones(3), torch.arange(3.0))
        self.hold(turns=turns, back=turns.conj())


class Copies(Base):
    def make(self):
        layer = nn.Module()
        layer.register_buffer("table", torch.from_numpy(np.arange(4, dtype="float32")), persistent=False)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(2)])


class Turned(Base):
    def make(self):
        self.hold(turned=torch.arange(6.0).view(2, 3).t())


class ViewOfAParameter(Base):
    def make(self):
        self.hold(middle=self.w.data[1:3])


class BitsOfAParameter(Base):
    def make(self):
        self.hold(bits=self.w.data.view(torch.int32))


class PartOfAParameter(Base):
    def make(self):
        flat = torch.zeros(6)
        self.w = nn.Parameter(flat[:4])
        self.flat = flat


@pytest.fixture
def checkpoint(tmp_path):
    save_file({"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}, tmp_path / "model.safetensors")
    return tmp_path


def filled(cls, checkpoint):
    with lading.skeleton():
        model = cls()
    lading.materialize(model, checkpoint, device="cpu", progress=False)
    return model


@pytest.mark.parametrize("cls", [Expanded, WithGaps, Siblings, OtherDtype, Conjugate, Copies])
def test_R6_every_buffer_is_what_the_constructor_makes(cls, checkpoint):
    want, found = dict(cls().named_buffers()), dict(filled(cls, checkpoint).named_buffers())
    assert set(found) == set(want)
    for name, tensor in want.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_a_view_of_a_parameter_stays_one(checkpoint):
    model = filled(ViewOfAParameter, checkpoint)
    assert torch.equal(model.middle, torch.tensor([2.0, 3.0]))
    with torch.no_grad():
        model.w[1] = 9.0
    assert model.middle[0] == 9.0


@pytest.mark.parametrize("cls", [BitsOfAParameter, PartOfAParameter])
def test_R6_what_is_partly_a_parameter_is_refused(cls, checkpoint):
    with pytest.raises(lading.LadingError) as refusal:
        filled(cls, checkpoint)
    assert set(refusal.value.tensors) == {"bits" if cls is BitsOfAParameter else "flat"}


def test_real_buffers_that_are_not_contiguous_are_kept(checkpoint):
    model = Turned()
    lading.materialize(model, checkpoint, device="cpu", progress=False)
    assert torch.equal(model.turned, torch.arange(6.0).view(2, 3).t()) and torch.equal(model.w.data, torch.arange(1.0, 5.0))


def test_what_is_filled_in_inference_mode_can_be_trained(checkpoint):
    with lading.skeleton():
        model = Siblings()
    with torch.inference_mode():
        lading.materialize(model, checkpoint, device="cpu", progress=False)
    assert not model.w.is_inference()
    model.w.sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert torch.equal(model.w.data, torch.arange(1.0, 5.0) - 0.5)


def test_a_computed_value_does_not_change_its_inputs(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with lading.skeleton():
        model = nn.Module()
        model.a, model.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    double = lading.Computed(lambda a: a.mul_(2), "a")
    lading.materialize(model, tmp_path, device="cpu", recipes={"b": double}, allow_missing="b", progress=False)
    assert torch.equal(model.a.data, torch.ones(2)) and torch.equal(model.b.data, torch.full((2,), 2.0))


@pytest.mark.parametrize("written", [False, True])
def test_R13_memory_without_a_value_is_no_value(tmp_path, written):
    save_file({"body.weight": torch.ones(2, 2), "body.bias": torch.ones(2)}, tmp_path / "model.safetensors")
    with lading.skeleton():
        model = nn.Module()
        model.body, model.head = nn.Linear(2, 2), nn.Linear(2, 2)
    model.to_empty(device="cpu")
    if written:
        nn.init.constant_(model.head.weight, 3.0)
        nn.init.constant_(model.head.bias, 4.0)
    try:
        lading.materialize(model, tmp_path, device="cpu", allow_missing="head.*", progress=False)
    except lading.LadingError as error:
        assert not written and set(error.tensors) == {"head.weight", "head.bias"} and "keep" in str(error)
    else:
        assert written and bool((model.head.weight == 3.0).all()) and bool((model.head.bias == 4.0).all())
        assert torch.equal(model.body.weight.data, torch.ones(2, 2))


def test_R43_a_recipe_that_matches_nothing_is_refused(checkpoint):
    with lading.skeleton():
        model = Siblings()
    with pytest.raises(lading.LadingError, match="wieght") as refusal:
        lading.materialize(model, checkpoint, device="cpu", recipes={"wieght": lambda module, name: None})
    assert refusal.value.rule == "R43" and model.w.is_meta


def test_words_that_name_no_value(checkpoint):
    with lading.skeleton():
        model = Siblings()
    for wrong in ({"external": {"w": None}}, {"recipes": {"w": 3}}):
        with pytest.raises(TypeError):
            lading.materialize(model, checkpoint, device="cpu", **wrong)
