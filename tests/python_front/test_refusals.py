"""Keys that are missing, unexpected, mismatched, duplicate or half there: one message lists them all, before anything
is written; in one process, and on ranks."""

import pytest
from geometry.launch import require, run_worker

require("torch")
pytest.importorskip("transformers")

DEADLINE_S = 120
WORLDS = (0, 2)  # 0: one process without ranks


@pytest.fixture(scope="module")
def results():
    return run_worker("refusals_worker", DEADLINE_S, package="python_front", worlds=list(WORLDS))


@pytest.mark.parametrize("world", WORLDS)
def test_R39_one_message_and_a_real_model_is_as_it_was(results, world):
    assert results[f"into_memory, {world}"] == []


@pytest.mark.parametrize("world", WORLDS)
def test_R39_one_message_and_meta_stays_meta(results, world):
    assert results[f"into_meta, {world}"] == []


@pytest.mark.parametrize("world", WORLDS)
def test_R45_names_in_two_shards(results, world):
    assert results[f"in_two_shards, {world}"] == []
