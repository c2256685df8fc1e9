"""Ranks agree before a byte moves, and tell each other when one of them fails: small messages over torch.distributed's
Store.

    ranks = Agreement.of(group, timeout_s=300)
    everybody = ranks.exchange("facts", {"device": "cuda:3"})     # one message per rank, the same list everywhere

Every rank puts its message; the first rank reads them all, decides, and publishes the verdict, which the others wait
for. So there are two messages per rank and step, and all ranks raise the same text. A rank that has a problem says
so in its message instead of staying away: its peers need not wait for the deadline. No collective is used, and
nobody waits for ever.

One process alone has an `Agreement` too, which asks nobody. Messages are JSON. An `Agreement` is used by one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .errors import LadingError, Problem

TIMEOUT_S = 600.0  # for ranks that come late
_GRACE_S = 10.0  # beyond the first rank's deadline: its verdict says more than "no answer"
VALUE = "value of "  # fields with a tensor's name behind it: ranks that have one must have the same
_CLOCK_S = 0.5  # by which a store's clock may be before ours
_ANOTHER_RANK = 7  # exit code
_SHOWN = 8


class Agreement:
    """The ranks of one load. `rank` counts within the group; `ranks` are the global numbers."""

    def __init__(self, store: Any | None, rank: int, ranks: Sequence[int], timeout_s: float, name: str = "") -> None:
        self.rank, self.ranks, self.timeout_s = rank, list(ranks), timeout_s
        self._store = store
        self._steps = itertools.count()
        self._room = f"lading/{name}"
        self._number: int | None = None  # of the load, once it has begun

    @property
    def size(self) -> int:
        return len(self.ranks)

    @classmethod
    def of(cls, group: Any = None, timeout_s: float = TIMEOUT_S) -> Agreement:
        """Of a process group; None is the default one, or this process alone where there is none. False: alone."""
        import torch.distributed as dist

        if group is False or not dist.is_available() or not dist.is_initialized():
            return cls(None, 0, [0], timeout_s)
        from torch.distributed import distributed_c10d as c10d

        found = group if group is not None else c10d._get_default_group()
        if dist.get_rank(found) < 0:
            raise ValueError("this process is not in the group that it was given")
        ranks = dist.get_process_group_ranks(found)
        if len(ranks) == 1:
            return cls(None, 0, ranks, timeout_s)
        store = c10d._get_process_group_store(found)
        return cls(store, dist.get_rank(found), ranks, timeout_s, getattr(found, "group_name", ""))

    def exchange(
        self,
        step: str,
        message: dict[str, Any],
        *,
        failure: LadingError | None = None,
        must_match: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """All ranks' messages, in the order of ranks; or the one error that all of them get.

        With a `failure` on any rank there is no agreement. The fields `must_match` have to be the same on every rank.
        """
        mine: dict[str, Any] = {"rank": self.ranks[self.rank], "message": message}
        if failure is not None:
            mine |= {"problems": [_fields(problem) for problem in failure.problems]}
            mine |= {name: getattr(failure, name) for name in ("stage", "begun", "exit_code", "not_listed")}
        if self._store is None:
            if failure is not None:
                raise failure
            return [message]
        verdict = self._exchange(next(self._steps), step, mine, must_match)
        if "problems" in verdict:
            raise _error(verdict, failure) from failure
        return verdict["messages"]

    def documents(self, step: str, text: str) -> list[str]:
        """All ranks' documents, in the order of ranks. They travel only where they differ, each different one once."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        digests = [message["digest"] for message in self.exchange(step, {"digest": digest})]
        if len(set(digests)) == 1:
            return [text] * self.size
        store: Any = self._store
        key = f"{self._room}/{self._number}/document"
        if digests.index(digest) == self.rank:
            store.set(f"{key}/{digest}", text)
        known: dict[str, str | None] = {digest: text}
        deadline = time.monotonic() + self.timeout_s
        for other in digests:
            if other not in known:
                known[other] = self._get(f"{key}/{other}", deadline)
        silent = [self.ranks[digests.index(other)] for other, found in known.items() if found is None]
        if silent:
            raise _error({"problems": [_silence(step, silent, self.timeout_s)]}, None)
        return [known[other] or "" for other in digests]

    def _exchange(self, place: int, step: str, mine: dict[str, Any], must_match: Sequence[str]) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout_s
        try:
            verdict = self._verdict(place, step, mine, deadline, must_match)
            why = ""
        except (RuntimeError, OSError) as error:  # the store is gone, with the process that held it
            verdict, why = None, str(error)
        if verdict is not None:
            return verdict
        begun = bool(mine.get("begun") or mine["message"].get("wrote"))
        return {"problems": [_silence(step, self.ranks[:1], self.timeout_s, why)], "begun": begun}

    def _verdict(
        self, place: int, step: str, mine: dict[str, Any], deadline: float, must_match: Sequence[str]
    ) -> dict[str, Any] | None:
        store: Any = self._store
        if self._number is None:
            self._number = self._begin(deadline)
        if self._number is None:
            return None
        load = f"{self._room}/{self._number}"
        if self.rank == 0:
            verdict = self._gather(f"{load}/{place}", step, mine, deadline, must_match)
            store.set(f"{load}/{place}/verdict", json.dumps(verdict))
            if "problems" in verdict:
                store.set(f"{load}/over", "1")
            return verdict
        own, end = f"{load}/{place}/{self.rank}", f"{load}/{place}/verdict"
        store.set(own, json.dumps(mine))
        text = self._get(end, deadline + _GRACE_S)
        if text is None:  # takes its word back: nobody may succeed without this rank
            store.delete_key(own)
            text = store.get(end).decode() if store.check([end]) else None
        return json.loads(text) if text is not None else None

    def _begin(self, deadline: float) -> int | None:
        """The number of the load that the first rank has begun. One that failed without this rank is passed over."""
        store: Any = self._store
        if self.rank == 0:
            return store.add(f"{self._room}/count", 1)
        seen = f"{self._room}/seen/{self.rank}"
        last = int(store.get(seen)) if store.check([seen]) else 0
        pause_s = 0.001
        while time.monotonic() < deadline:
            number = store.add(f"{self._room}/count", 0)
            if number > last and not store.check([f"{self._room}/{number}/over"]):
                store.set(seen, str(number))
                return number
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return None

    def _gather(
        self, key: str, step: str, mine: dict[str, Any], deadline: float, must_match: Sequence[str]
    ) -> dict[str, Any]:
        answers, silent = [mine], []
        for rank in range(1, self.size):
            text = self._get(f"{key}/{rank}", deadline)
            if text is None:
                silent.append(self.ranks[rank])
            else:
                answers.append(json.loads(text))
        if not silent:  # who has given up since has taken its word back
            store: Any = self._store
            silent = [rank for place, rank in enumerate(self.ranks) if place and not store.check([f"{key}/{place}"])]
        problems = [_silence(step, silent, self.timeout_s)] if silent else []
        problems += _told(answers, self.size)
        if not problems:
            values = sorted({field for answer in answers for field in answer["message"] if field.startswith(VALUE)})
            fields = [*must_match, *values]
            problems = [found for field in fields if (found := _difference(field, answers)) is not None]
        if not problems:
            return {"messages": [answer["message"] for answer in answers]}
        failed = [answer for answer in answers if "problems" in answer]
        return {
            "problems": problems,
            "stage": next((answer["stage"] for answer in failed), "agreement"),
            "begun": any(answer["begun"] for answer in failed)
            or any(answer["message"].get("wrote") for answer in answers),
            "exit_code": failed[0]["exit_code"] if failed and not silent else _ANOTHER_RANK,
            "not_listed": max([answer["not_listed"] for answer in failed], default=0),
        }

    def _get(self, key: str, deadline: float) -> str | None:
        """The message, or None when the time is over. A store that fails earlier raises."""
        store: Any = self._store
        try:
            store.wait([key], datetime.timedelta(seconds=max(0.01, deadline - time.monotonic())))
        except RuntimeError:  # which is also how a store says that the time is over
            if time.monotonic() < deadline - _CLOCK_S:
                raise
            if not store.check([key]):
                return None
        return store.get(key).decode()


def _error(verdict: dict[str, Any], own: LadingError | None) -> LadingError:
    return LadingError(
        [Problem.from_json(problem) for problem in verdict["problems"]],
        stage=verdict.get("stage", "agreement"),
        begun=verdict.get("begun", False),
        exit_code=verdict.get("exit_code", _ANOTHER_RANK),
        report=own.report if own is not None else None,
        ledger=own.ledger if own is not None else "",
        not_listed=verdict.get("not_listed", 0),
    )


def _fields(problem: Problem) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(problem).items() if value not in (None, "")}


def _silence(step: str, ranks: Sequence[int], timeout_s: float, why: str = "") -> dict[str, Any]:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_ranges(ranks)}"
    message = f"{who} did not come to agree on {step} within {timeout_s:g} s" + (f": {why}" if why else "")
    remedy = "Call it on every rank of the group, or pass group= (False is this process alone)"
    return {"code": "no_answer", "message": message, "rule": "R44", "remedy": remedy}


def _told(answers: Iterable[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The problems of all ranks. What several of them have is told once, with their numbers unless it is all."""
    told: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for answer in answers:
        for problem in answer.get("problems", ()):
            told.setdefault(json.dumps(problem, sort_keys=True), (problem, []))[1].append(answer["rank"])
    problems = []
    for problem, tellers in told.values():
        if len(tellers) < size and "rank" not in problem:
            who = f"rank {tellers[0]}" if len(tellers) == 1 else f"ranks {_ranges(tellers)}"
            problem = {**problem, "message": f"{who}: {problem['message']}"}
        problems.append(problem)
    return problems


def _difference(field: str, answers: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    groups: dict[str, list[int]] = {}
    for answer in answers:
        if field.startswith(VALUE) and field not in answer["message"]:
            continue  # the rank has no such tensor
        groups.setdefault(str(answer["message"].get(field)), []).append(answer["rank"])
    if len(groups) == 1:
        return None
    shares = [f"{value[:80]} on {_ranges(members)}" for value, members in groups.items()]
    found = "; ".join(shares[:_SHOWN]) + ("; …" if len(shares) > _SHOWN else "")
    return {"code": "ranks_differ", "message": f"the ranks do not have the same {field}", "found": found, "rule": "R44"}


def _ranges(ranks: Sequence[int]) -> str:
    """0-3, 7"""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


# ---- steps


class Step:
    """What a rank says at the end of a step, which fields must be the same everywhere, and what all of them said."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.must_match: list[str] = []
        self.answers: list[dict[str, Any]] = []


@contextlib.contextmanager
def agreed(ranks: Agreement, name: str) -> Iterator[Step]:
    """What is done inside, all ranks do; then they agree on it. A rank that fails tells the others, who would wait.

    with agreed(ranks, "the plan") as step:
        step.message = {"digest": digest}
        step.must_match = ["digest"]
    """
    step = Step()
    try:
        yield step
    except BaseException as error:
        if ranks.size == 1:
            raise
        failure = error if isinstance(error, LadingError) else LadingError(_as_problem(error))
        try:
            ranks.exchange(name, step.message, failure=failure)
        except LadingError as agreed:
            if isinstance(error, Exception):
                raise agreed from error
        raise
    step.answers = ranks.exchange(name, step.message, must_match=step.must_match)


def _as_problem(error: BaseException) -> Problem:
    code = "cancelled" if isinstance(error, KeyboardInterrupt) else "internal"
    return Problem(code, f"{type(error).__name__}: {error}".rstrip(": "))
