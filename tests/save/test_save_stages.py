"""`lading.save` of pipeline stages: one checkpoint of the whole comes out, or an error on all ranks."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from geometry.launch import run_worker  # noqa: E402

DEADLINE_S = 320
CASES = (
    "two_stages",
    "several_stages_on_a_rank",
    "all_stages_in_one_process",
    "stages_of_nobodys",
    "stages_that_were_loaded",
    "a_traced_pipeline",
    "only_one_stage_has_a_config",
    "a_tie_of_two_keys",
    "tied_values_that_differ",
    "copies_that_differ",
    "a_config_of_one_stage",
    "a_stage_that_nobody_has",
    "keys_that_nobody_knows",
    "a_stage_on_meta",
    "a_class_that_cannot_be_built_again",
    "stages_over_fsdp2",
    "stages_over_fsdp1",
    "stages_over_tensor_parallelism",
    "stages_sharded_differently",
    "replicated_stages",
)


@pytest.fixture(scope="module")
def results():
    return run_worker("stages_worker", DEADLINE_S, package="save", worlds=[2, 4])


@pytest.mark.parametrize("case", CASES)
def test_R69_stages(results, case):
    assert results[case] == []


def test_none_is_forgotten(results):
    assert set(results) == set(CASES)
