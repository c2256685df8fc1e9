"""Patterns of names, in the engine's one language: `*` stands for any characters, dots included. And exact names.

Users write patterns. What the front itself says of a tensor is said of its `Name`: a name may hold any character, and
the `*` of a tensor that is called `w*` stands for itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from . import _engine


@dataclasses.dataclass(frozen=True)
class Name:
    """One name exactly, where a pattern may stand."""

    text: str


Pattern = str | Name


def matches(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, Name):
        return pattern.text == name
    return pattern == name if "*" not in pattern else _engine.pattern_matches(pattern, name)


def list_json(pattern: Pattern) -> Any:
    """An element of a list of patterns (docs/schema/policy.md)."""
    return {"name": pattern.text} if isinstance(pattern, Name) else pattern


def fields_json(pattern: Pattern) -> dict[str, str]:
    """The same in an object that says more, such as a pin (docs/schema/skeleton.md)."""
    return {"name": pattern.text} if isinstance(pattern, Name) else {"pattern": pattern}
