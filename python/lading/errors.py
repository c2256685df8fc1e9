"""LadingError: all that is wrong with a load, in one exception.

try:
    lading.materialize(model, "org/name", device="cuda:0")
except lading.LadingError as error:
    print(error)                # every problem and what to do about it; many of one kind are one line
    error.code                  # "plan": a stable word (docs/error-codes.md), of the first problem
    print(lading.help(error.code))  # what it means
    error.tensors               # the names that the problems are about
    [p.rule for p in error.problems]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN_CHARACTERS = 200  # of a name; a hostile file can have one of a megabyte

# Settings that the engine writes as members of its documents: arguments here.
_ARGUMENTS = {
    "dtype", "cast", "compute_dtype", "compute_record", "pins", "subtree_dtypes", "allow_missing", "allow_unexpected",
    "allow_mismatch", "keep", "external", "ties", "seed", "budget_bytes", "quantized", "arithmetic",
}  # fmt: skip
_SPELLED_OTHERWISE = {"budget_bytes": "budget"}
_MEMBER = re.compile(rf'(?<!=)"({"|".join(sorted(_ARGUMENTS))})"(?:: ("[^"]*"|\{{[^}}]*\}}|\[[^\]]*\]|[0-9]+))?')
_POLICY = "policy (text)"  # what the engine calls the document that the front makes of the arguments
_PLACE = re.compile(r"\$\.(\w+)")
_REMEDIES = {
    "Correct the policy (docs/schema/policy.md).": "Correct the argument.",
    "Correct the document (docs/schema).": "Correct the argument.",
}


def in_python(text: str) -> str:
    """`"compute_record": "ignore"`, as a document has it, is `compute_record="ignore"` in a call."""
    text = text.replace("--mapping FILE", "mapping=").replace("Omit --revision", "Omit revision=")
    return _MEMBER.sub(lambda found: f"{_SPELLED_OTHERWISE.get(found[1], found[1])}={found[2] or ''}", text)


def shown(text: str) -> str:
    """Safe to print: names come from files, and may hold anything."""
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _of_arguments(fields: dict[str, Any]) -> dict[str, Any]:
    """A problem of the policy, which the user knows as arguments only: without the place in the document's text."""
    if fields.get("file") == _POLICY:
        message = _PLACE.sub(lambda found: _SPELLED_OTHERWISE.get(found[1], found[1]), fields["message"], count=1)
        fields = {name: value for name, value in fields.items() if name not in ("file", "bytes")} | {"message": message}
    elif fields["code"] != "policy":
        return fields
    return fields | {"remedy": _REMEDIES.get(fields.get("remedy", ""), fields.get("remedy", ""))}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `code` and `message` are always there, the rest as far as it is known."""

    code: str
    message: str
    tensor: str | None = None
    rank: int | None = None
    rule: str = ""
    file: str = ""
    bytes: tuple[int, int] | None = None
    expected: str = ""
    found: str = ""
    remedy: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Problem:
        """Of docs/schema/problems.md. Members that this version does not know are left aside."""
        known = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        if "bytes" in known:
            known["bytes"] = tuple(known["bytes"])
        known |= {name: in_python(known[name]) for name in ("expected", "remedy") if name in known}
        return cls(**_of_arguments(known))

    def __str__(self) -> str:
        where = f"rank {self.rank}: " if self.rank is not None else ""
        where += f"{shown(self.file)}: " if self.file else ""
        where += f'tensor "{shown(self.tensor)}": ' if self.tensor is not None else ""
        if self.bytes is not None:
            begin, end = self.bytes
            where += f"bytes {begin} to {end}: " if end - begin > 1 else f"byte {begin}: "
        compared = f"; expected {self.expected}" if self.expected else ""
        compared += f"{',' if self.expected else ';'} found {self.found}" if self.found else ""
        tag = f"[{self.code}, {self.rule}]" if self.rule else f"[{self.code}]"
        advice = f". {self.remedy}" if self.remedy else ""
        return f"{where}{self.message}{compared} {tag}{advice}"


class LadingError(Exception):
    """A load, plan or audit that was refused or failed. Its text lists every problem.

        try:
            lading.materialize(model, "path/to/checkpoint")
        except lading.LadingError as error:
            print(error)                                    # every problem, with rule, tensor, rank and remedy
            print(error.tensors, error.begun)               # begun: memory was written, and is not to be used

    Attributes:
        problems: all of them, in the order in which they were found; at least one.
        code, rule: of the first problem. `rule` is the contract's ("R45"), or "".
        rank: the first that a problem names, or None.
        tensors: every name that a problem is about, once.
        stage: "request", "checkpoint", "documents", "planning", "proof", "loading"; "" if it is not the engine's.
        begun: True: memory was written, and is incomplete, whatever it holds. False: nothing was written.
        exit_code: as the command line would end.
        report: what is known beside the problems: the engine's answer, or the report of an audit; or None.
        ledger: of a load that had begun, what was written all the same, as JSON text; otherwise "".
        not_listed: how many more problems there were than are kept.
        error_id: of a failure that ranks share: the same on all of them, to find it in their logs; otherwise "".
        speakers: of such a failure, the ranks whose text has every problem. The text of other ranks has the first one,
            and names these ranks; `problems` and `full_text()` are the same everywhere.
    """

    def __init__(
        self,
        problems: Iterable[Problem] | Problem,
        *,
        stage: str = "",
        begun: bool = False,
        exit_code: int = 1,
        report: Any = None,
        ledger: str = "",
        not_listed: int = 0,
        error_id: str = "",
        speakers: Sequence[int] = (),
        is_speaker: bool = True,
    ) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        if not self.problems:
            raise ValueError("an error without a problem")
        self.stage = stage
        self.begun = begun
        self.exit_code = exit_code
        self.report = report
        self.ledger = ledger
        self.not_listed = not_listed
        self.error_id = error_id
        self.speakers = tuple(speakers)
        self._is_speaker = is_speaker
        super().__init__(self.full_text() if is_speaker else self._short_text())

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any], ledger: str = "") -> LadingError:
        """Of an answer of the engine that is not ok (docs/schema/request.md)."""
        return cls(
            [Problem.from_json(problem) for problem in answer["problems"]],
            stage=answer.get("stage", ""),
            begun=answer.get("begun", False),
            exit_code=answer["exit_code"],
            report=answer,
            ledger=ledger,
            not_listed=answer.get("problems_not_listed", 0),
        )

    @property
    def code(self) -> str:
        return self.problems[0].code

    @property
    def rule(self) -> str:
        return self.problems[0].rule

    @property
    def rank(self) -> int | None:
        return next((problem.rank for problem in self.problems if problem.rank is not None), None)

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(problem.tensor for problem in self.problems if problem.tensor is not None))

    def full_text(self) -> str:
        """Every problem; many of one kind are one line with a pattern and a count."""
        return "\n".join([*folded(self.problems, self.not_listed), *self._state(), self._where_help_is()])

    def _short_text(self) -> str:
        first, *rest = folded(self.problems, self.not_listed)
        if not rest:
            return self.full_text()
        others = " and ".join(f"rank {rank}" for rank in self.speakers)
        count = len(self.problems) + self.not_listed
        where = f"{count} problems in all: see the text of {others} (error id {self.error_id})."
        return "\n".join([first, where, *self._state()])

    def _state(self) -> list[str]:
        return ["The load had begun: the tensors that it fills are incomplete."] if self.begun else []

    def _where_help_is(self) -> str:
        topics = ", ".join(f'"{topic}"' for topic in (self.code, self.rule) if topic)
        return f"Run print(lading.help({topics})) to see what this means and what to do."

    def __reduce__(self) -> tuple[Any, ...]:
        # The problems travel between processes, and the text as this rank has it.
        state = {key: value for key, value in self.__dict__.items() if key != "problems"}
        return (type(self), (self.problems,), (self.args, state))

    def __setstate__(self, travelled: Any) -> None:
        self.args, state = travelled
        self.__dict__.update(state)


def folded(problems: Sequence[Problem], not_listed: int = 0) -> list[str]:
    """The lines that the engine makes of problems: one each, or one for many of a kind (docs/schema/problems.md)."""
    from . import _engine  # which imports this module

    told = [
        {name: _utf8(value) for name, value in dataclasses.asdict(one).items() if value not in (None, "")}
        for one in problems
    ]
    return _engine.folded({"problems": told, "problems_not_listed": not_listed})


def _utf8(value: Any) -> Any:
    """Paths may hold bytes that are not UTF-8, which JSON cannot."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
