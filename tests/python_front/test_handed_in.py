"""Values that are handed in and lie in memory that the load writes: as they were before it."""

import lading
import pytest
import torch
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name, value in (("a", 10.0), ("b", 20.0), ("c", 30.0)):
            self.register_parameter(name, nn.Parameter(torch.arange(4.0) + value))


@pytest.fixture
def path(tmp_path):
    save_file({name: torch.arange(4.0) + place for place, name in enumerate("abc")}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def load(model, path, **options):
    return lading.materialize(model, path, progress=False, **options)


def holds(tensor, first):
    assert tensor.tolist() == [first, first + 1, first + 2, first + 3]


def test_two_parameters_are_swapped(path):
    model = Net()
    report = load(model, path, external={"a": model.b, "b": model.a})
    holds(model.a, 20.0), holds(model.b, 10.0), holds(model.c, 2.0)
    assert report.tensors["a"].provenance == report.tensors["b"].provenance == "host"


def test_three_in_a_ring(path):
    model = Net()
    load(model, path, external={"a": model.b.data, "b": model.c.detach(), "c": model.a.view(2, 2).view(4)})
    holds(model.a, 20.0), holds(model.b, 30.0), holds(model.c, 10.0)


def test_memory_that_the_file_overwrites(path):
    model = Net()
    load(model, path, external={"b": model.a})
    holds(model.a, 0.0), holds(model.b, 10.0)


def test_the_same_model(path):
    model = Net()
    load(model, path, external={"a": model})
    holds(model.a, 10.0), holds(model.b, 1.0)


def test_views_and_other_dtypes(path):
    """Where the value is a view, or is cast on its way, or has the storage of several parameters."""
    model = Net()
    whole = torch.arange(12.0)
    model.a.data, model.b.data, model.c.data = whole[0:4], whole[4:8], whole[8:12]
    load(model, path, external={"a": whole[8:12], "b": whole.flip(0)[8:12], "c": whole[0:8:2]})
    holds(model.a, 8.0)
    assert model.b.tolist() == [3.0, 2.0, 1.0, 0.0] and model.c.tolist() == [0.0, 2.0, 4.0, 6.0]
    model = Net()
    model.a.data = model.a.data.double()
    load(model, path, external={"a": model.b, "b": model.a}, cast="destination")
    holds(model.a, 20.0), holds(model.b, 10.0)
    assert model.a.dtype == torch.float64 and model.b.dtype == torch.float32


def test_memory_that_is_not_contiguous(path):
    model = Net()
    model.a.data = torch.arange(8.0)[::2]
    load(model, path, external={"a": model.b, "b": model.a})
    holds(model.a, 20.0)
    assert model.b.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_recipes_see_the_model_as_it_was(path):
    for function, first in ((lambda module, name: module.a * 2, None), (lambda module, name: module.a, 10.0)):
        model = Net()
        with torch.device("meta"):
            model.register_buffer("k", torch.zeros(4), persistent=False)
        load(model, path, recipes={"k": function})
        holds(model.a, 0.0)
        assert model.k.data_ptr() != model.a.data_ptr()
        if first is None:
            assert model.k.tolist() == [20.0, 22.0, 24.0, 26.0]
        else:
            holds(model.k, first)


def test_a_recipe_that_fails_names_its_tensor(path):
    model = Net()
    with torch.device("meta"):
        model.register_buffer("k", torch.zeros(4), persistent=False)

    def fails(module, name):
        raise ZeroDivisionError("by zero")

    with pytest.raises(lading.LadingError, match="ZeroDivisionError: by zero") as caught:
        load(model, path, recipes={"k": fails})
    assert caught.value.tensors == ("k",) or caught.value.problems[0].tensor == "k"


def test_computed_values_get_what_was_loaded(path):
    model = Net()
    with torch.device("meta"):
        model.register_buffer("k", torch.zeros(4), persistent=False)
    load(model, path, recipes={"k": lading.Computed(lambda a: a * 2, "a")}, external={"b": model.a})
    assert model.k.tolist() == [0.0, 2.0, 4.0, 6.0]
    holds(model.b, 10.0)


def test_ranks_swap_their_parts(tmp_path, path):
    """A replicated DTensor of the same model: gathering it answers its own memory."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = Net()
        for name in "ab":
            placed = distribute_tensor(getattr(model, name).data, mesh, [Replicate()])
            setattr(model, name, nn.Parameter(placed))
        load(model, path, external={"a": model.b, "b": model.a})
        holds(model.a.to_local(), 20.0), holds(model.b.to_local(), 10.0)
    finally:
        dist.destroy_process_group()


class Derived(nn.Module):
    """A buffer of no file that is a copy of a large tensor."""

    def __init__(self, table):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(4))
        self.register_buffer("k", torch.empty(table.shape).copy_(table), persistent=False)


def test_R61_a_large_value_that_cannot_be_made_leaves_memory_as_it_was(tmp_path):
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    table = torch.zeros(1 << 19)
    with lading.skeleton():
        model = Derived(table)
    model.a = nn.Parameter(torch.full((4,), 5.0))
    table[0] = 1  # what the constructor read is not what it was
    with pytest.raises(lading.LadingError, match="changed afterwards") as raised:
        load(model, tmp_path / "model.safetensors")
    assert not raised.value.begun and not lading.is_incomplete(model)
    assert model.a.tolist() == [5.0] * 4


def test_R64_a_large_recipe_that_fails_is_told_and_the_model_is_as_it_was(tmp_path):
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Derived(torch.zeros(1 << 19))

    def fails(module, name):
        raise ValueError("no such table")

    with pytest.raises(lading.LadingError, match="ValueError: no such table") as raised:
        load(model, tmp_path / "model.safetensors", device="cpu", recipes={"k": fails})
    assert not raised.value.begun and model.a.is_meta and not lading.is_incomplete(model)
    report = load(model, tmp_path / "model.safetensors", device="cpu", recipes={"k": lambda *_: torch.ones(1 << 19)})
    assert report.memory.handed_in == 4 << 19 and model.k.sum() == 1 << 19
