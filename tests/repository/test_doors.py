"""The compiler keeps the doors between rooms (cmake/rooms.cmake): an include that a room may not have does not compile."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Of one source of each room: how it is compiled, without the source and where its object goes. The build is configured
    here, file by file, because the one that is tested may compile the files of a room together."""
    build = tmp_path_factory.mktemp("doors")
    subprocess.run(
        ["cmake", "--preset", "dev", "-B", build, "-DLADING_UNITY=OFF", "-DLADING_PRECOMPILE=OFF"],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if source.is_relative_to(ROOT / "src") and f"lading_{source.relative_to(ROOT / 'src').parts[0]}.dir" in entry["command"]:
            words = [word for word in shlex.split(entry["command"]) if word != "ccache"]
            found.setdefault(source.relative_to(ROOT / "src").parts[0], words[: words.index("-o")])
    return found


def compiles(commands, room, include, tmp_path):
    source = tmp_path / "planted.cc"
    source.write_text(f'#include "{include}"\n')
    command = [*commands[room], "-fsyntax-only", str(source)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 or f"{include}: No such file or directory" in run.stderr, run.stderr
    return run.returncode == 0


@pytest.mark.parametrize(
    "room, include",
    [
        ("planner", "checker/checker.h"),
        ("checker", "planner/planner.h"),
        ("checker", "planner/work_out.h"),
        ("checker", "layout/region.h"),  # region_of
        ("checker", "layout/owned_runs.h"),
        ("checker", "mapping/pieces.h"),  # expand
        ("checker", "mapping/resolve.h"),
        ("checker", "layout/chunk.h"),  # private to its room
        ("planner", "mapping/cut_pieces.h"),
        ("checker", "base/loop_nest.h"),
        ("plan", "planner/planner.h"),
        ("plan", "checker/checker.h"),
        ("base", "io/file.h"),
        ("base", "lading/inspect.h"),  # a public header of api's
        ("checkpoint", "io/anchor.h"),
        ("io", "source/checkpoint_source.h"),
        ("exec", "source/checkpoint_source.h"),
        ("cli", "checkpoint/catalog.h"),
        ("cli", "ranks/coordinator.h"),
    ],
)
def test_an_include_without_a_door_does_not_compile(commands, room, include, tmp_path):
    assert (ROOT / "src" / include).is_file() or (ROOT / "include" / include).is_file()
    assert not compiles(commands, room, include, tmp_path)


@pytest.mark.parametrize(
    "room, include",
    [
        ("planner", "layout/region.h"),
        ("planner", "plan/plan.h"),
        ("checker", "layout/layout.h"),
        ("checker", "plan/plan.h"),
        ("checker", "lading/result.h"),
        ("layout", "layout/chunk.h"),
        ("api", "checker/checker.h"),
        ("cli", "lading/inspect.h"),
    ],
)
def test_an_include_with_a_door_compiles(commands, room, include, tmp_path):
    assert compiles(commands, room, include, tmp_path)


def test_every_room_has_doors_of_its_own(commands):
    """No room is compiled with src itself in its path: it would see everything."""
    for room, command in commands.items():
        folders = [word[2:] for word in command if word.startswith("-I")]
        assert str(ROOT / "src") not in folders and str(ROOT / "include") not in folders, room
        assert any(folder.endswith(f"doors/lading_{room}") for folder in folders), room
