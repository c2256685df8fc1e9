"""Saves by `lading.save`, on ranks that are forked from this process, or started by mpirun; and what is at the place
afterwards: the old checkpoint or the new one, whole, and after the next save nothing else.

    saves = ForkSaves(folder, deadline_s=8)
    outcomes = run_all(cases, saves.start, at_once=4)

A system call of the victim's fails by its number: kill_points_faults.c, with which this process has to be started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

import lading
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from kill_points_cases import COMMIT, WELL, Ending, Outcome, SaveCase, judge
from kill_points_launched import Launched
from kill_points_save_rank import LATE, PHASE_S, SHARD_BYTES, TARGET, Model, SaveRank, values, warm_up
from kill_points_torch import ForkWorld, _OnStore
from kill_points_world import Limits, Marks, World
from safetensors.torch import load_file, save_file

TOOLS = Path(__file__).resolve().parent
_INDEX, _LEDGER = "model.safetensors.index.json", "lading.ledger.json"
_GRACE_S = 12.0  # the machine is busy
_OLD, _NEW = 2, 1  # numbers of checkpoints


class _Saving(_OnStore):
    """What follows a save: a look at the place, and the next save of its name."""

    saves: _Saves
    case: SaveCase

    def _is_due(self, now: float) -> bool:
        """Victims do it to themselves: this process may be late on a busy machine."""
        if self.case.fault == "nothing":
            return super()._is_due(now)
        return self.marks.has_happened(self.case.victim)

    def _let_happen(self, now: float) -> None:
        """It has, but for what else there is to note."""
        super()._let_happen(now)
        if self.case.fault not in ("nothing", "error"):
            self.phase_then = self.marks.phase_then(self.case.victim)

    def tell_victim(self) -> None:
        """Its signal is on its way."""

    def judged(self, outcome: Outcome, endings: list[Ending], phases: list[int]) -> Outcome:
        """All processes are gone."""
        place = self.folder / "place"
        found = self.saves.state_of(place / TARGET)
        is_well = any(one.text == WELL for one in endings)
        before = "old" if self.case.is_in_place else "none"
        if found not in ("none", "old", "new"):
            outcome.wrong["mixture"] = found
        elif found not in (before, "new"):
            outcome.wrong["old lost"] = f"{found}"
        elif is_well and found != "new":
            outcome.wrong["false success"] = f"a rank was well, and the place has: {found}"
        elif found == "new" and max(phases) < COMMIT:
            outcome.wrong["false success"] = "renamed before the files were agreed on"
        lading.save(torch.nn.Linear(2, 2), place / TARGET, exist="replace", progress=False, group=False)
        if left := sorted({path.name for path in place.iterdir()} - {TARGET}):
            outcome.wrong["leftover"] = f"{left}"
        return dataclasses.replace(outcome, place=found)


class _Saves:
    """What all saves share: the old checkpoint, what a new one has, and deadlines."""

    WORLD_S = 180.0

    def __init__(self, folder: Path, deadline_s: float, plant: str = "") -> None:
        self.folder, self.plant = folder, plant
        self.limits = Limits(deadline_s, LATE * deadline_s, world_s=self.WORLD_S, phase_s=PHASE_S, grace_s=_GRACE_S)
        torch.set_num_threads(1)
        warm_up(folder)
        split = split_torch_state_dict_into_shards(values(_NEW), max_shard_size=SHARD_BYTES)
        self._files, self._index = split.filename_to_tensors, split.tensor_to_filename
        old = folder / "old"
        old.mkdir()
        for name, keys in self._files.items():
            save_file({key: values(_OLD)[key] for key in keys}, old / name)
        (old / _INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": self._index}))
        (old / "mine.txt").write_text("mine")
        self._old = _contents(old)
        self._new = values(_NEW)

    def prepare(self, case: SaveCase) -> Path:
        place = self.folder / str(case.number)
        (place / "place").mkdir(parents=True)
        if case.is_in_place:
            shutil.copytree(self.folder / "old", place / "place" / TARGET)
        fields = dataclasses.asdict(case) | {"deadline_s": self.limits.deadline_s}
        (place / "case.json").write_text(json.dumps(fields))
        return place

    def state_of(self, target: Path) -> str:
        """none, old, new, or in what it is neither."""
        if not target.exists():
            return "none"
        contents = _contents(target)
        if contents == self._old:
            return "old"
        if contents.keys() != {*self._files, _INDEX, _LEDGER}:
            return f"the files are {sorted(contents)}"
        try:
            if json.loads(contents[_INDEX])["weight_map"] != self._index or not json.loads(contents[_LEDGER]):
                return "the index is another one"
            found = {key: value for name in self._files for key, value in load_file(target / name).items()}
        except Exception as error:  # noqa: BLE001 - whatever a broken file makes of it
            return f"{type(error).__name__}: {error}"
        wrong = [key for key, value in self._new.items() if key not in found or not torch.equal(found[key], value)]
        return f"other values of {wrong}" if wrong or found.keys() != self._new.keys() else "new"


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"no file" for path in folder.iterdir()}


# ---- fork


class ForkSaveWorld(_Saving, ForkWorld):
    def __init__(self, case: SaveCase, saves: ForkSaves) -> None:
        self.saves = saves
        super().__init__(case, saves)

    def result(self) -> Outcome:
        seen = self.seen(living=self.late_ranks())
        outcome = judge(seen)
        self.kill()
        try:
            return self.judged(outcome, list(seen.endings.values()), list(seen.phases))
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class ForkSaves(_Saves):
    def rank(self, case: SaveCase, rank: int) -> SaveRank:
        return SaveRank(case, rank, self.folder, self.limits.deadline_s, self.plant)

    def start(self, case: SaveCase) -> World:
        return ForkSaveWorld(case, self)


# ---- mpirun


class MpirunSaveWorld(_Saving, Launched):
    def __init__(self, case: SaveCase, saves: MpirunSaves) -> None:
        self.saves = saves
        folder = saves.prepare(case)
        self.marks = Marks(folder / "marks", case.ranks)
        argv = ["mpirun", "--oversubscribe", "-n", str(case.ranks), sys.executable]
        argv += [str(TOOLS / "kill_points_save_rank.py"), str(saves.folder), str(case.number)]
        Launched.__init__(self, case, saves.limits, argv, saves.environment, folder)

    def has_told(self, rank: int) -> bool:
        return (self.folder / f"{rank}.json").exists()

    def can_wake(self) -> bool:
        return False

    def result(self) -> Outcome:
        endings = [one for rank in range(self.case.ranks) if (one := self.ending(rank)) is not None]
        phases = [self.marks.phase(rank) for rank in range(self.case.ranks)]
        kept = self.folder.with_name(f"{self.folder.name}.kept")
        outcome = super().result(keep=kept)
        self.folder = kept
        try:
            return self.judged(outcome, endings, phases)
        finally:
            shutil.rmtree(kept, ignore_errors=True)


class MpirunSaves(_Saves):
    WORLD_S = 600.0  # every rank imports torch

    def __init__(self, folder: Path, deadline_s: float) -> None:
        super().__init__(folder, deadline_s)
        package = Path(lading.__file__).resolve().parents[1]
        self.environment = os.environ | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PYTHONPATH": os.pathsep.join([str(TOOLS), str(package)]),
        }

    def start(self, case: SaveCase) -> World:
        return MpirunSaveWorld(case, self)


# ---- failing calls


def with_faults(folder: Path) -> None:
    """Starts this program again, with the library that lets calls fail."""
    if "LADING_KILL_POINTS_FAULTS" in os.environ:
        return
    library = folder / "faults.so"
    source = TOOLS / "kill_points_faults.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    preloaded = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    environment = os.environ | {"LD_PRELOAD": preloaded, "LADING_KILL_POINTS_FAULTS": str(library)}
    with contextlib.suppress(KeyboardInterrupt):
        done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
        sys.exit(done.returncode)
    sys.exit(130)
