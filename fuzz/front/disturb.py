"""What happens to a process while it loads: a fork, or a moment in which it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

_DELAYS_S = (0.0, 0.001, 0.003, 0.008)
_STOPPED_S = 0.05


@contextlib.contextmanager
def disturbed(kind: str | None, seed: int) -> Iterator[None]:
    """The block is disturbed once, soon after it began."""
    delay_s = _DELAYS_S[seed % len(_DELAYS_S)]
    if kind == "fork":
        thread = threading.Thread(target=_fork, args=(delay_s,))
        thread.start()
        yield
        thread.join()
    elif kind == "stop":
        pid = _stopper(delay_s)
        yield
        os.waitpid(pid, 0)
    else:
        yield


def _fork(delay_s: float) -> None:
    time.sleep(delay_s)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _stopper(delay_s: float) -> int:
    """A child that stops its parent for a moment."""
    parent = os.getpid()
    pid = os.fork()  # before any thread of the load
    if pid == 0:
        time.sleep(delay_s)
        os.kill(parent, signal.SIGSTOP)
        time.sleep(_STOPPED_S)
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    return pid
