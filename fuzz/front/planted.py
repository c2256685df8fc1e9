"""Mistakes put back into lading, to see that the fuzzer finds them.

    python -m front.planted                 every mistake: how many worlds it took to find it
    python -m front.planted conj_bit rows   these

Each is a monkeypatch of lading's insides after which a load says "done" over wrong values, or waits for ever. A mistake
is found when a world fails that does not fail without it.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .pieces import Json

LIMIT = 3000


def _everywhere(home: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function of lading's, also where it was imported from its home."""
    old = getattr(importlib.import_module(f"lading.{home}"), name)
    new = make(old)
    for module in [module for key, module in sys.modules.items() if key.startswith("lading.")]:
        if getattr(module, name, None) is old:
            setattr(module, name, new)


def conj_bit() -> None:
    """Memory with a conj or a neg bit is filled as if it had none."""
    _everywhere("allocate", "_is_plain", lambda old: lambda memory: memory.is_contiguous())


def copy_back() -> None:
    """What could not be loaded in place is not copied back."""

    def make(old: Callable[..., None]) -> Callable[..., None]:
        def settle(slots: Any) -> None:
            for slot in slots:
                if slot.how == "copy back":
                    slot.copies = []
            old(slots)

        return settle

    _everywhere("allocate", "settle", make)


def rows() -> None:
    """Rank 1 puts the rows of its new matrices in the wrong order."""

    def make(old: Callable[..., None]) -> Callable[..., None]:
        def attach(slots: Any, *rest: Any) -> None:
            for slot in slots if os.environ["RANK"] == "1" else ():
                for tensor in (slot.memory, *slot.fresh.values()):
                    if slot.how == "attach" and tensor.dim() > 1 and tensor.numel():
                        tensor.copy_(tensor.clone().flip(0))
            old(slots, *rest)

        return attach

    _everywhere("allocate", "attach", make)


def copies() -> None:
    """Copies that others keep of what is loaded are not made anew."""
    _everywhere("holders", "find", lambda old: lambda *arguments: [])


def packs() -> None:
    """Ranks hand each other bytes in different orders."""
    exchange = importlib.import_module("lading.exchange").Exchange
    old = exchange._blocks

    def blocks(self: Any) -> Any:
        made = old(self)
        return made[::-1] if int(os.environ["RANK"]) % 2 else made

    exchange._blocks = blocks


def hooks() -> None:
    """Code of modules that takes part in load_state_dict is passed over."""
    _everywhere("load_hooks", "load_hooks", lambda old: lambda seen: iter(()))


PLANTED: dict[str, Callable[[], None]] = {
    function.__name__: function for function in (conj_bit, copy_back, rows, copies, packs, hooks)
}


def find(name: str, scratch: Path, first_seed: int, limit: int) -> tuple[int, Json, Json] | None:
    """(worlds, world, verdict) of the first world that fails because of a mistake."""
    from .campaign import BUGS, Campaign, sizes_for
    from .draw import draw

    sizes = sizes_for([1, 2, 3, 4], {1: 0.3, 2: 0.3, 3: 0.2, 4: 0.3}, 5)
    planted, clean = Campaign(sizes, scratch, PLANTED[name]), {}
    specs = (draw(seed) for seed in range(first_seed, first_seed + limit))
    worlds = 0
    try:
        for spec, verdict in planted.run(specs):
            worlds += 1
            if verdict["verdict"] not in BUGS:
                continue
            if spec["ranks"] not in clean:
                clean[spec["ranks"]] = Campaign([spec["ranks"]], scratch)
            if next(clean[spec["ranks"]].run([spec]))[1]["verdict"] not in BUGS:
                return worlds, spec, verdict
    finally:
        for campaign in (planted, *clean.values()):
            campaign.close()
    return None


@functools.cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="lading_fuzz_", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m front.planted", description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help=", ".join(PLANTED))
    parser.add_argument("--worlds", type=int, default=LIMIT, help="give up after this many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the worlds that found them")
    arguments = parser.parse_args()
    from .frameworks import import_all

    import_all()
    importlib.import_module("front.world")
    is_all_found = True
    try:
        for name in arguments.names or PLANTED:
            began = time.monotonic()
            found = find(name, _scratch(), arguments.seed, arguments.worlds)
            is_all_found &= found is not None
            if found is None:
                print(f"{name}: not found in {arguments.worlds} worlds", flush=True)
                continue
            worlds, spec, verdict = found
            seconds = time.monotonic() - began
            print(f"{name}: after {worlds} worlds, {seconds:.0f} s: seed {spec['seed']}, {verdict['verdict']}: "
                  f"{verdict['cause'][:60]}", flush=True)  # fmt: skip
            if arguments.keep is not None:
                (arguments.keep / f"{name}.json").write_text(json.dumps(spec, ensure_ascii=False, indent=1))
    finally:
        shutil.rmtree(_scratch(), ignore_errors=True)
    return 0 if is_all_found else 1


if __name__ == "__main__":
    sys.exit(main())
