"""One load on real processes, looked after without waiting: many of them run side by side in one loop.

    class MyWorld(World): ...                          # a launcher: starts the ranks, and says where they are
    outcomes = run_all(cases, lambda case: MyWorld(case, limits), at_once=4)

Processes are held by pidfd: a signal never reaches another process that got the same number.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kill_points_cases import AGREEMENT, HARMLESS, OVER, PHASES, START, WELL, Case, Ending, Outcome, Seen, judge

GRACE_S = 2.0
LOOK_S = 0.002
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "brief": signal.SIGSTOP,
    "interrupt": signal.SIGINT,
    "end": signal.SIGTERM,
}


@dataclasses.dataclass(frozen=True)
class Limits:
    deadline_s: float  # from a rank's silence to the end of all others
    step_timeout_s: float  # for ranks that do not come
    world_s: float = 60.0  # for everything, before and after
    grace_s: float = GRACE_S  # that a busy machine may take longer
    phase_s: tuple[float, ...] = (0.1, 0.03, 0.15, 0.03)  # about how long a rank is in a phase


class Process:
    """A process that may be somebody else's child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def has_ended(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        os.close(self._fd)


class Marks:
    """A few bytes per rank that all processes of a load see: its pid, its phase, and whether it shall fail."""

    _SIZE = 8

    def __init__(self, path: Path, ranks: int) -> None:
        if not path.exists():
            path.write_bytes(bytes(self._SIZE * ranks))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), self._SIZE * ranks)

    def set_pid(self, rank: int, pid: int) -> None:
        self._bytes[rank * self._SIZE : rank * self._SIZE + 4] = pid.to_bytes(4, "little")

    def pid(self, rank: int) -> int:
        return int.from_bytes(self._bytes[rank * self._SIZE : rank * self._SIZE + 4], "little")

    def reach(self, rank: int, phase: int) -> None:
        self._bytes[rank * self._SIZE + 4] = max(phase, self.phase(rank))

    def phase(self, rank: int) -> int:
        return self._bytes[rank * self._SIZE + 4]

    def ask_to_fail(self, rank: int) -> None:
        self._bytes[rank * self._SIZE + 5] = 1

    def flag(self, rank: int) -> ctypes.Array:
        """A byte that C sets."""
        return (ctypes.c_char * 1).from_buffer(self._bytes, rank * self._SIZE + 6)

    def happen(self, rank: int) -> None:
        """By the victim itself, a moment before."""
        self._bytes[rank * self._SIZE + 7] = self.phase(rank)
        self._bytes[rank * self._SIZE + 6] = 1

    def has_happened(self, rank: int) -> bool:
        return self._bytes[rank * self._SIZE + 6] == 1

    def phase_then(self, rank: int) -> int:
        return self._bytes[rank * self._SIZE + 7]

    def shall_fail(self, rank: int) -> bool:
        return self._bytes[rank * self._SIZE + 5] == 1


class World:
    """The ranks of one load. Launchers say where the ranks are, how they ended, and how to make one fail."""

    def __init__(self, case: Case, limits: Limits) -> None:
        self.case, self.limits = case, limits
        self.processes: dict[int, Process] = {}
        self._ended_at: dict[int, float] = {}
        self.began = time.monotonic()
        self.aimed_at: float | None = None
        self.happened: float | None = None
        self.phase_then = OVER
        self._had_begun = True
        self._limit_s = limits.deadline_s + limits.grace_s
        self._continues: float | None = None
        self._woken: float | None = None

    # ---- what launchers know

    def phase(self, rank: int) -> int:
        raise NotImplementedError

    def phase_at_end(self, rank: int) -> int:
        return self.phase(rank)

    def pid(self, rank: int) -> int:
        """0: it is not there yet."""
        raise NotImplementedError

    def ending(self, rank: int) -> Ending | None:
        raise NotImplementedError

    def has_told(self, rank: int) -> bool:
        """How it ended, while its process is still there."""
        return False

    def make_fail(self) -> None:
        """The victim gets an error of its own."""
        raise NotImplementedError

    def clean_up(self) -> None:
        """Ends whatever is left."""
        for process in self.processes.values():
            process.send(signal.SIGKILL)
            process.close()
        self.processes.clear()

    # ---- the life of a load

    def is_over(self) -> bool:
        now = time.monotonic()
        self._meet_processes()
        for rank in self.processes.keys() - self._ended_at.keys():
            if self.processes[rank].has_ended() or self.has_told(rank):
                self._ended_at[rank] = now
        if self.happened is None:
            if self._is_due(now):
                self._let_happen(now)
            return now - self.began > self.limits.world_s or self._is_nobody_left()
        if self._continues is not None:
            if now < self._continues:
                return False
            self._continues = None
            self.processes[self.case.victim].send(signal.SIGCONT)
        if self._woken is not None:
            return self._has_ended(self.case.victim) or now - self._woken > self.limits.deadline_s + self.limits.grace_s
        is_late = now - self.happened > self._limit_s
        if not is_late and not all(self._has_ended(rank) for rank in self._awaited()):
            return False
        if self.case.fault == "stop" and self.case.wakes and not is_late and self.can_wake():
            self._woken = now
            self.processes[self.case.victim].send(signal.SIGCONT)
            return False
        return True

    def can_wake(self) -> bool:
        """What the victim needs to learn how it ended outlives the others."""
        return True

    def late_ranks(self) -> list[int]:
        awaited = self._awaited() if self._woken is None else range(self.case.ranks)
        return [rank for rank in awaited if not self._has_ended(rank)]

    def seen(self, **more: object) -> Seen:
        everybody = range(self.case.ranks)
        found = {rank: self.ending(rank) for rank in everybody}
        endings = {rank: ending for rank, ending in found.items() if ending is not None}
        return Seen(
            self.case,
            self.happened is not None,
            self.phase_then,
            self._had_begun,
            [OVER if _is_well(found[rank]) else self.phase_at_end(rank) for rank in everybody],
            endings,
            seconds={rank: at - (self.happened or self.began) for rank, at in self._ended_at.items()},
            **more,  # type: ignore[arg-type]
        )

    def result(self) -> Outcome:
        try:
            return judge(self.seen(living=self.late_ranks()))
        finally:
            self.clean_up()

    def _meet_processes(self) -> None:
        for rank in range(self.case.ranks):
            if rank not in self.processes and (pid := self.pid(rank)):
                with contextlib.suppress(ProcessLookupError):
                    self.processes[rank] = Process(pid)

    def _is_due(self, now: float) -> bool:
        """The delay is counted from when the victim was first seen in the phase that is aimed at."""
        if not self.may_happen() or self.phase(self.case.victim) < self.case.aim:
            return False
        if self.aimed_at is None:
            self.aimed_at = now + self.case.delay * self.limits.phase_s[self.case.aim]
        return now >= self.aimed_at

    def _let_happen(self, now: float) -> None:
        victim, fault = self.case.victim, self.case.fault
        self.phase_then = OVER if self._has_ended(victim) else self.phase(victim)
        self.happened = now
        self._had_begun = self.have_all_begun()
        if fault in HARMLESS:
            self._limit_s = self.limits.world_s / 2  # on a busy machine a load may take its time
        elif not self._had_begun:
            self._limit_s = self.before_begin_s()
        if fault == "brief":
            self._continues = now + self.limits.deadline_s / 7
        self.tell_victim()

    def tell_victim(self) -> None:
        if self.case.fault in SIGNALS:
            self.processes[self.case.victim].send(SIGNALS[self.case.fault])
        elif self.case.fault in ("error", "truncate"):
            self.make_fail()

    def may_happen(self) -> bool:
        return self.case.victim in self.processes

    def have_all_begun(self) -> bool:
        return all(self.phase(rank) >= AGREEMENT for rank in range(self.case.ranks))

    def before_begin_s(self) -> float:
        """The others wait for one that does not come, and a deadline longer for the first rank's word."""
        return self.limits.step_timeout_s + self.limits.deadline_s + self.limits.grace_s

    def _awaited(self) -> list[int]:
        return [rank for rank in range(self.case.ranks) if rank != self.case.victim or self.case.fault != "stop"]

    def _is_nobody_left(self) -> bool:
        return len(self._ended_at) == self.case.ranks

    def _has_ended(self, rank: int) -> bool:
        return rank in self._ended_at


def _is_well(ending: Ending | None) -> bool:
    return ending is not None and ending.text == WELL


def run_all(cases: Iterable[Case], start: Callable[[Case], World], at_once: int) -> Iterator[Outcome]:
    """Most of a load's time is waiting."""
    waiting = iter(cases)
    worlds: list[World] = []
    case = next(waiting, None)
    try:
        while case is not None or worlds:
            while case is not None and len(worlds) < at_once:
                worlds.append(start(case))
                case = next(waiting, None)
            for world in [world for world in worlds if world.is_over()]:
                worlds.remove(world)
                yield world.result()
            time.sleep(LOOK_S)
    finally:
        for world in worlds:
            world.clean_up()


def phase_name(phase: int) -> str:
    return PHASES[phase]
