"""Asks geometry_probe, the C++ layout behind a pipe, what a rank's memory holds."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np

DEADLINE_S = 60
PADDING = -1


def probe_path():
    root = Path(__file__).resolve().parents[2]
    command = Path(os.environ.get("LADING_COMMAND", root / "build" / "dev" / "lading"))
    return Path(os.environ.get("LADING_GEOMETRY_PROBE", command.parent / "tests" / "geometry" / "geometry_probe"))


def ask(questions):
    """One answer per question {mesh, shape, cuts, ranks}; mesh is a list of (name, size)."""
    assert questions
    lines = []
    for question in questions:
        mesh = [{"name": name, "size": size} for name, size in question["mesh"]]
        lines.append(json.dumps({**question, "mesh": mesh}))
    run = subprocess.run(
        [probe_path()], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(questions)
    return answers


def memory(rank_answer):
    """The global index at each place of the rank's memory; PADDING where there is none."""
    buffer = np.full(rank_answer["buffer"], PADDING, dtype=np.int64)
    for begin, place, size in rank_answer["runs"]:
        assert (buffer[place : place + size] == PADDING).all()
        buffer[place : place + size] = np.arange(begin, begin + size)
    return buffer


def differences(facts):
    """Where a framework's facts {mesh, shape, cuts, rank, held[, local_shape]} are not what lading says.

    `held` are the global indices in memory order. A local shape is compared unless nothing is held:
    frameworks disagree with themselves about the other dims of nothing."""
    questions = [{key: fact[key] for key in ("mesh", "shape", "cuts")} | {"ranks": [fact["rank"]]} for fact in facts]
    wrong = []
    for fact, answer in zip(facts, ask(questions), strict=True):
        if "errors" in answer:
            wrong.append((fact, answer))
            continue
        rank = answer["ranks"][0]
        same = memory(rank).tolist() == fact["held"]
        if fact["held"] and "local_shape" in fact:
            same = same and rank["shape"] == fact["local_shape"]
        if not same:
            wrong.append((fact, answer))
    return wrong
