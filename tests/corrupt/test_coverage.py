"""The corpus covers every code and every row, and goes on doing so."""

import re

from . import directories, files
from .test_injected import INJECTED_CODES

FAULT_ROWS = range(1, 23)
# A checkpoint was refused: docs/exit-codes.md.
REFUSED = "kCheckpoint"


def all_cases():
    return files.REFUSED + files.VALID + directories.REFUSED + directories.VALID


def expected_codes():
    refusals = files.REFUSED + directories.REFUSED
    accepted = files.VALID + directories.VALID
    return {problem.code for case in refusals for problem in case.problems} | {
        warning.code for case in accepted for warning in case.warnings
    }


def refusal_codes(repository):
    header = (repository / "include" / "lading" / "error.h").read_text()
    codes = re.findall(r'X\(k\w+, "(\w+)", (k\w+)\)', header)
    assert codes, "error.h is written in another way"
    return {word for word, exit_code in codes if exit_code == REFUSED}


def test_every_code_is_provoked(repository):
    codes = refusal_codes(repository)
    provoked = expected_codes() | INJECTED_CODES
    assert codes - provoked == set(), "codes without a case"
    assert provoked - codes == set(), "cases of codes that are gone"


def test_every_row_has_a_case():
    covered = {case.row for case in all_cases()}
    assert set(FAULT_ROWS) - covered == set()


def test_names_are_unique_and_fit_for_files():
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    assert not [name for name in names if "/" in name or len(name) > 200]


def test_every_fault_is_on_its_page(repository):
    """Of the corpus, and of all tests that carry a number in their name."""
    page = (repository / "docs" / "how-it-works" / "faults.md").read_text()
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    named = {case.row for case in all_cases() if case.row is not None}
    for path in [*repository.glob("src/**/*_test.cc"), *repository.glob("tests/**/test_*.py")]:
        named |= {int(number) for number in re.findall(r"(?<![A-Za-z])Fault_?(\d+)(?=_)", path.read_text())}
    assert named <= set(numbers)
