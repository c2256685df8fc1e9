"""The ranks of one call: they agree before a byte moves, notice when one fails or falls silent, and end together.

    with Agreement.of(group, timeout_s=600) as ranks:
        with agreed(ranks, "the plan") as step:                       # what all ranks do, and then agree on
            step.message, step.must_match = {"digest": digest}, ["digest"]
        load(cancelled=ranks.has_failed)                              # True soon after another rank has failed
        ranks.commit()                                                # only if all ranks have come here

The engine's protocol (docs/how-it-works/reliability.md, `lading.coordinator`) on a group's store; no collective is
used. An exception that leaves the block is sent to all ranks, which raise the same text; without one the block ends
only when all ranks are at its end. A thread sends heartbeats in between. One process alone has an `Agreement`
too, which asks no other. Messages are JSON. An `Agreement` is used by one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .coordinator import Coordinator
from .errors import LadingError, Problem
from .exiting import is_exiting
from .private_names import check
from .telling import logger, waiting_aloud

if TYPE_CHECKING:
    from ._engine import Report

DEADLINE_S = 10.0  # from a rank's silence to the failure of all others
TIMEOUT_S = 600.0  # for ranks that come late
VALUE = "value of "  # fields with a name behind it: ranks that have one must have the same
_PATIENCE = 6  # times the deadline, beside training
_GRACE_S = 2.0  # that code of the user's has to notice by itself that another rank has failed
_LOOK_S = 0.1  # how long a signal of this process may wait
_SHOWN = 8
_ANOTHER_RANK = 7  # exit code
_SAME = "Start every rank with the same lading, checkpoint, model and arguments."

_Result = TypeVar("_Result")


class Agreement:
    """The ranks of one call. `rank` counts within the group; `ranks` are the global numbers.

    Attributes:
        begun: set when memory that a model had before may be written, on any rank; errors then say so.
        is_committed: all ranks are complete.
        is_stopped: where signals are only noted, as while the engine loads: whether there was one.
    """

    def __init__(
        self,
        store: Any | None,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        *,
        name: str = "",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout is {timeout_s!r}; it should be a number of seconds")
        self.rank, self.ranks, self.store = rank, list(ranks), store
        self.keeps: Any = None  # the group's store may be the server of the others'
        self.begun = False
        self._pulse: _Pulse | None = None
        self._last: OnThread | None = None
        self._told: LadingError | None = None
        self.is_committed = False
        self.is_stopped: Callable[[], bool] = lambda: False
        self._coordinator: Coordinator | None = None
        if store is not None:
            self._coordinator = Coordinator(
                store,
                rank,
                self.size,
                prefix=f"lading/{name}",
                deadline_s=deadline_s,
                step_timeout_s=timeout_s,
                is_host=self.ranks[rank] == 0,
            )

    @property
    def size(self) -> int:
        return len(self.ranks)

    @classmethod
    def of(
        cls, group: Any = None, timeout_s: float = TIMEOUT_S, *, scope: str = "", beside_training: bool = False
    ) -> Agreement:
        """Of a process group; None is the default one, or this process alone where there is none. False: alone.

        The timeout is for ranks that have not come yet; one that falls silent is noticed within `DEADLINE_S`. While one
        is open, another of the same group needs another scope. `beside_training`: it goes on in a thread, while others
        use the group.
        """
        import torch.distributed as dist

        if group is False or not dist.is_available() or not dist.is_initialized():
            return cls(None, 0, [0], timeout_s)
        from torch.distributed import distributed_c10d as c10d

        check("torch", "process groups")
        found = group if group is not None else c10d._get_default_group()
        if dist.get_rank(found) < 0:
            raise ValueError("this process is not in the group that it was given")
        ranks = dist.get_process_group_ranks(found)
        if len(ranks) == 1:
            return cls(None, 0, ranks, timeout_s)
        # Not a connection of its own: torch's TCPStore looks up the name of each new client in the DNS, on the one
        # thread that serves all of them, and where no server answers everybody waits for seconds.
        store = c10d._get_process_group_store(found)
        name = getattr(found, "group_name", "") + scope
        if not beside_training:
            return cls(store, dist.get_rank(found), ranks, timeout_s, name=name, deadline_s=DEADLINE_S)
        # A connection answers one question at a time, and training may wait there for ranks that come late. The
        # interpreter may be busy for seconds too.
        made = cls(
            _another_connection(store),
            dist.get_rank(found),
            ranks,
            timeout_s,
            name=f"{name}/beside training",
            deadline_s=_PATIENCE * DEADLINE_S,
        )
        made.keeps = store
        return made

    # ---- the block

    def __enter__(self) -> Agreement:
        if self._coordinator is not None:
            try:
                with waiting_aloud(self.ranks[self.rank], self.size):
                    self._step(self._coordinator.begin)
                self._pulse = _Pulse(self._coordinator)
            except BaseException as error:
                self._end(error)
                raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raises what all ranks get, where that is not the exception itself. An interrupt stays one."""
        if self._coordinator is None:
            return
        try:
            if error is None:
                self.commit()
        except BaseException as failed:
            self._end(failed)
            raise
        agreed = self._end(error)
        if agreed is not error:
            cause = error.__cause__ if isinstance(error, LadingError) else None  # its own text stands in `agreed`
            raise agreed from (cause or error)  # type: ignore[misc]  # not None: no exception is told as none

    def tell(self, error: BaseException) -> BaseException:
        """What all ranks get for an exception of this one: another rank's, if that came first."""
        if self._coordinator is None or self.is_committed:
            return error
        if self._told is None:
            own = as_error(error)
            self._told = self._completed(self._coordinator.fail(_told_by(own, begun=self.begun)), own)
        return self._told if isinstance(error, Exception) else error

    def _end(self, error: BaseException | None) -> BaseException | None:
        assert self._coordinator is not None
        agreed = self.tell(error) if error is not None else None
        if self._pulse is not None:
            self._pulse.stop()
        while self._last is not None and not self._last.wait(_LOOK_S):  # left behind by an interrupt, and told
            pass
        self._coordinator.close()
        return agreed

    # ---- the steps

    def say(
        self,
        step: str,
        message: dict[str, Any],
        *,
        failure: LadingError | None = None,
        must_match: Sequence[str] = (),
        while_alive: bool = False,
    ) -> list[dict[str, Any]]:
        """All ranks' messages, in the order of ranks; or the one error that all of them get.

        With a `failure` on any rank there is no agreement. The fields `must_match` have to be the same on every rank,
        those that begin with `VALUE` on the ranks that have them. With `while_alive` the others may take any time.
        """
        if self._coordinator is None:
            if failure is not None:
                raise failure
            return [message]
        same = {name: str(message.get(name)) for name in must_match} if failure is None else {}
        said = {"message": json.dumps(message, sort_keys=True)}
        answers = self._agree(step, same, failure=failure, collect=said, while_alive=while_alive)
        messages = [json.loads(text) for text in answers["message"]]
        if problems := _different_values(messages, range(self.size)):
            differ = LadingError(problems, stage="agreement", exit_code=_ANOTHER_RANK)
            self._agree(step, {}, failure=differ)  # every rank has found the same
        return messages

    def refuse_difference(self, step: str, records: Mapping[str, Mapping[str, str]], digest: str) -> None:
        """The ranks' digests differ: the error says in what, by name and field of the records if it can (R30)."""
        listed = [{"name": name, "fields": dict(fields)} for name, fields in sorted(records.items())]
        self._agree(step, {}, records=listed)
        self._agree(step, {f"digest of {step}": digest})

    def documents(self, step: str, text: str) -> list[str]:
        """All ranks' documents, in the order of ranks. They travel only where they differ, each different one once."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        digests = [message["digest"] for message in self.say(step, {"digest": digest})]
        if len(set(digests)) == 1:
            return [text] * self.size
        is_first = digests.index(digest) == self.rank
        texts = self._agree(step, {}, collect={"document": text if is_first else ""})["document"]
        return [texts[digests.index(other)] for other in digests]

    def agree_replicas(self, loaded: Report) -> None:
        """Ranks that hold the same bytes compare their digests (R17). Replicas that begin with different values stay
        different, so values that the model had before are compared too, except those in the policy's `keep`."""
        coordinator = self._coordinator
        if coordinator is not None:
            self._step(lambda: coordinator.agree_replicas(loaded, begun=self.begun))

    def commit(self) -> None:
        """This rank is complete. Returns if all are."""
        if self._coordinator is not None and not self.is_committed:
            self._step(self._coordinator.commit)
        self.is_committed = True

    # ---- between them

    def has_failed(self) -> bool:
        """Another rank has failed, or this one was given up: what is being done is for nothing."""
        return self._pulse is not None and self._pulse.has_failed

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[int | None], None]]:
        """A function to be called with a number that changes: if it stands still for minutes, the load fails. After
        None, nothing is expected until the next number."""
        pulse = self._pulse
        if pulse is None:
            yield lambda done: None
            return
        try:
            yield pulse.show
        finally:
            pulse.show(None)

    @contextlib.contextmanager
    def naming_the_failed(self, what: str) -> Iterator[None]:
        """For code of the user's, which may wait for a rank that has failed in a collective of its own. Nothing stops
        such a collective without breaking the user's group, but a line in the log says which rank has failed, and how.
        """
        done = threading.Event()

        def look() -> None:
            while not self.has_failed():
                if done.wait(_LOOK_S):
                    return
            if not done.wait(_GRACE_S):
                failed = self.tell(stopped("another rank failed"))
                text = (
                    "another rank has failed while %s runs on rank %d, which will fail too, once %s returns. If it "
                    "waits for that rank in a collective, that is when the collective times out. %s"
                )
                logger.error(text, what, self.ranks[self.rank], what, failed)

        thread = threading.Thread(target=look, name="lading looks", daemon=True)
        if self._pulse is not None:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if self._pulse is not None:
                thread.join()

    def _agree(
        self, step: str, same: Mapping[str, str], *, failure: LadingError | None = None, **more: Any
    ) -> dict[str, list[str]]:
        coordinator = self._coordinator
        assert coordinator is not None
        told = _told_by(failure, begun=self.begun or failure.begun) if failure is not None else None
        return self._step(lambda: coordinator.agree(step, same, failure=told, **more), failure)

    def _step(self, step: Callable[[], _Result], own: LadingError | None = None) -> _Result:
        """On a thread, while this one looks for signals: Python hears of an interrupt only where Python runs."""
        ended = self._last = OnThread(step)
        while not ended.wait(_LOOK_S):
            if self.is_stopped() or is_exiting():
                raise stopped("the call was stopped while this rank waited for others")
        if ended.error is None:
            return ended.result
        if not isinstance(ended.error, LadingError):
            raise ended.error
        self._told = self._completed(ended.error, own)
        raise self._told from own

    def _completed(self, told: LadingError, own: LadingError | None) -> LadingError:
        """With what only this rank knows, and in a subgroup the numbers that its ranks have in the whole."""
        problems = list(told.problems)
        if self.ranks != list(range(self.size)):
            numbers = ", ".join(map(str, self.ranks))
            message = f"{problems[0].message} (of the group's ranks, which are {numbers})"
            problems[0] = dataclasses.replace(problems[0], message=message)
        return LadingError(
            problems,
            stage=own.stage if own is not None else told.stage,
            begun=self.begun or told.begun,
            exit_code=told.exit_code,
            report=own.report if own is not None else None,
            ledger=own.ledger if own is not None else "",
            not_listed=told.not_listed,
            error_id=told.error_id,
            speakers=[self.ranks[rank] for rank in told.speakers],
            is_speaker=not told.speakers or self.rank in told.speakers,
        )


class OnThread:
    """What a function gave or raised on a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._is_done = threading.Event()
        threading.Thread(target=self._run, name="lading step", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        return self._is_done.wait(timeout_s)

    def _run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self.error = error
        self._is_done.set()


class _Pulse:
    """Sends heartbeats, and looks for those of the others."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.has_failed = False
        self._coordinator = coordinator
        self._done: int | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lading pulse", daemon=True)
        self._thread.start()

    def show(self, done: int | None) -> None:
        self._done = done

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self.has_failed and not self._is_over.wait(self._coordinator.deadline_s / 40):
            self.has_failed = not self._coordinator.poll(self._done)


# ---- steps


class Step:
    """What a rank says at the end of a step, which fields must be the same everywhere, and what all of them said."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.must_match: list[str] = []
        self.answers: list[dict[str, Any]] = []


@contextlib.contextmanager
def agreed(ranks: Agreement, name: str, *, while_alive: bool = False) -> Iterator[Step]:
    """All ranks do the same inside; then they agree on it, or get the problems of all of them.

    with agreed(ranks, "the plan") as step:
        step.message = {"digest": digest}
        step.must_match = ["digest"]
    """
    step = Step()
    try:
        yield step
    except Exception as error:
        if ranks.size == 1:
            raise
        ranks.say(name, {}, failure=as_error(error), while_alive=while_alive)
        raise
    step.answers = ranks.say(name, step.message, must_match=step.must_match, while_alive=while_alive)


def _another_connection(store: Any) -> Any:
    """The store itself if it cannot be cloned, as one that is written in Python."""
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


# ---- words


def _different_values(messages: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> list[Problem]:
    problems = []
    for field in sorted({field for message in messages for field in message if field.startswith(VALUE)}):
        holders: dict[str, list[int]] = {}
        for rank, message in zip(ranks, messages, strict=True):
            if field in message:
                holders.setdefault(str(message[field]), []).append(rank)
        if len(holders) == 1:
            continue
        shares = [f"{value[:80]} on {ranges(members)}" for value, members in holders.items()]
        found = "; ".join(shares[:_SHOWN]) + ("; …" if len(shares) > _SHOWN else "")
        message = f"the ranks differ in {field}"
        problems.append(Problem("ranks_differ", message, found=found, rule="R44", remedy=_SAME))
    return problems


def ranges(ranks: Sequence[int]) -> str:
    """0-3, 7"""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def stopped(message: str) -> LadingError:
    return LadingError(Problem("cancelled", message, remedy="Make the call again."))


def as_error(error: BaseException) -> LadingError:
    """The error that other ranks get."""
    if isinstance(error, LadingError):
        return error
    code = "cancelled" if isinstance(error, KeyboardInterrupt | SystemExit) else "internal"
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    return LadingError(Problem(code, message, remedy="Look at the traceback of that rank."))


def _told_by(own: LadingError, *, begun: bool) -> LadingError:
    kept = {name: getattr(own, name) for name in ("stage", "exit_code", "not_listed")}
    return LadingError(own.problems, begun=begun, **kept)
