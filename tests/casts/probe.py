"""Asks cast_probe, the C++ casts behind a pipe, what becomes of elements."""

import os
import subprocess
from pathlib import Path

import numpy as np

DEADLINE_S = 60


def probe_path():
    root = Path(__file__).resolve().parents[2]
    command = Path(os.environ.get("LADING_COMMAND", root / "build" / "dev" / "lading"))
    return Path(os.environ.get("LADING_CAST_PROBE", command.parent / "tests" / "casts" / "cast_probe"))


def run(arguments, data=b""):
    return subprocess.run(
        [probe_path(), *arguments], input=data, capture_output=True, timeout=DEADLINE_S, check=True
    ).stdout


def paths():
    """The instruction sets of this machine, best first."""
    return run(["paths"]).decode().split()


def cast(codes, source, target, width_bytes, path):
    """`codes` are unsigned integers of the source's width; the answer has those of the target's."""
    return np.frombuffer(run([source, target, path], codes.tobytes()), dtype=f"<u{width_bytes}")
