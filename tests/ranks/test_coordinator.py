"""`lading.coordinator`: real processes on torch's TCPStore end together (R44), whatever happens to one of them."""

import pytest

from geometry.launch import require, run_worker

DEADLINE_S = 8.0  # as in coordinator_worker
STEP_TIMEOUT_S = 9.0
GRACE_S = 2.0

require("torch", exactly=False)


@pytest.fixture(scope="module")
def told():
    return run_worker("coordinator_worker", 70, package="ranks")


def one_error(answers, gone=None):
    """The error that all ranks got, but for one that could not; it is the same."""
    assert [rank for rank, answer in enumerate(answers) if answer is None] == ([] if gone is None else [gone])
    errors = [answer["error"] for answer in answers if answer is not None]
    assert errors[0] is not None and len(errors[0]["id"]) == 8
    assert all(error == errors[0] for error in errors), errors
    return errors[0]


def slowest_s(answers):
    return max(answer["seconds"] for answer in answers if answer is not None)


def test_R44_all_are_well_and_know_what_each_said(told):
    for answer in told["nothing"]:
        assert answer["error"] is None
        assert answer["devices"] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]


def test_R30_a_record_that_differs_is_named_by_rank_tensor_and_field(told):
    error = one_error(told["differs"])
    assert [problem[:1] + problem[2:] for problem in error["problems"]] == [["ranks_differ", "b"]]
    assert "dtype" in error["text"] and "BF16 on rank 2" in error["text"]
    assert not error["begun"] and error["exit_code"] == 7


def test_R44_a_refusal_is_told_to_all(told):
    error = one_error(told["refuses"])
    assert error["problems"] == [["missing", 1, "b"]]
    assert "[missing, R13]" in error["text"] and error["exit_code"] == 4


def test_R44_a_failure_while_loading_ends_all(told):
    error = one_error(told["fails"])
    assert error["problems"] == [["read_failed", 3, None]]
    assert error["begun"] and error["exit_code"] == 5
    assert slowest_s(told["fails"]) < DEADLINE_S  # they are told, and do not wait for silence


@pytest.mark.parametrize(("case", "gone"), [("killed", 2), ("first_killed", 0), ("stopped", 1)])
def test_R44_a_rank_that_falls_silent_is_named_within_the_deadline(told, case, gone):
    error = one_error(told[case], gone)
    assert f"rank {gone} sent no heartbeat" in error["text"]
    assert error["problems"] == [["no_answer", None, None]] and error["exit_code"] == 7
    assert slowest_s(told[case]) < DEADLINE_S + GRACE_S


def test_R44_the_store_dies_with_the_first_rank(told):
    error = one_error(told["first_killed_with_store"], 0)
    assert "lost contact" in error["text"]
    assert slowest_s(told["first_killed_with_store"]) < DEADLINE_S + GRACE_S


def test_R44_a_rank_that_never_comes_is_named(told):
    error = one_error(told["absent"], 2)
    assert 'rank 2 did not reach the step "the beginning" within the timeout of 9 s' in error["text"]
    assert not error["begun"]
    assert slowest_s(told["absent"]) < STEP_TIMEOUT_S + GRACE_S
