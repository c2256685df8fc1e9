"""A change to the process that several threads may need at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class WhileUsed:
    """A context: `make` runs when the first thread enters, and what it returns when the last one has left.

    Contexts that each put back what they found would leave the wrong thing behind if they end in another order than
    they began in, as those of threads do.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make, self._lock, self._users = make, threading.Lock(), 0
        self._undo: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._undo = self._make()
            self._users += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._undo()
