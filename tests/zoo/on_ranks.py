"""The zoo on several ranks: zoo_ranks.py, asked once for all layouts, and the forward passes that its loaders wrote down.

on_ranks.check(["fsdp2", "tp plan"], ["llama", "t5"])
"""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from lading_loader import FORWARD

HERE = Path(__file__).resolve().parent
LAYOUTS = ("ddp", "fsdp2", "fsdp2x3", "fsdp2x4", "hsdp", "tp", "fsdp2tp", "tp plan", "fsdp2tp plan")
PLAN = " plan"
# A rank that gets no CPU for a while on a busy machine does not hang; one that hangs is worth waiting for.
STALL_S, DEADLINE_S = 30, 120


def check(layouts, names, deadline_s=3600):
    """{layout: {model: (verdict, detail, forward)}}; `layouts` are of LAYOUTS, verdicts those of zoo_ranks.py."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="lading_zoo_") as scratch:
        for (program, loader), chosen in _by_program(layouts).items():
            table, passes = Path(scratch) / f"{program}.{loader}.csv", Path(scratch) / f"{program}.{loader}.forward"
            passes.mkdir()
            command = [HERE / program, "check", "--loader", f"lading_loader:{loader}"]
            command += ["--layout", ",".join(chosen.values()), "--only", ",".join(names)]
            command += ["--csv", table, "--cache", f"{scratch}/checkpoints"]
            command += ["--stall", STALL_S, "--deadline", DEADLINE_S, "--limit", deadline_s]
            said = run(command, deadline_s, {FORWARD: str(passes)})
            rows = list(csv.DictReader(table.open(newline=""))) if table.exists() else []
            verdicts = {(row["layout"], row["model_type"]): (row["verdict"], row["detail"]) for row in rows}
            for column, layout in chosen.items():
                found[column] = {
                    name: (*verdicts.get((layout, name), ("error", said)), _forward(passes, layout, name))
                    for name in names
                }
    return {column: found[column] for column in layouts}


def run(command, deadline_s, environment=None):
    """The last words of a program in Python. Nothing of it outlives the deadline."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=HERE,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=deadline_s)[0][-2000:]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the session is ours: the program and what it forked
        return f"not done in {deadline_s} s\n{process.communicate()[0][-2000:]}"


def _by_program(layouts):
    """{(program, loader): {column: the layout that the program knows}}: one run for each."""
    found = {}
    for column in layouts:
        program = "three_ranks.py" if column == "fsdp2x3" else "zoo_ranks.py"
        loader = "load_by_plan" if column.endswith(PLAN) else "load_every_build"
        found.setdefault((program, loader), {})[column] = column.removesuffix(PLAN).removesuffix("x3")
    return found


def _forward(folder, layout, name):
    """What the ranks wrote; of distances, the largest."""
    answers = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*.{layout}.{name}.*.json"))]
    cannot = [answer for answer in answers if "cannot" in answer]
    if cannot or not answers:
        return cannot[0] if cannot else {}
    largest = {field: max(answer[field] for answer in answers) for field in ("distance", "twin")}
    return {**largest, "note": answers[0]["note"]}
