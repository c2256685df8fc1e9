"""Whatever an error can name is a topic of `lading help`: codes and rules of the sources, exit codes, policy words."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MAKES_A_PROBLEM = {"Problem", "SkeletonError", "problem", "warning"}  # called with the code first


@pytest.fixture(scope="module")
def topics():
    """Names by kind, as the built command lists them."""
    done = subprocess.run([ROOT / "build/dev/lading", "help", "--json"], capture_output=True, timeout=60, check=True)
    names = {}
    for topic in json.loads(done.stdout)["topics"]:
        names.setdefault(topic["kind"], set()).add(topic["name"])
    return names


def sources():
    for folder, ending in (("src", "*.cc"), ("src", "*.h"), ("python/lading", "*.py")):
        yield from (path for path in (ROOT / folder).rglob(ending) if not path.name.endswith("_test.cc"))


def codes_of_the_front():
    for path in (ROOT / "python/lading").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if name in MAKES_A_PROBLEM and re.fullmatch(r"[a-z_]+", str(call.args[0].value)):
                    yield call.args[0].value
    tables = (ROOT / "python/lading/private_tables.py").read_text()
    libraries = set(re.findall(r'^\w+ = Table\(\s*"(\w+)"', tables, re.MULTILINE))
    assert "torch" in libraries, "private_tables.py is written in another way"
    yield from (f"{library}_version" for library in libraries)


def test_every_code_of_the_engine_is_a_topic(topics):
    codes = set(re.findall(r'X\(k\w+, "(\w+)"', (ROOT / "include/lading/error.h").read_text()))
    assert len(codes) > 50 and codes - topics["error code"] == set(), "add a section to docs/error-codes.md"


def test_every_code_of_the_front_is_a_topic_and_none_is_left_over(topics):
    engine = set(re.findall(r'X\(k\w+, "(\w+)"', (ROOT / "include/lading/error.h").read_text()))
    front = set(codes_of_the_front())
    assert len(front) > 30 and front - topics["error code"] == set(), "add a section to docs/error-codes.md"
    text = "".join(path.read_text() for path in (ROOT / "python/lading").glob("*.py"))
    unused = {code for code in topics["error code"] - engine - front if f'"{code}"' not in text}
    assert unused == set(), "docs/error-codes.md has sections for codes that nothing uses"


def test_every_rule_that_the_sources_name_is_a_topic(topics):
    named = {rule for path in sources() for rule in re.findall(r'"([RS]\d+)"', path.read_text())}
    assert len(named) > 40 and named - topics["rule"] == set(), "add a section to docs/contract.md"


def test_every_exit_code_is_a_topic(topics):
    enumerators = re.search(r"enum class Exit .*?\{(.*?)\};", (ROOT / "include/lading/error.h").read_text(), re.DOTALL)
    codes = {f"exit {code}" for code in re.findall(r"= (\d+),", enumerators[1])}
    assert codes == topics["exit code"], "docs/exit-codes.md has a section for each"


def test_every_word_of_a_policy_is_a_topic(topics):
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", (DOCS / "schema/policy.md").read_text(), re.MULTILINE)
    words = {field for field, _ in rows if field != "schema"}
    source = (ROOT / "src/policy/policy_json.cc").read_text()
    words |= set(re.findall(r'std::pair<std::string_view, \w+>\{"(\w+)", \w+::k\w+\}', source))
    assert {"cast", "promote", "untie", "report"} < words
    assert words - topics["policy word"] == set(), "add a section to docs/policy-words.md"


def test_every_argument_of_materialize_is_a_topic(topics):
    sys.path.insert(0, str(ROOT / "python"))
    lading = pytest.importorskip("lading")
    pytest.importorskip("torch")
    arguments = set(inspect.signature(lading.materialize).parameters) - {"model", "checkpoint"}
    assert arguments - topics["policy word"] == set(), "add a section to docs/policy-words.md"


@pytest.mark.parametrize("page", ["contract", "error-codes", "exit-codes", "policy-words"])
def test_links_of_the_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", (DOCS / f"{page}.md").read_text()):
        assert not target or (DOCS / target).is_file(), f"{page}.md links to {target}"
