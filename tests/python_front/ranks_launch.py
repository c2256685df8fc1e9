"""Runs all layouts in a process of its own, each on ranks that are forked from it: frameworks are imported once.

    python ranks_launch.py RESULT.json DEADLINE_S LAYOUT…

The result has, for each layout, what went wrong on which rank in each case: an empty list is a case that holds.
pytest never imports a framework here; nothing outlives its deadline.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from geometry.launch import patient

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
PYTHON = TESTS.parent / "python"
LAYOUT_DEADLINE_S = 60


def run_layouts(layouts, deadline_s):
    """{layout: {case: [problem of a rank, …]}}"""
    return run_script(HERE / "ranks_launch.py", deadline_s, *layouts)


def run_script(script, deadline_s, *arguments):
    """What `script RESULT.json DEADLINE_S ARGUMENT…` wrote to the result."""
    deadline_s = patient(deadline_s)
    with tempfile.TemporaryDirectory(prefix="lading_ranks_") as scratch:
        result = Path(scratch) / "result.json"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(PYTHON), str(HERE), str(TESTS)]),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            "LADING_SCRATCH": scratch,
        }
        process = subprocess.Popen(
            [sys.executable, str(script), str(result), str(deadline_s), *arguments],
            env=environment,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=deadline_s + 5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session is ours: the launcher and its ranks
            output, _ = process.communicate()
            raise TimeoutError(f"not done in {deadline_s} s\n{output[-6000:]}") from None
        if process.returncode != 0 or not result.exists():
            raise RuntimeError(f"ended with {process.returncode}\n{output[-6000:]}")
        return json.loads(result.read_text())


def main():
    result, deadline_s, *layouts = sys.argv[1:]
    signal.alarm(int(deadline_s))
    import ranks_cases
    import ranks_common
    import torch
    from geometry.launch import run_ranks

    torch.set_num_threads(1)
    folder = ranks_common.make_checkpoints(Path(os.environ["LADING_SCRATCH"]))
    answers = {}
    for layout in layouts:
        began = time.monotonic()
        by_rank = run_ranks(
            ranks_common.world_of(layout),
            lambda rank, layout=layout: ranks_cases.run(layout, rank, folder),
            LAYOUT_DEADLINE_S,
        )
        cases = {}
        for rank, found in enumerate(by_rank):
            for case, problems in found.items():
                cases.setdefault(case, []).extend(f"rank {rank}: {problem}" for problem in problems)
        answers[layout] = {"cases": cases, "seconds": time.monotonic() - began}
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
