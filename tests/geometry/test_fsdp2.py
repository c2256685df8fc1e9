"""R53, R54, R55: what fully_shard() really stores, whatever the DTensor's placements say."""

import math

import pytest

from .launch import require, run_worker
from .probe import ask, differences, memory

require("torch")

# n = 25 over dp=4, tp=2, as the contract has it: (dp, tp) -> rows.
CONTRACT = {(3, 0): [12], (3, 1): [22, 23, 24], (0, 0): [0, 1, 2, 3], (0, 1): [13, 14, 15]}


WORLDS = [{"dp": 3}, {"replicate": 2, "dp": 2}, {"dp": 2, "tp": 2}, {"dp": 4, "tp": 2}]


def held_in(facts):
    """Of what was not refused. FSDP2 judges each rank by itself and lading all together, so `even` is left out:
    what one rank holds is the same."""
    held = []
    for fact in facts:
        if "refused" not in fact:
            cuts = [{key: value for key, value in cut.items() if key != "even"} for cut in fact["cuts"]]
            held.append(fact | {"cuts": cuts})
    return held


def question(fact, rank):
    return {key: fact[key] for key in ("mesh", "shape", "cuts")} | {"ranks": [rank]}


def first_of_shard_group(fact):
    """The rank with the same model coordinate that has the first, largest part."""
    mesh = dict(fact["mesh"])
    coordinate, rest = {}, fact["rank"]
    for name in reversed(mesh):
        coordinate[name] = rest % mesh[name]
        rest //= mesh[name]
    first = 0
    for name in mesh:
        first = first * mesh[name] + (0 if name == "dp" else coordinate[name])
    return first


@pytest.fixture(scope="module")
def fake_facts():
    return run_worker("fsdp2_worker", 100, mode="fake", seed=54, per_rank=50)


def test_R53_R54_R55_random_shapes_on_fake_worlds(fake_facts):
    held = held_in(fake_facts)
    assert len(held) >= 2000
    assert differences(held) == []
    # The cases are of every kind.
    assert sum(not fact["held"] for fact in held) > 100
    assert sum(len(fact["cuts"]) > 1 for fact in held) > 500
    assert max(math.prod(size for _, size in fact["mesh"]) for fact in held) == 128


def test_R53_what_fsdp2_refuses_is_refused(fake_facts):
    """FSDP2 raises on the ranks whose local size is uneven; lading refuses the layout on all of them."""
    refused = [fact for fact in fake_facts if "refused" in fact]
    assert len(refused) > 20
    for fact, answer in zip(refused, ask([question(fact, fact["rank"]) for fact in refused]), strict=True):
        assert any("R53" in error for error in answer.get("errors", [])), fact


def test_R56_padding_is_zero_and_up_to_the_first_ranks_size(fake_facts):
    held = held_in(fake_facts)
    assert all(fact["zero_padding"] for fact in held)
    for fact, answer in zip(held, ask([question(fact, first_of_shard_group(fact)) for fact in held]), strict=True):
        assert answer["ranks"][0]["buffer"] == fact["storage"], fact


@pytest.fixture(scope="module")
def real_facts():
    worlds = [list(sizes.items()) for sizes in WORLDS]
    return run_worker("fsdp2_worker", 100, mode="real", worlds=worlds, rank_deadline_s=40)


@pytest.mark.parametrize("world", range(len(WORLDS)), ids=[str(sizes) for sizes in WORLDS])
def test_R54_real_ranks_hold_and_gather_the_tensor(real_facts, world):
    held = held_in(real_facts[world])
    assert len(held) == len(real_facts[world]) > 100
    assert differences(held) == []
    assert sum(not fact["held"] for fact in held) > 10
    # FSDP2's all-gather over dp gives each rank what lading says the model axes alone leave it.
    before = [fact | {"cuts": [cut for cut in fact["cuts"] if cut["axes"] != ["dp"]]} for fact in held]
    for fact, answer in zip(held, ask([question(fact, fact["rank"]) for fact in before]), strict=True):
        assert memory(answer["ranks"][0]).tolist() == fact["gathered"], fact


def test_R54_the_contracts_example(real_facts):
    rows = {}
    for fact in real_facts[WORLDS.index({"dp": 4, "tp": 2})]:
        if fact["shape"] == [25] and "shard" in fact["cuts"][0]:
            rows[fact["rank"] // 2, fact["rank"] % 2] = fact["held"]
    assert {coordinate: rows[coordinate] for coordinate in CONTRACT} == CONTRACT
