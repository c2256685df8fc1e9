"""What the GPU bench measures: each work with its contenders, and what it must reach."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import tensor_parallel

LADING = ("lading", "lading-no-digests")
# The PyTorch front (bench/e2e/gpu_front.py): how the model came to be on meta, and without digests.
FRONT = ("lading-front-skeleton", "lading-front-meta", "lading-front-no-digests")
FROM_PRETRAINED = "from_pretrained"
# `dcp.load` into a state dict on the GPU: with our reader, and with torch's.
DCP = ("lading-dcp",)
DCP_PEERS = ("dcp", "dcp-threads")
DIRECT_READ = "raw O_DIRECT read"


@dataclass(frozen=True)
class Workload:
    name: str
    what: str
    checkpoint: str  # a name of Checkpoints
    contenders: tuple[str, ...]
    cold: bool = False
    dtype: str | None = None  # that is asked for
    tp: tuple[int, int] | None = None  # rank and number of ranks


WORKLOADS = [
    Workload(
        "cached", "Llama-8B shape, BF16, 4 shards, cached file → GPU", "llama",
        (*LADING, "safetensors", "safetensors-0.9-load-file", "safetensors-0.9-prefetch",
         "safetensors-0.9-prefetch-all", "instanttensor", "instanttensor-uring-buffered", "fastsafetensors",
         "transformers"),
    ),
    Workload(
        "front", "transformers' LlamaForCausalLM of that shape, on meta → on the GPU, cached file", "llama",
        (*FRONT, FROM_PRETRAINED),
    ),
    Workload(
        "dcp", "torch.distributed.checkpoint: the state dict of that model, on the GPU, cached file", "llama",
        (*DCP, *DCP_PEERS),
    ),
    Workload(
        "tmpfs", "the same on tmpfs → GPU", "llama-tmpfs",
        (*LADING, "safetensors", "safetensors-0.9-prefetch", "instanttensor", "instanttensor-uring-buffered",
         "fastsafetensors"),
    ),
    Workload(
        "tp8", "the slices of rank 3 of 8, cached file → GPU", "llama",
        (*LADING, "safetensors-get-slice", "safetensors-0.9-prefetch"), tp=(3, 8),
    ),
    Workload(
        "bf16-f32", "BF16 file → F32 on the GPU, cached", "llama",
        (*LADING, "safetensors", "safetensors-0.9-prefetch"), dtype="F32",
    ),
    Workload(
        "f32-bf16", "F32 file, 16 layers → BF16 on the GPU, cached", "llama-f32",
        (*LADING, "safetensors", "safetensors-0.9-prefetch", "transformers"), dtype="BF16",
    ),
    Workload(
        "tiny", "20,000 tensors of 1 to 4 kB, BF16, cached file → GPU", "tiny",
        (*LADING, "safetensors", "safetensors-get-tensor", "safetensors-0.9-prefetch", "instanttensor",
         "instanttensor-uring-buffered", "fastsafetensors"),
    ),
    # Last: it throws the cached pages away.
    Workload(
        "cold", "two of the four shards, cold file → GPU", "llama-half",
        (DIRECT_READ, *LADING, "safetensors", "safetensors-0.9-prefetch", "instanttensor", "fastsafetensors"),
        cold=True,
    ),
]  # fmt: skip


class Checkpoints:
    """Written when they are first asked for, and kept."""

    def __init__(self, disk: Path, tmpfs: Path, scale: float) -> None:
        self.disk, self.tmpfs, self.scale = disk, tmpfs, scale

    def get(self, name: str) -> Path:
        folder = (self.tmpfs if name.endswith("tmpfs") else self.disk) / name
        if not folder.exists():
            self.make(name, folder)
        return folder

    def make(self, name: str, folder: Path) -> None:
        if name == "llama-tmpfs":
            shutil.copytree(self.get("llama"), folder)
        elif name == "llama-half":
            # The same files under second names: nothing is written, and nothing is read that is not asked for.
            folder.mkdir()
            for file in checkpoints.files_of(self.get("llama"))[:2]:
                os.link(file, folder / file.name)
            checkpoints.write_index(folder)
        elif name == "tiny":
            checkpoints.write_checkpoint(folder, checkpoints.tiny(max(200, int(20_000 * self.scale))), "BF16", shards=1)
        else:
            layers = 32 if name == "llama" else 16
            tensors, config = checkpoints.llama(max(4, round(layers * self.scale)), self.scale)
            checkpoints.write_checkpoint(folder, tensors, "BF16" if name == "llama" else "F32", shards=4, config=config)


def write_expectation(path: Path, checkpoint: Path, workload: Workload) -> None:
    """For gpu_load: what each tensor must hold (bench/gpu/expectation.h). Two casts are also made by PyTorch."""
    lines = []
    for tensor in checkpoints.placed(checkpoint):
        part = tensor_parallel.part_of(tensor.name, tensor.shape, *workload.tp) if workload.tp else None
        cut = (part.dim, part.first, part.last) if part else (-1, 0, 0)
        extents = ",".join(map(str, tensor.shape)) or "-"
        to = workload.dtype or tensor.dtype
        lines.append((tensor.name, tensor.file, tensor.begin, tensor.dtype, extents, to, *cut, "bits"))
        if workload.dtype and tensor.name.endswith((".0.self_attn.k_proj.weight", ".norm.weight")):
            spot = path.with_name(f"{path.name}-{len(lines)}.bin")
            cast_by_torch(tensor, workload.dtype, spot)
            lines.append((tensor.name, spot, 0, to, extents, to, *cut, "nan"))
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))


def cast_by_torch(tensor: checkpoints.Placed, dtype: str, path: Path) -> None:
    import numpy
    import torch

    kinds = {"BF16": (torch.bfloat16, torch.int16), "F32": (torch.float32, torch.int32)}
    source, bits = kinds[tensor.dtype]
    count = int(numpy.prod(tensor.shape))
    raw = numpy.fromfile(tensor.file, numpy.uint8, count * source.itemsize, offset=tensor.begin)
    target, target_bits = kinds[dtype]
    torch.from_numpy(raw).view(bits).view(source).to(target).view(target_bits).numpy().tofile(path)


@dataclass(frozen=True)
class Verdict:
    work: str
    what: str
    target: str
    measured: str
    met: bool | None  # nothing: there is no target, or nothing was measured


def at_least(work: str, what: str, figures: tuple[float | None, float], unit: str) -> Verdict:
    measured, target = figures
    if measured is None:
        return Verdict(work, what, f"≥ {target:.3g} {unit}", "not measured", None)
    return Verdict(work, what, f"≥ {target:.3g} {unit}", f"{measured:.3g} {unit}", measured >= target)


def at_most(work: str, what: str, figures: tuple[float | None, float], unit: str) -> Verdict:
    measured, target = figures
    if measured is None:
        return Verdict(work, what, f"≤ {target:.3g} {unit}", "not measured", None)
    return Verdict(work, what, f"≤ {target:.3g} {unit}", f"{measured:.3g} {unit}", measured <= target)


def verdicts(work: dict, ceilings: dict) -> list[Verdict]:
    """`work`: one workload's results as gpu_check writes them."""
    name, results = work["name"], work["results"]
    lading = results.get("lading", {})

    def speed(contender: str, field: str = "seconds") -> float | None:
        seconds = results.get(contender, {}).get(field, {}).get("median")
        return work["source_bytes"] / seconds / 1e9 if seconds else None

    def median(contender: str, field: str) -> float | None:
        return results.get(contender, {}).get(field, {}).get("median")

    def ratio(over: float | None, under: float | None) -> float | None:
        return over / under if over is not None and under else None

    if name == "front":
        return front_verdicts(name, speed, median)
    if name == "dcp":
        return [
            at_least(name, "all in, of source bytes", (speed(DCP[0]), 35), "GB/s"),
            *(Verdict(name, f"beside it: {peer}", "none", _shown_speed(speed(peer)), None) for peer in DCP_PEERS),
        ]
    lines = []
    if name == "cached":
        pinned = ceilings.get("pinned_gb_per_second")
        around = sum(median("lading", f"{part}_seconds") or 0 for part in ("opening", "closing"))
        loading = median("lading", "loading_seconds")
        reading = ratio(loading and work["source_bytes"] / (loading - around) / 1e9, pinned)
        lines.append(at_least(name, "while reading (without opening and closing), of the pinned copy", (reading, 0.90), "×"))
        peak = median("lading", "hwm_above_start_kb")
        lines.append(at_most(name, "host memory above start", (peak and peak / 1e6, 0.3), "GB"))
    absolute = {"cached": 45, "tmpfs": 45, "bf16-f32": 45, "f32-bf16": 50}
    if name in absolute:
        lines.append(at_least(name, "all in, of source bytes", (speed("lading"), absolute[name]), "GB/s"))
    if name == "cold":
        share = ratio(speed("lading"), speed(DIRECT_READ))
        lines.append(at_least(name, "of a raw O_DIRECT read", (share, 0.95), "×"))
    if name == "tp8":
        lines.append(at_most(name, "one rank's slices", (median("lading", "seconds"), 0.08), "s"))
        read = ratio(median("lading", "read_bytes"), median("lading", "memory_bytes"))
        lines.append(Verdict(name, "bytes read, of bytes owned", "none", f"{read:.3f} ×" if read else "–", None))
    if name == "tiny":
        times = ratio(median("safetensors", "seconds"), median("lading", "seconds"))
        lines.append(at_least(name, "faster than safetensors", (times, 10), "×"))
    digests = ratio(median("lading", "seconds"), median("lading-no-digests", "seconds"))
    limit = 1.15 if name == "tiny" else 1.03
    lines.append(at_most(name, "verification on, against off", (digests, limit), "×"))
    if lading.get("wrong"):
        lines.append(Verdict(name, "every tensor right", "all", lading["wrong"], False))
    return lines


def _shown_speed(gb_per_second: float | None) -> str:
    return "not measured" if gb_per_second is None else f"{gb_per_second:.3g} GB/s"


def front_verdicts(name: str, speed: Callable, median: Callable) -> list[Verdict]:
    """From a model on meta to a model that is ready."""
    lines = []
    for contender in FRONT[:2]:
        how = contender.rpartition("-")[2]
        lines.append(at_least(name, f"all in, of source bytes ({how})", (speed(contender), 45), "GB/s"))
        front = median(contender, "front_seconds")
        lines.append(at_most(name, f"beside the engine ({how})", (front and front * 1e3, 15), "ms"))
    ours, theirs = median(FRONT[0], "seconds"), median(FROM_PRETRAINED, "seconds")
    times = f"{theirs / ours:.1f} ×" if ours and theirs else "not measured"
    lines.append(Verdict(name, "faster than from_pretrained", "none", times, None))
    on, off = median(FRONT[1], "seconds"), median(FRONT[2], "seconds")
    lines.append(at_most(name, "verification on, against off", (on / off if on and off else None, 1.03), "×"))
    return lines
