"""A default dtype of one thread: what a constructor makes under it is what it makes under the process's."""

import numpy as np
import pytest
import torch
from lading import skeleton
from lading.own_default_dtype import own_default_dtype
from lading.skeleton_recorder import derive
from torch import nn

DTYPES = [torch.float64, torch.bfloat16, torch.float16]

PLAIN = {
    "factories": lambda: [torch.zeros(2), torch.ones(2, 2), torch.full((2,), 0.1), torch.full((2,), 3), torch.eye(2)],
    "ranges": lambda: [torch.arange(4), torch.arange(4.0), torch.arange(0, 1, 0.3), torch.linspace(0, 1, 5)],
    "numbers": lambda: [torch.tensor(0.1), torch.tensor([[1, 0.3]]), torch.tensor([1]), torch.as_tensor([0.7])],
    "none": lambda: [torch.tensor([]), torch.tensor([[]])],
    "named": lambda: [torch.zeros(2, dtype=torch.float32), torch.tensor([0.1], dtype=torch.float64)],
    "arrays": lambda: [torch.from_numpy(np.ones(2, np.float32)), torch.as_tensor(np.ones(2)), torch.tensor(np.ones(2))],
    "promoted": lambda: [torch.arange(5) / 7, torch.arange(5) * 0.1, 2.0 ** torch.arange(3), torch.arange(3).cos()],
    "compared": lambda: [torch.arange(3) > 0.5, (torch.arange(3) == 1).float(), torch.arange(3) % 2],
    "kept": lambda: [torch.zeros(2, dtype=torch.float32) * 0.5, torch.ones(2).to(torch.float32).sin() + 1],
    "casts": lambda: [torch.arange(3).float() / 3, torch.arange(3).double(), torch.ones(2).type_as(torch.zeros(1))],
    "views": lambda: [torch.arange(6.0).view(2, 3).t().contiguous(), torch.ones(3)[None].expand(2, 3).clone()],
    "default": lambda: [torch.zeros(2, dtype=torch.get_default_dtype())],
    "modules": lambda: [nn.Linear(2, 3).weight.new_zeros(2), nn.LayerNorm(3).weight],
    "rotary": lambda: [1.0 / (10000.0 ** (torch.arange(0, 8, 2, dtype=torch.int64).float() / 8))],
    "masks": lambda: [torch.full((3, 3), -1e4).triu(1), torch.ones(2, 2).tril() == 0, torch.ones(3).cumsum(0)],
    "read": lambda: [torch.full((2,), torch.linspace(0, 1, 3)[1].item()), torch.tensor(torch.arange(3.0).tolist())],
    "nested": lambda: [*_nested()],
}  # fmt: skip
# What torch decides before an operator is called.
DECIDED_INSIDE = {
    "legacy": lambda: [torch.Tensor(2, 3).zero_()],
    "legacy numbers": lambda: [torch.Tensor([0.1, 0.2])],
    "where": lambda: [torch.where(torch.arange(3) > 1, 1.0, 0.0)],
    "transform": lambda: [torch.fft.rfft(torch.arange(4))],
    "mixed": lambda: [torch.tensor([np.float32(1), 0.5])],
    "asked": lambda: [torch.zeros(2, dtype=torch.result_type(torch.arange(2), 0.5))],
    "inner": lambda: [torch.cartesian_prod(torch.arange(2)) + torch.Tensor(2).fill_(1)],
}


def _nested():
    """A constructor that sets the default dtype itself, as transformers does for parts of a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    yield torch.ones(2)
    torch.set_default_dtype(before)
    yield torch.ones(2)


def under_the_process(dtype, make):
    torch.set_default_dtype(dtype)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def under_an_own_one(dtype, make):
    real_set = torch.set_default_dtype
    with own_default_dtype(dtype) as own, skeleton():
        made = make()
    assert torch.get_default_dtype() == torch.float32 and torch.set_default_dtype is real_set
    return own, [derive(tensor) if tensor.is_meta else tensor for tensor in made]


def alike(got, want):
    return len(got) == len(want) and all(
        one.dtype == two.dtype and torch.equal(one, two) for one, two in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLAIN)
def test_values_are_those_of_the_process(name, dtype, monkeypatch):
    want = under_the_process(dtype, PLAIN[name])
    monkeypatch.setattr("lading.one_op.process_state", None)
    own, got = under_an_own_one(dtype, PLAIN[name])
    assert not own.is_incomplete
    assert alike(got, want), (got, want)


@pytest.mark.parametrize("name", DECIDED_INSIDE)
def test_what_torch_decides_itself_is_noticed(name):
    own, got = under_an_own_one(torch.float64, DECIDED_INSIDE[name])
    assert own.is_incomplete or alike(got, under_the_process(torch.float64, DECIDED_INSIDE[name]))


_NOT_REPEATABLE = {"bernoulli", "empty", "empty_like", "rand", "rand_like", "randn", "randn_like", "randperm"}


def test_every_factory_and_function_is_right_or_noticed():
    """All functions of torch that can be called with integers, or with a size."""
    wrong = []
    integers = torch.tensor([[1, 2], [3, 4]])
    for name in sorted(dir(torch)):
        function = getattr(torch, name)
        if name.startswith("_") or not callable(function) or isinstance(function, type) or "seed" in name:
            continue
        for arguments in ((integers,), (integers, integers), (integers, 0.5), (3,), ((2, 2),), (0.5,), (0, 1, 0.25)):
            try:
                want = under_the_process(torch.float64, lambda: function(*arguments))
            except Exception:
                continue
            if not isinstance(want, torch.Tensor) or want.layout is not torch.strided or name in _NOT_REPEATABLE:
                continue
            try:
                own, got = under_an_own_one(torch.float64, lambda: [function(*arguments)])
            except Exception:  # loud
                continue
            if not own.is_incomplete and not alike([got[0].nan_to_num()], [want.nan_to_num()]):
                wrong.append((name, arguments, got[0].dtype, want.dtype))
    assert wrong == []


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "wav2vec2"])  # the last one calls torch.Tensor(size)
def test_models_of_transformers(model_type):
    pytest.importorskip("transformers")
    import zoo
    from lading import huggingface_build

    config, name = zoo.build_config(model_type)
    cls = zoo.model_class(name, config)
    got = huggingface_build.build(cls, config, torch.bfloat16, "exact")
    with skeleton(), huggingface_build.construction(config, torch.bfloat16, "exact") as own:
        want = cls(own)
    assert {name: value.dtype for name, value in got.state_dict().items()} == {
        name: value.dtype for name, value in want.state_dict().items()
    }
    buffers = dict(want.named_buffers())
    assert buffers.keys() == dict(got.named_buffers()).keys()
    assert all(alike([derive(value)], [derive(buffers[name])]) for name, value in got.named_buffers())
