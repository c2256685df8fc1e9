"""Runs a worker in a process of its own, and that worker's ranks in forked ones. Nothing outlives its deadline.

pytest itself never imports a framework: what they do to threads, signals and logging stays over there.
"""

import faulthandler
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# What docs/reference/compatibility.md claims: from the first version, and below the second.
CLAIMED = {"torch": ("2.11", "2.14"), "deepspeed": ("0.19.8", "0.20")}
# The versions in which tests have found other loaders to be wrong (requirements-*.txt).
PEERS = {"torch": "2.13.0", "transformers": "5.22.2", "accelerate": "1.15.0", "deepspeed": "0.19.8"}


# Deadlines become longer by this factor, for a machine that is busy with other work.
PATIENCE = float(os.environ.get("LADING_PATIENCE", "1"))


def patient(seconds):
    return math.ceil(seconds * PATIENCE)


def numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0]))


def require(*packages, exactly=True):
    """Skips a module, with the reason, where a framework is missing, or of a version that is not claimed. A patch
    version skips nothing. `exactly=False`: whatever its version."""
    for package in packages:
        first, end = CLAIMED[package]
        wanted = f"these tests want {package}>={first},<{end}"
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; {wanted}", allow_module_level=True)
        there = metadata.version(package)
        if exactly and not numbers(first) <= numbers(there) < numbers(end):
            pytest.skip(f"{package} is {there}; {wanted}", allow_module_level=True)


def wrong_in(*peers):
    """Marks a test that shows another loader to be wrong. It is run on the versions that it was found in, and elsewhere
    skipped, alone: other libraries get better, which does not make lading wrong."""
    there = {peer: metadata.version(peer).split("+")[0] for peer in peers if importlib.util.find_spec(peer) is not None}
    others = [f"{peer} {there.get(peer, 'is not installed')}" for peer in peers if there.get(peer) != PEERS[peer]]
    wanted = ", ".join(f"{peer} {PEERS[peer]}" for peer in peers)
    return pytest.mark.skipif(bool(others), reason=f"shows a bug of {wanted}; here: {', '.join(others)}")


def run_worker(module, deadline_s, *, package="geometry", **arguments):
    """What `main(**arguments)` of <package>.<module> returns, as JSON."""
    deadline_s = patient(deadline_s)
    with tempfile.TemporaryDirectory(prefix="lading_geometry_") as scratch:
        result = Path(scratch) / "result.json"
        own = filter(None, [os.environ.get("PYTHONPATH")])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "zoo", TESTS.parent / "python", *own))),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "DS_ACCELERATOR": "cpu",
            "LADING_SCRATCH": scratch,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "geometry.launch", f"{package}.{module}", json.dumps(arguments), str(result), str(deadline_s)],
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
            os.killpg(process.pid, signal.SIGKILL)  # the session is ours: the worker and its ranks
            output, _ = process.communicate()
            pytest.fail(f"{module} was not done in {deadline_s} s\n{output[-4000:]}")
        if process.returncode != 0 or not result.exists():
            pytest.fail(f"{module} ended with {process.returncode}\n{output[-4000:]}")
        return json.loads(result.read_text())


def run_ranks(world, function, deadline_s, *arguments):
    """In a worker: forks `world` gloo ranks, and returns what function(rank, *arguments) gives on each."""
    import torch
    import torch.distributed as dist

    deadline_s = patient(deadline_s)
    scratch = Path(tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"]))
    children = {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(deadline_s)
                # After a fork torch makes its threads anew on first use, which must not be by two at once
                # (transformers reads with several): "Invalid thread pool!"
                torch.set_num_threads(torch.get_num_threads())
                faulthandler.dump_traceback_later(max(1, deadline_s - 2), exit=True)  # a rank that hangs says where
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
                dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
                result = function(rank, *arguments)
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
            if done and status != 0:
                failed.append(children[pid])
            if done:
                del children[pid]
        time.sleep(0.01)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if failed or children:
        raise RuntimeError(f"ranks failed: {failed}; stopped: {sorted(children.values())}")
    return [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(world)]


def worker_main():
    module, arguments, result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    import torch

    torch.set_num_threads(1)
    value = importlib.import_module(module).main(**json.loads(arguments))
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    worker_main()
