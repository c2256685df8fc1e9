"""On a terminal: names are escaped, colours are only ours. Fault 16 of docs/how-it-works/faults.md."""

import os
import pty
import re
import subprocess

import pytest

from .build import entry, file_of
from .checks import is_deceptive
from .files_tiling import ODD_NAMES

OUR_COLOURS = re.compile(r"\x1b\[\d+m")
HOSTILE = {name: text for name, text in ODD_NAMES.items() if len(text) < 1000}


@pytest.fixture
def hostile_file(tmp_path):
    def write(begin):
        metadata = {"__metadata__": {"\x1b[31mkey": "\x1b]0;title\x07"}}
        tensors = {name: entry(begin, begin) for name in HOSTILE.values()} | {
            "x": entry(begin, begin, "\x1b[5mF32", [0])
        }
        path = tmp_path / "x.safetensors"
        path.write_bytes(file_of(metadata | tensors, bytes(begin)))
        return path

    return write


def read_all(descriptor):
    pieces = []
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # how a terminal says that its other end is closed
            piece = b""
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)


def run_on_terminal(lading, path, *options, err_to_terminal=True, **env):
    """What appears on the terminal, and what went to standard error if that is elsewhere."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [lading.command, "inspect", path, *options],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if err_to_terminal else subprocess.PIPE,
        env=lading.environment({"TERM": "xterm-256color", **env}),
    )
    os.close(theirs)
    shown = read_all(ours)
    os.close(ours)
    _, err = process.communicate(timeout=10)
    return shown.replace("\r\n", "\n"), (err or b"").decode()


def assert_only_our_colours(text):
    assert not [character for character in OUR_COLOURS.sub("", text) if is_deceptive(character)]


@pytest.mark.parametrize("begin", [0, 1], ids=["accepted", "refused"])
def test_hostile_names_on_a_terminal(lading, hostile_file, begin):
    path = hostile_file(begin)
    for options in ((), ("--tensors",)):
        coloured, _ = run_on_terminal(lading, path, *options)
        assert OUR_COLOURS.search(coloured)
        assert_only_our_colours(coloured)
        plain, _ = run_on_terminal(lading, path, *options, NO_COLOR="1")
        assert "\x1b" not in plain
        assert plain == OUR_COLOURS.sub("", coloured)


def test_colour_is_refused_by_a_dumb_terminal(lading, hostile_file):
    assert "\x1b" not in run_on_terminal(lading, hostile_file(0), TERM="dumb")[0]


def test_empty_no_color_means_nothing(lading, hostile_file):
    assert "\x1b" in run_on_terminal(lading, hostile_file(0), NO_COLOR="")[0]


def test_no_colour_without_a_terminal(lading, hostile_file):
    finished = lading.inspect(hostile_file(1), env={"TERM": "xterm-256color"})
    assert b"\x1b" not in finished.out + finished.err


def test_no_colour_in_a_log_of_errors(lading, hostile_file):
    """`lading inspect bad 2> log` in a terminal: standard output is one, the log is not."""
    _, err = run_on_terminal(lading, hostile_file(1), err_to_terminal=False)
    assert err.startswith("refused: ")
    assert "\x1b" not in err


def test_file_names_that_are_not_utf8(lading, tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\x1b[31m"
    os.mkdir(folder)
    path = folder + b"/x.safetensors"
    with open(path, "wb") as file:
        file.write(file_of({"a": entry(1, 2)}, bytes(2)))
    finished = lading.inspect(path, "--json")
    assert finished.exit_code == 3
    assert finished.json["problems"][0]["file"].endswith("/\ufffd\x1b[31m/x.safetensors")
    assert "\x1b" not in finished.err_text
    assert r"\xff\x1b[31m/x.safetensors" in finished.err_text
