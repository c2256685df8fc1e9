"""What a load says aloud, beside the report that it returns.

    logging.getLogger("lading").setLevel(logging.INFO)      # what was loaded, kept, initialised by name, passed over
    report = lading.report_of(model)                        # of the model's last load

A request that was not followed is a `UserWarning`. A rank that waits for others logs a warning, which Python prints where
no logging is set up. Everything else is logged by the first rank alone.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from .report import Report

logger = logging.getLogger("lading")

_FIRST_WORD_S, _EVERY_S = 15.0, 60.0
_SHOWN = 20
_NOT_THE_USERS = ("lading", "contextlib")
_reports: weakref.WeakKeyDictionary[nn.Module, Report] = weakref.WeakKeyDictionary()


def report_of(model: nn.Module) -> Report | None:
    """The report of a model's last load on this rank, by `materialize` or `from_pretrained`; None if there was none.

        model = lading.from_pretrained("org/name", device="cuda:0")
        print(lading.report_of(model))
    """
    return _reports.get(model)


def tell(
    parts: Iterable[nn.Module], report: Report, unfollowed: Sequence[str], *, passed_over: Sequence[str], is_first: bool
) -> None:
    """Keeps the report; the first rank of the group also warns and logs. `unfollowed`: requests that were not met;
    `passed_over`: keys."""
    for part in parts:
        _reports[part] = report
    if not is_first:
        return
    for text in unfollowed:
        warnings.warn(text, UserWarning, stacklevel=_level())
    if not logger.isEnabledFor(logging.INFO):
        return
    for line in str(report).splitlines():
        logger.info("%s", line.strip())
    by_provenance = report.by_provenance()
    for word, what in (("random", "initialised at random"), ("fill", "initialised"), ("kept", "kept as it was")):
        if names := by_provenance.get(word):
            logger.info("%s: %s", what, listed(names))
    if passed_over:
        logger.info("keys that nothing reads: %s", listed(passed_over))


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _level() -> int:
    """Where the user's own code is, so that the warning shows the line that asked."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    return level


@contextlib.contextmanager
def waiting_aloud(rank: int, ranks: int) -> Iterator[None]:
    """A rank alone may wait for minutes for others that never call: it says so, again and again."""
    began, done = time.monotonic(), threading.Event()

    def speak() -> None:
        if done.wait(_FIRST_WORD_S):
            return
        while True:
            waited = time.monotonic() - began
            text = "rank %d has waited %.0f s for the other ranks of its group (%d in all). Every rank must make the same lading call."
            logger.warning(text, rank, waited, ranks)
            if done.wait(_EVERY_S):
                return

    thread = threading.Thread(target=speak, name="lading waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
