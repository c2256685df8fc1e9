"""Runs the command as a process, measured and with a deadline."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 10


@dataclass(frozen=True)
class Finished:
    """How a run ended. A negative exit code is the signal that ended it."""

    exit_code: int
    cpu_s: float
    peak_bytes: int
    out: bytes
    err: bytes

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def err_text(self):
        return self.err.decode("utf-8")


class Runner:
    def __init__(self, command, scratch):
        self.command = str(command)
        self.out_file = Path(scratch) / "stdout"
        self.err_file = Path(scratch) / "stderr"
        self.home = Path(scratch) / "home"
        self.home.mkdir()

    def __enter__(self):
        self.launcher = subprocess.Popen(
            [sys.executable, "-E", "-s", Path(__file__).with_name("launcher.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self.launcher.stdin.close()
        self.launcher.wait(DEADLINE_S)
        self.launcher.stdout.close()

    def environment(self, changes=None):
        """Nothing of the developer's own caches and colours."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8", **(changes or {})}

    def inspect(self, path, *options, **settings):
        """`lading inspect PATH OPTIONS`"""
        return self.run("inspect", path, *options, **settings)

    def run(self, what, path, *options, env=None, cwd=None, prefix=(), deadline_s=DEADLINE_S):
        """`lading WHAT PATH OPTIONS`; `prefix` is a command that runs it, such as prlimit."""
        argv = [*prefix, self.command, what, os.fspath(path), *map(os.fspath, options)]
        request = {
            "argv": [os.fsdecode(word) for word in argv],
            "env": self.environment(env),
            "cwd": os.fspath(cwd or self.home),
            "stdout": str(self.out_file),
            "stderr": str(self.err_file),
            "deadline_s": deadline_s,
        }
        self.launcher.stdin.write(json.dumps(request) + "\n")
        self.launcher.stdin.flush()
        answer = json.loads(self.launcher.stdout.readline())
        return Finished(out=self.out_file.read_bytes(), err=self.err_file.read_bytes(), **answer)
