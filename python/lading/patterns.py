"""Patterns of names, as documents have them: `*` stands for any characters, dots included. And names that are none.

Users write patterns. What the front itself says of a tensor is said of its `Name`: a name may hold any character, and
the `*` of a tensor that is called `w*` stands for itself.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any


@dataclasses.dataclass(frozen=True)
class Name:
    """One name exactly, where a pattern may stand."""

    text: str


Pattern = str | Name


def matches(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, Name):
        return pattern.text == name
    return _compiled(pattern).fullmatch(name) is not None


def list_json(pattern: Pattern) -> Any:
    """An element of a list of patterns (docs/schema/policy.md)."""
    return {"name": pattern.text} if isinstance(pattern, Name) else pattern


def fields_json(pattern: Pattern) -> dict[str, str]:
    """The same in an object that says more, such as a pin (docs/schema/skeleton.md)."""
    return {"name": pattern.text} if isinstance(pattern, Name) else {"pattern": pattern}


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
