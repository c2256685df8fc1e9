"""Ranks of a measurement: forked from a process that has imported everything, on gloo, with a limit."""

import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_ranks(ranks: int, limit_s: int, function: Callable[[], Any]) -> list[Any]:
    """What function() answers on each of them."""
    with tempfile.TemporaryDirectory() as scratch:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    signal.alarm(limit_s)
                    torch.set_num_threads(1)  # made anew here, by one thread
                    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=ranks)
                    answer = function()
                    Path(scratch, f"{rank}.json").write_text(json.dumps(answer))
                    dist.barrier()
                    status = 0
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                finally:
                    os._exit(status)
            children.append(pid)
        if any([os.waitpid(pid, 0)[1] for pid in children]):
            raise SystemExit("a rank failed")
        return [json.loads(Path(scratch, f"{rank}.json").read_text()) for rank in range(ranks)]
