"""Console samples of README.md and docs/ are run with the real command, and show what it prints. samples.py says
what of the output is compared, and writes samples anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from samples import REPOSITORY, Sample, is_the_same, pages, problems_of, samples_of  # noqa: E402

SAMPLES = [sample for page in pages() for sample in samples_of(page)]
RUN = [sample for sample in SAMPLES if sample.why_not_run is None]
# Each has its reason in the page.
NOT_RUN = {"docs/how-it-works/reliability.md": 2, "docs/reference/doctor.md": 1}


@pytest.fixture(scope="session")
def command():
    path = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading"))
    assert path.is_file(), f"{path} is missing: build it, or set LADING_COMMAND"
    return path


def test_there_are_samples():
    assert len([sample for sample in RUN if sample.page == "README.md"]) == 1
    assert len(RUN) >= 10


@pytest.mark.parametrize("sample", RUN, ids=lambda sample: f"{sample.page}:{sample.line}")
def test_a_sample_shows_what_is_printed(sample, command):
    assert problems_of(sample, command) == []


def test_the_samples_that_are_not_run_are_few():
    counts = {}
    for sample in SAMPLES:
        if sample.why_not_run:
            counts[sample.page] = counts.get(sample.page, 0) + 1
    assert counts == NOT_RUN


@pytest.mark.parametrize(
    "text",
    [
        "$ lading verify build/demo build/demo/ledger.json\nverified: 23 tensors in memory, against 254.47 kB\n",
        "$ lading plan build/demo --mesh dp=2 --strategy fsdp2\n…\nrefused\n…\n",
        "$ lading inspect build/demo\n22 tensors in 2 files, 254.47 kB\n…\n",
        "$ lading inspect nothing\n",
        "$ lading inspect nothing\n…\n$ echo $?\n0\n",
    ],
    ids=["a number", "a missing line", "a beginning", "a failure without a word", "an exit code"],
)
def test_a_wrong_sample_is_found(text, command):
    assert len(problems_of(Sample("planted", 1, text, None), command)) == 1


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("…\nd\n", "a\nd\n", True),
        ("a\n…\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("b\n", "a\nb\n", False),
        ("a\n…\nc\n", "a\nb c\nd\n", False),
        ("a long line\nthat is wrapped\n", "a long line that is wrapped\n", True),
        ("in 0.01 s (0.04 GB/s)\n", "in 12.30 s (1.00 GB/s)\n", True),
        ("in 0.01 s\n", "in 0.01 m\n", False),
        ("…/build/x\n", "/tmp/here/build/x\n", True),
        ("…/build/x\n", "/tmp/there/build/x\n", False),
        ("  staging 33.55 MB 33.55 MB all alike\n", "  staging 1 B all alike\n", True),
        ("  read 33.55 kB\n", "  read 33.56 kB\n", False),
    ],
)
def test_what_is_compared(page, printed, same):
    assert is_the_same(page, printed, "/tmp/here") is same


def test_the_program_says_what_differs(command, tmp_path):
    script = Path(__file__).with_name("samples.py")
    done = subprocess.run([sys.executable, script, command, "README.md"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
