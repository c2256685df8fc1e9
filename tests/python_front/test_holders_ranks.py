"""Wrappers and optimizers that keep copies of what a load fills, on real gloo ranks (python/lading/holders.py)."""

import pytest
from geometry.launch import require, run_worker

require("torch", "deepspeed")
pytest.importorskip("peft")
pytest.importorskip("accelerate")

DEADLINE_S = 150
CASES = (
    "deepspeed_masters",
    "deepspeed_refusals",
    "ddp_and_its_buckets",
    "accelerate_offload_is_refused",
    "merged_adapters_are_refused",
    "dora_caches_are_cleared",
    "gathers_of_fsdp2_that_nobody_used",
    "extra_state_that_fails_on_one_rank",
)


@pytest.fixture(scope="module")
def results():
    return run_worker("holders_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES, ids=[f"R61_{case}" for case in CASES])
def test_case(results, case):
    assert results[case] == []


def test_every_case_is_asked_about(results):
    assert set(results) == set(CASES)
