"""What is written about the front is true: Python in README.md and docs/ is part of an example, which a test runs,
or a marked fragment whose calls exist; every public name shows its use, with arguments that it has; type checkers see the
names that there are."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import lading

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*/*.py"))
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- fragment: (?P<why>.+?) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# Code that is no part of an example: it needs files or hardware of the reader's. The page says so.
FRAGMENTS = {
    "docs/guides/audit.md": 1, "docs/guides/dtypes.md": 1, "docs/guides/fsdp1.md": 1, "docs/guides/peft.md": 1,
    "docs/guides/pipeline.md": 2, "docs/guides/quantized.md": 1, "docs/guides/saving.md": 2, "docs/guides/zero3.md": 1,
}  # fmt: skip


def lines_of(text):
    return [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]


def parts_of(text, count):
    """Every run of so many lines, as if it began at the margin."""
    lines = text.splitlines()
    return (lines_of("\n".join(lines[begin : begin + count])) for begin in range(len(lines) - count + 1))


def is_part_of_an_example(code):
    wanted = lines_of(code)
    return any(wanted in parts_of(path.read_text(), len(wanted)) for path in EXAMPLES)


def blocks_of(document):
    """The Python of a document: code, and why it is a fragment, or None."""
    return [(match["code"], match["why"]) for match in BLOCK.finditer((REPOSITORY / document).read_text())]


WITH_PYTHON = [document for document in DOCUMENTS if blocks_of(document)]


def test_python_is_found():
    assert {"README.md", "docs/reference/python.md", "docs/start/first-model.md", *FRAGMENTS} <= set(WITH_PYTHON)


@pytest.mark.parametrize("document", WITH_PYTHON)
def test_python_in_a_document_is_part_of_an_example(document):
    for code, why in blocks_of(document):
        assert why or is_part_of_an_example(code), code


@pytest.mark.parametrize("document", FRAGMENTS)
def test_a_fragment_calls_what_exists(document):
    fragments = [code for code, why in blocks_of(document) if why]
    assert len(fragments) == FRAGMENTS[document]
    for code in fragments:
        assert not is_part_of_an_example(code), "it is part of an example, and no fragment"
        assert wrong_calls(code) == []


def test_no_other_document_has_fragments():
    assert {document for document in WITH_PYTHON if any(why for _code, why in blocks_of(document))} == set(FRAGMENTS)


def test_a_wrong_sample_is_found():
    assert not is_part_of_an_example("report = lading.materialize(model, checkpoint, device=elsewhere)\n")
    assert wrong_calls("lading.materialize(model, 'a', devise='cpu')") == ["materialize: devise"]
    assert wrong_calls("lading.materialise(model, 'a')") == ["materialise"]


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


def wrong_calls(code):
    """Calls of functions that the front does not have, or with arguments that they do not have."""
    found = []
    for called, keywords in calls_of_the_front(code):
        if called not in lading.__all__:
            found.append(called)
            continue
        parameters = inspect.signature(getattr(lading, called)).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            known = {parameter.name for parameter in parameters}
            found += [f"{called}: {keyword}" for keyword in keywords if keyword not in known]
    return found


@pytest.mark.parametrize("name", lading.__all__)
def test_a_public_name_shows_its_use(name):
    code = shown_use(name)
    assert code, "the docstring shows no use"
    assert re.search(rf"\b{name}\b", code) or inspect.isclass(getattr(lading, name)), "it is not used there"
    assert wrong_calls(code) == []


def test_type_checkers_see_the_public_names():
    tree = ast.parse(Path(lading.__file__).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.asname: node.module for node in checked.body for alias in node.names}
    assert seen == lading._HOMES | dict.fromkeys(lading._MODULES)
    assert (Path(lading.__file__).parent / "py.typed").is_file()


def test_the_generated_reference_has_every_name():
    page = (REPOSITORY / "docs" / "reference" / "python-api.md").read_text()
    assert sorted(re.findall(r"^::: lading\.(\w+)$", page, re.MULTILINE)) == sorted(lading.__all__)


def test_the_table_of_names_is_complete():
    table = (REPOSITORY / "docs" / "reference" / "python.md").read_text()
    assert [name for name in lading.__all__ if not re.search(rf"`(lading\.)?{name}\b", table)] == []
