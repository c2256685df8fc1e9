"""`lading.save` of ZeRO-3 partitions and of FSDP1's flat parameters, on real gloo ranks."""

import pytest
from geometry.launch import require, run_worker

require("torch", "deepspeed")
pytest.importorskip("transformers")

DEADLINE_S = 280
MODELS = ("small", "small_untied", "llama", "llama_tied", "qwen3_moe", "mixtral")
CASES = [f"{layout}, {model} on {world} ranks" for layout in ("zero3", "fsdp1") for model in MODELS for world in (2, 4)]


CASES += [f"zero3, gathered on {world} ranks" for world in (2, 4)]


@pytest.fixture(scope="module")
def results():
    return run_worker("flat_worker", DEADLINE_S, package="save")


@pytest.mark.parametrize("case", CASES)
def test_R69_the_case_holds(results, case):
    assert results[case] == []


def test_none_is_forgotten(results):
    assert set(results) == set(CASES)
