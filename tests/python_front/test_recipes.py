"""Which recorded values are recipes of the engine, and which are replayed."""

import math

import lading
import pytest
import torch
from torch import nn


def same_bits(left, right):
    left, right = left.contiguous().reshape(-1), right.contiguous().reshape(-1)
    return left.dtype == right.dtype and bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))


def recipe_after(write, *shape):
    with lading.skeleton():
        x = torch.empty(*(shape or (40, 50)))
        y = write(x)
    return lading.recipe_of(x if y is None else y)


def test_recipes():
    recipe = lading.Initializer
    assert recipe_after(lambda x: x.normal_(1, 0.02)) == recipe("normal", mean=1.0, std=0.02)
    assert recipe_after(lambda x: nn.init.uniform_(x, -2, 3)) == recipe("uniform", low=-2.0, high=3.0)
    assert recipe_after(lambda x: nn.init.trunc_normal_(x, std=0.02)) == recipe(
        "truncated_normal", mean=0.0, std=0.02, low=-2.0, high=2.0
    )
    assert recipe_after(nn.init.ones_) == recipe("fill", value=1.0)
    assert recipe_after(lambda x: x.fill_(0.1)) == recipe("fill", value=torch.tensor(0.1).item())
    assert recipe_after(lambda x: torch.randn(4, 3) * 0.02 + 1) == recipe("normal", mean=1.0, std=0.02)
    assert recipe_after(lambda x: torch.rand(4, 3).mul_(2).sub_(1)) == recipe("uniform", low=-1.0, high=1.0)
    assert recipe_after(lambda x: torch.randn(4, 3).to(torch.bfloat16).t()) == recipe("normal", mean=0.0, std=1.0)
    assert recipe_after(lambda x: x.copy_(torch.randn(40, 50) / 4)) == recipe("normal", mean=0.0, std=0.25)
    assert recipe_after(lambda x: torch.tensor(50.0)) == recipe("fill", value=50.0)
    assert recipe_after(lambda x: torch.full((2,), -math.inf)) == recipe("fill", value=-math.inf)
    assert recipe_after(lambda x: torch.full((2,), 7, dtype=torch.int64)) == recipe("fill", value=7.0)
    # torch rounds 1 + 2^-8 + 2^-30 to float32 first, and so down to 1; the nearest bfloat16 is the one above
    assert recipe_after(lambda x: torch.full((2,), 1 + 2**-8 + 2**-30, dtype=torch.bfloat16)) == recipe(
        "fill", value=1.0
    )


def test_recipes_of_the_old_truncated_normal():
    def erfinv_way(x, mean=0.5, std=0.02, low=0.48, high=0.54):
        lower, upper = ((1 + math.erf((bound - mean) / std / math.sqrt(2))) / 2 for bound in (low, high))
        return x.uniform_(2 * lower - 1, 2 * upper - 1).erfinv_().mul_(std * math.sqrt(2)).add_(mean).clamp_(low, high)

    got = recipe_after(erfinv_way)
    assert got.kind == "truncated_normal"
    assert [got.mean, got.std, got.low, got.high] == pytest.approx([0.5, 0.02, 0.48, 0.54], rel=1e-6)
    assert recipe_after(lambda x: x.normal_().clamp_(-1, 1)) == lading.Initializer("host")  # clipped, not truncated


def test_recipes_with_a_row_of_zeros():
    def embedding(row):
        with lading.skeleton():
            return nn.Embedding(10, 4, padding_idx=row)

    for row, want in ((0, 0), (9, 9), (-1, 9)):
        assert lading.recipe_of(embedding(row).weight) == lading.Initializer("normal", mean=0.0, std=1.0, zero_row=want)
    with lading.skeleton():
        x = torch.empty(5, 5).normal_()
        x[3:4].zero_()
    assert lading.recipe_of(x).zero_row == 3
    for write in (
        lambda x: x.normal_()[:, 3].zero_(),
        lambda x: x.normal_()[3].fill_(1),
        lambda x: (x.normal_(), x[1].zero_(), x[2].zero_()),
    ):
        with lading.skeleton():
            x = torch.empty(5, 5)
            write(x)
        assert lading.recipe_of(x) == lading.Initializer("host")


def test_what_is_not_a_recipe_is_replayed():
    assert recipe_after(lambda x: torch.arange(4.0)) == lading.Initializer("host")
    assert recipe_after(nn.init.orthogonal_, 5, 5) == lading.Initializer("host")
    assert recipe_after(lambda x: torch.randn(1).expand(4)) == lading.Initializer("host")
    assert recipe_after(lambda x: torch.randn(1).expand(4).clone()) == lading.Initializer("host")
    assert recipe_after(lambda x: torch.ones(1).expand(4).clone()) == lading.Initializer("fill", value=1.0)
    assert recipe_after(lambda x: torch.randint(0, 5, (3,))) == lading.Initializer("host")
    assert recipe_after(lambda x: torch.randn(3, generator=torch.Generator().manual_seed(1))) == lading.Initializer("host")


def test_fill_recipes_are_what_torch_stores():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool):
        with lading.skeleton():
            x = torch.full((3,), 1.1, dtype=torch.float64).to(dtype)
        recipe = lading.recipe_of(x)
        assert recipe.kind == "fill" and same_bits(
            torch.full((3,), recipe.value, dtype=torch.float64).to(dtype), lading.derive(x)
        ), dtype


def test_recipes_of_long_histories():
    with lading.skeleton():
        x = torch.zeros(3000)
        for place in range(3000):
            x[place].zero_()
        y = torch.tensor(1.0)
        for _ in range(200):
            y = y * y
        z = torch.randn(4)
        for _ in range(500):
            z.mul_(1.0)
    assert lading.recipe_of(x) == lading.recipe_of(y) == lading.recipe_of(z) == lading.Initializer("host")
    assert lading.derive(x).sum() == 0 and lading.derive(y) == 1


def test_recipes_as_json():
    assert lading.Initializer("fill", value=-0.0).to_json() == {"kind": "fill", "value": -0.0}
    assert math.copysign(1, lading.Initializer("fill", value=-0.0).to_json()["value"]) == -1
    assert lading.Initializer("fill", value=math.inf).to_json()["value"] == "inf"
    assert lading.Initializer("fill", value=math.nan).to_json()["value"] == "nan"
    assert lading.Initializer("normal", mean=0.0, std=0.5, zero_row=0).to_json() == {
        "kind": "normal",
        "mean": 0,
        "std": 0.5,
        "zero_row": 0,
    }
