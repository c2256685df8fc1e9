"""The engine's part of a save, through its C ABI: a plan that says who writes which bytes of which file, and its steps.

    plan = save_plan({"skeleton": {...}, "layout": {...}, "keys": [...], "ranks": [rank]})      # every rank
    target = {"directory": "/models/out", "exist": "refuse"}
    made = plan.prepare(target)                                                                 # one rank
    target["temporary"] = made["temporary"]
    plan.write(memories, target)                                                                # every rank
    plan.finish(target)                                                                         # one rank
    commit(target)                                                                              # one rank

Between the steps all ranks agree (saving.py).
"""

from __future__ import annotations

import array
import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._engine import Destination, Progress, _Answer, _Caller, _interrupts_stop, _library, _request, _warnings
from .errors import LadingError
from .exiting import awaited_at_exit

Target = Mapping[str, Any]  # where to: the fields of docs/schema/request.md


class SavePlan:
    """A proved plan of a save. `answer` is the engine's answer less its destinations (docs/schema/request.md)."""

    def __init__(self, answered: _Answer) -> None:
        self._answered = answered
        self.answer: dict[str, Any] = json.loads(answered.checked())
        sets = [tuple(ranks) for ranks in self.answer.pop("replica_sets", ())]
        kept = self.answer.pop("kept_keys")
        self.kept_keys = [one["key"] for one in kept]  # of the base, whose bytes the engine reads from its files
        self.kept_tensors = frozenset(one["tensor"] for one in kept)  # which the plan has for them
        self.writes: list[int] = self.answer.pop("destination_writes")  # that read each destination
        self.destinations = [Destination._of(fields, sets) for fields in self.answer.pop("destinations")]
        self.warnings = _warnings(self.answer)

    def prepare(self, target: Target) -> dict[str, Any]:
        """The temporary directory, with every file at its full size."""
        return _said(lambda: _library.lading_save_prepare(self._answered.handle, _request(target)))

    def write(
        self,
        memories: Sequence[tuple[int, int]],
        target: Target,
        *,
        progress: Callable[[Progress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        is_host_copy: bool = False,
    ) -> dict[str, Any]:
        """What the plan gives to this process. `memories` are (address, size in bytes), one for each destination; with
        `is_host_copy` in host memory, wherever the model is."""
        caller = _Caller(None, progress, cancelled)
        words = array.array("Q", [word for address, size_bytes in memories for word in (address or 0, size_bytes)])
        with _interrupts_stop(caller), awaited_at_exit(caller.stop):
            answered = _Answer(
                _library.lading_save_write(
                    self._answered.handle,
                    words.buffer_info()[0],
                    len(memories),
                    _request({**target, "from": "host_copy" if is_host_copy else "devices"}),
                    ctypes.byref(caller.callbacks),
                )
            )
        failure = None
        answer: dict[str, Any] = {}
        try:
            answer = _answer_of(answered)
        except LadingError as error:
            failure = error
        if caller.stopped_by is not None:
            raise caller.stopped_by from failure
        if failure is not None:
            raise failure
        return answer

    def finish(self, target: Target) -> dict[str, Any]:
        """The index and the ledger; all files are on the disk then."""
        return _said(lambda: _library.lading_save_finish(self._answered.handle, _request(target)))


def save_plan(request: Mapping[str, Any]) -> SavePlan:
    """Plans a save, and proves the plan: `request` as docs/schema/request.md has it; "schema" may be left out."""
    with awaited_at_exit():
        return SavePlan(_Answer(_library.lading_save_plan(_request(request))))


def commit(target: Target) -> dict[str, Any]:
    """The temporary directory becomes the target, by one rename."""
    return _said(lambda: _library.lading_save_commit(_request(target)))


def discard(target: Target) -> dict[str, Any]:
    """The temporary directory is removed; the target is not touched."""
    return _said(lambda: _library.lading_save_discard(_request(target)))


def _said(call: Callable[[], int]) -> dict[str, Any]:
    with awaited_at_exit():
        return _answer_of(_Answer(call()))


def _answer_of(answered: _Answer) -> dict[str, Any]:
    """A save's errors never say that something had begun: the model is as it was, and so is the target."""
    try:
        answer: dict[str, Any] = json.loads(answered.checked())
    except LadingError as error:
        if not error.begun:
            raise
        kept = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "not_listed")}
        raise LadingError(error.problems, **kept) from error
    return answer
