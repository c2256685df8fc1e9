"""./dev fuzz front: random worlds on real ranks against plain torch."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .draw import LAYOUTS, SURGERY, draw
from .pieces import Json
from .record import Record


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev fuzz front", description=__doc__)
    parser.add_argument("--worlds", type=int, help="how many; without this and --seconds 1000")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0, help="of the first world; the others follow")
    parser.add_argument("--ranks", default="1,2,3,4", help="sizes of the groups of ranks")
    parser.add_argument("--only", default="", help="only worlds with one of these surgeries and one of these layouts")
    parser.add_argument("--replay", help="a seed, or a file with the document of a world")
    parser.add_argument("--shrink", action="store_true", help="reduce every failing world to a small one")
    parser.add_argument("--at-once", type=int, default=5, help="groups of ranks side by side")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-front"), help="where failures and the report go")
    return parser.parse_args()


def seeds(arguments: argparse.Namespace) -> Iterator[Json]:
    """Worlds from the first seed on, as far as they are asked for."""
    words = [word for word in arguments.only.split(",") if word]
    unknown = [word for word in words if word not in LAYOUTS and word not in SURGERY]
    if unknown:
        raise SystemExit(f"--only: there is no surgery or layout {unknown}")
    layouts, surgery = [word for word in words if word in LAYOUTS], [word for word in words if word in SURGERY]
    sizes = {int(size) for size in arguments.ranks.split(",")}
    limit = arguments.worlds if arguments.worlds is not None else None if arguments.seconds else 1000
    seed, given = arguments.seed, 0
    while limit is None or given < limit:
        spec = draw(seed)
        seed += 1
        kinds = {cut["kind"] for cut in spec["surgery"]}
        if layouts and spec["layout"]["kind"] not in layouts or surgery and not kinds & set(surgery):
            continue
        if spec["ranks"] in sizes:
            given += 1
            yield spec


def given_world(word: str) -> Json:
    if word.lstrip("-").isdigit():
        return draw(int(word))
    spec: Json = json.loads(Path(word).read_text())
    return spec.get("spec", spec)


def shrink_all(record: Record, scratch: Path, out: Path) -> None:
    """The smallest world of each class of failures, as a document and in words."""
    from .campaign import Campaign
    from .shrink import in_words, shrink, signature

    seen: set[str] = set()
    for failure in sorted(record.failures, key=lambda one: len(json.dumps(one["spec"]))):
        name = f"{signature(failure['verdict'])} {failure['spec']['layout']['kind']}"
        if name in seen:
            continue
        seen.add(name)
        campaigns: dict[int, Campaign] = {}

        def run(spec: Json, campaigns: dict[int, Campaign] = campaigns) -> Json:
            if spec["ranks"] not in campaigns:
                campaigns[spec["ranks"]] = Campaign([spec["ranks"]], scratch)
            return next(campaigns[spec["ranks"]].run([spec]))[1]

        again = run(failure["spec"])
        if signature(again) != signature(failure["verdict"]):
            print(f"\nseed {failure['seed']}: {signature(failure['verdict'])}, alone it is {signature(again)}", flush=True)
        else:
            spec, verdict = shrink(failure["spec"], again, run)
            print(f"\nseed {failure['seed']}, shrunk:\n{in_words(spec, verdict)}", flush=True)
            (out / f"shrunk_{failure['seed']}.json").write_text(json.dumps({"verdict": verdict, "spec": spec}, indent=1))
        for campaign in campaigns.values():
            campaign.close()


def main() -> int:
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="lading_fuzz_", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    from .frameworks import import_all

    import_all()
    from . import world  # noqa: F401 - torch and lading are imported once, before ranks are forked
    from .campaign import BUGS, Campaign, sizes_for

    try:
        if arguments.replay is not None:
            specs: Iterator[Json] = iter([given_world(arguments.replay)])
            spec = given_world(arguments.replay)
            sizes = [spec["ranks"]]
        else:
            specs = seeds(arguments)
            ranks = [int(size) for size in arguments.ranks.split(",")]
            sizes = sizes_for(ranks, {1: 0.3, 2: 0.3, 3: 0.2, 4: 0.3}, arguments.at_once)
        campaign = Campaign(sizes, scratch)
        record = Record(arguments.out)
        shown = time.monotonic()
        for spec, verdict in campaign.run(specs, arguments.seconds):
            record.add(spec, verdict)
            if arguments.replay is not None:
                print(json.dumps(spec, indent=1, ensure_ascii=False))
                print(json.dumps(verdict, indent=1, ensure_ascii=False))
            elif verdict["verdict"] in BUGS:
                print(f"seed {spec['seed']}: {verdict['verdict']}: {verdict['cause']}", flush=True)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(record.line(), flush=True)
                record.save()  # a campaign that is stopped has its report too
        campaign.close()
        if arguments.replay is None:
            print(record.text())
        record.save()
        if arguments.shrink:
            shrink_all(record, scratch, arguments.out)
        return 1 if record.failures else 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
