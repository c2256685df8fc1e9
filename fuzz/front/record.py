"""What a campaign did: counts, the matrix of surgery and layout, causes of refusals, failures."""

from __future__ import annotations

import collections
import json
import time
from pathlib import Path

from .campaign import BUGS
from .draw import IMPOSSIBLE, LAYOUTS, SURGERY
from .pieces import Json


FEW = 20


class Record:
    """Counts of one campaign."""

    def __init__(self, out: Path) -> None:
        self.out, self.began = out, time.monotonic()
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.layouts: collections.Counter[str] = collections.Counter()
        self.surgery: collections.Counter[str] = collections.Counter()
        self.pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        self.builds: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()  # by cause, where plain torch loads
        self.agreed: collections.Counter[str] = collections.Counter()  # by cause, where plain torch refuses too
        self.void: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, int] = {}
        self.failures: list[Json] = []
        self.classes: collections.Counter[str] = collections.Counter()

    def add(self, spec: Json, verdict: Json) -> None:
        kind, layout = verdict["verdict"], spec["layout"]["kind"]
        self.verdicts[kind] += 1
        if kind == "void":
            self.void[verdict["cause"][:90]] += 1
            self.examples.setdefault(verdict["cause"][:90], spec["seed"])
            return
        self.layouts[layout] += 1
        self.builds[spec["build"]] += 1
        for cut in {cut["kind"] for cut in spec["surgery"]} or {"none"}:
            self.surgery[cut] += 1
            self.pairs[cut, layout] += 1
        if kind == "refused":
            (self.refused if verdict["torch_loads"] else self.agreed)[verdict["cause"]] += 1
            self.examples.setdefault(verdict["cause"], spec["seed"])
        if kind in BUGS:
            self.failures.append({"seed": spec["seed"], "verdict": verdict, "spec": spec})
            self.classes[f"{kind}: {verdict['cause'][:60]}"] += 1

    @property
    def worlds(self) -> int:
        return sum(self.verdicts.values())

    def rare(self) -> list[str]:
        """Pairs of surgery and layout that were tried too rarely to mean anything."""
        pairs = [(cut, name) for cut in SURGERY for name in LAYOUTS if (cut, name) not in IMPOSSIBLE]
        return [f"{cut} × {name}" for cut, name in pairs if self.pairs[cut, name] < FEW]

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        return f"{self.worlds} worlds, {self.worlds / seconds:.1f} per second: {dict(self.verdicts)}"

    def text(self) -> str:
        judged = self.worlds - self.verdicts["void"]
        share = 100 * sum(self.refused.values()) / max(1, judged)
        lines = [self.line(), "", "layout".ljust(12) + "  worlds"]
        lines += [f"{name.ljust(12)}  {self.layouts[name]}" for name in LAYOUTS]
        lines += ["", "built: " + ", ".join(f"{name} {count}" for name, count in self.builds.most_common())]
        lines += ["", "surgery × layout".ljust(16) + "".join(name[:9].rjust(10) for name in LAYOUTS)]
        for cut in (*SURGERY, "none"):
            counts = ["-" if (cut, name) in IMPOSSIBLE else str(self.pairs[cut, name]) for name in LAYOUTS]
            lines.append(cut.ljust(16) + "".join(count.rjust(10) for count in counts))
        reasons = sorted({f"{cut} × {name}: {why}" for (cut, name), why in IMPOSSIBLE.items()})
        lines += ["", "impossible (-):", *(f"  {reason}" for reason in reasons)]
        lines += [f"fewer than {FEW}: {', '.join(self.rare()) or 'none'}"]
        lines += ["", f"refused though torch loads: {sum(self.refused.values())} of {judged} ({share:.1f} %)"]
        lines += [f"{count:6d}  {cause}  (seed {self.examples[cause]})" for cause, count in self.refused.most_common()]
        lines += ["", f"refused, as by torch: {sum(self.agreed.values())}"]
        lines += [f"{count:6d}  {cause}  (seed {self.examples[cause]})" for cause, count in self.agreed.most_common(12)]
        lines += ["", f"worlds that torch itself cannot make: {self.verdicts['void']}"]
        lines += [f"{count:6d}  {cause}  (seed {self.examples[cause]})" for cause, count in self.void.most_common(25)]
        lines += ["", f"failures: {len(self.failures)}"]
        lines += [f"{count:6d}  {name}" for name, count in self.classes.most_common()]
        return "\n".join(lines)

    def save(self) -> None:
        with (self.out / "failures.jsonl").open("w") as out:
            for failure in self.failures:
                out.write(json.dumps(failure, ensure_ascii=False) + "\n")
        (self.out / "report.txt").write_text(self.text() + "\n")
