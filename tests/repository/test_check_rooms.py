"""tools/check_rooms lets today's tree pass, and catches what it is there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "check_rooms"


def run(root):
    result = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout


@pytest.fixture
def copy(tmp_path):
    for folder in ("src", "include", "cmake"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_tree_passes(copy):
    assert run(copy) == (0, "every include may be\n")


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("src/checkpoint/catalog.cc", "#include <simdjson.h>", "checkpoint may not use simdjson.h"),
        ("src/checkpoint/catalog.cc", "#include <unistd.h>", "checkpoint may not use unistd.h"),
        ("src/checkpoint/catalog.cc", "  #  include <openssl/evp.h>", "checkpoint may not use openssl/evp.h"),
        ("src/io/file.cc", '#include "file.h"', "name the room"),
        ("src/io/file.cc", '#include "nowhere/file.h"', "nowhere is no room"),
        ("include/lading/error.h", '#include "base/text.h"', "a public header includes only public headers"),
    ],
)
def test_a_forbidden_include_is_caught(copy, path, line, complaint):
    file = copy / path
    file.write_text(file.read_text() + "\n" + line + "\n")
    code, output = run(copy)
    assert code == 1
    assert f"{path}:" in output and complaint in output


def test_a_cycle_of_doors_is_caught(copy):
    rooms = copy / "cmake" / "rooms.cmake"
    rooms.write_text(rooms.read_text().replace("lading_room(base ", "lading_room(base USES source "))
    code, output = run(copy)
    assert code == 1 and "base uses itself through its doors" in output


def test_an_undeclared_room_is_caught(copy):
    (copy / "src" / "attic").mkdir()
    (copy / "src" / "attic" / "box.cc").write_text("")
    code, output = run(copy)
    assert code == 1 and "attic is not declared" in output


def test_an_empty_tree_is_not_a_pass(tmp_path):
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake" / "rooms.cmake").write_text("")
    assert run(tmp_path)[0] == 1
