"""Exhibits of docs/how-it-works/museum.md that are about saving: saves that report success and lose keys or values, or
leave a mixture behind, beside lading with the same model."""

import pytest
from geometry.launch import require, run_worker, wrong_in

pytest.importorskip("transformers")

DEADLINE_S = 150
FILES_DEADLINE_S = 280
ADAPTER_KEYS = 13
EXPERTS = 2 * 12 * 3  # of two layers: gate, up and down of each


@pytest.fixture(scope="module")
def answers():
    return run_worker("museum_worker", DEADLINE_S, package="save")


@wrong_in("torch", "transformers")
@pytest.mark.parametrize("case", ["fsdp", "tp"])
def test_museum_51_R69_transformers_saves_experts_that_no_loader_finds(answers, case):
    """Its distributed save does not revert its conversions: fused experts under names that the format does not have."""
    assert answers[case]["missing"] == EXPERTS and answers[case]["unknown"] == 4


@pytest.mark.parametrize("case", ["fsdp", "tp"])
def test_museum_51_R69_every_key_of_the_format_is_written(answers, case):
    assert answers[case]["ours"] == []


# ---- what is in the directory


@pytest.fixture(scope="module")
def files():
    require("deepspeed")
    pytest.importorskip("peft")
    return run_worker("museum_files_worker", FILES_DEADLINE_S, package="save")


@wrong_in("transformers")
def test_museum_52_R69_transformers_leaves_an_index_of_files_that_are_gone(files):
    """Several files, and then one in the same directory: the shards are deleted, and their index is not."""
    assert files["stale"]["theirs"] == "FileNotFoundError"


def test_museum_52_R69_a_replaced_directory_has_no_file_of_the_old_one(files):
    assert files["stale"]["ours"] == ""


@wrong_in("transformers")
def test_museum_53_R69_transformers_leaves_a_mixture_of_two_checkpoints(files):
    """The disk refuses one file; those before it are the new checkpoint's, and the index fits both."""
    assert files["torn"]["theirs"]["raised"] and files["torn"]["theirs"]["left"] == "other values"


def test_museum_53_R69_the_old_checkpoint_is_left_as_it_was(files):
    assert files["torn"]["ours"] == {"raised": "LadingError", "left": ""}


@wrong_in("transformers", "deepspeed")
@pytest.mark.parametrize("case", ["zero3", "adapter under zero3"])
def test_museum_54_R69_partitioned_tensors_are_saved_empty(files, case):
    """`save_pretrained` of transformers and of PEFT under ZeRO-3, without a gather: every key is there, without rows."""
    missing, shapes, _ = files[case]["theirs"]
    assert files[case]["raised"] == "" and missing == 0 and shapes == {"zero3": 21}.get(case, ADAPTER_KEYS)


@pytest.mark.parametrize("case", ["zero3", "adapter under zero3", "adapter under fsdp2"])
def test_museum_54_R69_partitions_are_saved_by_their_ranks(files, case):
    assert files[case]["ours"] == [0, 0, 0]
