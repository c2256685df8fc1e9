"""What the holders of copies look at (holders.py), and how they say that a load is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .errors import Problem
from .inventory import Entry
from .patterns import matches

Refresh = Callable[[], None]


@dataclasses.dataclass
class Seen:
    """A model that is about to be loaded: each module once, by its canonical name."""

    modules: list[tuple[str, nn.Module]]
    entries: Sequence[Entry]
    device: torch.device  # where this rank's tensors go
    spoken_for: Sequence[str] = ()  # patterns of names whose values do not come from the checkpoint

    def is_spoken_for(self, name: str) -> bool:
        return any(matches(pattern, name) for pattern in self.spoken_for)

    @functools.cached_property
    def kinds(self) -> set[type]:
        """The classes of its modules, which are few."""
        return {type(module) for _, module in self.modules}

    def of_class(self, name: str) -> list[tuple[str, nn.Module]]:
        """The modules of a class of this name, or of one that inherits from it."""
        wanted = {kind for kind in self.kinds if any(base.__name__ == name for base in kind.__mro__)}
        return [(where, module) for where, module in self.modules if type(module) in wanted] if wanted else []

    def with_attribute(self, name: str) -> Iterator[tuple[str, nn.Module, Any]]:
        """The modules with an attribute of this name, and its value."""
        for where, module in self.modules:
            if name in module.__dict__:
                yield where, module, module.__dict__[name]

    def is_replaced(self, entry: Entry) -> bool:
        """Whether the load gives this tensor other memory than it has."""
        if not entry.is_tensor:
            return False
        here = entry.device
        return here.type != self.device.type or (here.type != "cpu" and here.index != self.device.index)


def problem(tensor: str | None, message: str, remedy: str) -> Problem:
    return Problem("copies", message, tensor=tensor, rule="R61", remedy=f"{remedy}.")
