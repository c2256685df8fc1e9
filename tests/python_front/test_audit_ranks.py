"""`lading.audit` on ranks, after the loaders that are wrong today, and after right ones (docs/guides/audit.md).

What is flagged must be what a comparison that knows nothing of lading finds, and what each case expects by name.
"""

import importlib.util

import pytest
from geometry.launch import require, run_worker, wrong_in

require("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
GROUPS = ["two", "four", "eight", *(["zero3"] if HAS_DEEPSPEED else [])]
DEADLINE_S = 240

UNWRITTEN = {("value", "inv_freq"), ("value", "softcap")}
NARROWED = {
    ("dtype", name)
    for name in ("A_log", "embed.weight", "frozen", "head.weight", "input_max", "layer_scalar", "norm.weight")
}
WRONG = {  # the same on every rank
    "b_transformers_rank0_only": {("value", "softcap"), ("replicas", "softcap"), ("unfrozen", "frozen")},
    "c_dcp_full": UNWRITTEN,
    "c_dcp_broadcast": UNWRITTEN,
    "c_dcp_reader": UNWRITTEN,
    "c_transformers_fsdp": {("value", "softcap")},
    "d_dcp_to_empty": NARROWED | {("dtype", "inv_freq"), ("dtype", "softcap")},
    "d_dcp_reader": NARROWED | {("dtype", "inv_freq"), ("dtype", "softcap")},
    "d_dcp_on_meta": {("dtype", "lin.weight")},
    "f_dcp_reader_on_meta": {("meta", "inv_freq"), ("meta", "softcap")},
    "f_dcp_reader_and_set_on_meta": {("meta", name) for _, name in NARROWED} | {("meta", "lin.weight")},
    "g_dcp_full_on_meta": {("meta", "head.weight"), ("untied", "head.weight")},
    "h_dcp_strict": {("plan", "norm.weight")},
    "h_dcp_strict_on_meta": {
        ("meta", "head.weight"), ("untied", "head.weight"), ("meta", "norm.weight"), ("plan", "norm.weight"),
    },
}  # fmt: skip
ROPE = "model.language_model.rotary_emb.sliding_attention"
WRONG_ZERO3 = {
    "a_zero3_bf16": {("dtype", f"{ROPE}_inv_freq"), ("dtype", f"{ROPE}_original_inv_freq")},
    "d_zero3": {
        ("dtype", name) for name in ("A_log", "embed.weight", "frozen", "gain.scale", "lin.bias", "lin.weight")
    },
}
zero3 = pytest.mark.skipif(not HAS_DEEPSPEED, reason="deepspeed is not installed")


@pytest.fixture(scope="module")
def results():
    return run_worker("audit_worker", DEADLINE_S, package="python_front", groups=GROUPS)


def found(answer):
    assert "failed" not in answer, answer["failed"]
    return {tuple(one) for one in answer["found"]}


def assert_exact(answers, expected):
    for answer in answers:
        assert found(answer) == expected
        assert answer["wrong"] == sorted({name for _, name in expected})
        assert answer["raised"] and answer["warnings"] == []


def peer_of(case):
    return "transformers" if "transformers" in case else "torch"


@pytest.mark.parametrize("case", [pytest.param(case, marks=wrong_in(peer_of(case))) for case in WRONG])
def test_a_wrong_load(results, case):
    assert_exact(results[case], WRONG[case])


@pytest.mark.parametrize("case", ["right_dcp_full", "right_lading", pytest.param("right_zero3_fp32", marks=zero3)])
def test_a_right_load(results, case):
    for answer in results[case]:
        assert found(answer) == set() and answer["wrong"] == [] and answer["warnings"] == []
        assert answer["raised"] == "" and answer["checked"]["with the checkpoint"] > 0


@wrong_in("torch")
def test_the_first_difference_by_its_index(results):
    messages = results["c_dcp_full"][0]["messages"]
    assert "4 of 4 elements, the first at [0]; expected 1.0, found nan" in messages["inv_freq"]
    assert "1 of 1 elements, the first in its value; expected 50.0, found nan" in messages["softcap"]
    assert "the first at [1, 2] of this rank's part" in results["a_row_of_one_rank"][1]["messages"]["lin.weight"]


@zero3
@wrong_in("deepspeed")
@pytest.mark.parametrize("case", WRONG_ZERO3)
def test_a_wrong_load_under_zero3(results, case):
    assert_exact(results[case], WRONG_ZERO3[case])


@zero3
@wrong_in("deepspeed")
def test_d_zero3_rounds_a_pinned_parameter(results):
    for answer in results["d_zero3"]:
        assert answer["exact"] == [["dtype", "A_log"]]


@zero3
@wrong_in("transformers", "deepspeed")
def test_j_a_buffer_that_was_spread(results):
    """The loader itself says that nothing was mismatched or unexpected."""
    for answer in results["j_zero3"]:
        assert answer["scale"] == [7.0] * 4 and not any(answer["told"].values())
        assert found(answer) == {("plan", "gain.scale"), ("plan", "surplus")} and answer["raised"]
        assert answer["wrong"] == ["gain.scale"]


@wrong_in("transformers")
def test_i_one_tensor_from_two_sources(results):
    for answer in results["i_transformers_ignores"]:
        assert found(answer) == {("plan", "embed.weight"), ("value", "softcap")} and answer["raised"]
    assert [answer["from_file"] for answer in results["i_transformers_ignores"]] == [True, True, True, False]


@wrong_in("accelerate", "torch")
def test_i_a_row_that_nobody_wrote(results):
    """Rank 0 was refused and is still on meta; the others returned."""
    first, *others = results["i_accelerate"]
    assert "size mismatch" in first["refused"] and found(first) == {("meta", "0.weight"), ("plan", "0.weight")}
    for answer in others:
        assert answer["refused"] == "" and found(answer) == {("plan", "0.weight")} and answer["raised"]


@wrong_in("torch")
def test_l_storage_and_metadata(results):
    """R54. 25 rows over 4 by 2 ranks: the last two hold what DTensor's metadata says, and not what FSDP2 gathers."""
    answers = results["l_dtensor_metadata"]
    wrong = {("shape", "weight"), ("shape", "bias")}
    assert [found(answer) for answer in answers] == [set()] * 6 + [wrong] * 2
    assert all(answer["raised"] for answer in answers)
    assert not any(found(answer["right"]) for answer in answers)


# ---- one rank among others


def test_a_sharded_part_is_found_on_its_rank(results):
    mine, other = results["a_row_of_one_rank"]
    assert found(mine) == set() and found(other) == {("value", "lin.weight")}
    assert mine["raised"] == other["raised"] != ""


def test_a_part_of_a_flat_buffer(results):
    """FSDP1: silent after a right load, and one element is found on its rank, by its index."""
    mine, other = results["an_element_of_fsdp1"]
    assert not found(mine["right"]) and not found(other["right"]) and not found(mine)
    assert found(other) == {("value", other["changed"])}
    assert "1 of" in other["messages"][other["changed"]] and "of the flattened" in other["messages"][other["changed"]]
    assert mine["right"]["checked"]["with the checkpoint"] == other["right"]["checked"]["with the checkpoint"] == 8


def test_R17_replicas_are_compared(results):
    for answer in results["a_copy_that_differs"]:
        assert found(answer) == {("replicas", "layer_scalar")} and answer["raised"]


def test_what_ranks_hold_differently_hides_nothing(results):
    for answer in results["a_dtype_of_one_rank"]:
        assert found(answer) == {("ranks_differ", "layer_scalar"), ("replicas", "layer_scalar")}
        assert answer["checked"]["with the checkpoint"] > 5


def test_k_a_file_that_one_rank_cannot_read(results):
    whole, short = results["a_file_of_one_rank"]
    assert found(whole) == set() and {code for code, _ in found(short)} == {"data_truncated"}
    assert whole["raised"] == short["raised"] != ""


def test_a_rank_that_fails_tells_the_others(results):
    texts = {answer["raised"] for answer in results["a_failure_of_one_rank"]}
    assert len(texts) == 1 and "late" in texts.pop()
