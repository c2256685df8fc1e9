"""What is written about the front is true: Python in README.md and docs/reference/python.md is text of an example, which another
test runs; every public name shows its use, with arguments that it has; type checkers see the names that there are."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import lading

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/reference/python.md")
EXAMPLES = sorted((REPOSITORY / "examples").glob("*/*.py"))


def lines_of(text):
    return [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]


def parts_of(text, count):
    """Every run of so many lines, as if it began at the margin."""
    lines = text.splitlines()
    return (lines_of("\n".join(lines[begin : begin + count])) for begin in range(len(lines) - count + 1))


def blocks_of(document):
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_in_a_document_is_part_of_an_example(document):
    blocks = blocks_of(document)
    assert blocks
    for block in blocks:
        wanted = lines_of(block)
        assert any(wanted in parts_of(path.read_text(), len(wanted)) for path in EXAMPLES), block


def is_code(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return "lading." in text


def shown_use(name):
    """The paragraphs of a docstring that are Python, and about lading."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(getattr(lading, name)) or "")
    return "\n".join(filter(is_code, map(textwrap.dedent, paragraphs)))


def calls_of_the_front(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "lading":
                yield node.func.attr, [keyword.arg for keyword in node.keywords if keyword.arg]


@pytest.mark.parametrize("name", lading.__all__)
def test_a_public_name_shows_its_use(name):
    code = shown_use(name)
    assert code, "the docstring shows no use"
    assert re.search(rf"\b{name}\b", code) or inspect.isclass(getattr(lading, name)), "it is not used there"
    for called, keywords in calls_of_the_front(code):
        parameters = inspect.signature(getattr(lading, called)).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            assert set(keywords) <= {parameter.name for parameter in parameters}, called


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(lading.__file__).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.asname: node.module for node in checked.body for alias in node.names}
    assert seen == lading._HOMES
    assert (Path(lading.__file__).parent / "py.typed").is_file()


def test_the_table_of_names_is_complete():
    table = (REPOSITORY / "docs" / "reference" / "python.md").read_text()
    assert [name for name in lading.__all__ if not re.search(rf"`(lading\.)?{name}\b", table)] == []
