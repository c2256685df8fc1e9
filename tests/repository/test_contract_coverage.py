"""tools/contract_coverage: the tree passes, and gaps of every kind are caught. And the museum's page is true."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "contract_coverage"
CONTRACT = Path("docs/contract.md")
PAGE = Path("docs/contract-coverage.md")
LATER = Path("docs/contract-later.toml")


def run(root, *flags):
    result = subprocess.run([sys.executable, TOOL, *flags, root], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout


@pytest.fixture
def copy(tmp_path):
    """The repository's tests and the three documents, and nothing else."""
    paths = [CONTRACT, PAGE, LATER, *(path.relative_to(ROOT) for path in ROOT.glob("src/**/*_test.cc"))]
    paths += [path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py")]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def plant_test(root, name):
    path = root / "src" / "base" / "planted_test.cc"
    path.write_text(f"TEST(Planted,\n     {name}) {{}}\n")


def forget(root, rule):
    """Takes the rule's number off all tests."""
    for path in [*root.glob("src/**/*_test.cc"), *root.glob("tests/**/*.py")]:
        path.write_text(re.sub(rf"\b{rule}\b|(?<=_){rule}_|\b{rule}_", "", path.read_text()))


def test_the_tree_passes():
    code, output = run(ROOT, "--check")
    assert code == 0, output


def test_a_rule_that_loses_its_last_test_is_caught(copy):
    forget(copy, "R42")
    code, output = run(copy, "--check")
    assert code == 1 and "R42 has neither a test nor a place in [later]" in output


def test_a_later_rule_that_has_a_test_is_caught(copy):
    forget(copy, "R42")
    edit(copy / LATER, "[later]\n", '[later]\nR42 = "ranks: whatever"\n')
    assert run(copy)[0] == 0
    plant_test(copy, "R1_R42_PeersAreTold")
    code, output = run(copy, "--check")
    assert code == 1 and "R42 is in [later], but has tests: base: Planted.R1_R42_PeersAreTold" in output


def test_a_rest_without_a_test_is_caught(copy):
    forget(copy, "R42")
    edit(copy / LATER, "\n[rest]\n", '\n[rest]\nR42 = "ranks: the deadline"\n')
    code, output = run(copy, "--check")
    assert code == 1 and "R42 is in [rest], but has no test" in output


def test_a_stale_page_is_caught_and_writing_mends_it(copy):
    plant_test(copy, "R12_Again")
    code, output = run(copy, "--check")
    assert code == 1 and "stale" in output
    assert run(copy)[0] == 0
    assert run(copy, "--check")[0] == 0
    edit(copy / PAGE, "[R66]", "[R66 ]")
    assert run(copy, "--check")[0] == 1


@pytest.mark.parametrize("name", ["R70_Beyond", "R0_Nothing", "S6_Stricter"])
def test_a_rule_that_there_is_not_is_caught(copy, name):
    plant_test(copy, name)
    code, output = run(copy, "--check")
    assert code == 1 and "there is no rule" in output


def test_numbers_inside_words_are_no_rules(copy):
    plant_test(copy, "R44x_For44_4R44")
    assert run(copy, "--check") == run(ROOT, "--check")


@pytest.mark.parametrize("part", ["**Without it:**", "**What to do:**", "[Tests of R42]"])
def test_a_section_that_lacks_a_part_is_caught(copy, part):
    text = (copy / CONTRACT).read_text()
    begin = text.index(part, text.index("\n### R42\n"))
    (copy / CONTRACT).write_text(text[:begin] + text[begin + len(part) :])
    code, output = run(copy, "--check")
    assert code == 1 and "docs/contract.md: R42 has no" in output


def test_python_tests_count(copy):
    forget(copy, "R42")
    edit(copy / LATER, "[later]\n", '[later]\nR42 = "ranks: whatever"\n')
    (copy / "tests" / "test_planted.py").write_text("def test_R42_peers():\n    pass\n")
    assert "R42 is in [later], but has tests" in run(copy, "--check")[1]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [('R99 = "ranks: what"', "R99 is no rule"), ('R1 = "someday"', "R1 does not begin with one of")],
)
def test_entries_that_say_nothing_are_caught(copy, line, complaint):
    edit(copy / LATER, "\n[rest]\n", f"\n[rest]\n{line}\n")
    code, output = run(copy, "--check")
    assert code == 1 and complaint in output


def test_an_empty_tree_is_not_a_pass(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / LATER).write_text("")
    (tmp_path / CONTRACT).write_text("")
    assert run(tmp_path, "--check")[0] == 1


def test_the_museums_page_names_every_exhibit_and_only_tests_that_there_are():
    page = (ROOT / "docs" / "how-it-works" / "museum.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .*? \| (.*?) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 55))
    sources = "".join(path.read_text() for path in [*ROOT.glob("src/**/*_test.cc"), *ROOT.glob("tests/**/*.py")])
    for number, shown in rows:
        names = re.findall(r"`((?:Museum|Bug|test_)\w+)`", shown)
        assert names or shown.startswith("later: "), f"exhibit {number} has neither a test nor a later part"
        for name in names:
            assert re.search(rf"(TEST\(\w+, |def ){name}[)(]", sources), f"exhibit {number}: there is no test {name}"
    shown_all = " ".join(shown for _, shown in rows)
    for name in set(re.findall(r"\bMuseum\d\d_\w+", sources)):
        assert f"`{name}`" in shown_all, f"{name} is not on the page"
