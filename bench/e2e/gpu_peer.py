"""One peer of the GPU bench, in a process of its own.

    gpu_peer.py PEER CKPT [--device cuda:0] [--dtype F32|BF16] [--tp RANK/COUNT]

Imports what it needs, prints "ready", and waits for a line on standard input, so that imports of several peers can go
side by side and measurements one by one. Then: CUDA's context; the load, timed until the device is synchronised; every
tensor against the file, on the device, outside the timed region. Prints one line of JSON; an error is a result too.
"""

import argparse
import json
import sys
import threading
import time
import traceback
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu"))
import page_cache  # noqa: E402
from checkpoints import Placed, files_of, placed  # noqa: E402
from tensor_parallel import part_of  # noqa: E402

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
Tensors = dict[str, torch.Tensor]


class Job:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.checkpoint: Path = arguments.checkpoint
        self.files = [str(file) for file in files_of(arguments.checkpoint)]
        self.device: str = arguments.device
        self.dtype: torch.dtype | None = DTYPES.get(arguments.dtype)
        self.tp: tuple[int, int] | None = None
        if arguments.tp:
            rank, count = arguments.tp.split("/")
            self.tp = (int(rank), int(count))

    def cut(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        """None: whole."""
        part = part_of(name, shape, *self.tp) if self.tp else None
        if part is None:
            return None
        return (slice(None),) * part.dim + (slice(part.first, part.last),)

    def finish(self, tensor: torch.Tensor) -> torch.Tensor:
        """In the dtype that is asked for; on the host, where peers give views of mapped files, in memory of its own."""
        if self.dtype is not None and tensor.dtype != self.dtype:
            return tensor.to(self.dtype)
        return tensor.clone() if self.device == "cpu" else tensor


def safetensors_load_file(job: Job) -> Tensors:
    from safetensors.torch import load_file

    tensors: Tensors = {}
    for file in job.files:
        for name, tensor in load_file(file, device=job.device).items():
            tensors[name] = job.finish(tensor)
    return tensors


def safetensors_get_tensor(job: Job) -> Tensors:
    from safetensors import safe_open

    tensors: Tensors = {}
    for file in job.files:
        with safe_open(file, framework="pt", device=job.device) as handle:
            for name in handle.keys():
                tensors[name] = job.finish(handle.get_tensor(name))
    return tensors


def safetensors_get_slice(job: Job) -> Tensors:
    from safetensors import safe_open

    tensors: Tensors = {}
    for file in job.files:
        with safe_open(file, framework="pt", device=job.device) as handle:
            for name in handle.keys():
                view = handle.get_slice(name)
                cut = job.cut(name, tuple(view.get_shape()))
                tensors[name] = job.finish(handle.get_tensor(name) if cut is None else view[cut])
    return tensors


def safetensors_prefetch(job: Job) -> Tensors:
    """File after file. Only rows can be prefetched in part; columns are asked for with get_slice."""
    from safetensors import safe_open

    tensors: Tensors = {}
    for file in job.files:
        with safe_open(file, framework="pt", device=job.device) as handle:
            plan, columns = None, {}
            if job.tp:
                cuts = {name: job.cut(name, tuple(handle.get_slice(name).get_shape())) for name in handle.keys()}
                columns = {name: cut for name, cut in cuts.items() if cut is not None and len(cut) > 1}
                plan = {name: cut[0] if cut else None for name, cut in cuts.items() if name not in columns}
            loader = handle.prefetch(plan)
            for name, cut in columns.items():
                tensors[name] = job.finish(handle.get_slice(name)[cut])
            for name, tensor in loader:
                tensors[name] = job.finish(tensor)
    return tensors


def safetensors_prefetch_all(job: Job) -> Tensors:
    """All files at once."""
    from safetensors import safe_open

    handles = [safe_open(file, framework="pt", device=job.device) for file in job.files]
    loaders = [handle.prefetch() for handle in handles]
    return {name: job.finish(tensor) for loader in loaders for name, tensor in loader}


def instanttensor(job: Job, backend: str | None = None) -> Tensors:
    import instanttensor as it

    chosen = getattr(it.Backend, backend) if backend else None
    with it.safe_open(job.files, framework="pt", device=job.device, backend=chosen) as handle:
        return {name: job.finish(tensor) for name, tensor in handle.tensors()}


def instanttensor_buffered(job: Job) -> Tensors:
    return instanttensor(job, "URING_BUFFERED")


def fastsafetensors(job: Job) -> Tensors:
    from fastsafetensors import fastsafe_open

    with fastsafe_open(job.files, nogds=True, device=job.device) as handle:
        return {name: job.finish(handle.get_tensor(name)) for name in handle.keys()}


def transformers(job: Job) -> Tensors:
    from transformers import LlamaForCausalLM

    place = {} if job.device == "cpu" else {"device_map": job.device}
    model = LlamaForCausalLM.from_pretrained(
        job.checkpoint, dtype=job.dtype or torch.bfloat16, local_files_only=True, **place
    )
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


# Each with the packages that it needs, imported before "ready".
PEERS = {
    "safetensors": (safetensors_load_file, ["safetensors"]),
    "safetensors-get-tensor": (safetensors_get_tensor, ["safetensors"]),
    "safetensors-get-slice": (safetensors_get_slice, ["safetensors"]),
    "safetensors-0.9-load-file": (safetensors_load_file, ["safetensors"]),
    "safetensors-0.9-prefetch": (safetensors_prefetch, ["safetensors"]),
    "safetensors-0.9-prefetch-all": (safetensors_prefetch_all, ["safetensors"]),
    "instanttensor": (instanttensor, ["instanttensor"]),
    "instanttensor-uring-buffered": (instanttensor_buffered, ["instanttensor"]),
    "fastsafetensors": (fastsafetensors, ["fastsafetensors"]),
    "transformers": (transformers, ["transformers", "safetensors"]),
}


class MemoryWatch:
    """The most above the start, in kB: VmHWM by the kernel, its parts by looking often."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.start = self.look("VmRSS")
        self.most = dict(self.start)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    @staticmethod
    def look(total: str) -> dict[str, int]:
        names = {total: "hwm", "RssAnon": "anon", "RssFile": "file", "RssShmem": "shared"}
        text = Path("/proc/self/status").read_text() + Path("/proc/meminfo").read_text()
        fields = {field: value.split() for field, value in (line.split(":", 1) for line in text.splitlines())}
        machine = int(fields["MemTotal"][0]) - int(fields["MemAvailable"][0])
        return {names[field]: int(fields[field][0]) for field in names} | {"machine": machine}

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            self.note()

    def note(self) -> None:
        self.most = {name: max(value, self.most[name]) for name, value in self.look("VmHWM").items()}

    def stop(self) -> dict[str, int]:
        self.stopped.set()
        self.thread.join()
        self.note()
        return {f"{name}_above_start_kb": self.most[name] - self.start[name] for name in self.most}


def reference(tensor: Placed, job: Job, maps: dict[Path, np.memmap]) -> torch.Tensor:
    """From the file, by our own reading of its header, on the device."""
    raw = maps.setdefault(tensor.file, np.memmap(tensor.file, dtype=np.uint8, mode="c"))
    dtype = DTYPES[tensor.dtype]
    size = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    bits = raw[tensor.begin : tensor.begin + size].view(np.int16 if dtype.itemsize == 2 else np.int32)
    whole = torch.from_numpy(bits).reshape(tensor.shape)
    cut = job.cut(tensor.name, tensor.shape)
    on_device = (whole if cut is None else whole[cut].contiguous()).to(job.device).view(dtype)
    return on_device if job.dtype is None else on_device.to(job.dtype)


def first_wrong(tensors: Tensors, job: Job) -> str:
    """Empty: every tensor is there and has the right bits. After a cast any NaN passes for any other."""
    page_cache.warm([Path(file) for file in job.files])
    maps: dict[Path, np.memmap] = {}
    wanted = placed(job.checkpoint)
    if set(tensors) != {tensor.name for tensor in wanted}:
        return "the names are not those of the checkpoint"
    for tensor in wanted:
        found, should = tensors[tensor.name], reference(tensor, job, maps)
        if found.shape != should.shape or found.dtype != should.dtype or str(found.device) != str(should.device):
            return f"{tensor.name}: {found.dtype} {tuple(found.shape)} on {found.device}"
        bits = BITS[should.dtype]
        if torch.equal(found.contiguous().view(bits), should.view(bits)):
            continue
        same = (found == should) & (torch.signbit(found) == torch.signbit(should))
        if job.dtype is None or not bool((same | (found.isnan() & should.isnan())).all()):
            return f"{tensor.name}: wrong bits"
    return ""


def versions(packages: list[str]) -> dict[str, str]:
    return {package: metadata.version(package) for package in ["torch", *packages]}


def measure(peer: str, job: Job) -> dict:
    load, packages = PEERS[peer]
    on_gpu = job.device != "cpu"
    if on_gpu:
        torch.cuda.init()
        torch.ones(1 << 20, device=job.device).add_(1)  # context and kernels
        torch.cuda.synchronize()
    watch = MemoryWatch()
    try:
        begin = time.perf_counter()
        tensors = load(job)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    finally:
        memory = watch.stop()
    wrong = first_wrong(tensors, job)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return {"seconds": seconds, "memory_bytes": size, "right": not wrong, "first_wrong": wrong,
            "versions": versions(packages), **memory}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--tp", help="RANK/COUNT")
    arguments = parser.parse_args()
    try:
        for package in PEERS[arguments.peer][1]:
            __import__(package)
        if arguments.peer == "transformers":
            from transformers import LlamaForCausalLM  # noqa: F401  (it is imported at its first use)
        print("ready", flush=True)
        sys.stdin.readline()
        result = measure(arguments.peer, Job(arguments))
    except BaseException as error:  # whatever it is, the bench reports it
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(result), flush=True)
    return 0 if result.get("right") else 1


if __name__ == "__main__":
    sys.exit(main())
