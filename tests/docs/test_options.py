"""The options of the built command, and the words that they take, are on their pages."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("LADING_COMMAND", ROOT / "build/dev/lading"))
PAGE = ROOT / "docs/reference/command-line.md"
REQUEST = ROOT / "docs/schema/request.md"
COMMANDS = ("inspect", "plan", "load", "verify", "diff", "convert", "doctor", "help")


def help_of(command):
    return subprocess.run([COMMAND, command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


def options_of(text):
    """Options by name, with the words that CLI11 lists for those that take one of a few."""
    found = re.findall(r"^  (?:-\w,)?(--[\w-]+)(?: TEXT:\{([^}]*)\})?", text, re.MULTILINE)
    return {name: set(words.split(",")) if words else set() for name, words in found if name != "--help"}


def not_told(options, page):
    """An option without a place, and an option whose row lacks one of its words."""
    rows = page.splitlines()
    missing = []
    for name, words in options.items():
        told = [set(re.findall(r"[\w-]+", row)) for row in rows if re.search(rf"`{name}[ `=\[]", row)]
        if not told or not any(words <= row for row in told):
            missing.append(name)
    return missing


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_on_the_page(command):
    options = options_of(help_of(command))
    assert "--json" in options
    assert not_told(options, PAGE.read_text()) == [], f"add them to {PAGE.relative_to(ROOT)}"


def test_words_of_options_are_in_the_schema_of_requests():
    options = options_of(help_of("load"))
    for name, field in {"--io": "read_method", "--exchange": "exchange"}.items():
        (row,) = re.findall(rf"^\| `{field}` \|.*$", REQUEST.read_text(), re.MULTILINE)
        assert options[name] and options[name] <= set(re.findall(r"[\w-]+", row)), f"{field} of docs/schema/request.md"


def test_what_is_not_told_is_found():
    options = {"--io": {"pread", "direct", "nowait"}, "--new": set(), "--json": set()}
    assert not_told(options, "| `--io HOW` | `pread`, `direct` |\n| `--json` | JSON |") == ["--io", "--new"]
