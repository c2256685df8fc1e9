"""C++ in the documentation is text of a program in examples/cpp, which tests/install builds and runs; or a marked fragment."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(<!-- fragment: .+? -->\n)?```(?:cpp|c)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FRAGMENTS = {"guides/cpp.md": 1, "reference/c-api.md": 1, "reference/cpp-api.md": 1}


def is_part_of_a_program(code):
    return any(code in path.read_text() for path in (REPOSITORY / "examples" / "cpp").glob("*.cc"))


def test_cpp_is_part_of_a_program_or_a_fragment():
    fragments, programs = {}, 0
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        for mark, code in BLOCK.findall(path.read_text()):
            name = str(path.relative_to(REPOSITORY / "docs"))
            if mark:
                fragments[name] = fragments.get(name, 0) + 1
                assert not is_part_of_a_program(code), f"{name}: it is part of a program, and no fragment"
            else:
                programs += 1
                assert is_part_of_a_program(code), f"{name}: {code}"
    assert fragments == FRAGMENTS and programs >= 1


def test_other_code_is_found():
    assert not is_part_of_a_program("const auto report = lading::materialize(requests);\n")
