"""Runs fixed worlds, kept cases and planted mistakes once, for the tests.

    python -m front.replay RESULT.json --seeds 0:40 --cases FOLDER --planted FOLDER

The result has for each world its verdict, and for each planted mistake the verdicts with it and without it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from .draw import draw
from .pieces import Json


def run_all(specs: Iterable[Json], scratch: Path, prepare: Callable[[], None] | None = None) -> dict[str, Json]:
    """Verdicts by the worlds' names, or seeds."""
    from .campaign import Campaign

    specs = list(specs)
    campaign = Campaign(sorted({spec["ranks"] for spec in specs}), scratch, prepare)
    try:
        return {str(spec.get("name", spec["seed"])): verdict for spec, verdict in campaign.run(specs)}
    finally:
        campaign.close()


def cases_in(folder: Path) -> list[Json]:
    return [json.loads(path.read_text()) | {"name": path.stem} for path in sorted(folder.glob("*.json"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seeds", default="0:0")
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--planted", type=Path)
    arguments = parser.parse_args()
    from .frameworks import import_all
    from .planted import PLANTED

    import_all()
    importlib.import_module("front.world")
    scratch = Path(tempfile.mkdtemp(prefix="lading_fuzz_"))
    first, last = map(int, arguments.seeds.split(":"))
    result: dict[str, Json] = {"planted": {}}
    try:
        worlds = [draw(seed) for seed in range(first, last)]
        planted = cases_in(arguments.planted) if arguments.planted else []
        cases = cases_in(arguments.cases) if arguments.cases else []
        result["worlds"] = run_all([*worlds, *cases, *planted], scratch)
        for case in planted:
            result["planted"][case["name"]] = run_all([case], scratch, PLANTED[case["name"]])[case["name"]]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    arguments.result.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
