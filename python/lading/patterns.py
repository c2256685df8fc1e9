"""Patterns of names, as the policy document has them: `*` stands for any characters, dots included."""

from __future__ import annotations

import functools
import re


def matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
