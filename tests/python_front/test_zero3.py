"""`materialize` fills DeepSpeed's ZeRO-3 partitions, on real gloo ranks."""

import pytest
from geometry.launch import require, run_worker

require("torch", "deepspeed")
pytest.importorskip("transformers")

DEADLINE_S = 280
CASES = (
    "a_small_model on 1 ranks",
    "a_small_model on 2 ranks",
    "a_model_from_meta on 2 ranks",
    "adapters_of_peft on 2 ranks",
    "adapters_from_a_file on 2 ranks",
    "adapters_with_values_are_kept on 2 ranks",
    "views_of_parameters_are_refused on 2 ranks",
    "ties_that_to_empty_took_apart on 2 ranks",
    "both_contexts_at_once on 2 ranks",
    "rope_is_made_anew on 2 ranks",
    "parts_of_transformers_models on 2 ranks",
    "what_cannot_be_derived_is_kept_and_said on 2 ranks",
    "narrower_partitions_are_refused on 2 ranks",
    "wrong_keys_are_listed on 2 ranks",
    "values_may_be_kept on 2 ranks",
    "parameters_that_zero3_does_not_have on 2 ranks",
    "not_while_gathered on 2 ranks",
    "not_in_a_forward_pass on 2 ranks",
    "every_other_refusal on 2 ranks",
    "training_in_fp32 on 2 ranks",
    "training_in_bf16 on 2 ranks",
    "masters_take_what_the_file_has on 2 ranks",
    "masters_in_batches on 2 ranks",
    "again_after_training on 2 ranks",
    "a_small_model on 4 ranks",
    "a_model_from_meta on 4 ranks",
    "one_rank_fails_and_all_are_told on 4 ranks",
    "secondary_partitions on 4 ranks",
    "groups_of_some_ranks on 4 ranks",
)


@pytest.fixture(scope="module")
def results():
    return run_worker("zero3_worker", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES)
def test_case(results, case):
    """R7, R14, R21, R23, R29, R38, R44, R49, R56, R61: each case says which."""
    assert results[case] == []


def test_none_is_forgotten(results):
    assert set(results) == set(CASES)
