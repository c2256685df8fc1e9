"""Memory that is not plain, memory that tensors share, tensors in odd places, and models that change during a load.

Expected values are those of `load_state_dict` on a model that plain torch built.
"""

import contextlib
import collections
import dataclasses
import functools
import json
import os
import types

import pytest
import torch
from lading.bits import same_bits
from lading.overlap import overlap, overlaps_itself
from safetensors.torch import load_file, save_file
from torch import nn

import lading


def saved(folder, **tensors):
    path = folder / "model.safetensors"
    save_file({name: tensor.resolve_conj().resolve_neg().contiguous() for name, tensor in tensors.items()}, path)
    return path


class Holder(nn.Module):
    """A module with one parameter and whatever a test gives it."""

    def __init__(self, **buffers):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


def turned():
    return torch.zeros(4, dtype=torch.complex64).conj()


NOT_PLAIN = {
    "conj": lambda: torch.zeros(4, dtype=torch.complex64).conj(),
    "neg": lambda: torch.zeros(4, dtype=torch.complex64).conj().imag,
    "neg, one element": lambda: torch.zeros(1, dtype=torch.complex64).conj().imag,
    "conj of a transpose": lambda: torch.zeros(2, 3, dtype=torch.complex64).t().conj(),
    "transposed": lambda: torch.zeros(3, 2).t(),
    "every second": lambda: torch.zeros(8)[::2],
    "an offset": lambda: torch.zeros(8)[3:5],
    "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize("how", ["real", "skeleton"])
def test_memory_that_is_not_plain_gets_the_values(kind, how, tmp_path):
    buffer = NOT_PLAIN[kind]()
    path = saved(tmp_path, w=torch.ones(2), b=torch.randn(buffer.shape, dtype=buffer.dtype))
    expected = Holder(b=NOT_PLAIN[kind]())
    expected.load_state_dict(load_file(path))
    if how == "real":
        model = Holder(b=buffer)
    else:
        with lading.skeleton():
            model = Holder(b=NOT_PLAIN[kind]())
    report = lading.materialize(model, path, device="cpu")
    assert torch.equal(model.b, expected.b)
    assert report.tensors["b"].digest == lading.materialize(Holder(b=torch.zeros_like(expected.b).contiguous()), path).tensors["b"].digest
    if how == "real":
        assert model.b.data_ptr() == buffer.data_ptr()


def interleaved(base):
    return {"a": base[:, :2], "b": base[:, 2:]}


SHARED = {
    "a transpose": lambda base: {"a": base, "b": base.t()},
    "a part": lambda base: {"a": base, "b": base[1:]},
    "other bits": lambda base: {"a": base, "b": base.view(torch.int32)},
    "repeated": lambda base: {"a": base[:1].expand(4, 4)},
    "folded": lambda base: {"a": base.view(-1).as_strided((3, 3), (1, 1))},
}


@pytest.mark.parametrize("kind", SHARED)
def test_R11_memory_that_cannot_hold_all_values_is_refused(kind, tmp_path):
    tensors = SHARED[kind](torch.zeros(4, 4))
    path = saved(tmp_path, w=torch.ones(2), **{name: torch.ones_like(tensor).clone() for name, tensor in tensors.items()})
    model = Holder(**tensors)
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, path)
    assert {problem.rule for problem in raised.value.problems} == {"R11"} and not raised.value.begun
    assert torch.equal(model.w, torch.zeros(2)), "nothing was written"


def test_parts_of_one_memory_that_interleave_are_filled(tmp_path):
    a, b = torch.arange(8.0).view(4, 2), 100 + torch.arange(8.0).view(4, 2)
    base = torch.zeros(4, 4)
    model = Holder(**interleaved(base))
    lading.materialize(model, saved(tmp_path, w=torch.ones(2), a=a, b=b))
    assert torch.equal(base, torch.cat([a, b], dim=1))


class Transposed(nn.Module):
    def __init__(self, *, with_attribute):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 3))
        if with_attribute:
            self.a_view = self.a.detach().t()
        self.b = nn.Parameter(self.a.data.t())


@pytest.mark.parametrize("with_attribute", [False, True])
def test_R9_parameters_that_share_memory_on_meta_are_not_made_apart(tmp_path, with_attribute):
    with lading.skeleton():
        model = Transposed(with_attribute=with_attribute)
    value = torch.arange(9.0).view(3, 3)
    with pytest.raises(lading.LadingError, match="share memory"):
        lading.materialize(model, saved(tmp_path, a=value, b=value.t()), device="cpu")


class TiedAcross(nn.Module):
    """A parameter and a buffer that are one transposed memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3, 2).t())
        self.b = nn.Parameter(self.a.detach())


def test_R9_objects_of_a_tie_that_is_not_laid_out_in_rows_are_one_memory(tmp_path):
    with lading.skeleton():
        model = TiedAcross()
    value = torch.arange(6.0).view(2, 3)
    lading.materialize(model, saved(tmp_path, a=value, b=value.clone()), device="cpu")
    assert model.a.data_ptr() == model.b.data_ptr() and torch.equal(model.b, value)


def test_R11_memory_that_is_smaller_than_it_says_is_refused(tmp_path):
    model = nn.Linear(64, 64, bias=False)
    model.weight.untyped_storage().resize_(64)
    with pytest.raises(lading.LadingError, match="16384 bytes of memory, but has 64"):
        lading.materialize(model, saved(tmp_path, weight=torch.ones(64, 64)))


def test_a_nested_tensor_is_refused_by_name(tmp_path):
    model = Holder(a=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(lading.LadingError, match="nested"):
        lading.materialize(model, saved(tmp_path, w=torch.ones(2)))


class Raising(nn.Module):
    def __init__(self, *, early):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.early = early

    def get_extra_state(self):
        if self.early:
            raise ValueError("not now")
        return torch.zeros(1)

    def set_extra_state(self, state):
        raise ValueError("bad version")


@pytest.mark.parametrize("early", [True, False])
def test_extra_state_that_fails_is_told_as_such(early, tmp_path):
    path = saved(tmp_path, w=torch.ones(2), _extra_state=torch.ones(1))
    model = Raising(early=early)
    with pytest.raises(lading.LadingError, match="not now" if early else "bad version") as raised:
        lading.materialize(model, path)
    assert bool(lading.is_incomplete(model)) == (not early) == raised.value.begun


def test_overlaps_are_those_of_the_elements():
    generator = torch.Generator().manual_seed(0)

    def draw(high):
        return int(torch.randint(0, high, (), generator=generator))

    storage = torch.zeros(60, dtype=torch.int16)
    places = torch.arange(60)
    for _ in range(500):
        views = []
        while len(views) < 2:
            size, stride = [draw(4) + 1 for _ in range(draw(4))], [draw(8) for _ in range(4)]
            stride, offset = stride[: len(size)], draw(6)
            if offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) < 60:
                views.append((size, stride, offset))
        one, two = (set(places.as_strided(*view).flatten().tolist()) for view in views)
        tensors = [storage.as_strided(*view) for view in views]
        assert overlap(*tensors) == bool(one & two)
        assert overlaps_itself(tensors[0]) == (len(one) < tensors[0].numel())


@dataclasses.dataclass
class Tables:
    cos: torch.Tensor
    more: dict


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.tables = Tables(torch.arange(3.0).cos(), {"sin": [torch.arange(3.0).sin()]})
        self.lists = [[[[[torch.full((2,), 5.0)]]]]]
        self.lists.append(self.lists)


def test_R6_tensors_in_dataclasses_and_deep_containers_are_derived(tmp_path):
    with lading.skeleton():
        model = Deep()
    expected = Deep()
    lading.materialize(model, saved(tmp_path, w=torch.ones(2)), device="cpu")
    assert torch.equal(model.tables.cos, expected.tables.cos)
    assert torch.equal(model.tables.more["sin"][0], expected.tables.more["sin"][0])
    assert torch.equal(model.lists[0][0][0][0][0], expected.lists[0][0][0][0][0])


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor

    def get(self):
        return self.tensor


STRANDED = {
    "an object": lambda: types.SimpleNamespace(tensor=torch.ones(2)),
    "slots": lambda: Slotted(torch.ones(2)),
    "a set": lambda: {torch.ones(2)},
    "a deque": lambda: collections.deque([torch.ones(2)]),
    "a module in a list": lambda: [nn.Linear(2, 2)],
    "a distribution": lambda: torch.distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=False),
    "a bound method": lambda: Slotted(torch.ones(2)).get,
    "a partial": lambda: functools.partial(print, torch.ones(2)),
    "a read-only dict": lambda: types.MappingProxyType({"a": torch.ones(2)}),
    "an object in a dict": lambda: {"cache": types.SimpleNamespace(tensor=torch.ones(2))},
}


class Odd(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.odd = make()


@pytest.mark.parametrize("kind", STRANDED)
def test_R11_R67_nothing_is_left_on_meta(kind, tmp_path):
    path = saved(tmp_path, w=torch.ones(2))
    with lading.skeleton():
        model = Odd(STRANDED[kind])
    with pytest.raises(lading.LadingError, match="on meta, and lading cannot fill it where it is held") as raised:
        lading.materialize(model, path, device="cpu")
    assert all(name.startswith("odd") for name in raised.value.tensors) and model.w.is_meta
    lading.materialize(model, path, device="cpu", keep=["odd*"])  # named by the user
    lading.materialize(Odd(STRANDED[kind]), path)  # real: nothing to say


class WithBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))
        self.register_buffer("k", torch.zeros(3), persistent=False)


def replaced(model):
    model.w = nn.Parameter(torch.full((4,), 99.0, device="meta"))


def added(model):
    model.register_buffer("more", torch.zeros(2))


def removed(model):
    del model.w


def moved(model):
    model.w.data = torch.zeros(4)


def hidden(model):
    model.odd = types.SimpleNamespace(tensor=torch.ones(2, device="meta"))


@pytest.mark.parametrize("change", [replaced, added, removed, moved, hidden])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_R61_R67_a_recipe_that_changes_the_model_fails_the_load(change, device, tmp_path):
    with torch.device(device):
        model = WithBuffer()
    if device == "cpu":
        model.k = torch.empty(3, device="meta")

    def recipe(module, name):
        change(model)
        return torch.ones(3)

    with pytest.raises(lading.LadingError):
        lading.materialize(model, saved(tmp_path, w=torch.ones(4)), device="cpu", recipes={"k": recipe})
    assert bool(lading.is_incomplete(model)) == (device == "cpu"), "a model that was written to is marked"


def test_a_tie_in_a_list_is_not_taken_apart_behind_the_list(tmp_path):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3))
            self.v = self.w
            self.listed = [self.w]

    with lading.skeleton():
        model = Listed()
    path = saved(tmp_path, w=torch.zeros(3), v=torch.ones(3))
    with pytest.raises(lading.LadingError):
        lading.materialize(model, path, device="cpu", ties="untie")


def test_same_bits_wants_the_same_dtype():
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


def test_R64_a_load_that_needs_more_memory_than_there_is_begins_nothing(tmp_path):
    elems = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # of 4 bytes: twice what the machine has
    header = json.dumps({"w": {"dtype": "F32", "shape": [elems], "data_offsets": [0, 4 * elems]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * elems)  # without blocks on the disk
    with torch.device("meta"):
        model = nn.Module()
        model.w = nn.Parameter(torch.empty(elems))
    with pytest.raises(lading.LadingError, match="more memory of the host than is free") as raised:
        lading.materialize(model, tmp_path / "model.safetensors", device="cpu")
    assert raised.value.code == "out_of_memory" and model.w.is_meta


# ---- a model that changes while it is loaded


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.register_buffer("t", torch.zeros(2), persistent=False)


def _swap(model):
    model.a.weight, model.b.weight = model.b.weight, model.a.weight


def _add(model):
    model.register_buffer("late", torch.zeros(1))


def _hang(model):
    model.extra = [torch.zeros(1)]


class Changing(Two):
    """It changes itself when it is asked for its extra state, which is after its tensors were listed."""

    change = None

    def get_extra_state(self):
        if self.change is not None:
            change, self.change = self.change, None
            change(self)
        return torch.zeros(1)

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize("change", [_swap, _add, _hang])
@pytest.mark.parametrize("is_real", [True, False])
def test_R61_R67_a_change_after_the_inventory_is_refused(change, is_real, tmp_path):
    path = saved(tmp_path, **{"a.weight": torch.ones(4, 4), "b.weight": torch.zeros(4, 4), "_extra_state": torch.ones(1)})
    with contextlib.nullcontext() if is_real else lading.skeleton():
        model = Changing()
    object.__setattr__(model, "change", change)
    with pytest.raises(lading.LadingError, match="while the model was being loaded"):
        lading.materialize(model, path, device="cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.t_(),
        lambda weight: setattr(weight, "data", weight.data.t()),
        lambda weight: setattr(weight, "data", torch._neg_view(weight.data)),
        lambda weight: setattr(weight, "data", weight.data.view(torch.int32)),
    ],
)
def test_R61_R67_memory_that_is_read_otherwise_is_refused(change, tmp_path):
    """Its address, size and object stay the same."""
    path = saved(tmp_path, **{"a.weight": torch.rand(4, 4), "b.weight": torch.rand(4, 4)})
    model = Two().requires_grad_(False)

    def recipe(module, name):
        with torch.no_grad():
            change(model.a.weight)
        return torch.ones(2)

    with pytest.raises(lading.LadingError, match="a.weight.* while the model was being loaded"):
        lading.materialize(model, path, device="cpu", recipes={"t": recipe})


def test_R11_R67_a_tensor_in_a_slot_is_not_left_on_meta(tmp_path):
    class Slotted(Two):
        __slots__ = ("table",)

        def __init__(self):
            super().__init__()
            self.table = torch.arange(3.0)

    path = saved(tmp_path, **{"a.weight": torch.ones(4, 4), "b.weight": torch.zeros(4, 4)})
    with lading.skeleton():
        model = Slotted()
    with pytest.raises(lading.LadingError, match="table.*on meta"):
        lading.materialize(model, path, device="cpu")
