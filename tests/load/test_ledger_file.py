"""Where a ledger is written: nothing else is overwritten, no link is followed, and no part of a file stays behind."""

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

DEADLINE_S = 30


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ckpt").mkdir()
    save_file({f"w{i}": np.full((4, 8), i, np.float32) for i in range(20)}, tmp_path / "ckpt" / "model.safetensors")
    return tmp_path


@pytest.fixture
def load(lading, folder):
    def run(*options, limit=None):
        return subprocess.run(
            [lading.command, "load", str(folder / "ckpt"), *map(str, options)],
            env=lading.environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            preexec_fn=limit,
        )

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def test_no_link_of_a_guessable_name_is_followed(lading, folder):
    (folder / "victim").write_text("precious")
    script = 'ln -s victim ledger.json.$$.part; exec "$0" load ckpt --ledger ledger.json'
    done = subprocess.run(["sh", "-c", script, lading.command], cwd=folder, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert (folder / "victim").read_text() == "precious"
    assert not (folder / "ledger.json").is_symlink()
    assert json.loads((folder / "ledger.json").read_text())["complete"]


@pytest.mark.parametrize("target", ["ledger", "victim", "nothing"])
def test_a_link_is_not_written_through(load, folder, target):
    assert load("--ledger", folder / "ledger").returncode == 0
    (folder / "victim").write_text("precious")
    (folder / "link").symlink_to(target)
    before = {name: (folder / name).read_text() for name in ("ledger", "victim")}
    done = load("--ledger", folder / "link")
    assert done.returncode == 5
    assert "symbolic link" in done.stderr and "write_failed" in done.stderr
    assert {name: (folder / name).read_text() for name in before} == before
    assert names(folder) == ["ckpt", "ledger", "link", "victim"]


@pytest.mark.parametrize(
    "content",
    [
        "shopping list; see lading.ledger",
        '{"schema": "lading.ledger/1"',
        '{"schema": "lading.ledger/1"} and more',
        '{"schema": "lading.ledger/1", "schema": "lading.ledger/1"}',
        '{"schema": "lading.ledger/"}',
        '{"schema": "lading.ledger/1 of last week"}',
        '{"schema": "lading.plan/1", "note": "lading.ledger/1"}',
        '{"of": {"schema": "lading.ledger/1"}}',
        '["lading.ledger/1"]',
        "",
    ],
)
def test_only_a_ledger_is_overwritten(load, folder, content):
    file = folder / "notes.txt"
    file.write_text(content)
    done = load("--ledger", file)
    assert done.returncode == 5
    assert "is not a ledger" in done.stderr
    assert "loaded" not in done.stdout
    assert file.read_text() == content


def test_a_ledger_is_overwritten(load, folder):
    file = folder / "ledger.json"
    file.write_text('{"schema": "lading.ledger/7", "of": "a version to come"}')
    assert load("--ledger", file).returncode == 0
    first = file.read_bytes()
    assert load("--ledger", file).returncode == 0
    assert file.read_bytes() == first
    assert names(folder) == ["ckpt", "ledger.json"]


def test_a_fifo_does_not_block(load, folder):
    os.mkfifo(folder / "fifo")
    assert load("--ledger", folder / "fifo").returncode == 5


def test_the_limit_for_the_size_of_files_is_an_error(load, folder):
    file = folder / "ledger.json"
    for there in (["ckpt"], ["ckpt", "ledger.json"]):
        before = file.read_bytes() if file.exists() else None
        done = load("--ledger", file, limit=limit_file_size)
        assert done.returncode == 5, done
        assert "File too large" in done.stderr and "the load itself is complete" in done.stderr
        assert names(folder) == there
        assert before is None or file.read_bytes() == before
        assert load("--ledger", file).returncode == 0


def test_the_limit_for_the_size_of_files_and_standard_output(lading, folder):
    with open(folder / "out", "wb") as out:
        done = subprocess.run(
            [lading.command, "inspect", folder / "ckpt", "--json", "--tensors"],
            stdout=out,
            stderr=subprocess.PIPE,
            preexec_fn=limit_file_size,
        )
    assert done.returncode == 1
    assert b"File too large" in done.stderr


# A file system without O_TMPFILE is played by a linkat that fails: the file then has a name while it is written.
NAMED = ["-e", "inject=linkat:error=EPERM"]


def ended_while_writing(lading, folder, sent, faults):
    """The exit status of a load that gets a signal while its ledger is synced."""
    trace = folder.parent / f"{folder.name}.trace"
    argv = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=fsync,linkat,renameat2", *faults]
    argv += ["-e", "inject=fsync:delay_enter=400000", lading.command, "load", "ckpt", "--ledger", "ledger.json"]
    with subprocess.Popen(argv, cwd=folder, env=lading.environment(), stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + DEADLINE_S
        wanted = len(faults) // 2 + 1  # the sync of the file that gets a name comes after the one that gets none
        while not trace.exists() or trace.read_text().count("fsync(") < wanted:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        os.kill(int(trace.read_text().split()[0]), sent)
        process.communicate(timeout=DEADLINE_S)
    return process.returncode


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGKILL])
def test_no_part_stays_after_a_signal(lading, folder, sent):
    ended_while_writing(lading, folder, sent, [])
    assert set(names(folder)) <= {"ckpt", "ledger.json"}
    if (folder / "ledger.json").exists():
        assert json.loads((folder / "ledger.json").read_text())["complete"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_no_part_stays_after_a_signal_without_O_TMPFILE(lading, folder, sent):
    ended_while_writing(lading, folder, sent, NAMED)
    assert names(folder) == ["ckpt", "ledger.json"]
    assert json.loads((folder / "ledger.json").read_text())["complete"]


def test_the_demo_writes_through_no_link(lading, tmp_path):
    demo = tmp_path / "demo"
    demo.mkdir()
    for name in ("model-00001-of-00002.safetensors", "ledger.json"):
        (demo / name).symlink_to(tmp_path / "created")
        done = subprocess.run([lading.command, "demo", "--dir", demo], capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 5, done
        assert "symbolic link" in done.stderr
        assert not Path(tmp_path / "created").exists()
        (demo / name).unlink()
    assert subprocess.run([lading.command, "demo", "--dir", demo], capture_output=True).returncode == 0
    assert not [name for name in names(demo) if name.endswith(".part")]
