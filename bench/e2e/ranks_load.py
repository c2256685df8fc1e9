"""Loading one model on several ranks under FSDP2, contenders side by side: each rank its part, or rank 0 everything.

    ranks_load.py CKPT [--ranks 4] [--repeats 3]

CKPT is a Llama of transformers (bench/gpu/checkpoints.py writes one). Frameworks are imported once; for every single
measurement gloo ranks are forked, build the model on meta, shard it, and wait for each other. Timed is from there until
all ranks are done, by the slowest clock. Then every parameter of every rank is compared bit for bit with the file; of
lading also every buffer must be real. Prints one line of JSON.
"""

import argparse
import json
import os
import statistics
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/e2e"), str(ROOT / "bench/gpu"), str(ROOT / "python")]

import accelerate
import page_cache
import torch
import torch.distributed as dist
from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
from checkpoints import files_of
from forked import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, LlamaForCausalLM

import lading

LIMIT_S = 240


def rank0_state(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The whole state dict on rank 0, nothing elsewhere."""
    if dist.get_rank() != 0:
        return {}
    return {name: tensor for file in files_of(checkpoint) for name, tensor in load_file(file).items()}


def by_lading(model: torch.nn.Module, checkpoint: Path) -> None:
    lading.materialize(model, checkpoint, progress=False, timeout=120)


def by_accelerate(model: torch.nn.Module, checkpoint: Path) -> None:
    asked = types.SimpleNamespace(is_main_process=dist.get_rank() == 0, device=torch.device("cpu"))
    fsdp2_load_full_state_dict(asked, model, rank0_state(checkpoint))


def by_dcp(model: torch.nn.Module, checkpoint: Path) -> None:
    model.to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, rank0_state(checkpoint), options=options)


CONTENDERS = {
    "lading": by_lading,
    "accelerate, from rank 0": by_accelerate,
    "DCP, from rank 0": by_dcp,
}


def sharded(checkpoint: Path, ranks: int) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (ranks,))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(AutoConfig.from_pretrained(checkpoint))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def wrong(model: torch.nn.Module, checkpoint: Path, *, with_buffers: bool) -> str:
    """Empty: this rank holds exactly its rows of every parameter."""
    left = dict(model.named_parameters())
    for file in files_of(checkpoint):
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():
                parameter = left.pop(name)
                rows = handle.get_tensor(name).chunk(dist.get_world_size())[dist.get_rank()]
                local = parameter._local_tensor.detach()
                if local.is_meta or local.shape != rows.shape or local.dtype != rows.dtype:
                    return f"{name}: {local.dtype} {tuple(local.shape)} on {local.device}"
                if not torch.equal(local.view(torch.int16), rows.view(torch.int16)):
                    return f"{name}: wrong bits"
    unread = [*left, *(name for name, buffer in model.named_buffers() if with_buffers and buffer.is_meta)]
    return f"{', '.join(unread)}: no value" if unread else ""


def run_rank(contender: str, checkpoint: Path, ranks: int) -> dict:
    model = sharded(checkpoint, ranks)
    dist.barrier()
    begin = time.perf_counter()
    CONTENDERS[contender](model, checkpoint)
    dist.barrier()
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "wrong": wrong(model, checkpoint, with_buffers=contender == "lading")}


def measure(contender: str, checkpoint: Path, ranks: int) -> float:
    page_cache.warm(files_of(checkpoint))
    answers = run_ranks(ranks, LIMIT_S, lambda: run_rank(contender, checkpoint, ranks))
    for rank, answer in enumerate(answers):
        if answer["wrong"]:
            raise SystemExit(f"{contender}, rank {rank}: {answer['wrong']}")
    return max(answer["seconds"] for answer in answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    torch.set_num_threads(1)
    runs: dict[str, list[float]] = {contender: [] for contender in CONTENDERS}
    names = list(CONTENDERS)
    for repeat in range(arguments.repeats):
        for contender in names[repeat % len(names) :] + names[: repeat % len(names)]:
            runs[contender].append(measure(contender, arguments.checkpoint, arguments.ranks))
            print(f"{contender}: {runs[contender][-1]:.3f} s", file=sys.stderr, flush=True)
    size = sum(file.stat().st_size for file in files_of(arguments.checkpoint))
    results = {
        name: {
            "median_seconds": statistics.median(seconds),
            "least_seconds": min(seconds),
            "most_seconds": max(seconds),
            "gb_per_second": size / statistics.median(seconds) / 1e9,
            "runs": seconds,
        }
        for name, seconds in runs.items()
    }
    versions = {"torch": torch.__version__, "accelerate": accelerate.__version__}
    print(json.dumps({"bytes": size, "ranks": arguments.ranks, "versions": versions, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
