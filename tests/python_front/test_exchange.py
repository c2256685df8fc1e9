"""`lading.materialize(exchange=…)`: bytes that several ranks hold are read once, and end as the same bits (R17)."""

import pytest

from geometry.launch import require, run_worker

require("torch", exactly=False)

LAYOUTS = ("ddp", "in_place", "hsdp", "tensor_parallel")
SLACK = 1.02


@pytest.fixture(scope="module")
def told():
    return run_worker("exchange_worker", 120, package="python_front")


def totals(told, case):
    answers = [rank[case] for rank in told["ranks"]]
    assert [answer["wrong"] for answer in answers] == [[]] * len(answers)
    return {key: sum(answer[key] for answer in answers) for key in ("read", "syscalls", "received")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_reads_what_it_holds_unless_asked(told, layout):
    never = totals(told, f"{layout} never")
    assert never["read"] > 1.9 * told["size"]  # so that there is something to save
    assert never["received"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scope", ["node", "job"])
def test_R58_each_byte_is_read_once(told, layout, scope):
    once = totals(told, f"{layout} {scope}")
    assert once["received"] > 0
    # Two ranks that have every other piece of a row each read whole rows, here of half of the blocks.
    size = told["size"] * (1.5 if layout == "tensor_parallel" else 1)
    assert once["read"] <= SLACK * size
    # By the kernel's count; headers are read by all, and a little by everything else in a process.
    assert once["syscalls"] <= SLACK * size + 4 * 400_000


@pytest.mark.parametrize("layout", LAYOUTS)
def test_auto_measures_and_says_so(told, layout):
    totals(told, f"{layout} auto")
    notes = {note for rank in told["ranks"] for note in rank[f"{layout} auto"]["notes"] if note.startswith("exchange")}
    assert len(notes) == 1 and "by measurement" in notes.pop()


@pytest.mark.parametrize("layout", ["ddp", "in_place"])
def test_R64_the_report_has_the_memory_of_an_exchange(told, layout):
    for rank in told["ranks"]:
        answer = rank[f"memory {layout}"]
        assert answer["wrong"] == [] and answer["planned"] == answer["staged"] > 0
        assert rank[f"{layout} never"]["memory"] == 0
    if layout == "in_place":  # all of it is staged, and not all of it at once
        assert 3 << 20 < answer["planned"] < told["size"] / 2


def test_once_on_each_of_two_machines(told):
    found = totals(told, "two machines node")
    assert 1.9 * told["size"] < found["read"] <= 2 * SLACK * told["size"]


def test_once_in_each_of_two_groups(told):
    found = totals(told, "half of the ranks")
    assert 1.9 * told["size"] < found["read"] <= 2 * SLACK * told["size"]


def test_R44_a_failed_exchange_leaves_the_group_in_step_and_the_memory_alone(told):
    answers = [rank["after a failure"] for rank in told["ranks"]]
    assert len({answer["text"] for answer in answers}) == 1 and "rank 1" in answers[0]["text"]
    assert "the cable is gone" in answers[0]["text"]
    for answer in answers:
        assert answer["sent"] == [3.0] and answer["again"] == [] and answer["untouched"]


def test_R17_a_byte_that_changed_on_the_way_is_found(told):
    answers = [rank["wrong byte"] for rank in told["ranks"]]
    assert len({answer["text"] for answer in answers}) == 1
    assert answers[0]["codes"] == ["values_differ"] and answers[0]["tensors"] == ["blocks.3.weight"]
    assert "R17" in answers[0]["text"] and "on rank 2" in answers[0]["text"]
    assert all(answer["untouched"] for answer in answers)
