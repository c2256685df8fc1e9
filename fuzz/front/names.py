"""Names that torch allows and that others may stumble over."""

from __future__ import annotations

import random

_ODD = (
    "w", "w1", "w10", "w*", "wa", "*", "[a]", "a", "?", "a?", "{b}", "{0}", "a b", "größe", "重み", "🙂", "a-b", "$x",
    "a/b", "a\\b", 'a"b', "a'b", "%s", "A", "weight*", "weigh?", "w[0]", "_", "0", "00", "-1", "nan", "true", "a:b",
    "a,b", "a\tb", "e\u0301", "\u00e9", "<x>", "a=b", "a|b", "^a$", "a+", "(a)", "#a", "@a", "~", "`a`", "default",
)  # fmt: skip


def draw_name(dice: random.Random, taken: set[str], plain: str) -> str:
    """Mostly a plain name with a number; now and then an odd one, or a very long one."""
    for _ in range(20):
        throw = dice.random()
        if throw < 0.62:
            name = f"{plain}{len(taken) or ''}"
        elif throw < 0.66:
            name = plain + "x" * 300
        else:
            name = dice.choice(_ODD)
        if name not in taken:
            taken.add(name)
            return name
    name = f"{plain}_{len(taken)}"
    taken.add(name)
    return name
