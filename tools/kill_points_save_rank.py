"""One rank of a `lading.save`, which marks how far it is. As a program, one that mpirun starts:

    mpirun -n 4 python tools/kill_points_save_rank.py FOLDER NUMBER      # the case is in FOLDER/NUMBER/case.json
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import lading
import torch
import torch.distributed as dist
from kill_points_cases import AGREEMENT, COMMIT, LOAD, START, WELL, Ending, SaveCase
from kill_points_world import SIGNALS, Marks
from lading import agreement, save_engine, saving
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

BLOCKS, SIZE = 8, 128
SHARD_BYTES = 150_000  # of which the model has several
TARGET = "out"
LATE = 2  # deadlines that ranks wait for one that does not come
LATEST_S = 0.06  # by which a rank comes later to a step than another
COPY_S = 0.1  # of a file, where that is planted
LOAD_S = 0.12  # what writing takes at least
PHASE_S = (0.08, 0.15, 0.15, 0.2)  # about how long a rank is in a phase
_PHASES = {"the directory": LOAD, "what was written": COMMIT}  # that begin when a step is agreed on


def values(number: int) -> dict[str, torch.Tensor]:
    """What the tensors are in the checkpoint of this number."""
    generator = torch.Generator().manual_seed(number)
    return {f"w{place}": torch.randn(SIZE, SIZE, generator=generator) for place in range(BLOCKS)}


class Model(torch.nn.Module):
    """Whole, or in parts by rows."""

    def __init__(self, state: dict[str, torch.Tensor], mesh=None) -> None:
        super().__init__()
        for name, value in state.items():
            if mesh is not None:
                rows = SIZE // mesh.size()
                own = value[mesh.get_rank() * rows :][:rows].clone()
                value = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
            self.register_parameter(name, torch.nn.Parameter(value))


def warm_up(folder: Path) -> None:
    """Saves alone, and a sharded model: then there is nothing left to import."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    Model(values(0), init_device_mesh("cpu", (2,)))
    dist.destroy_process_group()
    for background in (False, True):
        saved = lading.save(Model(values(0)), folder / f"warm{background}", background=background, progress=False, group=False)
        if background:
            saved.result()


class SaveRank:
    """`play` gives the ending of this rank."""

    def __init__(self, case: SaveCase, rank: int, folder: Path, deadline_s: float, plant: str = "") -> None:
        self.case, self.rank, self.deadline_s, self.plant = case, rank, deadline_s, plant
        self.folder = folder / str(case.number)
        self.marks = Marks(self.folder / "marks", case.ranks)
        self._is_due = self._has_ended = False
        self._chance = random.Random(f"{case.number} {rank}")

    def play(self) -> Ending:
        """The process group is there."""
        agreement.DEADLINE_S, agreement._PATIENCE = self.deadline_s, 1
        self._mark_steps()
        mesh = init_device_mesh("cpu", (self.case.ranks,)) if self.case.is_sharded else None
        model = Model(values(1), mesh)
        dist.barrier()
        self.marks.set_pid(self.rank, os.getpid())
        self._reach(START)
        pending = None
        try:
            self._linger()
            pending = lading.save(
                model,
                self.folder / "place" / TARGET,
                exist="replace" if self.case.is_in_place else "refuse",
                max_shard_size=SHARD_BYTES,
                background=self.case.is_background,
                progress=False,
                timeout=LATE * self.deadline_s,
            )
            if self.case.is_background:
                with torch.no_grad():
                    for one in model.parameters():
                        getattr(one, "_local_tensor", one).zero_()
                self._result(pending)
        except lading.LadingError as error:
            return Ending(error.full_text(), error.error_id, touched="begun" if error.begun else "")
        except KeyboardInterrupt:
            return Ending("", "", is_interrupted=True)
        finally:
            self._has_ended = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return Ending(WELL, "")

    def write(self, ending: Ending) -> None:
        part = self.folder / f"{self.rank}.part"
        part.write_text(json.dumps(dataclasses.asdict(ending)))
        part.rename(part.with_suffix(".json"))

    def _result(self, pending) -> None:
        """An interrupt ends the wait, and not the save."""
        try:
            pending.result()
        except KeyboardInterrupt:
            pending.result()

    def _reach(self, phase: int) -> None:
        """The victim's fault comes some time after it has reached the phase that is aimed at."""
        self.marks.reach(self.rank, phase)
        case = self.case
        if self.plant and phase == COMMIT:
            return  # while files are copied
        if self._is_due or self.rank != case.victim or case.fault == "nothing" or phase < case.aim:
            return
        self._is_due = True
        if case.fault == "error":
            self._arm()
        else:
            threading.Timer(case.delay * PHASE_S[case.aim], self._happen).start()

    def _happen(self) -> None:
        if not self._has_ended:
            self.marks.happen(self.rank)
            if self.case.fault == "brief":
                self._be_woken()
            os.kill(os.getpid(), SIGNALS[self.case.fault])

    def _be_woken(self) -> None:
        """By a process of its own: the parent may be late on a busy machine."""
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(self.deadline_s / 7)
            os.kill(pid, signal.SIGCONT)
            os._exit(0)

    def _arm(self) -> None:
        """Its call of that number, from here on, fails."""
        flag = self.marks.flag(self.rank)
        ctypes.CDLL(None).lading_fault_arm(ctypes.c_long(self.case.call), self.case.errno, ctypes.byref(flag))

    def _mark_steps(self) -> None:
        kind = agreement.Agreement
        begin, say = kind.__enter__, kind.say

        def marked_begin(ranks):
            begun = begin(ranks)
            self._reach(AGREEMENT)
            return begun

        def slow_say(ranks, step, *arguments, **named):
            self._linger()
            said = say(ranks, step, *arguments, **named)
            self._reach(_PHASES.get(step, AGREEMENT))
            return said

        kind.__enter__, kind.say = marked_begin, slow_say
        write, finish, commit = save_engine.SavePlan.write, save_engine.SavePlan.finish, save_engine.commit

        def slow_write(*arguments, **named):
            is_slow = self.case.fault == "nothing" and self.rank == self.case.victim
            time.sleep(0.5 * self.deadline_s if is_slow else self._chance.uniform(0, LOAD_S))
            return write(*arguments, **named)

        def slow_finish(*arguments):
            finished = finish(*arguments)
            self._linger()
            return finished

        def slow_commit(target):
            self._linger()
            done = self._copied(target) if self.plant == "copied" else commit(target)
            self._linger()
            return done

        save_engine.SavePlan.write, save_engine.SavePlan.finish, saving.commit = slow_write, slow_finish, slow_commit

    def _copied(self, target) -> dict:
        """A mistake that is planted: the destination is written itself, file by file."""
        place = Path(target["directory"])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for path in (place.parent / target["temporary"]).iterdir():
            shutil.copyfile(path, place / path.name)
            if self.rank == self.case.victim and self.case.aim == COMMIT:
                self._happen()
            time.sleep(COPY_S)
        save_engine.discard(target)
        return {"replaced": self.case.is_in_place}

    def _linger(self) -> None:
        """Ranks come to each step at different times, and a step lasts long enough to be hit."""
        time.sleep(self._chance.uniform(0, LATEST_S))


def main() -> int:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    place = folder / str(number)
    fields = json.loads((place / "case.json").read_text())
    deadline_s = fields.pop("deadline_s")
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=size)
    one = SaveRank(SaveCase(**fields), rank, folder, deadline_s)
    ending = one.play()
    one.write(ending)
    sys.stderr.flush()
    os._exit(0 if ending.text == WELL else 1)


if __name__ == "__main__":
    sys.exit(main())
