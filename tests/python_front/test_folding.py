"""The text of a LadingError: many problems of one kind are one line, and of many ranks few print all of it."""

import pickle

import pytest

from lading.audit_report import AuditReport
from lading.errors import LadingError, Problem, in_python


def missing(name, **fields):
    remedy = 'Map a key to it (--mapping FILE), or list it in "allow_missing".'
    return Problem.from_json({"code": "plan", "message": "no such key", "tensor": name, "remedy": remedy, **fields})


def lines_of(error):
    *lines, closing = str(error).splitlines()
    assert closing.startswith("Run print(lading.help("), closing
    return lines


def test_seventy_problems_of_one_kind_are_one_line():
    error = LadingError([missing(f"blocks.{i}.attn.weight") for i in range(70)])
    assert lines_of(error) == [
        '70 tensors "blocks.{0..69}.attn.weight": no such key [plan]. Map a key to it (mapping=), or list it in '
        "allow_missing=."
    ]
    assert len(error.problems) == 70


def test_codes_and_names_of_the_fronts_own():
    problems = [Problem("not_judged", f"odd \udcff {i}", tensor=f"a\x1b{i}", remedy="Look.") for i in range(5)]
    assert lines_of(LadingError(problems, begun=True, not_listed=3)) == [
        '5 tensors "a\\x1b{0..4}": odd \\udcff {0..4} [not_judged]. Look.',
        "and 3 more problems",
        "The load had begun: the tensors that it fills are incomplete.",
    ]


def test_an_audit_is_folded_too():
    problems = tuple(missing(f"layers.{i}.weight", rank=1) for i in range(50))
    text = str(AuditReport(problems, problems[:1], (), {"with the checkpoint": 3}, 1, 2)).splitlines()
    assert text[0] == "rank 1 of 2: 50 problems; checked 3 with the checkpoint"
    assert text[1].startswith('  rank 1: 50 tensors "layers.{0..49}.weight": no such key [plan].')
    assert text[2].startswith('  warning: rank 1: tensor "layers.0.weight": no such key [plan].')


@pytest.mark.parametrize(
    "text, spelled",
    [
        ('Set "compute_record": "ignore" to compute.', 'Set compute_record="ignore" to compute.'),
        ('Set "subtree_dtypes": {"a.b": "auto"} to', 'Set subtree_dtypes={"a.b": "auto"} to'),
        ('("ties": "keep")', '(ties="keep")'),
        ('Omit "quantized": "keep", so', 'Omit quantized="keep", so'),
        ('list it in "allow_missing".', "list it in allow_missing=."),
        ('Set "budget_bytes": 123.', "Set budget=123."),
        ("Omit --revision.", "Omit revision=."),
        ('Rename "weight".', 'Rename "weight".'),
    ],
)
def test_remedies_spell_arguments(text, spelled):
    assert in_python(text) == spelled


def test_R44_a_rank_that_does_not_speak_has_the_first_problem_and_names_those_that_do():
    problems = [missing("a"), Problem("policy", "wrong", remedy="Correct it.")]
    error = LadingError(problems, error_id="12ab34cd", speakers=[0, 3], is_speaker=False)
    assert str(error).splitlines() == [
        str(problems[0]),
        "2 problems in all: see the text of rank 0 and rank 3 (error id 12ab34cd).",
    ]
    assert str(problems[1]) in error.full_text()
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == error.problems and again.speakers == (0, 3)
    assert lines_of(LadingError(problems[:1], error_id="1", speakers=[0], is_speaker=False)) == [str(problems[0])]
