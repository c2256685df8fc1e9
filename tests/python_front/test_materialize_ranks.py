"""`materialize` on real gloo ranks: every layout fills a small model and a tiny Llama, and every rank holds the right
bits."""

import pytest
import ranks_launch

LAYOUTS = ("ddp", "fsdp2x1", "fsdp2", "fsdp2x4", "hsdp", "tp", "fsdp2tp")
BUILDS = ("small, skeleton", "small, meta", "small_untied, skeleton", "llama, meta", "llama_tied, skeleton")
DEADLINE_S = 240


@pytest.fixture(scope="module")
def results():
    return ranks_launch.run_layouts(LAYOUTS, DEADLINE_S)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("build", BUILDS)
def test_every_tensor_is_right(results, layout, build):
    """R4, R5, R17, R49, R53, R54, R61: values, dtype, device, identity, requires_grad, ties, and the forward pass."""
    assert results[layout]["cases"][build] == []


@pytest.mark.parametrize(
    ("layout", "case"),
    [
        ("ddp", "a_rank_that_stays_away"),
        ("ddp", "wrapped_in_ddp"),
        ("fsdp2", "bad_keys_are_listed_together"),
        ("fsdp2", "one_rank_fails_and_all_are_told"),
        ("fsdp2", "ranks_that_differ_are_refused"),
        ("fsdp2", "more_layers_on_one_rank_are_refused"),
        ("fsdp2", "in_bfloat16_on_request"),
        ("fsdp2", "again_after_a_forward_pass"),
        ("fsdp2", "one_load_fails_and_nobody_has_weights"),
        ("fsdp2", "offloaded_to_the_cpu"),
        ("fsdp2", "external_values_may_be_sharded"),
        ("fsdp2", "values_that_ranks_hand_in_must_be_the_same"),
        ("fsdp2", "wrong_words_on_one_rank_reach_all"),
        ("fsdp2", "an_audit_leaves_a_gathered_model_usable"),
        ("fsdp2x4", "bad_keys_are_listed_together"),
        ("fsdp2x4", "several_meshes_in_one_model"),
        ("fsdp2x4", "fully_shard_over_strided_shards"),
        ("fsdp2x4", "a_mesh_without_order_is_refused"),
        ("fsdp2x4", "ranks_outside_of_a_mesh"),
        ("fsdp2x4", "a_group_of_some_ranks"),
        ("fsdp2x4", "pipeline_stages_over_fsdp2"),
        ("tp", "views_of_what_was_sharded_since_are_refused"),
        ("tp", "partial_placements_are_refused"),
        ("tp", "buffers_may_be_dtensors"),
        ("tp", "strided_shards_of_fused_weights"),
    ],
)
def test_case(results, layout, case):
    assert results[layout]["cases"][case] == []
