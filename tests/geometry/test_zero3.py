"""R56: ZeRO-3's flat partitions, and the second ones of ZeRO++, are where lading says."""

import pytest

from .launch import require, run_worker
from .probe import PADDING, ask, memory

require("torch", "deepspeed")

# Ranks, and how many of them share a second partition (1: there is none).
WORLDS = [(2, 1), (3, 1), (4, 1), (4, 2)]
SHAPES = 520


@pytest.fixture(scope="module")
def results():
    return run_worker("zero3_worker", 110, seed=56, worlds=WORLDS, count=SHAPES, rank_deadline_s=50)


@pytest.mark.parametrize("world", range(len(WORLDS)), ids=[f"ranks{ranks}-hpz{hpz}" for ranks, hpz in WORLDS])
def test_R56_partitions_are_where_lading_says(results, world):
    facts = [fact for rank in results[world] for fact in rank["facts"]]
    ranks, hpz = WORLDS[world]
    assert len(facts) == SHAPES * ranks * (2 if hpz > 1 else 1)
    questions = [{key: fact[key] for key in ("mesh", "shape", "cuts")} | {"ranks": [fact["rank"]]} for fact in facts]
    padding = empty = 0
    for fact, answer in zip(facts, ask(questions), strict=True):
        expected = memory(answer["ranks"][0]).tolist()
        assert len(fact["held"]) == len(expected), fact
        # DeepSpeed leaves the padding of the first partition undefined; lading will write zeros there.
        for found, index in zip(fact["held"], expected, strict=True):
            if index != PADDING:
                assert found == index, fact
            else:
                padding += 1
                assert fact["slot"] == "primary" or found == 0, fact
        empty += all(index == PADDING for index in expected)
    assert padding > 100 and empty > 0
    assert all(rank["gathered"] for rank in results[world])


def test_enough_shapes():
    assert SHAPES * len(WORLDS) >= 2000
