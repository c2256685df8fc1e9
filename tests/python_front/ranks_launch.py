"""Runs all layouts in a process of its own, each on ranks that are forked from it: frameworks are imported once.

    python ranks_launch.py RESULT.json DEADLINE_S LAYOUT…

The result has, for each layout, what went wrong on which rank in each case: an empty list is a case that holds.
pytest never imports a framework here; nothing outlives its deadline.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / "python"
LAYOUT_DEADLINE_S = 60


def run_layouts(layouts, deadline_s):
    """{layout: {case: [problem of a rank, …]}}"""
    with tempfile.TemporaryDirectory(prefix="lading_ranks_") as scratch:
        result = Path(scratch) / "result.json"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(PYTHON), str(HERE)]),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            "LADING_SCRATCH": scratch,
        }
        process = subprocess.Popen(
            [sys.executable, str(HERE / "ranks_launch.py"), str(result), str(deadline_s), *layouts],
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


def run_ranks(world, function, deadline_s):
    """In the launcher: forks `world` gloo ranks, and returns what function(rank) gives on each."""
    import torch.distributed as dist

    scratch = Path(tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"]))
    children = {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(deadline_s)
                faulthandler.dump_traceback_later(deadline_s - 2, exit=True)  # a rank that hangs says where
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
                dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
                result = function(rank)
                dist.barrier()
                (scratch / f"{rank}.json").write_text(json.dumps(result))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children[pid] = rank
    failed = []
    end = time.monotonic() + deadline_s + 2
    while children and time.monotonic() < end and not failed:
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del_rank = children.pop(pid)
                if status != 0:
                    failed.append(del_rank)
        time.sleep(0.01)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if failed or children:
        raise RuntimeError(f"ranks failed: {failed}; stopped: {sorted(children.values())}")
    return [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(world)]


def main():
    result, deadline_s, *layouts = sys.argv[1:]
    signal.alarm(int(deadline_s))
    import ranks_cases
    import ranks_common
    import torch

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
