"""Placements, on four ranks: what lading loads is what torch itself makes of a real model, or it is refused on all of
them."""

import pytest

from geometry.launch import require, run_worker

require("torch")

CASES = (
    "names",
    "mesh_orders",
    "flat_groups",
    "random_exchanges",
    "stalled_exchange",
    "ties_of_some_ranks",
    "kept_replicas",
)


@pytest.fixture(scope="module")
def results():
    return run_worker("placements_worker", 180, package="python_front", cases=list(CASES))


def test_names_are_no_patterns(results):
    assert results["names"] == []


def test_R43_every_order_of_ranks_in_a_mesh_is_torchs_or_refused(results):
    assert results["mesh_orders"] == []


def test_R43_groups_of_fsdp1_in_any_order(results):
    assert results["flat_groups"] == []


def test_R58_random_placements_with_an_exchange(results):
    assert results["random_exchanges"] == []


def test_R44_a_stall_of_the_exchange_names_it_and_its_ranks(results):
    assert results["stalled_exchange"] == []


def test_R30_ties_of_some_ranks_only(results):
    assert results["ties_of_some_ranks"] == []


def test_R17_kept_replicas_that_differ(results):
    assert results["kept_replicas"] == []
