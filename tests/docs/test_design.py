"""Paths that DESIGN.md and HACKING.md mention exist, and so do names of functions, types and members in DESIGN.md. In the
pages of docs, paths of ours and C++ names with `::` exist."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Where a path may begin: "planner/schedule" is src/planner/schedule.cc, "lading/load.h" is include/lading/load.h.
ROOTS = ("", "src/", "include/", "python/lading/", "tests/", "tests/python_front/", "examples/")
ENDINGS = ("", ".cc", ".h", ".py", "_test.cc")
SOURCES = ("*.cc", "*.h", "*.cu", "*.py", "*.txt", "*.cmake", "*.sh", "tools/*", "*.json", "dev", "*.toml")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# Not things of the repository: placeholders of the text, and what other programs and systems define.
ELSEWHERE = {
    "models--org--name", "blobs/", "snake_case", "PascalCase", "trailing_", "kName", "bool", "room: what, why",
    "fuzz/corpus/<target>/", "fuzz/fuzz_NAME.cc", "tests/corrupt/files_NAME.py", "lading::<room>",
    "src/<room>/x_test.cc", "src/<room>/tests/", "build/lading",
}  # fmt: skip


def tracked(*patterns):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def tree():
    files = set(tracked())
    folders = {str(parent) for name in files for parent in Path(name).parents}
    basenames = {Path(name).name for name in files}
    sources = [REPOSITORY / name for name in tracked(*SOURCES) if not name.startswith("tests/docs/")]
    text = "\n".join(path.read_text(errors="ignore") for path in sources if path.is_file())
    return files | folders, basenames | {Path(name).name for name in folders}, set(re.findall(r"\w+", text))


def spans_of(text):
    return SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def expanded(span):
    """`a{b,c}` is two."""
    match = re.fullmatch(r"(.*)\{([^{}]+,[^{}]+)\}(.*)", span)
    return [match[1] + part + match[3] for part in match[2].split(",")] if match else [span]


def is_path(span):
    has_ending = re.search(r"\.(h|cc|cu|py|md|map|cmake)$", span)
    return re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", span) is not None and ("/" in span or has_ending)


def exists(path, names, basenames):
    path = path.rstrip("/")
    if "*" in path or "…" in path:
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
        return any(pattern.fullmatch(name) or pattern.fullmatch(Path(name).name) for name in names)
    return path in basenames or any(root + path + ending in names for root in ROOTS for ending in ENDINGS)


def problems_of(text, tree):
    """Paths that do not exist, then C++ and Python names that no source has."""
    names, basenames, words = tree
    paths, unknown = [], []
    for span in (one for span in spans_of(text) for one in expanded(span)):
        if span in ELSEWHERE or span.startswith(("./dev", "build/", ".venv", "LADING_", "-", "/")) or " " in span:
            continue
        if is_path(span):
            if not exists(span, names, basenames):
                paths.append(span)
        elif re.fullmatch(r"[A-Za-z_][\w:.]*(\(\))?", span) and not set(re.findall(r"\w+", span)) <= words:
            unknown.append(span)
    return paths, unknown


def test_paths_and_names_in_the_design_exist(tree):
    text = (REPOSITORY / "DESIGN.md").read_text()
    assert len(spans_of(text)) > 200
    assert problems_of(text, tree) == ([], [])


def test_paths_in_hacking_exist(tree):
    """Its names are also examples of how to name things."""
    text = (REPOSITORY / "HACKING.md").read_text()
    assert len(spans_of(text)) > 100
    paths, _names = problems_of(text, tree)
    assert paths == []


def named_in_a_page(text, tree):
    """Pages name much that is elsewhere, so only what is surely meant as ours is judged."""
    paths, unknown = problems_of(text, tree)
    ours = [path for path in paths if re.match(r"(src|include|python|tests|tools|fuzz|bench|cmake|examples)/", path)]
    return ours + [name for name in unknown if re.match(r"[A-Z]\w+::\w|(Fault|Museum)\d", name)]


def test_what_pages_name_exists(tree):
    pages = [name for name in tracked("docs/*.md") if (REPOSITORY / name).is_file()]
    assert len(pages) > 50
    found = {name: named_in_a_page((REPOSITORY / name).read_text(), tree) for name in pages}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "span", ["src/planner/nothing.cc", "NoSuchType::kPread", "Plan::nothing_of_this()", "Fault40_NoSuchTest"]
)
def test_what_a_page_names_wrongly_is_found(span, tree):
    assert len(named_in_a_page(f"See `{span}`, `ReadMethod::kPread`, `org/name` and `torch.Size`.", tree)) == 1


@pytest.mark.parametrize(
    "span",
    [
        "src/planner/nothing.cc", "planner/nowhere", "docs/nothing", "no_such_function", "Plan::nothing_of_this",
        "tools/{lint,noting}", "src/*/nothing_here.cc", "nothing.h",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(span, tree):
    text = f"See `{span}`, and `src/planner/planner.cc`, `tools/lint`, `Plan::read_limits`."
    assert sum(map(len, problems_of(text, tree))) == 1
