"""The report of an audit, and the findings of its checks."""

from __future__ import annotations

import dataclasses
import json

from .errors import Problem, folded
from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry

_SHOWN = 40


@dataclasses.dataclass
class AuditReport:
    """What an audit found on this rank.

        report = lading.audit(model, "path/to/checkpoint")
        print(report)                                       # a summary, then problems and warnings, by kind
        assert report.ok, report.tensors

    `problems`: a tensor of the model is wrong, or the audit could not check a tensor that the checkpoint has.
    `warnings` may be intentional. `notes`: assumptions of the audit, and tensors without a key that it did not check.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]
    checked: dict[str, int]  # how many tensors were compared with what
    rank: int
    ranks: int

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors with a problem, each once."""
        return tuple(dict.fromkeys(problem.tensor for problem in self.problems if problem.tensor is not None))

    def codes(self) -> set[str]:
        return {problem.code for problem in self.problems}

    def to_json(self) -> str:
        fields = dataclasses.asdict(self) | {"schema": "lading.audit/1", "ok": self.ok}
        return json.dumps(fields, indent=2)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.checked.items() if count)
        verdict = "nothing wrong" if self.ok else f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"
        head = f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""
        lines = [f"{head}{verdict}; checked {counts or 'nothing'}"]
        lines += [f"  {line}" for line in _first(folded(self.problems))]
        warnings = _first(folded(self.warnings))
        lines += [f"  {line}" if line.startswith(" ") else f"  warning: {line}" for line in warnings]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more lines"]


class Findings:
    """What the checks of one audit found on this rank. `rank` is None where there is only one."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.notes: list[str] = []
        self.checked = dict.fromkeys(("with the checkpoint", "with their derivation", "between ranks"), 0)

    def problem(self, code: str, tensor: str | None, message: str, **fields: str) -> None:
        self.problems.append(Problem(code, message, tensor=tensor, rank=self.rank, **fields))

    def warning(self, code: str, tensor: str | None, message: str, **fields: str) -> None:
        self.warnings.append(Problem(code, message, tensor=tensor, rank=self.rank, **fields))

    def not_judged(self, tensor: str, reason: str, remedy: str = "", code: str = "not_judged") -> None:
        """Of a tensor that the checkpoint has: the model may be right, but the audit cannot say so."""
        text = f"the checkpoint has this tensor, but the audit could not check it: {reason}"
        self.problem(code, tensor, text, remedy=remedy)

    def of(self, entry: Entry, code: str, message: str, **fields: str) -> None:
        """Plain attributes may be state of the model's own, so differences of theirs are warnings."""
        tell = self.warning if entry.kind == ATTRIBUTE and code != "meta" else self.problem
        tell(code, entry.name, message, **fields)

    def report(self, rank: int, ranks: int) -> AuditReport:
        unique = (tuple(dict.fromkeys(found)) for found in (self.problems, self.warnings))
        return AuditReport(*unique, tuple(dict.fromkeys(self.notes)), self.checked, rank, ranks)


def kind_name(kind: str) -> str:
    return {
        PARAMETER: "parameter",
        BUFFER: "persistent buffer",
        NON_PERSISTENT: "non-persistent buffer",
        ATTRIBUTE: "plain tensor attribute",
    }.get(kind, kind)
