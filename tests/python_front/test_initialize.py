"""`lading.initialize`: models that start without a checkpoint."""

import importlib.util
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import initialize_worker as models  # noqa: E402
import ranks_launch  # noqa: E402
from torch import nn  # noqa: E402

import lading  # noqa: E402

WITH_DEEPSPEED = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
LAYOUTS = ("ddp on 1", "ddp on 2", "fsdp2 on 1", "fsdp2 on 2", "fsdp2 on 3", "tp on 2")
LAYOUTS += (pytest.param("zero3 on 2", marks=WITH_DEEPSPEED),)


def initialized(seed=models.SEED, **options):
    model = models.skeleton()
    report = lading.initialize(model, seed=seed, device="cpu", progress=False, **options)
    return model, report


@pytest.fixture(scope="module")
def results():
    return ranks_launch.run_script(Path(models.__file__), 240)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_R16_R17_every_layout_has_the_same_bits(results, layout):
    alone, _ = initialized()
    wanted = models.digests(alone)
    for answer in results[layout]:
        assert answer["digests"] == wanted
        assert answer["tied"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_R18_the_process_keeps_its_random_numbers(results, layout):
    assert all(answer["rng_untouched"] for answer in results[layout])


def test_a_rank_that_starts_from_a_checkpoint_stops_all(results):
    texts = results["mixed"]
    assert texts[0] == texts[1]
    assert "initialize" in texts[0] and "materialize" in texts[0]


def test_constants_buffers_and_structure_are_the_constructors():
    model, report = initialized()
    own = models.Model()
    block, theirs = model.blocks[1], own.blocks[1]
    assert torch.equal(block.norm.weight, theirs.norm.weight) and torch.equal(block.norm.bias, theirs.norm.bias)
    assert torch.equal(block.steps, theirs.steps) and torch.equal(block.seen, theirs.seen)
    assert torch.equal(model.embed.weight[3], torch.zeros(24)), "R20: the padding row"
    assert torch.count_nonzero(model.embed.weight) == 30 * 24
    turn = block.turn.weight
    assert torch.allclose(turn @ turn.T, torch.eye(24), atol=1e-5), "orthogonal"
    assert report.read_bytes == 0
    assert {one.provenance for one in report.tensors.values()} <= {"random", "fill", "host"}
    assert "there is no checkpoint" not in str(report)


def test_moments_are_the_constructors():
    with lading.skeleton():
        layer = nn.Linear(400, 500)
    lading.initialize(layer, seed=5, device="cpu", progress=False)
    bound = 1 / math.sqrt(400)
    weight = layer.weight.detach()
    assert weight.abs().max() <= bound
    assert abs(weight.mean()) < 5 * bound / math.sqrt(3 * weight.numel())
    assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.01


def test_seeds_and_names_make_the_difference():
    one, other = initialized(1)[0], initialized(2)[0]
    assert not torch.equal(one.blocks[0].up.weight, other.blocks[0].up.weight)
    assert not torch.equal(one.blocks[0].up.weight, one.blocks[1].up.weight)
    assert models.digests(one) == models.digests(initialized(1)[0])


def test_R19_values_are_drawn_in_float32_and_rounded_once():
    plain, _ = initialized()
    rounded, _ = initialized(dtype=torch.bfloat16, cast="exact")
    assert rounded.blocks[0].up.weight.dtype == torch.bfloat16
    assert torch.equal(rounded.blocks[0].up.weight, plain.blocks[0].up.weight.bfloat16())


def test_R7_a_value_that_is_there_is_kept():
    model = models.skeleton()
    value = torch.full((40, 24), 7.0)
    model.blocks[0].up.weight = nn.Parameter(value.clone())
    report = lading.initialize(model, seed=1, device="cpu", progress=False)
    assert torch.equal(model.blocks[0].up.weight, value)
    assert report.tensors["blocks.0.up.weight"].provenance == "kept"


def test_R13_what_no_constructor_recorded_is_refused_by_name():
    with torch.device("meta"):
        model = models.Model()
    with pytest.raises(lading.LadingError) as error:
        lading.initialize(model, device="cpu", progress=False)
    refused = {problem.tensor for problem in error.value.problems}
    assert {"embed.weight", "blocks.1.turn.weight", "blocks.0.norm.bias"} <= refused
    assert model.embed.weight.is_meta
    assert "lading.skeleton()" in str(error.value)


def test_memory_without_a_value_is_refused():
    model = models.skeleton()
    model.to_empty(device="cpu")
    with pytest.raises(lading.LadingError, match="to_empty"):
        lading.initialize(model, device="cpu", progress=False)


def test_recipes_and_external_values_win():
    model = models.skeleton()
    head = torch.randn(31, 24)
    lading.initialize(
        model, device="cpu", progress=False, external={"embed.weight": head},
        recipes={"blocks.*.gate": lambda module, name: torch.full((7, 24), 2.0)},
    )  # fmt: skip
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.blocks[1].gate, torch.full((7, 24), 2.0))


def test_materialize_still_wants_a_checkpoint():
    with pytest.raises(TypeError):
        lading.materialize(models.skeleton(), None, device="cpu")
