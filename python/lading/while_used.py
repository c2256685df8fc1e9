"""Changes to the process that several threads may need at the same time, and locks that a fork leaves usable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def free_after_fork(lock: Any) -> None:
    """A fork waits for the lock, so that the child never has one that a thread held which it does not have."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class WhileUsed:
    """A context: `make` runs when the first thread enters, and what it returns when the last one has left.

    Contexts that each put back what they found would leave the wrong thing behind if they end in another order than
    they began in, as those of threads do. One per process and change: it is never freed.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._users: dict[int, int] = {}  # threads, and how often each is inside
        self._undo: Callable[[], None] = lambda: None
        os.register_at_fork(after_in_child=self._forget_other_threads)
        free_after_fork(self._lock)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            if not self._users:
                self._undo = self._make()
            self._users[thread] = self._users.get(thread, 0) + 1

    def __exit__(self, *_: Any) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._users[thread] -= 1
            if not self._users[thread]:
                del self._users[thread]
            if not self._users:
                self._undo()

    def _forget_other_threads(self) -> None:
        """After a fork: they are not in the child."""
        thread = threading.get_ident()
        others = [one for one in self._users if one != thread]
        for other in others:
            del self._users[other]
        if others and not self._users:
            self._undo()
