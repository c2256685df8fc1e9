"""Exhibits of docs/how-it-works/museum.md that are about saving: a save that reports success and loses keys, beside
lading with the same model."""

import pytest
from geometry.launch import run_worker, wrong_in

pytest.importorskip("transformers")

DEADLINE_S = 150
EXPERTS = 2 * 12 * 3  # of two layers: gate, up and down of each


@pytest.fixture(scope="module")
def answers():
    return run_worker("museum_worker", DEADLINE_S, package="save")


@wrong_in("torch", "transformers")
@pytest.mark.parametrize("case", ["fsdp", "tp"])
def test_museum_51_R69_transformers_saves_experts_that_no_loader_finds(answers, case):
    """Its distributed save does not revert its conversions: fused experts under names that the format does not have."""
    assert answers[case]["missing"] == EXPERTS and answers[case]["unknown"] == 4


@pytest.mark.parametrize("case", ["fsdp", "tp"])
def test_museum_51_R69_every_key_of_the_format_is_written(answers, case):
    assert answers[case]["ours"] == []
