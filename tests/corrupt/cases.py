"""What a case of the corpus is, and the registries that hold them.

Expectations come from docs/how-it-works/faults.md, the text of the format and the rules S1 to S5; never from what the
program happens to say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """One fault that must be told."""

    code: str
    tensor: str | None = None
    says: tuple[str, ...] = ()  # all of them in the message, `expected`, `found`, `remedy` or `rule`
    file: str | None = None  # how the file's path ends; nothing: the file under test
    placed: bool = True  # whether the fault has a place in the file
    at: int | None = None  # the first byte of that place


@dataclass(frozen=True)
class Refused:
    """`make` gives the file's bytes, or, for a directory, fills it and gives the Call to make."""

    name: str
    row: int | None  # of docs/how-it-works/faults.md; nothing: the format's text or a rule of ours
    make: Callable
    problems: tuple[Problem, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accepted:
    name: str
    row: int | None
    make: Callable
    warnings: tuple[Problem, ...] = ()
    options: tuple[str, ...] = ()
    reference_refuses: bool = False  # the reference implementation has no such note or option


@dataclass
class Registry:
    """Cases by name. Names are unique over everything that is merged."""

    cases: dict[str, Refused | Accepted] = field(default_factory=dict)

    def add(self, case):
        if case.name in self.cases:
            raise ValueError(f"two cases are called {case.name}")
        self.cases[case.name] = case

    def refuse(self, name, row, make, code, options=(), **expected):
        """A case with one fault."""
        self.add(Refused(name, row, make, (Problem(code, **expected),), tuple(options)))

    def refuse_all(self, name, row, make, *problems, options=()):
        self.add(Refused(name, row, make, problems, tuple(options)))

    def accept(self, name, row, make, *warnings, options=(), reference_refuses=False):
        self.add(Accepted(name, row, make, warnings, tuple(options), reference_refuses))

    def merge(self, *others):
        for other in others:
            for case in other.cases.values():
                self.add(case)
        return self

    @property
    def refused(self):
        return [case for case in self.cases.values() if isinstance(case, Refused)]

    @property
    def accepted(self):
        return [case for case in self.cases.values() if isinstance(case, Accepted)]
