"""`lading convert` beside a plain read, write and fsync of the same bytes.

    .venv/bin/python bench/e2e/convert_speed.py build/dev/lading FOLDER [--rounds N] [--layers N]

Makes a checkpoint of 33 layers (4 GB, BF16) in FOLDER. Each round runs the plain copy, a conversion without options and
one to F16, all with the input out of the page cache, the conversions with at most 300 MiB of data memory. Other work on
the machine makes rounds differ; compare within a round.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

MOST_MEMORY = 300 << 20


def make(path: Path, layers: int) -> None:
    shapes = {}
    for layer in range(layers):
        up = 11008 if layer % 2 else 8192
        shapes |= {f"l{layer:02}.q": (4096, 4096), f"l{layer:02}.k": (1024, 4096), f"l{layer:02}.up": (up, 4096)}
    header, end = {}, 0
    for name, (rows, width) in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [rows, width], "data_offsets": [end, end + 2 * rows * width]}
        end += 2 * rows * width
    text = json.dumps(header).encode()
    block = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32).view(np.uint16)[1::2].tobytes()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(block)):
            file.write(block[: end - begin])


def drop(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def plain_copy(path: Path, out: Path) -> float:
    drop(path)
    begin = time.perf_counter()
    buffer = bytearray(16 << 20)
    with open(path, "rb", buffering=0) as source, open(out, "wb", buffering=0) as target:
        while size := source.readinto(buffer):
            target.write(memoryview(buffer)[:size])
        os.fsync(target.fileno())
    seconds = time.perf_counter() - begin
    out.unlink()
    return seconds


def conversion(command: str, path: Path, out: Path, *options: str) -> float:
    drop(path)
    begin = time.perf_counter()
    subprocess.run(
        [command, "convert", path.parent, out, "--json", *options],
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY)),
    )
    seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=33)
    arguments = parser.parse_args()
    path = arguments.folder / "in" / "model.safetensors"
    path.parent.mkdir(parents=True)
    make(path, arguments.layers)
    size = path.stat().st_size
    rates = []
    for _ in range(arguments.rounds):
        plain = plain_copy(path, arguments.folder / "plain")
        same = conversion(arguments.command, path, arguments.folder / "out")
        f16 = conversion(arguments.command, path, arguments.folder / "out", "--dtype", "f16")
        rates.append((plain / same, plain / f16))
        print(f"plain {size / plain / 1e9:.2f} GB/s, convert {size / same / 1e9:.2f}, to F16 {size / f16 / 1e9:.2f}", flush=True)
    same, f16 = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"of the plain copy's speed, medians: convert {same:.2f}, to F16 {f16:.2f}")


if __name__ == "__main__":
    main()
