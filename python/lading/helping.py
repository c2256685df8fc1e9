"""`lading.help`: what an error code, a rule, an exit code or an argument means. The texts are the engine's."""

from __future__ import annotations

from . import _engine


class HelpText(str):
    """Text that a Python prompt shows as it is, line by line."""

    def __repr__(self) -> str:
        return str(self)


def help(*topics: str | int) -> HelpText:
    """Returns what each topic means, a typical cause, and what to do.

        print(lading.help("R45"))                           # a rule of docs/contract.md, or "S1" to "S5"
        print(lading.help("header_overlap"))                # an error code
        print(lading.help(3))                               # an exit code
        print(lading.help("allow_missing", "promote"))      # arguments, and words that they take
        print(lading.help())                                # all topics

    The texts are in the package: nothing is downloaded. The command `lading help TOPIC` prints the same.

    Raises:
        LadingError: there is no such topic. The message suggests similar ones.
    """
    texts = [_engine.help_text(str(topic)) for topic in topics] or [_engine.help_text(None)]
    return HelpText("\n".join(texts))
