"""`materialize` as users of frameworks meet it, on real gloo ranks: PEFT, FSDP1, pipeline stages, experts, DDP."""

import importlib.util

import pytest
from geometry.launch import require, run_worker

require("torch")
for package in ("transformers", "peft", "accelerate"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

CASES = {
    "peft_is_initialised_alike_however_it_was_built": "R16 R65",
    "peft_over_a_model_of_nobodys": "R65",
    "peft_copies_of_a_tied_head": "R50 R65",
    "peft_that_needs_base_weights_is_refused": "R13 R66",
    "peft_from_an_adapter_file": "R65",
    "bad_adapter_files": "R39 R41",
    "seed_000_one_device": "R4 R6 R35",
    "fsdp1_with_original_parameters": "R37 R56 R61",
    "fsdp1_with_flat_parameters": "R37 R56 R61",
    "fsdp1_strategies": "R17",
    "fsdp1_again_after_evaluation": "R37",
    "fsdp1_missing_keys_are_not_hidden": "R16 R39",
    "emptied_buffers_are_refused": "R6",
    "fsdp1_of_the_zoo": "R4 R6",
    "peft_over_ddp_fsdp2_and_fsdp1": "R16 R65",
    "peft_over_tensor_parallelism": "R65",
    "seed_000_sharded": "R4 R5 R6",
    "wrapped_modules": "R9",
    "offloaded": "R36",
    "traced_pipeline": "R51",
    "manual_pipeline": "R51",
    "a_stage_of_another_model_is_refused": "R51",
    "fsdp1_hybrid": "R17",
    "pipeline_over_fsdp2_with_a_tie": "R51",
    "expert_parallel": "R47 R59",
}
DEADLINE_S = 420


@pytest.fixture(scope="module")
def results():
    return run_worker("wrappers_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES, ids=[f"{'_'.join(rules.split())}_{case}" for case, rules in CASES.items()])
def test_case(results, case):
    assert results[case] == []


def test_every_case_is_asked_about(results):
    assert set(results) == set(CASES)
