"""Every quantized checkpoint of the corpus, through the real command, under everything that a policy can allow (R48)."""

import json

import pytest

from .checks import assert_modest, assert_safe_for_terminals
from .quantized import LOADED, REFUSED, write

ALLOWANCES = {
    "strict": {"dtype": "BF16"},
    "report": {"dtype": "BF16", "unexpected": "report"},
    "allowed": {
        "dtype": "BF16",
        "cast": "exact",
        "allow_unexpected": ["*"],
        "allow_missing": ["*"],
        "allow_mismatch": ["*"],
    },
}


def load(lading, folder, checkpoint, allowance, *options):
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"schema": "lading.policy/1", **ALLOWANCES[allowance]}))
    finished = lading.run("load", checkpoint, "--skeleton", folder / "model.json", "--policy", policy, "--json", *options)
    assert_modest(finished)
    assert_safe_for_terminals(finished.err)
    return finished


def is_told(problem, found):
    facts = " ".join(found.get(key, "") for key in ("message", "expected", "found", "remedy"))
    return (
        found.get("rule") == problem.rule
        and (problem.code is None or found["code"] == problem.code)
        and (problem.tensor is None or found.get("tensor") == problem.tensor)
        and all(text in facts for text in problem.says)
    )


def by_name(case):
    return case.name


@pytest.mark.parametrize("allowance", ALLOWANCES)
@pytest.mark.parametrize("case", REFUSED, ids=by_name)
def test_R48_is_refused_before_a_byte_is_written(lading, tmp_path, case, allowance):
    finished = load(lading, tmp_path, write(case, tmp_path), allowance)
    answer = finished.json
    if case.note_only and allowance == "report":
        assert finished.exit_code == (0 if case.alone else 4), answer
        assert not case.alone or all(any(is_told(problem, note) for note in answer["warnings"]) for problem in case.problems), answer["warnings"]
        return
    assert (finished.exit_code, answer["ok"]) == (case.exit_code, False), answer
    assert not answer.get("begun")
    for problem in case.problems:
        assert any(is_told(problem, found) for found in answer["problems"]), f"{problem} is not told: {answer['problems']}"
    strangers = [found for found in answer["problems"] if not any(is_told(problem, found) for problem in case.problems)]
    if case.alone:
        assert all(found.get("rule") in ("R38", "R39", "R43") for found in strangers), strangers
    assert all(found.get("remedy") for found in answer["problems"])


@pytest.mark.parametrize("case", LOADED, ids=by_name)
def test_R48_is_loaded_and_verified(lading, tmp_path, case):
    checkpoint, ledger = write(case, tmp_path), tmp_path / "ledger.json"
    finished = load(lading, tmp_path, checkpoint, "strict", "--ledger", ledger)
    assert finished.exit_code == 0, finished.err_text
    for note in case.notes:
        assert any(note in told for told in finished.json["notes"]), finished.json["notes"]
    if not case.notes:
        assert not any("scale" in told for told in finished.json["notes"])
    tensors = json.loads(ledger.read_text())["tensors"]
    assert {tensor["storage_dtype"] for tensor in tensors} == {"BF16"}
    verified = lading.run("verify", checkpoint, ledger)
    assert verified.exit_code == 0, verified.err_text
