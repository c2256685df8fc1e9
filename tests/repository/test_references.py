"""Nothing in the repository cites a document that is not in it. Links and paths: tests/docs/test_links.py."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = "tests/repository/test_references.py"


# Numbers and sections of documents that are elsewhere. Faults are numbered in docs/how-it-works/faults.md.
@pytest.mark.parametrize("phrase", ["fault table", "table of faults", "§"])
def test_no_document_from_elsewhere_is_cited(phrase):
    command = ["git", "ls-files", "-z", "--", ":!fuzz/corpus"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    names = [name for name in listed.stdout.split("\0") if name and name != OWN and (ROOT / name).is_file()]
    assert len(names) > 500
    assert [name for name in names if re.search(phrase, (ROOT / name).read_text(errors="replace"))] == []
