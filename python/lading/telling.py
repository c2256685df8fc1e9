"""Warnings and log lines of a load, beside the report that it returns.

    logging.getLogger("lading").setLevel(logging.INFO)      # what was loaded, kept, initialised and ignored, by name
    report = lading.report_of(model)                        # of the model's last load

A request that was not followed is a `UserWarning`. Tensors that the checkpoint should have and lacks are logged as a
warning, and so is a rank that waits for others: Python prints those where no logging is set up. Only
the first rank logs all but the last.
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

import torch.distributed as dist
from torch import nn

from .errors import Problem
from .report import Report, folded

logger = logging.getLogger("lading")

_FIRST_WORD_S, _EVERY_S = 15.0, 60.0
_NOT_THE_USERS = ("lading", "contextlib", "torch")  # torch: dcp.load calls lading
_reports: weakref.WeakKeyDictionary[nn.Module, Report] = weakref.WeakKeyDictionary()


def report_of(model: nn.Module) -> Report | None:
    """The report of a model's last load on this rank, by `materialize` or `from_pretrained`; None if there was none.

        model = lading.from_pretrained("org/name", device="cuda:0")
        print(lading.report_of(model))
    """
    return _reports.get(model)


def tell(
    parts: Iterable[nn.Module],
    report: Report,
    unfollowed: Sequence[Problem],
    *,
    passed_over: Sequence[str],
    is_first: bool,
) -> None:
    """Keeps the report; the first rank of the group also warns and logs. `unfollowed`: requests that were not met;
    `passed_over`: keys that a rule ignores."""
    for part in parts:
        _reports[part] = report
    if not is_first:
        return
    warn(unfollowed)
    for level, line in report.lines():
        logger.log(level, "%s", line)
    if kept := report.by_provenance().get("kept"):
        logger.info("kept: %s", folded(kept))
    if passed_over:
        logger.info("keys that a rule ignores: %s", folded(passed_over))


def speaks_here() -> bool:
    """For calls in which the ranks do not meet: whether this process is the first rank of the job, or alone."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


def warn(unfollowed: Iterable[Problem]) -> None:
    """At the line of the user's that made the request."""
    for one in unfollowed:
        warnings.warn(f"{one.message} ({one.rule}). {one.remedy}", UserWarning, stacklevel=_level())


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
            text = "rank %d has waited %.0f s for the other ranks (%d in all). Make the same lading call on every rank."
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
