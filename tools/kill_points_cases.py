"""What happens to which rank at which moment, how a load ended, and whether that is right (docs/how-it-works/reliability.md).

    for case in cases_of(100, seed=1, faults=FAULTS):
        ...                                            # a launcher runs it, and gives an `Outcome`
    outcome.wrong                                      # {"hang": "ranks [2] did not end"}, or nothing

Nothing here starts a process.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

# Where a rank is: it has been started; all ranks have begun; bytes move; it is complete and says so; it has ended.
PHASES = ("start", "agreement", "load", "commit", "over")
START, AGREEMENT, LOAD, COMMIT, OVER = range(len(PHASES))
AIMS = (START, AGREEMENT, LOAD, LOAD, COMMIT)

# By fault: what happens to the victim.
FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP for good, or until the others have ended",
    "brief": "SIGSTOP for a seventh of the deadline: nothing may come of it",
    "end": "SIGTERM",
    "interrupt": "SIGINT",
    "error": "an exception of its own",
    "truncate": "its checkpoint loses half of its bytes",
    "nothing": "it takes its time: nothing may come of it",
}
HARMLESS = ("brief", "nothing")
FAULT_OF = (*FAULTS, "kill", "stop")  # how often, of ten

WELL = "well"
CUT_OFF = "lost contact with the rank that coordinates the load"
KINDS = ("hang", "false success", "different texts", "failure of nothing", "wrong exit code", "model touched", "orphan")


@dataclasses.dataclass(frozen=True)
class Case:
    """One load. `aim` is the phase of the victim in which it happens, `delay` how far into it, 0 to 1."""

    number: int
    ranks: int
    victim: int
    fault: str
    aim: int
    delay: float
    is_in_place: bool  # the model has memory already; of mpirun: every rank holds everything, and not a part
    wakes: bool  # a victim that was stopped goes on when the others have ended

    @property
    def falls_silent(self) -> bool:
        return self.fault in ("kill", "stop")


@dataclasses.dataclass(frozen=True)
class SaveCase(Case):
    """One save. `is_in_place`: over an older checkpoint. `call`: the number of the victim's call that fails with
    `errno`."""

    is_background: bool
    is_sharded: bool
    call: int
    errno: int


# Full, broken, read-only, without a quota, gone, without descriptors.
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.ENOENT, errno.EMFILE)
# About how many calls a rank makes: the one that prepares and commits, and the others.
CALLS = (200, 40)
SAVE_AIMS = (START, AGREEMENT, LOAD, LOAD, COMMIT, COMMIT)
SAVE_FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP for good, or until the others have ended",
    "brief": "SIGSTOP for a seventh of the deadline: nothing may come of it",
    "end": "SIGTERM",
    "interrupt": "SIGINT",
    "error": "one of its system calls fails",
    "nothing": "it takes its time: nothing may come of it",
}
SAVE_FAULT_OF = (*SAVE_FAULTS, "kill", "kill", "stop", "error", "error", "error")  # how often, of thirteen
SAVE_KINDS = (
    "hang", "false success", "different texts", "failure of nothing", "wrong exit code", "model touched", "mixture",
    "old lost", "leftover", "orphan",
)  # fmt: skip


def save_cases_of(saves: int, seed: int, faults: Sequence[str], worlds: Sequence[int]) -> Iterator[SaveCase]:
    chance = random.Random(f"save {seed}")
    for case in cases_of(saves, seed, faults, worlds, SAVE_AIMS):
        if case.fault == "error":
            case = dataclasses.replace(case, aim=START)  # from where calls are counted
        yield SaveCase(
            **dataclasses.asdict(case),
            is_background=chance.random() < 0.5,
            is_sharded=chance.random() < 0.5,
            call=chance.randrange(1, CALLS[case.victim != 0]),
            errno=chance.choice(ERRNOS),
        )


def sweep_of(worlds: Sequence[int]) -> Iterator[SaveCase]:
    """Every call of the rank that prepares and commits, and every one of another, fails once."""
    number = 0
    for ranks in worlds:
        for victim, calls in enumerate(CALLS):
            for call, is_in_place in itertools.product(range(1, calls + 1), (False, True)):
                is_odd = bool(call % 2)
                failure = ERRNOS[call % len(ERRNOS)]
                yield SaveCase(
                    number, ranks, victim, "error", START, 0.0, is_in_place, False, is_odd, not is_odd, call, failure
                )
                number += 1


def cases_of(
    loads: int, seed: int, faults: Sequence[str], worlds: Sequence[int] = (2, 4, 8), aims: Sequence[int] = AIMS
) -> Iterator[Case]:
    """Faults and phases in ever new orders: a few loads have seen all of them too."""
    chance = random.Random(seed)
    next_fault, next_aim, next_world = (_dealt(cards, chance) for cards in (faults, aims, worlds))
    for number in range(loads):
        ranks = next(next_world)
        yield Case(
            number,
            ranks,
            victim=chance.randrange(ranks),
            fault=next(next_fault),
            aim=next(next_aim),
            delay=chance.random(),
            is_in_place=chance.random() < 0.5,
            wakes=chance.random() < 0.5,
        )


def _dealt(cards: Sequence[Any], chance: random.Random) -> Iterator[Any]:
    while True:
        yield from chance.sample(cards, len(cards))


@dataclasses.dataclass(frozen=True)
class Ending:
    """What a rank said of how it ended. An interrupted one says nothing that others have to say too."""

    text: str
    error_id: str
    is_interrupted: bool = False
    touched: str = ""  # what is not as it was, or as it should be
    is_short: bool = False  # others print the problems: `text` is a part of what they print


@dataclasses.dataclass
class Outcome:
    case: Case
    phase: int  # of the victim, when it happened
    had_begun: bool  # all ranks, by then
    ended: str
    seconds: float  # from what happened to the end of the last rank that lived
    wrong: dict[str, str]
    place: str = ""  # of a save: what is there afterwards


@dataclasses.dataclass(frozen=True)
class Seen:
    """All that there is to judge a load by. Ranks that neither said anything nor live were ended by the launcher."""

    case: Case
    has_happened: bool  # the load was not over before
    phase: int  # of the victim, when it happened
    had_begun: bool  # all ranks, by then
    phases: Sequence[int]  # of all ranks, at the end
    endings: dict[int, Ending]
    living: Sequence[int]  # ranks that still ran when all should have ended, the victim aside if it is stopped
    seconds: dict[int, float]  # of ranks that are gone: since it happened
    ended_by_launcher: Sequence[int] = ()
    exit_code: int | None = None  # of the launcher
    orphans: Sequence[int] = ()


def judge(seen: Seen) -> Outcome:
    case, wrong = seen.case, {}
    heard = [one for rank, one in seen.endings.items() if not one.is_interrupted and not _was_away(case, rank, one)]
    texts, ids = {one.text for one in heard if not one.is_short}, {one.error_id for one in heard}
    texts |= {one.text for one in heard if one.is_short and not any(one.text in text for text in texts)}
    if seen.living:
        wrong["hang"] = f"ranks {list(seen.living)} did not end"
    unloaded = [rank for rank, phase in enumerate(seen.phases) if phase < COMMIT]
    if WELL in texts and unloaded:
        wrong["false success"] = f"ranks {unloaded} never came to the end: {sorted(texts)}"
    elif WELL in texts and len(texts) > 1:
        wrong["false success"] = f"{sorted(texts)}"
    elif len(texts) > 1 or len(ids) > 1:
        said = {
            rank: (one.text, one.error_id, round(seen.seconds.get(rank, -1), 2)) for rank, one in seen.endings.items()
        }
        wrong["different texts"] = f"{said}"
    if (case.fault in HARMLESS or not seen.has_happened) and (texts != {WELL} or len(seen.endings) < case.ranks):
        wrong["failure of nothing"] = f"{sorted(texts)} on ranks {sorted(seen.endings)}"
    if touched := {rank: one.touched for rank, one in seen.endings.items() if one.touched}:
        wrong["model touched"] = f"{touched}"
    if seen.exit_code is not None and not _is_right(seen.exit_code, case, is_all_well=texts == {WELL}):
        wrong["wrong exit code"] = f"{seen.exit_code}, and the ranks said {sorted(texts)}"
    if seen.orphans:
        wrong["orphan"] = f"processes {list(seen.orphans)}"
    lived = [seconds for rank, seconds in seen.seconds.items() if not (case.falls_silent and rank == case.victim)]
    return Outcome(case, seen.phase, seen.had_begun, _word(seen, texts), max(lived, default=0.0), wrong)


def _was_away(case: Case, rank: int, ending: Ending) -> bool:
    """A rank that was stopped in the middle of a question to the store gives up on it once it goes on."""
    return case.fault == "stop" and rank == case.victim and CUT_OFF in ending.text


def _is_right(exit_code: int, case: Case, *, is_all_well: bool) -> bool:
    """A victim may have been well, and then have met its end."""
    if exit_code == 0:
        return is_all_well
    return not is_all_well or case.fault in ("kill", "stop", "end", "interrupt")


def _word(seen: Seen, texts: set[str]) -> str:
    if texts == {WELL}:
        return WELL
    if not texts:
        return "ended by the launcher" if seen.ended_by_launcher else "nobody left"
    return "failed alike"
