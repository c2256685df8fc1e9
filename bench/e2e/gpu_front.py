"""The PyTorch front in the GPU bench: a model of transformers on meta, or its state dict through DCP, filled in place, in a
process of its own.

    gpu_front.py CONTENDER CKPT [--device cuda:0]

Like gpu_peer.py it imports, prints "ready", waits for a line, and prints one line of JSON. Timed is one call, the first
of its kind in the process: `lading.materialize` of a model that stands on meta (building it is timed apart), or
transformers' own `from_pretrained`, which builds and loads. Then every parameter is compared with the file, and every
buffer with what the constructor computes on the CPU. A flipped bit must be found, or the comparison counts for nothing.
"""

import argparse
import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/e2e"), str(ROOT / "python")]
from gpu_peer import BITS, Job, MemoryWatch, first_wrong, versions  # noqa: E402

Load = Callable[[], torch.nn.Module]
BUFFER_BITS = BITS | {torch.int64: torch.int64, torch.bool: torch.uint8}


def bring_libraries() -> None:
    """liblading's own libraries lie beside it (tools/gpu_pack). The loader takes one that is there already by its name,
    so each is opened here, unless the process has one of that name."""
    place = Path(os.environ.get("LADING_LIBRARY", "")).parent / "lib"
    mapped = Path("/proc/self/maps").read_text()
    for library in sorted(place.glob("*.so*")):
        if f"/{library.name}" not in mapped:
            ctypes.CDLL(str(library))


def front(job: Job, meta: Callable[[], object], *, digests: bool = True) -> tuple[Load, float]:
    """The call, and how long the model took to build."""
    import lading
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(job.checkpoint)
    begin = time.perf_counter()
    with meta():
        model = LlamaForCausalLM(config)
    built = time.perf_counter() - begin

    def load() -> torch.nn.Module:
        report = lading.materialize(model, job.checkpoint, device=job.device, verify="auto" if digests else False)
        load.report = report  # type: ignore[attr-defined]
        return model

    return load, built


def lading_skeleton(job: Job) -> tuple[Load, float]:
    import lading

    return front(job, lading.skeleton)


def lading_meta(job: Job) -> tuple[Load, float]:
    return front(job, lambda: torch.device("meta"))


def lading_no_digests(job: Job) -> tuple[Load, float]:
    return front(job, lambda: torch.device("meta"), digests=False)


def from_pretrained(job: Job) -> tuple[Load, float]:
    from transformers import AutoModelForCausalLM

    place = {} if job.device == "cpu" else {"device_map": "cuda"}
    return lambda: AutoModelForCausalLM.from_pretrained(job.checkpoint, dtype="auto", **place), 0.0


def into_state_dict(job: Job, reader: Callable[[], object]) -> tuple[Load, float]:
    """Of a model whose memory is there already, as DCP wants it: its buffers have their values, its parameters have none."""
    import torch.distributed.checkpoint as dcp
    from transformers import AutoConfig, LlamaForCausalLM

    begin = time.perf_counter()
    with torch.device("meta"):
        model = LlamaForCausalLM(AutoConfig.from_pretrained(job.checkpoint)).to(torch.bfloat16)
    model.to_empty(device=job.device)
    for name, buffer in constructed_buffers(job).items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, buffer.to(job.device))
    for parameter in model.parameters():
        parameter.detach().view(torch.uint8).fill_(0xA5)
    built = time.perf_counter() - begin

    def load() -> torch.nn.Module:
        chosen = reader()
        dcp.load(model.state_dict(), storage_reader=chosen)
        load.report = getattr(chosen, "report", None)  # type: ignore[attr-defined]
        return model

    return load, built


def dcp_lading(job: Job) -> tuple[Load, float]:
    import lading

    return into_state_dict(job, lambda: lading.dcp.Reader(job.checkpoint))


def dcp_torch(job: Job) -> tuple[Load, float]:
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    return into_state_dict(job, lambda: HuggingFaceStorageReader(str(job.checkpoint)))


def dcp_torch_threads(job: Job) -> tuple[Load, float]:
    """One thread for each file: it has no more."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    return into_state_dict(job, lambda: HuggingFaceStorageReader(str(job.checkpoint), thread_count=len(job.files)))


CONTENDERS = {
    "lading-front-skeleton": lading_skeleton,
    "lading-front-meta": lading_meta,
    "lading-front-no-digests": lading_no_digests,
    "from_pretrained": from_pretrained,
    "lading-dcp": dcp_lading,
    "dcp": dcp_torch,
    "dcp-threads": dcp_torch_threads,
}


def constructed_buffers(job: Job) -> dict[str, torch.Tensor]:
    """Of a real model of the same config with one layer and next to no vocabulary, which buffers do not depend on."""
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(job.checkpoint)
    config.num_hidden_layers, config.vocab_size, config.intermediate_size = 1, 8, 8
    config.pad_token_id = None
    return dict(LlamaForCausalLM(config).named_buffers())


def wrong_buffer(model: torch.nn.Module, job: Job, should: dict[str, torch.Tensor], is_exact: bool) -> str:
    found = dict(model.named_buffers())
    if set(found) != set(should):
        return f"buffers: {sorted(found)} and not {sorted(should)}"
    for name, buffer in found.items():
        wanted = should[name].to(job.device)
        if (buffer.device, buffer.dtype, buffer.shape) != (wanted.device, wanted.dtype, wanted.shape):
            return f"{name}: {buffer.dtype} {tuple(buffer.shape)} on {buffer.device}"
        bits = BUFFER_BITS[wanted.dtype]
        same = torch.equal(buffer.contiguous().view(bits), wanted.view(bits))
        if not same and (is_exact or not torch.allclose(buffer, wanted, rtol=1e-5, atol=0)):
            return f"{name}: wrong bits"
    return ""


def wrong(model: torch.nn.Module, job: Job, is_exact: bool) -> str:
    """Buffers that transformers computes on the GPU may be rounded there otherwise than on the CPU."""
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    return first_wrong(parameters, job) or wrong_buffer(model, job, constructed_buffers(job), is_exact)


def blind_spot(model: torch.nn.Module, job: Job) -> str:
    """Flips one bit of a buffer and one of a parameter. Empty: both were found."""
    buffer, parameter = next(model.buffers()), dict(model.named_parameters())["model.norm.weight"]
    should = constructed_buffers(job)
    for tensor, find in (
        (buffer, lambda: wrong_buffer(model, job, should, is_exact=True)),
        (parameter, lambda: first_wrong({name: one.detach() for name, one in model.named_parameters()}, job)),
    ):
        last = tensor.detach().view(-1).view(BUFFER_BITS[tensor.dtype])[-1:]
        last ^= 1
        found = find()
        last ^= 1
        if not found:
            return "a planted error was not found"
    return ""


def measure(contender: str, job: Job) -> dict:
    on_gpu = job.device != "cpu"
    if on_gpu:
        torch.cuda.init()
        torch.ones(1 << 20, device=job.device).add_(1)  # context and kernels
        torch.cuda.synchronize()
    load, built = CONTENDERS[contender](job)
    watch = MemoryWatch()
    try:
        begin = time.perf_counter()
        model = load()
        returned = time.perf_counter() - begin
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    finally:
        memory = watch.stop()
    is_ours = contender.startswith("lading")
    found = wrong(model, job, is_exact=contender != "from_pretrained") or (blind_spot(model, job) if contender == "lading-front-meta" else "")
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    result = {"seconds": seconds, "returned_seconds": returned, "build_seconds": built, "memory_bytes": size,
              "right": not found, "first_wrong": found, "versions": versions(["transformers"]), **memory}  # fmt: skip
    if is_ours:
        report = load.report  # type: ignore[attr-defined]
        engine = report.planning_seconds + report.loading_seconds
        result |= {"planning_seconds": report.planning_seconds, "loading_seconds": report.loading_seconds,
                   "front_seconds": returned - engine}  # fmt: skip
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    arguments.dtype = arguments.tp = None
    try:
        from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401  (imported at their first use)

        if "dcp" in arguments.contender:
            import torch.distributed.checkpoint  # noqa: F401
        if arguments.contender.startswith("lading"):
            bring_libraries()
            from lading import materialize  # noqa: F401
        print("ready", flush=True)
        sys.stdin.readline()
        result = measure(arguments.contender, Job(arguments))
    except BaseException as error:  # whatever it is, the bench reports it
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(result), flush=True)
    return 0 if result.get("right") else 1


if __name__ == "__main__":
    sys.exit(main())
