"""One rank of a load by `lading.materialize`, which marks how far it is, and fails where it is asked to.

    torchrun --nproc-per-node 4 tools/kill_points_rank.py FOLDER NUMBER      # the case is in FOLDER/NUMBER/case.json

Where it may be asked to fail are seams that every load comes by: when it agrees, when bytes move, before the commit.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import lading
import torch
import torch.distributed as dist
from kill_points_cases import AGREEMENT, COMMIT, LOAD, WELL, Case, Ending
from kill_points_world import Marks
from lading import agreement

FILE = "model.safetensors"
LATEST_S = 0.06  # by which a rank comes later to a step than another
LOAD_S = 0.12  # what a load takes at least
_SLICE_S = 0.005


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(20))
        self.register_buffer("table", torch.zeros(8), persistent=False)


def built(case: Case) -> Model:
    if case.is_in_place:
        return Model()
    with lading.skeleton():
        return Model()


def first_numbers(_module: torch.nn.Module, _attribute: str) -> torch.Tensor:
    return torch.arange(8.0)


def warm_up(folder: Path) -> None:
    """A load alone: then there is nothing left to import, which takes seconds where many do it at once."""
    with lading.skeleton():
        model = Model()
    checkpoint = folder / FILE
    lading.materialize(model, checkpoint, device="cpu", recipes={"table": first_numbers}, progress=False, group=False)


class Rank:
    """`play` gives the ending of this rank."""

    def __init__(self, case: Case, rank: int, folder: Path, deadline_s: float, plant: str = "") -> None:
        self.case, self.rank, self.folder, self.deadline_s, self.plant = case, rank, folder, deadline_s, plant
        self.marks = Marks(folder / str(case.number) / "marks", case.ranks)
        self._chance = random.Random(f"{case.number} {rank}")

    @property
    def is_victim(self) -> bool:
        return self.rank == self.case.victim

    def play(self) -> Ending:
        """The process group is there."""
        agreement.DEADLINE_S = self.deadline_s
        self._mark_steps()
        if self.plant == "pulse":
            agreement._Pulse._beat = lambda pulse: None  # type: ignore[method-assign]
        model = built(self.case)
        before = {name: value.clone() for name, value in _tensors(model).items()}
        has_own = self.case.fault == "truncate" and self.is_victim
        checkpoint = (self.folder / str(self.case.number) if has_own else self.folder) / FILE
        self.marks.set_pid(self.rank, os.getpid())
        self._linger()
        try:
            lading.materialize(
                model,
                checkpoint,
                device="cpu",
                recipes={"table": self._table},
                progress=False,
                group=False if self.plant == "alone" else None,
                timeout=self.deadline_s,
            )
        except lading.LadingError as error:
            return Ending(str(error), error.error_id, touched=_touched(model, before, error))
        except KeyboardInterrupt:
            return Ending("", "", is_interrupted=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return Ending(WELL, "", touched=_wrong(model, self.folder))

    def write(self, ending: Ending) -> None:
        part = self.folder / str(self.case.number) / f"{self.rank}.part"
        part.write_text(json.dumps(dataclasses.asdict(ending)))
        part.rename(part.with_suffix(".json"))

    def _mark_steps(self) -> None:
        kind = agreement.Agreement
        begin, say, progress, commit = kind.__enter__, kind.say, kind.progress, kind.commit

        def marked_begin(ranks):
            begun = begin(ranks)
            self.marks.reach(self.rank, AGREEMENT)
            return begun

        def failing_say(ranks, *arguments, **named):
            self._linger()
            self._fail_if_asked()
            return say(ranks, *arguments, **named)

        def marked_progress(ranks):
            self.marks.reach(self.rank, LOAD)
            return progress(ranks)

        def marked_commit(ranks):
            if ranks.is_committed:  # the end of the block: nothing happens there any more that could fail
                return commit(ranks)
            self._linger()
            self._fail_if_asked()
            self.marks.reach(self.rank, COMMIT)
            return commit(ranks)

        kind.__enter__, kind.say, kind.progress, kind.commit = (  # type: ignore[method-assign]
            marked_begin,
            failing_say,
            marked_progress,
            marked_commit,
        )

    def _linger(self) -> None:
        """Ranks come to each step at different times, and a step lasts long enough to be hit."""
        time.sleep(self._chance.uniform(0, LATEST_S))

    def _fail_if_asked(self) -> None:
        if self.marks.shall_fail(self.rank):
            raise OSError("the disk is gone")

    def _table(self, module: torch.nn.Module, attribute: str) -> torch.Tensor:
        """So that there is something between the plan and the end. A rank that only takes its time is no failure."""
        self.marks.reach(self.rank, LOAD)
        is_slow = self.case.fault == "nothing" and self.is_victim
        end = time.monotonic() + (0.8 * self.deadline_s if is_slow else LOAD_S)
        while time.monotonic() < end:
            self._fail_if_asked()
            time.sleep(_SLICE_S)
        return first_numbers(module, attribute)


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _touched(model: Model, before: dict[str, torch.Tensor], error: lading.LadingError) -> str:
    """A model is as it was, unless the error says that it is not; then the model says so too."""
    if bool(lading.is_incomplete(model)) != error.begun:
        return f"begun is {error.begun}, and the model says {lading.is_incomplete(model)!r}"
    now = _tensors(model)
    if moved := [name for name, value in before.items() if now[name].is_meta != value.is_meta]:
        return f"no longer on meta: {moved}"
    if error.begun or all(value.is_meta for value in now.values()):
        return ""
    changed = [name for name, value in before.items() if not value.is_meta and not torch.equal(now[name], value)]
    return f"changed: {changed}" if changed else ""


def _wrong(model: Model, folder: Path) -> str:
    wanted = torch.load(folder / "wanted.pt", weights_only=True) | {"table": torch.arange(8.0)}
    now = _tensors(model)
    wrong = [name for name, value in wanted.items() if now[name].is_meta or not torch.equal(now[name], value)]
    return f"wrong weights: {wrong}" if wrong or lading.is_incomplete(model) else ""


def read_case(folder: Path, number: int) -> tuple[Case, float]:
    fields = json.loads((folder / str(number) / "case.json").read_text())
    deadline_s = fields.pop("deadline_s")
    return Case(**fields), deadline_s


def write_case(folder: Path, case: Case, deadline_s: float) -> None:
    fields = dataclasses.asdict(case) | {"deadline_s": deadline_s}
    (folder / str(case.number) / "case.json").write_text(json.dumps(fields))


def main() -> int:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    case, deadline_s = read_case(folder, number)
    torch.set_num_threads(1)
    warm_up(folder)
    dist.init_process_group("gloo")
    rank = Rank(case, dist.get_rank(), folder, deadline_s)
    ending = rank.play()
    rank.write(ending)
    return 0 if ending.text == WELL else 1


if __name__ == "__main__":
    sys.exit(main())
