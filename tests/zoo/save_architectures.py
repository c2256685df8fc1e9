"""Every architecture of transformers that builds here from a small config: `lading.save` in one process, then three
comparisons. The files are byte for byte those of `save_pretrained`; lading loads from them the tensors that were saved;
and transformers' own loader makes the same model of them as of its own files.

    python save_architectures.py [--only llama,bert] [--csv FILE] [--minutes 60]

Verdicts: right; refused (lading says why, and writes nothing); wrong; "no build": no small config builds here.
"""

import argparse
import collections
import copy
import csv
import sys
import tempfile
import time
from pathlib import Path

import save_zoo
import zoo
from tiny_config import tiny_configs

MOST_PARAMETERS = 40_000_000
TIMEOUT_S, BUILDING_S = 300, 90


def judge(model_type):
    """(verdict, detail, number of keys)"""
    built = build(model_type)
    if isinstance(built, str):
        return "no build", built, 0
    model, config, name = built
    zoo.overwrite(model)
    with tempfile.TemporaryDirectory(prefix="lading_zoo_") as scratch:
        return saved(model, config, name, Path(scratch))


def build(model_type):
    """The model, its config and its class; or why there is none."""
    why, end = "", time.monotonic() + BUILDING_S
    for config, name in tiny_configs(model_type):
        if time.monotonic() > end:
            break
        try:
            cls = zoo.model_class(name, config)
            with zoo.on_meta():
                count = sum(one.numel() for one in cls(config).parameters())
            if count > MOST_PARAMETERS:
                why = why or f"{count} parameters"
                continue
            zoo.seed_all(zoo.seed_of(model_type))
            return cls(copy.deepcopy(config)), config, name  # save_pretrained changes a model's config
        except Exception as error:  # noqa: BLE001  # whatever a constructor raises
            why = zoo.describe(error) if not why or "parameters" in why else why
    return why or "no config"


def saved(model, config, name, scratch):
    import lading
    from save_models import tensors_in

    wanted, out = scratch / "wanted", scratch / "out"
    try:
        zoo.save(model, wanted)
    except Exception as error:  # noqa: BLE001
        return "no reference", f"save_pretrained fails: {zoo.describe(error)}", 0
    try:
        report = lading.save(model, out, max_shard_size=save_zoo.shard_bytes(model), progress=False)
    except lading.LadingError as error:
        return "refused", error.full_text()[:600], 0
    problems = save_zoo.differences(out, wanted)
    notes = []
    problems += loaded_by_lading(model, config, name, out, wanted, notes)
    theirs = save_zoo.loaded_differently(type(model), out, wanted)
    notes += [one for one in theirs if one.startswith("transformers cannot")]
    problems += [one for one in theirs if not one.startswith("transformers cannot")]
    assert problems or len(report.keys) == len(tensors_in(wanted))
    return ("wrong" if problems else "right"), "; ".join([*problems, *notes])[:600], len(report.keys)


def loaded_by_lading(model, config, name, out, wanted, notes):
    """Every parameter and persistent buffer. A load that refuses these files refuses those of save_pretrained too."""
    import lading

    found = {}
    for folder in (out, wanted):
        with zoo.on_meta():
            skeleton = zoo.model_class(name, config)(config)
        try:
            lading.materialize(skeleton, folder, device="cpu", progress=False)
        except lading.LadingError as error:
            found[folder] = f"lading's load refuses: {error.problems[0].message}"
            continue
        kinds = zoo.tensors(model)
        found[folder] = [
            one for one in zoo.differences(model, skeleton) if kinds.get(one[1], ("",))[0] != "nonpersistent"
        ]
    if isinstance(found[out], str) and isinstance(found[wanted], str):
        notes.append(found[out])
        return []
    if found[out]:
        return [found[out] if isinstance(found[out], str) else f"lading loads {zoo.summary(found[out])}"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--csv", help="rows are added; types that it has are not run again")
    parser.add_argument("--minutes", type=float, default=600)
    arguments = parser.parse_args()
    zoo.warm()
    types = arguments.only.split(",") if arguments.only else sorted(zoo.model_types())
    rows = list(csv.reader(Path(arguments.csv).open(newline=""))) if arguments.csv and Path(arguments.csv).exists() else []
    counts, began = collections.Counter(row[1] for row in rows), time.monotonic()
    known = {row[0] for row in rows}
    for model_type in types:
        if model_type in known:
            continue
        if time.monotonic() - began > 60 * arguments.minutes:
            print(f"time limit: stopped before {model_type}")
            break
        status, answer = zoo.isolated(judge, model_type, timeout=TIMEOUT_S)
        verdict, detail, keys = answer if status == "ok" else ("error", str(answer), 0)
        counts[verdict] += 1
        if arguments.csv:
            with Path(arguments.csv).open("a", newline="") as handle:
                csv.writer(handle).writerow((model_type, verdict, keys, detail))
        if verdict != "right" or detail:
            print(f"{verdict:12s} {model_type:32s} {detail}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return int(bool(counts["wrong"] + counts["error"]))


if __name__ == "__main__":
    sys.exit(main())
