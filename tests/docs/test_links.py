"""Markdown files link to files and headings that exist; every page is in the site's navigation; README keeps its size.

./dev docs checks the built site too, and takes longer. This needs nothing but Python.
"""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^ *```.*?^ *```$|(`+)(?!`).+?(?<!`)\1(?!`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MOST_CHARACTERS = 120


def tracked(*patterns):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listing = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (REPOSITORY / name).is_file()]


def anchors_of(text):
    """The anchors that a heading gets on the site and on a forge, and those that are written as HTML."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*?)(?: *\{ *#([\w-]+) *\})?$", prose, re.MULTILINE)
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading, given in headings:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(given or re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return found


def dead_links(name, text, root=REPOSITORY):
    found = []
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (root / name).parent / file if file else root / name
        if not goal.exists():
            found.append(f"{name}: {target}: there is no such file")
        elif anchor and goal.suffix == ".md" and anchor not in anchors_of(goal.read_text()):
            found.append(f"{name}: {target}: there is no such heading")
    return found


def test_links_lead_somewhere():
    names = tracked("*.md")
    assert len(names) > 60
    assert [problem for name in names for problem in dead_links(name, (REPOSITORY / name).read_text())] == []


@pytest.mark.parametrize("link", ["nothing.md", "README.md#nothing", "#nothing", "docs/nowhere/audit.md"])
def test_a_dead_link_is_found(link):
    assert len(dead_links("README.md", f"See [this]({link}), and [that](README.md#the-problem).")) == 1


def mentioned_documents(text):
    """Pages that comments, messages and tools name: docs/….md"""
    return re.findall(r"(?<![\w/.-])(docs/[\w/-]+\.md)\b", text)


def test_pages_that_sources_mention_exist():
    missing = []
    for name in tracked("src", "include", "python", "tests", "tools", "bench", "examples", "cmake", "fuzz", "*.md"):
        path = REPOSITORY / name
        if name.startswith("bench/results") or path.suffix in (".json", ".safetensors") or path.is_symlink():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if not name.startswith("tests/docs/"):  # what they plant does not exist
            missing += [f"{name}: {page}" for page in mentioned_documents(text) if not (REPOSITORY / page).is_file()]
    assert missing == []


def navigation():
    """The pages of mkdocs.yml, without a reader of YAML: they end in .md."""
    text = (REPOSITORY / "mkdocs.yml").read_text()
    return re.findall(r"[\w/.-]+\.md", text[text.index("\nnav:") :])


def test_every_page_is_in_the_navigation_once():
    listed = navigation()
    assert len(listed) == len(set(listed))
    assert set(listed) == {name.removeprefix("docs/") for name in tracked("docs/*.md", "docs/**/*.md")}


def test_every_part_of_the_documentation_is_in_the_index():
    index = (REPOSITORY / "docs" / "index.md").read_text()
    linked = {target.partition("#")[0] for target in LINK.findall(index)}
    assert {page for page in navigation() if not page.startswith("adr/")} - linked == {"index.md"}


def test_the_readme_keeps_its_size():
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1200
    assert text.index("./dev demo") < text.index("./dev test") < text.index("## ")


def long_lines(text):
    """Lines of prose that are too long. Tables, code and lines that are one link or image cannot be wrapped."""
    text = re.sub(r"^ *```.*?^ *```$", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    lines = enumerate(text.split("\n"), 1)
    return [n for n, line in lines if len(line) > MOST_CHARACTERS and not re.match(r"\||!\[|<!--|\s*\S+$", line)]


@pytest.mark.parametrize("part", ["README.md", "docs/index.md", "docs/start", "docs/guides", "docs/reference"])
def test_lines_are_short(part):
    names = [name for name in tracked(part) if name.endswith(".md")]
    assert names
    assert [f"{name}:{n}" for name in names for n in long_lines((REPOSITORY / name).read_text())] == []
