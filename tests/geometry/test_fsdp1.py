"""R56: the flat buffers that FSDP1 shares among tensors, tensor by tensor."""

from .launch import require, run_worker
from .probe import PADDING, ask, memory

require("torch")

ALIGNMENT_VALUE = 42  # FSDP1 fills alignment gaps with it, and the end with zeros
VALUES = 1000  # the tests' own values begin here


def test_R56_shared_buffers_are_where_lading_says():
    facts = run_worker("fsdp1_worker", 60, seed=1, worlds=[2, 3], count=70, rank_deadline_s=25)
    questions, padding, absent = [], 0, 0
    for fact in facts:
        for member in fact["members"]:
            questions.append({"mesh": fact["mesh"], "ranks": [fact["rank"]], "shape": member["shape"], "cuts": member["cuts"]})
    assert len(questions) >= 2000
    answers = iter(ask(questions))
    for fact in facts:
        left = list(fact["shard"])
        for member in fact["members"]:
            held = memory(next(answers)["ranks"][0]).tolist()
            assert len(held) == len(left), fact
            absent += all(index == PADDING for index in held)
            for place, index in enumerate(held):
                if index != PADDING:
                    assert left[place] == member["first_value"] + index, fact
                    left[place] = 0
        # What no tensor claimed is padding: no element is left over.
        assert all(value in (0, ALIGNMENT_VALUE) for value in left), fact
        padding += sum(value < VALUES for value in fact["shard"])
    assert padding > 100 and absent > 100
