"""A ZeRO-3 load on CPU ranks, by lading and by transformers' own path, in turns: seconds, and host memory of all ranks.

    python bench/e2e/zero3_load.py [--ranks 4] [--gigabytes 1] [--rounds 3] [--json FILE] [--scratch FOLDER]

All begin with nothing and end with the same partitions, which are compared. transformers: `from_pretrained` under
HfDeepSpeedConfig, which builds the model under zero.Init, and fills it by gathering each parameter on every rank.
lading: `from_pretrained` with `zero3_init`. lading-in-place: a model that is built under zero.Init, without initial
values, and then `materialize`, to see what is DeepSpeed's share. Memory is what the ranks have for themselves (RssAnon
and RssShmem, added up, looked at every 5 ms), above what they had at the start; mapped files do not count, for any. It
fails unless lading is 3 times as fast as transformers, in 1.1 times the memory of the model, with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

DEADLINE_S = 300
SAMPLE_S = 0.005
SIDES = ("transformers", "lading", "lading-in-place")
SPEEDUP, MEMORY = 3.0, 1.1


def config_of(gigabytes: float) -> Any:
    """A Llama of about this size in bf16."""
    from transformers import LlamaConfig

    width = 2048
    per_layer = 2 * (4 * width * width + 3 * width * 4 * width)
    layers = max(1, round((gigabytes * 1e9 - 4 * 16000 * width) / per_layer))
    return LlamaConfig(
        vocab_size=16000,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=16,
        dtype="bfloat16",
    )


def make_checkpoint(folder: Path, gigabytes: float) -> int:
    """Writes it if it is not there; the size of its tensors."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    config = config_of(gigabytes)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    size = 2 * sum(shape.numel() for shape in shapes.values())
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(1)
        tensors = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        for tensor in tensors.values():
            tensor.view(torch.int16).random_(-(2**14), 2**14, generator=generator)
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
        (folder / "model.safetensors.part").rename(folder / "model.safetensors")
    return size


# ---- on a rank


def load_by_transformers(folder: str, ds_config: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    from transformers import LlamaForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    kept = HfDeepSpeedConfig(ds_config)
    model = LlamaForCausalLM.from_pretrained(folder, dtype="bfloat16")
    model.__dict__["_kept"] = kept
    return model, {}


def load_by_lading(folder: str, ds_config: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    import lading

    model = lading.from_pretrained(
        folder, parallelize=lambda model: lading.zero3_init(model, ds_config), progress=False
    )
    return model, {}


def load_in_place(folder: str, ds_config: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM, initialization
    from transformers.modeling_utils import set_zero3_state

    import lading

    began = time.perf_counter()
    with initialization.no_init_weights(), deepspeed.zero.Init(config_dict_or_path=ds_config), set_zero3_state():
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    built = time.perf_counter()
    lading.materialize(model, folder, progress=False)
    return model, {"construction": built - began, "materialize": time.perf_counter() - built}


def on_a_rank(side: str, folder: str, ranks: int, started: Path) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist

    # Otherwise it compiles a shared-memory operator first.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": ranks,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
    }
    dist.barrier()
    started.touch()
    time.sleep(10 * SAMPLE_S)  # what is there now is looked at
    dist.barrier()
    began = time.perf_counter()
    load = {"transformers": load_by_transformers, "lading": load_by_lading, "lading-in-place": load_in_place}[side]
    model, parts = load(folder, ds_config)
    dist.barrier()
    seconds = time.perf_counter() - began
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.ds_tensor.view(torch.uint8).numpy())
    return {"seconds": seconds, "digest": digest.hexdigest(), **parts}


# ---- the parent


def own_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem") if name in fields)


def run(side: str, folder: Path, ranks: int) -> dict[str, Any]:
    """One load. Ranks are forked: frameworks are imported already."""
    with tempfile.TemporaryDirectory() as scratch:
        children = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                rank_main(side, str(folder), rank, ranks, Path(scratch))
            children.append(pid)
        first, peak = 0, 0
        waiting = set(children)
        while waiting:
            used = sum(own_bytes(pid) for pid in children)
            if not all((Path(scratch) / f"started{rank}").exists() for rank in range(ranks)):
                first = used
            peak = max(peak, used)
            for pid in list(waiting):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    waiting.remove(pid)
                if done and status:
                    for other in waiting:
                        os.kill(other, signal.SIGKILL)
                    raise SystemExit(f"{side}: a rank ended with {status}")
            time.sleep(SAMPLE_S)
        answers = [json.loads((Path(scratch) / f"{rank}.json").read_text()) for rank in range(ranks)]
    parts = {name: max(answer[name] for answer in answers) for name in answers[0] if name not in ("digest", "seconds")}
    return {
        "side": side,
        "seconds": max(answer["seconds"] for answer in answers),
        "bytes_above_start": peak - first,
        "digests": [answer["digest"] for answer in answers],
        **parts,
    }


def rank_main(side: str, folder: str, rank: int, ranks: int, scratch: Path) -> None:
    import torch.distributed as dist

    status = 1
    try:
        signal.alarm(DEADLINE_S)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=ranks)
        answer = on_a_rank(side, folder, ranks, scratch / f"started{rank}")
        (scratch / f"{rank}.json").write_text(json.dumps(answer))
        dist.barrier()
        status = 0
    finally:
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "lading_zero3_bench")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    args = parser.parse_args()
    import deepspeed  # noqa: F401
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import lading.loading  # noqa: F401

    torch.set_num_threads(1)
    folder = args.scratch / f"llama-{args.gigabytes:g}"
    size = make_checkpoint(folder, args.gigabytes)
    runs = []
    for number in range(args.rounds):
        for side in args.sides:
            runs.append(run(side, folder, args.ranks))
            told = {name: round(value, 3) for name, value in runs[-1].items() if isinstance(value, float)}
            print(f"{number} {side:12s} {told} {runs[-1]['bytes_above_start'] / size:.2f} x the model", flush=True)
    return judge(runs, size, args)


def judge(runs: list[dict[str, Any]], size: int, args: argparse.Namespace) -> int:
    of = {side: [one for one in runs if one["side"] == side] for side in args.sides}
    if not of.get("transformers") or not of.get("lading"):
        return 0
    speedup = statistics.median(
        theirs["seconds"] / ours["seconds"] for theirs, ours in zip(of["transformers"], of["lading"], strict=True)
    )
    memory = max(one["bytes_above_start"] for one in of["lading"]) / size
    same = len({tuple(one["digests"]) for one in runs}) == 1
    print(f"{size / 1e9:.2f} GB on {args.ranks} ranks: {speedup:.2f} x as fast, {memory:.2f} x the model, same: {same}")
    if args.json:
        args.json.write_text(json.dumps({"model_bytes": size, "runs": runs, "speedup": speedup, "memory": memory}))
    return 0 if same and speedup >= SPEEDUP and memory <= MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
