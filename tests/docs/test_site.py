"""The check of ./dev docs on the built site: pages fetch nothing from elsewhere, and their links lead somewhere."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    loader = importlib.machinery.SourceFileLoader("docs_tool", str(REPOSITORY / "tools" / "docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs_tool", loader))
    loader.exec_module(module)
    return module


GOOD = """<html><head><link rel="stylesheet" href="own.css"><link rel="canonical" href="https://example.org/"></head>
<body id="top"><a href="https://example.org/">elsewhere, if one clicks</a>
<a href="#top">up</a> <a href="b.html#here">b</a>
%s</body></html>"""


def problems(tool, folder, planted, style=""):
    (folder / "a.html").write_text(GOOD % planted)
    (folder / "b.html").write_text('<h2 id="here">b</h2>')
    (folder / "own.css").write_text("body { color: black } " + style)
    return tool.problems_of_site(folder)


def test_a_good_site_passes(tool, tmp_path):
    assert problems(tool, tmp_path, '<script src="own.js"></script><img src="a.svg">') == []


@pytest.mark.parametrize(
    "planted",
    [
        '<script src="https://example.org/x.js"></script>',
        '<link rel="stylesheet" href="//example.org/x.css">',
        '<img src="http://example.org/x.png">',
        '<iframe src="https://example.org/"></iframe>',
        '<a href="nothing.html">x</a>',
        '<a href="b.html#nothing">x</a>',
        '<a href="#nothing">x</a>',
    ],
)
def test_a_problem_is_found(tool, tmp_path, planted):
    assert len(problems(tool, tmp_path, planted)) == 1


def test_a_font_from_elsewhere_is_found(tool, tmp_path):
    found = problems(tool, tmp_path, "", style="@font-face { src: url('https://example.org/f.woff') }")
    assert len(found) == 1 and "own.css" in found[0]


def test_an_empty_site_is_a_problem(tool, tmp_path):
    assert len(tool.problems_of_site(tmp_path)) == 1
