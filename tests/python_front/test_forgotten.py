"""After a load nothing keeps the record of the constructor, nor the real tensors that it read."""

import gc
import weakref

import lading
import numpy
import pytest
import torch
from lading.recording import CAPTURE_BYTES, Op
from safetensors.torch import save_file
from torch import nn


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(50))
        self.register_buffer("scale", torch.full((4,), 2.0).sqrt() * 3)


class Reading(nn.Module):
    """Its tensors are copies of a real tensor of more than a mebibyte, which is recorded by reference."""

    def __init__(self, table):
        super().__init__()
        self.w = nn.Parameter(torch.empty(table.shape).copy_(table))
        self.register_buffer("k", torch.zeros(table.shape).copy_(table), persistent=False)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8), persistent=False)


def ops():
    gc.collect()
    return sum(type(one) is Op for one in gc.get_objects())


def loaded(make, folder, **options):
    path = folder / "model.safetensors"
    save_file({name: torch.rand_like(value) for name, value in make().state_dict().items()}, path)
    with lading.skeleton():
        model = make()
    lading.materialize(model, path, device="cpu", progress=False, **options)
    return model, path


def test_R64_the_ops_of_a_constructor_are_forgotten(tmp_path):
    before = ops()
    model, path = loaded(Layers, tmp_path)
    assert ops() == before
    weight = model.layers[7].weight.clone()
    lading.materialize(model, path, progress=False)
    assert torch.equal(model.layers[7].weight, weight)
    assert lading.audit(model, path).ok and lading.recipe_of(model.scale) is None
    assert len(lading.take_inventory(model)) == 101


def test_R64_real_tensors_that_a_constructor_read_are_let_go(tmp_path):
    array = numpy.arange(CAPTURE_BYTES // 4 + 1, dtype=numpy.float32)
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.from_numpy(array) * 5}, path)
    table = torch.from_numpy(array)
    with lading.skeleton():
        model = Reading(table)
    is_there = weakref.ref(array)  # its memory is the tensor's
    expected = table.clone()
    del array, table
    gc.collect()
    assert is_there() is not None, "the record needs it before the load"
    lading.materialize(model, path, device="cpu", progress=False)
    gc.collect()
    assert is_there() is None
    assert torch.equal(model.k, expected)


def test_R61_after_a_load_that_failed_everything_is_still_known(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"other": torch.zeros(4)}, path)
    with lading.skeleton():
        model = Rotary()
    with pytest.raises(lading.LadingError):
        lading.materialize(model, path, device="cpu", progress=False)
    save_file({"w": torch.ones(4)}, path)
    lading.materialize(model, path, device="cpu", progress=False)
    assert torch.equal(model.inv_freq, Rotary().inv_freq)


def test_R6_an_audit_still_knows_what_no_file_has(tmp_path):
    model, path = loaded(Rotary, tmp_path)
    assert lading.audit(model, path).ok
    model.inv_freq.add_(1)
    assert [problem.tensor for problem in lading.audit(model, path).problems] == ["inv_freq"]
