"""lading.help, and the line of every LadingError that leads to it."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import lading
import pytest
from lading.errors import LadingError, Problem


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("R45", "Checkpoint files are whole"),
        ("r45", "Checkpoint files are whole"),
        ("S4", "relative path"),
        ("header_overlap", "Two tensors share bytes"),
        ("unrecorded", "lading.skeleton()"),
        ("exit 3", "refused or not found"),
        (3, "refused or not found"),
        ("allow_missing", "may be missing"),
        ("promote", "never rounds"),
    ],
)
def test_a_topic_is_explained(topic, words):
    text = lading.help(topic)
    assert isinstance(text, str) and words in text and "docs/" in text


def test_without_a_topic_all_are_listed_and_several_follow_each_other():
    overview = lading.help()
    assert all(topic in overview for topic in ("header_overlap", "R68", "S5", "exit 7", "untie"))
    assert lading.help("plan", "R39") == lading.help("plan") + "\n" + lading.help("R39")


def test_a_prompt_shows_the_lines():
    assert repr(lading.help("R45")) == str(lading.help("R45"))


def test_an_unknown_topic_suggests_near_ones():
    with pytest.raises(LadingError, match="Ask for one of these: header_overlap") as raised:
        lading.help("header_overlp")
    assert raised.value.code == "usage" and raised.value.exit_code == 2


def test_every_error_says_once_where_help_is(tmp_path):
    with pytest.raises(LadingError) as raised:
        lading.help("nothing like it")
    problem = Problem("plan", "a key is missing", tensor="w", rule="R39")
    one, many = LadingError(problem), LadingError([problem] * 3, not_listed=2, begun=True)
    for error in (raised.value, one, many, pickle.loads(pickle.dumps(many))):
        *lines, last = str(error).splitlines()
        assert last.startswith("Run print(lading.help(") and "lading.help(" not in "".join(lines)
    assert str(one).endswith('\nRun print(lading.help("plan", "R39")) to see what this means and what to do.')
    assert 'lading.help("usage")' in str(raised.value)


def test_a_rank_whose_text_is_short_keeps_it_between_processes():
    problems = [Problem("plan", f"a key is missing: {word}", tensor=word) for word in ("one", "two", "three")]
    for is_speaker in (False, True):
        error = LadingError(problems, error_id="e1", speakers=[3], is_speaker=is_speaker, begun=True)
        error.add_note("a note")
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) and repr(again) == repr(error) and vars(again) == vars(error)
        assert again.full_text() == error.full_text() and again.__notes__ == ["a note"]


def test_help_does_not_import_torch():
    code = "import sys, lading; lading.help('R45'); assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(Path(lading.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
