"""Loads end before Python does.

While Python ends, a daemon thread that wants the GIL back is unwound by force. Between it and its first frame are C++
frames of the engine and of torch, and unwinding those aborts the process. So at exit running loads are cancelled and
awaited, and their threads get a moment to end. A load that a daemon thread begins later than that never begins.

Threads that are no daemons are not concerned: Python waits for them first, and their loads come to their end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import LadingError, Problem

_LIMIT_S = 30.0  # for what cannot be cancelled: planning, a read that hangs
_GRACE_S = 2.0  # for threads that end, or not, after their load

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Running:
    """What runs in this process, call by call."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls: dict[object, tuple[threading.Thread, Callable[[], None] | None]] = {}
        self.parked: set[threading.Thread] = set()
        self.ends = False

    def of_others(self) -> list[tuple[threading.Thread, Callable[[], None] | None]]:
        return [call for call in self.calls.values() if call[0] is not threading.current_thread()]


_running = _Running()


def is_exiting() -> bool:
    return _running.ends


@contextlib.contextmanager
def awaited_at_exit(stop: Callable[[], None] | None = None) -> Iterator[None]:
    """Python does not end inside. `stop` is called if it wants to."""
    thread, key = threading.current_thread(), object()
    with _running.changed:
        is_inner = any(other is thread for other, _ in _running.calls.values())
        may_begin = not _running.ends or thread is threading.main_thread()
        if may_begin:
            _running.calls[key] = thread, stop
    if not may_begin:
        if is_inner:
            problem = Problem("cancelled", "the call was stopped because Python exits", remedy="Make it again.")
            raise LadingError(problem, stage="loading")
        _park(thread)
    try:
        yield
    finally:
        with _running.changed:
            _running.calls.pop(key, None)
            _running.changed.notify_all()


def ending_before_python(function: _Function) -> _Function:
    """The function as one call that is awaited at exit."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with awaited_at_exit():
            return function(*arguments, **options)

    return call  # type: ignore[return-value]


def _park(thread: threading.Thread) -> None:
    """Python is ending under this daemon thread: it must hold no C++ frame then, and has nothing left to do."""
    _running.parked.add(thread)
    while True:
        threading.Event().wait()


def _end_loads() -> None:
    with _running.changed:
        _running.ends = True
        stopped = _running.of_others()
    for _, stop in stopped:
        if stop is not None:
            stop()
    with _running.changed:
        _running.changed.wait_for(lambda: not _running.of_others(), _LIMIT_S)
    deadline = time.monotonic() + _GRACE_S
    for thread in {thread for thread, _ in stopped}:
        while thread.is_alive() and thread not in _running.parked and time.monotonic() < deadline:
            thread.join(0.01)


def _forget_other_threads() -> None:
    """After a fork: they are not in the child."""
    own = {key: call for key, call in _running.calls.items() if call[0] is threading.current_thread()}
    _running.__init__()  # type: ignore[misc]
    _running.calls = own


atexit.register(_end_loads)
os.register_at_fork(after_in_child=_forget_other_threads)
