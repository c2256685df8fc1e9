"""Claims of the documents name the test that carries them: each row of the tables in `PAGES`, each row of seeds.md
that is done, and every test that any page names exists.

A page that makes claims in tables ends with a table `| rows | tests |`. Its first column has words of the rows (all of
one line's words are in the row's first cell), its second the tests, as `file.py::name`. Pages are found by their names.
"""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("dcp.md", "dtypes.md", "exchange.md", "peft.md", "wrappers.md", "zero3.md")
NO_CLAIMS = {"figures"}  # headings of tables that a script measured
REFERENCE = re.compile(r"`(\w+\.py)::(\w+)`")


def page(name):
    [path] = (ROOT / "docs").rglob(name)
    return path.read_text()


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").replace(r"\|", "\0").split("|")]


def tables(text):
    """(heading, [cells of a row, …]) of each table; the first row is its header."""
    heading, found, rows = "", [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            heading = line.strip("# ").lower()
        if line.startswith("|"):
            rows.append(cells(line))
        elif rows:
            found.append((heading, [rows[0], *rows[2:]]))
            rows = []
    return found


def leads_elsewhere(row):
    """A row that makes no claim of its own: all that it says is on another page."""
    said = re.sub(r"\[[^]]*\]\([^)]*\)", "", " ".join(row[1:]))
    return "](" in " ".join(row[1:]) and not re.search(r"\w", said)


def claims(text):
    """(first cell, whether the claim is made here)"""
    return [
        (row[0], not leads_elsewhere(row))
        for heading, rows in tables(text)
        if heading not in NO_CLAIMS and rows[0] != ["rows", "tests"]
        for row in rows[1:]
    ]


def carried(text):
    found = [rows[1:] for _, rows in tables(text) if rows[0] == ["rows", "tests"]]
    return [(row[0].split(", "), row[1]) for rows in found for row in rows]


@functools.cache
def source(file):
    return "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob(file)))


@functools.cache
def all_sources():
    paths = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("*_test.cc"), *(ROOT / "tests").rglob("*.cc")]
    return "\n".join(path.read_text() for path in sorted(paths))


def is_a_test(file, name):
    """A function, or a case that the file lists by its name."""
    return bool(re.search(rf'def {name}\(|"(R\d+_)*{name}( on \d+ ranks)?"', source(file)))


def problems(text):
    lines = carried(text)
    for claim, is_here in claims(text):
        if is_here and not any(all(words in claim for words in line) for line, _ in lines):
            yield f"no test is named for: {claim}"
    for line, tests in lines:
        if not any(all(words in claim for words in line) for claim, _ in claims(text)):
            yield f"no row has these words: {', '.join(line)}"
        references = REFERENCE.findall(tests)
        if not references:
            yield f"no test in: {tests}"
        yield from (f"no such test: {file}::{name}" for file, name in references if not is_a_test(file, name))


@pytest.mark.parametrize("name", PAGES)
def test_each_row_names_its_test(name):
    assert claims(page(name)), "the page has no tables"
    assert list(problems(page(name))) == []


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("\n| partitions on NVMe |", "\n| partitions on the moon |", "no test is named for: partitions on the moon"),
        ("::every_other_refusal", "::every_refusal", "no such test: test_zero3.py::every_refusal"),
        ("| quantized partitions |", "| quantized, of gold |", "no row has these words: quantized, of gold"),
    ],
)
def test_what_is_missing_is_found(old, new, wanted):
    text = page("zero3.md")
    assert old in text
    assert wanted in list(problems(text.replace(old, new)))


def test_rows_of_seeds_that_are_done_name_their_tests():
    rows = [row for heading, rows in tables(page("seeds.md")) if heading.startswith("seed ") for row in rows[1:]]
    assert len(rows) > 40
    for demand, state, _, tests in rows:
        if state.startswith("done"):
            names = r"`\w*test_|`[\w/]+\.py`|the same|`Museum|`(api|gemma4)`|_check\.py"
            assert re.search(names, tests), demand


def pages():
    """But those about other projects' own tests."""
    found = [path for path in (ROOT / "docs").rglob("*.md") if not path.name.endswith("-suite.md")]
    return sorted([*found, ROOT / "README.md", ROOT / "DESIGN.md", ROOT / "HACKING.md"])


def names_a_test(name):
    if name.endswith("…"):
        return f"def {name[:-1]}" in all_sources()
    return f"def {name}(" in all_sources() or bool(source(f"{name}.py"))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_test_that_a_page_names_exists(path):
    text = path.read_text()
    files = set(re.findall(r"\b(?:tests|src)/[\w./]*\w\.(?:py|cc|h)\b", text))
    assert [file for file in files if "NAME" not in file and not (ROOT / file).is_file()] == []
    assert [file for file in set(re.findall(r"(?<![\w/])test_\w+\.py\b", text)) if not source(file)] == []
    names = set(re.findall(r"`(test_\w+…?)(?:\[[^]`]*\])?`", text))
    assert [name for name in names if not names_a_test(name)] == []
