"""Models that change between `lading.skeleton()` and sharding, on ranks: changed_worker.py says what is done."""

from pathlib import Path

import pytest
from ranks_launch import run_script

WORKER = Path(__file__).resolve().parent / "changed_worker.py"


@pytest.fixture(scope="module")
def results():
    return run_script(WORKER, 300)


LAYOUTS = ("fsdp2", "tp", "zero3", "fsdp1")
CHANGES = (
    "tie, embed only",
    "tie, both equal",
    "tie, both differ",
    "untie, embed only",
    "untie, both differ",
    "nothing, both differ",
    "tied from the start, embed only",
    "init, embed only",
    "init through .data, embed only",
    "replace, embed only",
    "replace, recorded, embed only",
)


ONE_OF_TWO = tuple(f"tied from the start, {file}" for file in ("both equal", "both differ", "embed only"))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_R9_what_was_sharded_is_what_is_filled(results, layout, change):
    assert results[f"{layout}: {change}"] == []


@pytest.mark.parametrize("change", ONE_OF_TWO)
def test_R52_a_tie_of_which_one_name_was_sharded(results, change):
    assert results[f"tp of the embedding: {change}"] == []


AFTER = ("init after sharding, embed only", ".data after sharding, embed only", "nothing after sharding, both differ")


@pytest.mark.parametrize("change", AFTER)
@pytest.mark.parametrize("layout", ["fsdp2, then", "tp, then"])
def test_R13_what_is_written_after_sharding_is_noticed(results, layout, change):
    assert results[f"{layout}: {change}"] == []


def test_every_case_was_run(results):
    every = {f"{layout}: {change}" for layout in LAYOUTS for change in CHANGES}
    every |= {f"tp of the embedding: {change}" for change in ONE_OF_TWO}
    assert set(results) == every | {f"{layout}, then: {change}" for layout in ("fsdp2", "tp") for change in AFTER}
