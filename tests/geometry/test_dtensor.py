"""R53, R55: lading cuts as DTensor does, mesh axis by mesh axis."""

import math

import pytest

from .launch import require, run_worker
from .probe import ask, differences

require("torch")


@pytest.fixture(scope="module")
def facts():
    return run_worker("dtensor_worker", 60, seed=53, per_rank=60, described_count=3000)


def test_R53_R55_what_distribute_tensor_stores(facts):
    stored = facts["stored"]
    assert len(stored) >= 2000
    assert differences(stored) == []
    # The cases are of every kind.
    assert sum(not fact["held"] for fact in stored) > 100
    assert sum(any("strided_shard" in cut for cut in fact["cuts"]) for fact in stored) > 500
    assert max(math.prod(size for _, size in fact["mesh"]) for fact in stored) == 512


def test_R53_R55_what_the_metadata_says(facts):
    described = facts["described"]
    assert len(described) >= 2000
    questions = [{key: fact[key] for key in ("mesh", "shape", "cuts")} | {"ranks": [fact["rank"]]} for fact in described]
    for fact, answer in zip(described, ask(questions), strict=True):
        rank = answer["ranks"][0]
        assert rank["shape"] == fact["local_shape"], fact
        if rank["runs"]:
            first = rank["runs"][0][0]
            expected = 0
            for size, offset in zip(fact["shape"], fact["offset"], strict=True):
                expected = expected * size + offset
            assert first == expected, fact
