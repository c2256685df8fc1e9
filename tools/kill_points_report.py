"""Adds outcomes up into the tables that docs/how-it-works/reliability.md records."""

from __future__ import annotations

import collections
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kill_points_cases import FAULTS, KINDS, PHASES, Outcome


class Tally:
    """`add` every outcome, then print `lines`."""

    def __init__(self, faults: Mapping[str, str] = FAULTS, kinds: Sequence[str] = KINDS, what: str = "loads") -> None:
        self._faults, self._kinds, self._what = faults, kinds, what
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def wrong(self) -> dict[str, int]:
        return {kind: sum(kind in outcome.wrong for outcome in self.outcomes) for kind in self._kinds}

    def lines(self) -> list[str]:
        ends = [end for end in ENDS if any(one.ended == end and not one.wrong for one in self.outcomes)]
        faults = [fault for fault in self._faults if any(one.case.fault == fault for one in self.outcomes)]
        rows = []
        for fault in faults:
            mine = [one for one in self.outcomes if one.case.fault == fault]
            seconds = [_slowest(one for one in mine if one.had_begun is begun) for begun in (True, False)]
            counts = [sum(one.ended == end and not one.wrong for one in mine) for end in ends]
            rows.append(
                [f"{fault}: {self._faults[fault]}", len(mine), *counts, sum(bool(one.wrong) for one in mine), *seconds]
            )
        lines = table(["what happened", self._what, *ends, "wrong", "slowest, s", "if not all had begun, s"], rows)
        lines += ["", *self._by("phase of the victim", [PHASES[one.phase] for one in self.outcomes], PHASES, faults)]
        ranks = [str(one.case.ranks) for one in self.outcomes]
        lines += ["", *self._by("ranks", ranks, sorted(set(ranks)), faults), ""]
        if places := [one.place for one in self.outcomes if one.place]:
            lines += [*self._by("the place then has", places, sorted(set(places)), faults), ""]
        return [*lines, ", ".join(f"{kind}: {count}" for kind, count in self.wrong.items())]

    def _by(self, title: str, keys: Sequence[str], order: Iterable[str], faults: Sequence[str]) -> list[str]:
        count = collections.Counter((key, one.case.fault) for key, one in zip(keys, self.outcomes, strict=True))
        rows = [[key, *(count[key, fault] for fault in faults)] for key in order if key in keys]
        return table([title, *faults], rows)


def _slowest(outcomes: Iterable[Outcome]) -> str:
    return f"{max((one.seconds for one in outcomes), default=0.0):.1f}"


ENDS = ("well", "failed alike", "ended by the launcher", "nobody left")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    written = [head, ["---"] * len(head), *rows]
    return [
        "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) + " |" for row in written
    ]


def machine() -> str:
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}, Linux {platform.release()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
