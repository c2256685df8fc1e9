"""Nothing in the repository refers to a document that is not in it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {".md", ".py", ".cc", ".h", ".cu", ".toml", ".cmake", ".sh", ".txt", ""}


@pytest.fixture(scope="module")
def texts():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in TEXTS and path.is_file() and not name.startswith("fuzz/corpus/"):
            found[name] = path.read_text(errors="replace")
    assert len(found) > 500
    return found


def test_pages_that_are_named_are_there(texts):
    absent = {
        f"{name}: {page}"
        for name, text in texts.items()
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|toml|json|svg)\b", text)
        if not (ROOT / page).exists()
    }
    assert absent == set()


def test_links_of_markdown_lead_to_files(texts):
    absent = set()
    for name, text in texts.items():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\(([^)\s#]+[./][^)\s#]*)(?:#[^)]*)?\)", text):
            if "://" not in target and not ((ROOT / name).parent / target).exists():
                absent.add(f"{name}: {target}")
    assert absent == set()


# Numbers and sections of documents that are elsewhere. Faults are numbered in docs/how-it-works/faults.md.
@pytest.mark.parametrize("phrase", ["fault table", "table of faults", "§", r"\bseed 0\d\d of"])
def test_no_document_from_elsewhere_is_cited(texts, phrase):
    own = "tests/repository/test_references.py"
    assert [name for name, text in texts.items() if name != own and re.search(phrase, text)] == []
