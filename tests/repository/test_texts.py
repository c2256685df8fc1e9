"""What tools/lint checks in texts: the tree passes, and a planted mistake of every kind is caught."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
texts = importlib.import_module("texts")
LINT = ROOT / "tools" / "lint"
CHECKS = ["texts", "spelling", "markdown_width"]


def complaints(check, text, *more):
    return [what for _, what in check(text, *more)]


def test_the_tree_passes():
    others = [flag for name in lint_checks() if name not in CHECKS for flag in ("--without", name)]
    run = subprocess.run([sys.executable, LINT, *others], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    for name in CHECKS:
        assert f"{name}: ok" in run.stdout


def lint_checks():
    loader = importlib.machinery.SourceFileLoader("lint", str(LINT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", loader))
    loader.exec_module(module)
    return list(module.CHECKS)


@pytest.mark.parametrize(
    "code, is_wrong",
    [
        ('Error(Code::kPlan, "x").try_this("Do this.")', False),
        ('Error(Code::kPlan, "x").try_this("do this.")', True),
        ('Error(Code::kPlan, "x").try_this("Do this")', True),
        ('Error(Code::kPlan, "x").try_this("Do " "this")', True),
        ('Error(Code::kPlan, "x").try_this(fmt::format("do {}.", x))', True),
        ('Error(Code::kPlan, "x").try_this(fmt::format("Do {}.", "this"))', False),
        ('Error(Code::kPlan, "x").try_this(is_flat ? "Do this." : "or that")', True),
        ('error.remedy = "do this.";', True),
        ('if (error.remedy == "do") return;', False),
        ('// .try_this("do this")\n', False),
        ('"try_this(\\"do this\\")"', False),
    ],
)
def test_remedies_of_cpp_are_sentences(code, is_wrong):
    assert bool(complaints(texts.cpp_remedies, code)) == is_wrong


@pytest.mark.parametrize(
    "code, is_wrong",
    [
        ('errors.add(Error(Code::kPlan, "x"));', True),
        ('errors.add(Error(Code::kPlan, "x")); errors.add(Error(Code::kPlan, "y").try_this("Z."));', True),
        ('errors.add(Error(Code::kPlan, "x").by_rule("R1").try_this("Z."));', False),
        ('Error error(Code::kPlan, "x"); error.found = "y"; error.remedy = "Z.";', False),
        ('Error error = Error(Code::kPlan, "x"); error.remedy = "Z.";', False),
        ('errors.add(Error(Code::kNotFound, "x"));', False),
        ("if (error.code == Code::kPlan) return;", False),
    ],
)
def test_refusals_of_cpp_have_a_remedy(code, is_wrong):
    assert bool(complaints(texts.cpp_refusals, code, {"kNotFound"})) == is_wrong


def test_which_codes_have_a_usual_remedy():
    usual = texts.codes_with_usual_remedy((ROOT / "src/base/problems/remedies.cc").read_text())
    assert "kNotFound" in usual
    assert not usual & {"kPlan", "kUsage", "kDType"}


@pytest.mark.parametrize(
    "code, is_wrong",
    [
        ('Problem("a", "b", remedy="Do this.")', False),
        ('Problem("a", "b", remedy="do this.")', True),
        ('Problem("a", "b", remedy="Do this")', True),
        ('Problem("a", "b", remedy=f"Do {x}")', False),
        ('Problem("a", "b", remedy="Do." if x else "that.")', True),
        ('remedy = "do this."', True),
    ],
)
def test_remedies_of_python_are_sentences(code, is_wrong):
    assert bool(complaints(texts.python_remedies, code)) == is_wrong


@pytest.mark.parametrize(
    "code, is_wrong",
    [('Problem("a", "b")', True), ('Problem("a", "b", remedy="Do.")', False), ('Problem("a", "b", **fields)', False)],
)
def test_refusals_of_python_have_a_remedy(code, is_wrong):
    assert bool(complaints(texts.python_refusals, code)) == is_wrong


@pytest.mark.parametrize(
    "text, is_wrong",
    [
        ("the file is no ledger", True),
        ("there is no file", False),
        ("the file is no longer a ledger", False),
        ("rank 3 gave no sign of life", True),
        ("the value that was handed in is too short", True),
        ("nobody reads it", True),
        ("what is there is kept", True),
        ("memory could not be had", True),
        ("the load failed", False),
    ],
)
def test_retired_phrases(text, is_wrong):
    assert bool(complaints(texts.cpp_phrases, f'say("{text}");')) == is_wrong
    assert bool(complaints(texts.python_phrases, f'def f():\n    """{text}"""\n')) == is_wrong
    assert not complaints(texts.cpp_phrases, f"// {text}\n"), "comments are the author's own"


def test_lines_of_markdown():
    long = "word " * 30
    assert complaints(texts.markdown_width, f"# Title\n\n{long}\n")
    assert not complaints(texts.markdown_width, f"| {long} |\n```\n{long}\n```\nshort\n")


def test_spelling_is_checked(tmp_path):
    words = texts.spelling_command(ROOT)
    if words is None:
        pytest.skip("codespell is not installed: ./dev setup")
    planted = tmp_path / "page.md"
    planted.write_text("The tensor is " + "recie" + "ved from rank 3.\n")
    run = subprocess.run([*words, planted], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "received" in run.stdout
