"""`lading.save` on real gloo ranks: every layout writes the files that transformers writes in one process."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from geometry.launch import run_worker  # noqa: E402

DEADLINE_S = 280
LAYOUTS = ("fsdp2x1", "ddp", "fsdp2", "fsdp2x4", "hsdp", "tp", "fsdp2tp")
MODELS = ("small", "small_untied", "llama", "llama_tied", "qwen3_moe", "mixtral", "bfloat16")
COPIES = (("ddp", "experts_of_their_own"), ("ddp", "buffers_of_their_own"))
CASES = (
    ("fsdp2", "a_target_that_exists"),
    ("fsdp2", "a_parent_that_cannot_be_written"),
    ("fsdp2", "a_rank_with_other_arguments"),
    ("fsdp2", "a_rank_that_stops"),
    ("fsdp2", "a_rank_that_cannot_write"),
    ("fsdp2", "after_a_step"),
    ("fsdp2", "into_another_dtype"),
    ("fsdp2", "a_config_that_is_refused"),
    ("fsdp2", "keys_of_the_base_are_kept"),
    ("fsdp2", "meta_is_refused"),
    ("tp", "a_tie_taken_apart"),
)


@pytest.fixture(scope="module")
def results():
    return run_worker("save_worker", DEADLINE_S, package="save", layouts=LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_R69_the_files_are_those_of_one_process(results, layout, model):
    assert results[layout][model] == []


@pytest.mark.parametrize(("layout", "case"), CASES)
def test_R69_case(results, layout, case):
    assert results[layout][case] == []


@pytest.mark.parametrize(("layout", "case"), COPIES)
def test_R17_copies_that_differ(results, layout, case):
    assert results[layout][case] == []


def test_none_is_forgotten(results):
    assert {(layout, case) for layout in LAYOUTS for case in results[layout]} == {
        *CASES, *COPIES, *((layout, model) for layout in LAYOUTS for model in MODELS)
    }  # fmt: skip
