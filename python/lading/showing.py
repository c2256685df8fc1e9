"""How far a load is: a bar on a terminal, lines in the log where there is none, or a function of the user's."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from ._engine import Progress
from .errors import LadingError, Problem

logger = logging.getLogger("lading")

_BAR_DELAY_S = 0.5
_FIRST_LINE_S, _EVERY_S = 5.0, 10.0


class Display(Protocol):
    def show(self, progress: Progress) -> None: ...
    def close(self) -> None: ...


def display_for(progress: bool | Callable[[Progress], Any], *, is_first: bool) -> Display:
    """What the argument `progress` of `materialize` asks for; only the group's first rank shows anything."""
    if not is_first or progress is False:
        return _Nothing()
    return _Bar() if progress is True else _Calls(progress)


def checked(progress: bool | Callable[[Progress], Any]) -> None:
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress is {progress!r}; it should be True, False, or a function of the bytes that are done")


class StoppedByUser(Exception):  # noqa: N818
    """The user's function raised `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def stopped(cause: Exception, *, begun: bool, what: str = "load") -> LadingError:
    message = f"the {what} was stopped: the progress function raised {type(cause).__name__}: {cause}".rstrip(": ")
    remedy = "Correct the function that was passed as progress."
    return LadingError(Problem("cancelled", message, remedy=remedy), stage="loading", begun=begun, exit_code=5)


class _Nothing:
    def show(self, progress: Progress) -> None:
        pass

    def close(self) -> None:
        pass


class _Calls(_Nothing):
    def __init__(self, function: Callable[[Progress], Any]) -> None:
        self._function = function

    def show(self, progress: Progress) -> None:
        try:
            self._function(progress)
        except Exception as error:
            raise StoppedByUser(error) from error


class _Bar:
    """A bar of tqdm, or lines where a bar would not be seen, or without tqdm. It comes late, and so does the
    import: most loads are done before."""

    def __init__(self) -> None:
        self._begun, self._bar, self._is_known = time.monotonic(), None, False
        self._next_line = self._begun + _FIRST_LINE_S

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._is_known and now - self._begun > _BAR_DELAY_S:
            self._bar, self._is_known = _new_bar(), True
        if self._bar is not None:
            self._bar.total = progress.total_bytes
            self._bar.update(progress.done_bytes - self._bar.n)
        elif now >= self._next_line:
            self._next_line = now + _EVERY_S
            logger.info("%s", _line(progress, now - self._begun))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _new_bar() -> Any:
    if not _is_watched():
        return None
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm(unit="B", unit_scale=True, desc="lading", leave=False)


def _is_watched() -> bool:
    """A terminal, or a notebook, whose standard error is not a terminal but shows bars."""
    if "ipykernel" in sys.modules:
        return True
    with contextlib.suppress(Exception):  # it may be None, closed, or an object of somebody's
        return sys.stderr.isatty()
    return False


def _line(progress: Progress, seconds: float) -> str:
    """loading: 42 %, 5.9 of 14.1 GB, 1.20 GB/s, 7 s left"""
    done, total = progress.done_bytes, progress.total_bytes
    per_second = done / seconds
    left = f", {(total - done) / per_second:.0f} s left" if done else ""
    percent = 100 * done // total if total else 100
    return f"loading: {percent} %, {done / 1e9:.1f} of {total / 1e9:.1f} GB, {per_second / 1e9:.2f} GB/s{left}"
