"""One model, whole on every rank, with and without `exchange`: files in the page cache, and not.

    exchange_load.py [--gigabytes 1] [--ranks 4] [--repeats 3] [--folder DIR]

For every measurement gloo ranks are forked and build the model on meta. Timed is from there until all ranks are done,
by the slowest clock. Every tensor of every rank is compared with the file, bit for bit. Prints one line of JSON. Cold means dropped from the page cache: what lies below it (a
hypervisor's cache) is not emptied.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/e2e"), str(ROOT / "bench/gpu"), str(ROOT / "python")]

import page_cache
import torch
import torch.distributed as dist
from forked import run_ranks
from safetensors import safe_open
from safetensors.torch import save_file

import lading
import lading.loading  # noqa: F401 - so that no rank imports it while it is timed

LIMIT_S = 300
LAYERS = 32
SCOPES = ("never", "job", "auto")


def model_of(side: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(side, side, dtype=torch.bfloat16) for _ in range(LAYERS)))


def on_a_rank(file: Path, side: int, scope: str) -> dict:
    with lading.skeleton():
        model = model_of(side)
    dist.barrier()
    began = time.perf_counter()
    report = lading.materialize(model, file, device="cpu", exchange=scope, progress=False)
    seconds = time.perf_counter() - began
    with safe_open(file, framework="pt") as handle:
        state = model.state_dict()
        same = [
            torch.equal(state[name].view(torch.int16), handle.get_tensor(name).view(torch.int16))
            for name in handle.keys()
        ]
    chosen = [note for note in report.notes if note.startswith("exchange")]
    return {"seconds": seconds, "read": report.read_bytes, "wrong": len(state) - sum(same), "chosen": chosen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    arguments = parser.parse_args()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    side = int((arguments.gigabytes * 1e9 / 2 / LAYERS) ** 0.5) // 64 * 64
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        file = Path(folder) / "model.safetensors"
        save_file(model_of(side).state_dict(), file)
        os.sync()
        for repeat in range(arguments.repeats):
            for scope in SCOPES[repeat % 3 :] + SCOPES[: repeat % 3]:
                for state, prepare in (("cached", page_cache.warm), ("cold", page_cache.drop)):
                    prepare([file])
                    answers = run_ranks(arguments.ranks, LIMIT_S, lambda scope=scope: on_a_rank(file, side, scope))
                    if wrong := sum(answer["wrong"] for answer in answers):
                        raise SystemExit(f"{scope}, {state}: {wrong} tensors are wrong")
                    found = results.setdefault(f"{state}, {scope}", {"runs": [], "times_read": [], "chosen": []})
                    found["runs"].append(max(answer["seconds"] for answer in answers))
                    found["times_read"].append(sum(answer["read"] for answer in answers) / file.stat().st_size)
                    found["chosen"] += answers[0]["chosen"]
                    print(f"{state}, {scope}: {found['runs'][-1]:.3f} s", file=sys.stderr, flush=True)
        size = file.stat().st_size
    for found in results.values():
        found["median_seconds"] = statistics.median(found["runs"])
    print(json.dumps({"bytes": size, "ranks": arguments.ranks, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
