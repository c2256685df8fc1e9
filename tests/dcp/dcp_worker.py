"""`lading.dcp.Reader` on one process and on real gloo ranks, beside DCP's own reader. Run by geometry.launch.

A case returns what is wrong; an empty list is a case that holds."""

import os
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python_front")]

import dcp_cases
import dcp_layouts
from geometry.launch import run_ranks

RANKS_DEADLINE_S = 100


def main(layouts):
    """{where: {case: [problem of a rank, …]}}"""
    import lading.dcp  # noqa: F401  # imported once, before the ranks are forked
    import ranks_common

    folder = ranks_common.make_checkpoints(Path(os.environ["LADING_SCRATCH"]))
    dcp_cases.make_checkpoints(folder)
    answers = {"one process": {name: tried(case, folder) for name, case in dcp_cases.ON_ONE_PROCESS.items()}}
    for layout in layouts:
        answers[layout] = on_ranks(dcp_layouts.world_of(layout), dcp_layouts.run, layout, folder)
    for world, cases in dcp_cases.ON_RANKS.items():
        answers[f"{world} ranks"] = on_ranks(world, dcp_cases.run, cases, folder)
    return answers


def tried(case, folder):
    try:
        return case(folder)
    except BaseException:  # CheckpointException is no Exception
        return [traceback.format_exc()]


def on_ranks(world, run, what, folder):
    cases = {}
    for rank, found in enumerate(run_ranks(world, run, RANKS_DEADLINE_S, what, folder)):
        for case, problems in found.items():
            cases.setdefault(case, []).extend(f"rank {rank}: {problem}" for problem in problems)
    return cases
