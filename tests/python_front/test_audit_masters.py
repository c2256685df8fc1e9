"""`lading.audit` and the copies of parameters that DeepSpeed's optimizers keep: one that is stale brings the old weights
back with the first step, which the worker tries."""

import pytest
from geometry.launch import require, run_worker

require("torch")
require("deepspeed", exactly=False)

DEADLINE_S = 150
CASES = [(stage, dtype) for stage in (0, 1, 2, 3) for dtype in ("float32", "bfloat16")]


@pytest.fixture(scope="module")
def results():
    return run_worker("audit_masters_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("stage, dtype", CASES)
def test_stale_copies_are_found(results, stage, dtype):
    """On the ranks that hold them: a copy is shared out, so all ranks together name every parameter."""
    answers = results[f"stage {stage}, {dtype}, stale"]
    assert not any("failed" in answer for answer in answers), answers
    found = {tuple(one) for answer in answers for one in answer["found"]}
    assert answers[0]["is_kept"] is ((stage, dtype) == (0, "float32"))  # whose optimizer has the parameters themselves
    if answers[0]["is_kept"]:
        assert found == set()
    else:
        assert found == {("master", "0.weight"), ("master", "1.weight")}
        assert all(answer["found"] for answer in answers)


@pytest.mark.parametrize("stage, dtype", CASES)
def test_right_copies_are_silent(results, stage, dtype):
    """Before and after a step."""
    for answer in results[f"stage {stage}, {dtype}, right"]:
        assert answer.get("found") == answer.get("stepped") == [], answer
        assert answer["is_kept"]


LORA_B = "base_model.model.fc.lora_B.default.weight"


@pytest.mark.parametrize("way", ["plain", "fsdp1", "fsdp2", "zero3"])
def test_adapters_on_ranks(results, way):
    for rank, answer in enumerate(results[f"adapters, {way}"]):
        assert answer.get("right") == [], answer
        assert answer["checked"] == [7, 3]
        assert any("4 adapter tensors were not judged" in note for note in answer["notes"])
        wrong = {("value", LORA_B)} if rank == 1 else set()
        assert {tuple(one) for one in answer["found"] if one[0] != "replicas"} == wrong
