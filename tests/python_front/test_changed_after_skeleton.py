"""Models that change between the end of `lading.skeleton()` and the load, in one process. Ranks: test_changed_ranks.py."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lading


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.init = nn.Parameter(torch.full((3,), 5.0))
        self.register_buffer("k", torch.ones(3), persistent=False)
        self.plain = torch.full((3,), 2.0)


@pytest.fixture
def path(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def built():
    with lading.skeleton():
        return Net()


def filled(tensor):
    with torch.no_grad():
        tensor.fill_(7)


WRITES = {
    "in place": filled,
    "through .data": lambda tensor: tensor.data.fill_(7),
    "through a view of .data": lambda tensor: tensor.data[1:].fill_(7),
    "through .data of a view": lambda tensor: tensor[1:].data.fill_(7),
    "through .data of detach": lambda tensor: tensor.detach().data.fill_(7),
    "through .data of an alias": lambda tensor: nn.Parameter(tensor).data.fill_(7),
    "through detach": lambda tensor: tensor.detach().mul_(2),
    "through an alias": lambda tensor: filled(nn.Parameter(tensor)),
    "by nn.init": lambda tensor: nn.init.constant_(tensor, 3.0),
    "by assigning .data": lambda tensor: setattr(tensor, "data", torch.full((3,), 9.0, device="meta")),
}


@pytest.mark.parametrize("name", ["init", "k", "plain"])
@pytest.mark.parametrize("how", WRITES)
def test_R13_what_was_written_on_meta_is_not_overruled_by_the_record(name, how, path):
    model = built()
    WRITES[how](getattr(model, name))
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert raised.value.tensors == (name,)
    if how != "by assigning .data":
        assert "written on meta" in str(raised.value)


def test_R13_a_conversion_on_meta_is_named(path):
    model = built().to(torch.bfloat16)
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert raised.value.tensors == ("init", "k")
    for problem in raised.value.problems:
        assert "converted from torch.float32 to torch.bfloat16 after the lading.skeleton() block" in problem.message
        assert "convert it inside the block" in problem.message


def test_a_tensor_that_was_replaced_on_meta_is_named(path):
    model = built()
    model.k = torch.empty(3, device="meta")
    with pytest.raises(lading.LadingError, match="memory on meta was replaced"):
        lading.materialize(model, path, device="cpu", allow_missing=["init"])


def test_a_conversion_inside_the_block_is_followed(path):
    with lading.skeleton():
        model = Net().to(torch.bfloat16)
    lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert torch.equal(model.k, torch.ones(3, dtype=torch.bfloat16))


def test_R13_what_data_gave_away_before_the_end_is_asked_too(path):
    with lading.skeleton():
        model = Net()
        alias = model.init.data
    alias.fill_(7)
    with pytest.raises(lading.LadingError, match="written on meta"):
        lading.materialize(model, path, device="cpu", allow_missing=["init"])


class Seeding(Net):
    """As those do that want the same random projection in every process."""

    def __init__(self, own):
        super().__init__()
        with torch.random.fork_rng():
            generator = torch.Generator().manual_seed(3) if own else None
            if not own:
                torch.manual_seed(3)
            self.register_buffer("projection", torch.randn(3, generator=generator), persistent=False)


def test_R6_a_constructor_that_seeds_is_not_given_other_numbers(path):
    torch.manual_seed(1)  # another seed than the constructor's, whatever ran before
    with lading.skeleton():
        seeding, drawing = Seeding(own=False), Seeding(own=True)
    with pytest.raises(lading.LadingError, match="seeds the process's random numbers") as raised:
        lading.materialize(seeding, path, device="cpu", allow_missing=["init"])
    assert raised.value.tensors == ("projection",)
    lading.materialize(drawing, path, device="cpu", allow_missing=["init"])
    assert torch.equal(drawing.projection, Seeding(own=True).projection)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()


def test_R6_a_part_that_was_loaded_earlier_vouches_for_nothing_else(path, tmp_path):
    part = built()
    lading.materialize(part, path, device="cpu", allow_missing=["init"])
    with lading.skeleton():
        model = Outer()
    model.to_empty(device="cpu")
    model.inner.k.fill_(77)
    model.inner.plain = torch.full((3,), 2.0)
    model.part = part
    save_file({"inner.w": torch.ones(2), "inner.init": torch.ones(3)}, tmp_path / "outer.safetensors")
    with pytest.raises(lading.LadingError, match="inner.k"):
        lading.materialize(model, tmp_path / "outer.safetensors", keep=["part.*"])


READS = {
    "a look at .data": lambda model: model.init.data.shape,
    "a new name": lambda model: setattr(model, "init", nn.Parameter(model.init, requires_grad=False)),
    "a detached name": lambda model: setattr(model, "plain", model.plain.detach()),
    "a forward pass on meta": lambda model: model.init + model.k,
    "requires_grad": lambda model: model.requires_grad_(False),
}


@pytest.mark.parametrize("how", READS)
def test_who_only_looks_changes_nothing(how, path):
    model = built()
    READS[how](model)
    lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert model.init.tolist() == [5.0] * 3 and model.k.tolist() == [1.0] * 3 and model.plain.tolist() == [2.0] * 3


def test_R13_a_parameter_that_was_replaced_on_meta_has_no_value(path):
    model = built()
    model.init = nn.Parameter(torch.full((3,), 9.0, device="meta"))
    with pytest.raises(lading.LadingError, match="no source for its value"):
        lading.materialize(model, path, device="cpu", allow_missing=["init"])


def test_a_second_recording_counts(path):
    model = built()
    with lading.skeleton(), torch.no_grad():
        model.init.mul_(2)
        model.k = torch.full((3,), 4.0)
    lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert model.init.tolist() == [10.0] * 3 and model.k.tolist() == [4.0] * 3


def test_R13_a_second_recording_does_not_hide_a_write_before_it(path):
    model = built()
    filled(model.init)
    with lading.skeleton(), torch.no_grad():
        model.init.mul_(2)
    with pytest.raises(lading.LadingError, match="init"):
        lading.materialize(model, path, device="cpu", allow_missing=["init"])


def test_copies_and_pickles_are_plain_modules(path):
    model = built()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other._parameters) is dict and type(other._buffers) is dict
    lading.materialize(model, path, device="cpu", allow_missing=["init"])
    assert type(model._parameters) is dict and type(model._buffers) is dict
    assert not [name for tensor in (model.init, model.k, model.plain) for name in vars(tensor) if "lading" in name]


def test_data_of_other_tensors_is_as_it_was():
    built()
    tensor = torch.ones(2, requires_grad=True)
    tensor.data.mul_(3)
    tensor.data = tensor.data + 1
    assert tensor.tolist() == [4.0, 4.0] and not vars(tensor)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("allowed", [[], ["init"]])
def test_R6_memory_without_values_is_not_kept_in_a_copy(copied, allowed, path):
    model = copied(built())
    model.plain = torch.zeros(3)
    model.to_empty(device="cpu")
    with pytest.raises(lading.LadingError, match="k"):
        lading.materialize(model, path, allow_missing=allowed, keep=["plain"])
