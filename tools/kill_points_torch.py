"""Loads by `lading.materialize`, on ranks that are forked from this process, or started by torchrun.

    fork = Fork(folder, deadline_s=4)
    outcomes = run_all(cases, fork.start, at_once=4)

This process imports everything and makes one load alone, so that forked ranks have nothing left to import. Their store
is a process of its own; torchrun's agent holds the one of its workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

import lading
import torch
import torch.distributed as dist
from kill_points_cases import Case, Ending
from kill_points_launched import Launched
from kill_points_rank import FILE, Model, Rank, warm_up, write_case
from kill_points_world import Limits, Marks, World
from safetensors.torch import save_file

RANK = Path(__file__).resolve().parent / "kill_points_rank.py"


class _OnStore(World):
    """What both have in common: marks, endings in files, and that nothing happens before there is a process group."""

    folder: Path
    marks: Marks

    def phase(self, rank: int) -> int:
        return self.marks.phase(rank)

    def pid(self, rank: int) -> int:
        return self.marks.pid(rank)

    def may_happen(self) -> bool:
        return all(self.marks.pid(rank) for rank in range(self.case.ranks)) and len(self.processes) == self.case.ranks

    def make_fail(self) -> None:
        if self.case.fault == "error":
            self.marks.ask_to_fail(self.case.victim)
        else:
            path = self.folder / FILE
            os.truncate(path, path.stat().st_size // 2)

    def ending(self, rank: int) -> Ending | None:
        path = self.folder / f"{rank}.json"
        return Ending(**json.loads(path.read_text())) if path.exists() else None


class _Torch:
    """What the loads share: a checkpoint, what a model should hold, and deadlines."""

    WORLD_S = 60.0

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self.folder = folder
        self.limits = Limits(deadline_s, deadline_s, world_s=self.WORLD_S)
        torch.set_num_threads(1)
        wanted = Model().state_dict()
        save_file({name: value.clone() for name, value in wanted.items()}, folder / FILE)
        torch.save(wanted, folder / "wanted.pt")

    def prepare(self, case: Case) -> Path:
        place = self.folder / str(case.number)
        place.mkdir()
        if case.fault == "truncate":
            shutil.copyfile(self.folder / FILE, place / FILE)
        write_case(self.folder, case, self.limits.deadline_s)
        return place


# ---- fork


class ForkWorld(_OnStore):
    def __init__(self, case: Case, fork: Fork) -> None:
        self.folder = fork.prepare(case)
        self.marks = Marks(self.folder / "marks", case.ranks)
        super().__init__(case, fork.limits)
        self._holder, port = _fork_store()
        self._pids = [self._fork(rank, port, fork) for rank in range(case.ranks)]

    def pid(self, rank: int) -> int:
        return self._pids[rank]

    def clean_up(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        super().clean_up()
        for pid in (*self._pids, self._holder):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _fork(self, rank: int, port: int, fork: Fork) -> int:
        pid = os.fork()
        if pid != 0:
            return pid
        try:
            signal.alarm(int(self.limits.world_s))
            os.nice(5)  # whoever lets things happen must be in time
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with (fork.folder / "log").open("a") as log:  # torch has much to say about stores whose clients die
                os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
            torch.set_num_threads(1)  # torch makes its pool of threads anew after a fork, on first use
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=self.case.ranks)
            one = fork.rank(self.case, rank)
            one.write(one.play())
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)


class Fork(_Torch):
    def __init__(self, folder: Path, deadline_s: float, plant: str = "") -> None:
        super().__init__(folder, deadline_s)
        self.plant = plant
        warm_up(folder)

    def rank(self, case: Case, rank: int) -> Rank:
        return Rank(case, rank, self.folder, self.limits.deadline_s, self.plant)

    def start(self, case: Case) -> World:
        return ForkWorld(case, self)


def _fork_store() -> tuple[int, int]:
    """The process that holds the store, and its port. One for each load: a store that many come to answers late."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            os.write(writer, str(store.port).encode())
            os.close(writer)
            while os.getppid() == parent:
                time.sleep(0.5)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as port:
        return pid, int(port.read())


# ---- torchrun


class TorchrunWorld(_OnStore, Launched):
    def __init__(self, case: Case, torchrun: Torchrun) -> None:
        folder = torchrun.prepare(case)
        self.marks = Marks(folder / "marks", case.ranks)
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
        argv += ["--nproc-per-node", str(case.ranks), str(RANK), str(torchrun.folder), str(case.number)]
        Launched.__init__(self, case, torchrun.limits, argv, torchrun.environment, folder)

    def has_told(self, rank: int) -> bool:
        return (self.folder / f"{rank}.json").exists()  # to leave Python takes a second or two

    def can_wake(self) -> bool:
        return False  # the agent ends what is left once a rank has failed


class Torchrun(_Torch):
    WORLD_S = 180.0  # every worker imports torch

    def __init__(self, folder: Path, deadline_s: float) -> None:
        super().__init__(folder, deadline_s)
        package = Path(lading.__file__).resolve().parents[1]
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(RANK.parent), str(package)])}

    def start(self, case: Case) -> World:
        return TorchrunWorld(case, self)
