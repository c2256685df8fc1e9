"""Many worlds, on several groups of ranks side by side: dispatching, judging, counting."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .pieces import Json
from .ranks import Group, watch

# The worst comes first: one rank's word decides for the world.
_ORDER = ("broken", "bare", "split", "different", "accepted", "refused", "void", "equal")
BUGS = ("bare", "split", "different", "accepted", "hang", "crash", "broken")
_POLL_S = 0.5
_PAUSE_S = 5.0


def judge(spec: Json, answers: list[Json]) -> Json:
    """One verdict of all ranks' ones."""
    worst = min(answers, key=lambda answer: _ORDER.index(answer["verdict"]))
    kinds = {answer["verdict"] for answer in answers}
    if worst["verdict"] in ("refused", "void") and len(kinds) > 1:
        return worst | {"verdict": "split", "cause": f"verdicts differ between ranks: {sorted(kinds)}"}
    if worst["verdict"] == "equal" and spec["layout"]["kind"] not in ("stages", "different"):
        values = [answer["random"] for answer in answers]
        unlike = sorted({name for one in values for name in one if any(two.get(name) != one[name] for two in values)})
        if unlike:
            return worst | {"verdict": "different", "cause": "random", "details": [f"ranks differ in {unlike[0]}"]}
    return worst


class Campaign:
    """Runs worlds, and remembers how each ended."""

    def __init__(self, sizes: list[int], scratch: Path, prepare: Callable[[], None] | None = None) -> None:
        self.groups = [Group(size, scratch, prepare) for size in sizes]
        self.began = self._looked = time.monotonic()

    def run(self, specs: Iterable[Json], seconds: float | None = None) -> Iterator[tuple[Json, Json]]:
        """(world, verdict), in the order in which they end."""
        source = iter(specs)
        waiting: dict[int, collections.deque[Json]] = collections.defaultdict(collections.deque)
        is_dry = False
        self._looked = time.monotonic()
        while True:
            is_over = seconds is not None and time.monotonic() - self.began > seconds
            for group in self.groups:
                while group.spec is None and not is_over and not waiting[group.size] and not is_dry:
                    spec = next(source, None)
                    if spec is None:
                        is_dry = True
                    else:
                        waiting[spec["ranks"]].append(spec)
                if group.spec is None and not is_over and waiting[group.size]:
                    group.begin(waiting[group.size].popleft())
            busy = [group for group in self.groups if group.spec is not None]
            if not busy:
                return
            yield from self._step(busy)

    def _step(self, busy: list[Group]) -> Iterator[tuple[Json, Json]]:
        gone: set[int] = set()
        self._forgive_pauses(busy)
        for group, descriptor in watch(busy, _POLL_S):
            if id(group) in gone or group.spec is None:
                continue
            spec = group.spec
            if not group.read(descriptor):
                gone.add(id(group))
                yield spec, _ended(group, "crash")
            elif group.is_done:
                verdict = judge(spec, group.finish())
                if verdict["verdict"] in BUGS or group.is_old:
                    group.restart()  # what went wrong may have left traces
                yield spec, verdict
        for group in busy:
            if group.spec is not None and id(group) not in gone and group.is_late:
                yield group.spec, _ended(group, "hang")

    def _forgive_pauses(self, busy: list[Group]) -> None:
        """Somebody may stop this program and all its ranks for a while, to have the machine for himself."""
        now = time.monotonic()
        if now - self._looked > _PAUSE_S:
            for group in busy:
                group.began += now - self._looked
        self._looked = now

    def close(self) -> None:
        for group in self.groups:
            group.kill()


def _ended(group: Group, verdict: str) -> Json:
    """Of a group that hangs or of which a rank died. The group is started anew."""
    time.sleep(0.2)
    said = group.kill()
    text = group.last_words()
    group.log.unlink(missing_ok=True)
    group._start()
    return {"verdict": verdict, "cause": "; ".join(said), "details": [text], "torch_loads": True, "done": []}


def sizes_for(ranks: list[int], shares: dict[int, float], at_once: int) -> list[int]:
    """How many groups of each size: at least one of each, the rest where most of the worlds are."""
    sizes = sorted(ranks)
    while len(sizes) < at_once:
        sizes.append(max(ranks, key=lambda size: shares.get(size, 0) / (sizes.count(size) + 0.5)))
    return sizes

