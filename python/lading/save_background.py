"""A save that goes on in a thread, while the model is trained.

    pending = lading.save(model, "out", background=True)
    ...                                                 # the model may change
    report = pending.result()                           # or the error, the same on every rank

One at a time: the next save of this process waits for it. Python waits for its thread too
when it ends.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from .save_report import SaveReport

logger = logging.getLogger("lading")


class PendingSave(concurrent.futures.Future[SaveReport]):
    """A save in the background: a future of its report. It cannot be cancelled.

        pending = lading.save(model, "out", background=True)
        pending.done()
        report = pending.result(timeout=600)            # raises what the save raised, on every rank

    A program that ends waits for it. A process that was forked meanwhile cannot ask it.

    Attributes:
        path: the directory of the checkpoint.
        snapshot_bytes: the memory that this rank's copy of the values takes until the save is done.
        snapshot_device: where the copy is: the model's device, or the CPU.
    """

    def __init__(self, path: Path, snapshot_bytes: int, snapshot_device: torch.device) -> None:
        super().__init__()
        self.path, self.snapshot_bytes, self.snapshot_device = path, snapshot_bytes, snapshot_device
        self._pid = os.getpid()
        self.set_running_or_notify_cancel()

    def done(self) -> bool:
        self._check_process()
        return super().done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Waits. TimeoutError if the save takes longer, which goes on then."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        """A forked child has no thread that sets the result, and the future's lock may be held for ever."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"the save to {self.path} runs in process {self._pid}, of which this one is a fork")


class _Running:
    def __init__(self) -> None:
        self.save: PendingSave | None = None


_running = _Running()


def wait_for_last_save() -> None:
    """Its own result raises what it raised, and this does not."""
    last = _running.save
    if last is not None and not last.done():
        logger.info("waiting for the save to %s", last.path)
        last.exception()


def begin(pending: PendingSave, write: Callable[[], SaveReport], *, tells: bool) -> None:
    """`tells`: this rank logs a failure, because the program may never ask for the result."""

    def run() -> None:
        try:
            report = write()
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
            if tells:
                logger.error("the save to %s failed: %s", pending.path, error)
            pending.set_exception(error)
        else:
            pending.set_result(report)

    thread = threading.Thread(target=run, name="lading save", daemon=False)
    thread.start()
    _running.save = pending


os.register_at_fork(after_in_child=_running.__init__)  # type: ignore[misc]
