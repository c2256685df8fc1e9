"""The front on a GPU: each case loads on `cuda:0` where there is one, and otherwise on the CPU, so that the cases
themselves are tried everywhere. `tools/gpu_check` counts those whose device was a GPU."""

import pytest
from geometry.launch import require, run_worker

require("torch", exactly=False)
pytest.importorskip("transformers")

DEADLINE_S = 280
CASES = (
    "from_meta",
    "a_real_model_moves_to_the_device",
    "kept_values_move_to_the_device",
    "memory_on_the_device_is_written_in_place",
    "in_bfloat16",
    "read_again_and_compared",
    "audit_names_the_one_stranded_buffer",
    "fsdp2",
    "fsdp2_offloaded",
    "fsdp1",
    "several_stages",
    "saved_from_the_device",
)


@pytest.fixture(scope="module")
def results():
    return run_worker("gpu_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES)
def test_case(results, record_property, case):
    record_property("device", results["device"])
    assert results["cases"][case] == []


def test_none_is_forgotten(results):
    assert set(results["cases"]) == set(CASES)
