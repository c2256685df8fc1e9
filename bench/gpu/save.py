"""A model of 16 GB in the memory of one GPU to a checkpoint on disk: `lading.save` beside plain writes of as many bytes.

    python bench/gpu/save.py [--dir DIR] [--rounds 3] [--layers N] [--output FILE]

The plain writers write from host memory, 16 threads with 8 MiB each into files that are allocated before, and sync:
once around the page cache (O_DIRECT), once through it. lading saves in the foreground, in the background with a
snapshot on the GPU, and in the background where the GPU has no room for one. All contenders take turns. Every tensor of
what lading wrote is read back and compared with the model.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import safe_open

SHAPE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 8192}  # fmt: skip
THREADS, BLOCK_BYTES, FILES = 16, 8 << 20, 4


def model_on_the_gpu(layers: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_hidden_layers=layers, dtype="bfloat16", architectures=["LlamaForCausalLM"], **SHAPE)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.normal_()
    return model


def plain_write(folder: Path, size_bytes: int, flags: int) -> float:
    folder.mkdir(parents=True)
    blocks = size_bytes // BLOCK_BYTES
    memory = mmap.mmap(-1, THREADS * BLOCK_BYTES)
    memory.write(os.urandom(BLOCK_BYTES) * THREADS)
    begin = time.perf_counter()
    files = [os.open(folder / f"{i}", os.O_WRONLY | os.O_CREAT | flags) for i in range(FILES)]
    for file in files:
        os.posix_fallocate(file, 0, -(-blocks // FILES) * BLOCK_BYTES)

    def write(thread: int) -> None:
        mine = memoryview(memory)[thread * BLOCK_BYTES : (thread + 1) * BLOCK_BYTES]
        for block in range(thread, blocks, THREADS):
            done = os.pwrite(files[block % FILES], mine, block // FILES * BLOCK_BYTES)
            assert done == BLOCK_BYTES

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(THREADS)))
        list(pool.map(os.fsync, files))
    for file in files:
        os.close(file)
    return time.perf_counter() - begin


def wrong_tensors(model: torch.nn.Module, folder: Path) -> int:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safe_open(folder / name, "pt", device="cuda") for name in set(index.values())}
    state = model.state_dict()
    wrong = sum(not torch.equal(files[index[name]].get_tensor(name), tensor) for name, tensor in state.items())
    return wrong + len(set(state) ^ set(index))


def saved(name: str, model: torch.nn.Module, folder: Path) -> dict:
    """`returned`: seconds until the model may change."""
    import lading

    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(int(0.95 * free), dtype=torch.uint8, device="cuda") if "no room" in name else None
    torch.cuda.synchronize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    report = lading.save(model, folder, background=name != "lading")
    returned = time.perf_counter() - begin
    if not isinstance(report, lading.SaveReport):
        report = report.result()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del hog
    torch.cuda.empty_cache()
    wrong = wrong_tensors(model, folder)
    shutil.rmtree(folder)
    return {"seconds": seconds, "returned": returned, "host_mb": (peak - before) / 1024, "bytes": report.bytes,
            "notes": report.notes, "wrong": wrong}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("build/bench-save"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    folder = arguments.dir.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    model = model_on_the_gpu(arguments.layers)
    size = sum(parameter.nbytes for parameter in model.parameters())
    results: dict[str, list[dict]] = {"O_DIRECT": [], "page cache": []}
    for _ in range(arguments.rounds):
        for name, flags in (("O_DIRECT", os.O_DIRECT), ("page cache", 0)):
            results[name].append({"seconds": plain_write(folder / "plain", size, flags)})
            shutil.rmtree(folder / "plain")
            print(name, results[name][-1], flush=True)
        for name in ("lading", "background", "background, no room on the GPU"):
            results.setdefault(name, []).append(saved(name, model, folder / "saved"))
            print(name, results[name][-1], flush=True)
    for name, rounds in results.items():
        seconds = statistics.median(one["seconds"] for one in rounds)
        returned = [one["returned"] for one in rounds if "returned" in one]
        note = f"; returned after {', '.join(f'{one:.3f}' for one in returned)} s" if returned else ""
        print(f"{name}: {size / seconds / 1e9:.2f} GB/s, {seconds:.2f} s, median of {len(rounds)}{note}")
    if arguments.output:
        arguments.output.write_text(json.dumps({"bytes": size, "results": results}, indent=1))


if __name__ == "__main__":
    main()
