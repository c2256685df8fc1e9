"""What `cmake --install` leaves is enough to build and run a program, and shows nothing but the API."""

import math
import os
import re
import subprocess
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import load_file, save_file

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading")).resolve().parent
EXAMPLES = REPOSITORY / "examples" / "cpp"
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}
LINE = re.compile(r"(\S+) (\S+) (\[.*\]) (\d+) bytes, digest ([0-9a-f]{32}), checksum ([0-9a-f]{16})")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def configure(source, build, prefix):
    return ("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="module", params=["cmake", "pkg-config"])
def examples(request, prefix, tmp_path_factory):
    """The folder of the examples, built outside the tree as a user would."""
    build = tmp_path_factory.mktemp("example")
    if request.param == "cmake":
        run(*configure(EXAMPLES, build, prefix))
        run("cmake", "--build", build)
    else:
        environment = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "lading", env=environment).split()
        folder = run("pkg-config", "--variable=libdir", "lading", env=environment).strip()
        for source in EXAMPLES.glob("*.cc"):
            run("g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", source, *flags, f"-Wl,-rpath,{folder}", "-o", build / source.stem)
    return build


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    random = numpy.random.default_rng(7)
    tensors = {
        "layer.weight": random.standard_normal((129, 67)).astype(numpy.float32),
        "layer.bias": random.standard_normal(67).astype(numpy.float16),
        "wide": random.standard_normal((3, 5, 7)),
        "ids": random.integers(-(2**62), 2**62, (4, 3)),
        "bytes": random.integers(0, 256, 12_345).astype(numpy.uint8),
        "mask": random.integers(0, 2, (3, 11)).astype(bool),
        "scalar": numpy.array(2.5, numpy.float32),
        "nothing": numpy.zeros((0, 4), numpy.float32),
    }
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    save_file(tensors, path)
    return path


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def splitmix64(seed, n):
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def digest(data):
    """As docs/how-it-works/digests.md has it, word by word."""
    words = numpy.frombuffer(data + b"\0" * (-len(data) % 4), "<u4")
    lanes = []
    for table_seed, block_seed in ((0x243F6A8885A308D3, 0xA4093822299F31D0), (0x13198A2E03707344, 0x082EFA98EC4E6C89)):
        table = [splitmix64(table_seed, i) >> 32 | 1 for i in range(1024)]
        keys = [splitmix64(block_seed, block) | 1 for block in range(len(words) // 1024 + 1)]
        lanes.append(sum(int(word) * table[i % 1024] * keys[i // 1024] for i, word in enumerate(words)) % 2**64)
    return "".join(f"{lane:016x}" for lane in lanes)


def test_the_example_holds_what_safetensors_reads(examples, checkpoint):
    lines = [LINE.fullmatch(line) for line in run(examples / "load_into_vectors", checkpoint).splitlines()]
    assert all(lines)
    expected = {
        name: (
            DTYPES[tensor.dtype.name],
            str(list(tensor.shape)),
            str(tensor.nbytes),
            digest(tensor.tobytes()),
            fnv1a(tensor.tobytes()),
        )
        for name, tensor in load_file(checkpoint).items()
    }
    assert {line[1]: line.groups()[1:] for line in lines} == expected


def test_the_example_says_why_a_checkpoint_is_refused(examples, checkpoint, tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(checkpoint.read_bytes()[:-1])
    done = subprocess.run([examples / "load_into_vectors", cut], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cut.safetensors" in done.stderr and "[data_truncated" in done.stderr


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_fsdp2_shards_are_those_of_torch_chunk(examples, checkpoint, ranks):
    expected = set()
    for name, tensor in load_file(checkpoint).items():
        for rank in range(ranks):
            if tensor.ndim == 0:
                shard = tensor
            else:
                rows = -(-tensor.shape[0] // ranks)
                shard = numpy.ascontiguousarray(tensor[rank * rows : (rank + 1) * rows])
            shapes = f"{list(shard.shape)} of {list(tensor.shape)}"
            expected.add(f"rank {rank} {name} {shapes}, checksum {fnv1a(shard.tobytes())}")
    lines = run(examples / "fill_fsdp2_shards", checkpoint, str(ranks)).splitlines()
    assert len(lines) == len(expected) and set(lines) == expected


def test_the_largest_of_512_ranks(examples, tmp_path):
    shapes = {"q_proj.weight": (1024, 48), "o_proj.weight": (130, 64), "down_proj.weight": (96, 80), "norm": (70,)}
    save_file({name: numpy.ones(shape, numpy.float32) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    # Rank 0 has the first chunk of every cut: over tp = 8, then of the rows that are left over dp = 64.
    parts = {"q_proj.weight": (1024 // 8, 48), "o_proj.weight": (130, 64 // 8), "down_proj.weight": (96, 80 // 8), "norm": (70,)}
    largest = 4 * sum(-(-rows // 64) * math.prod(columns) for rows, *columns in parts.values())
    lines = run(examples / "plan_512_ranks", tmp_path).splitlines()
    assert lines[0].startswith("512 ranks, 4 tensors, ")
    assert lines[1].startswith(f"the largest is rank 0: it holds {largest} bytes and reads ")
    assert lines[2] == f"  cuda:0: {largest} bytes"


def test_the_tree_is_complete(prefix, repository):
    def headers(folder):
        return {path.relative_to(folder) for path in folder.rglob("*.h")}

    assert headers(prefix / "include" / "lading") == headers(repository / "include" / "lading")
    for path in ("lib/cmake/lading/lading-config.cmake", "lib/pkgconfig/lading.pc", "lib/liblading.so"):
        assert (prefix / path).is_file()
    # The tree can be moved: no file in it says where it, or the checkout, was.
    for text in [*prefix.glob("lib/cmake/lading/*"), prefix / "lib/pkgconfig/lading.pc"]:
        assert str(repository) not in text.read_text() and str(prefix) not in text.read_text()


def test_the_installed_command_runs(prefix):
    version = re.search(r"^Version: (.*)$", (prefix / "lib/pkgconfig/lading.pc").read_text(), re.MULTILINE)[1]
    assert version in run(prefix / "bin" / "lading", "--version")


def test_the_library_shows_the_api_and_nothing_else(prefix):
    headers = "\n".join(path.read_text() for path in (prefix / "include" / "lading").rglob("*.h"))
    marked = set(re.findall(r"(?<!#define )LADING_API [^;({]*?(~?\w+|operator=)\(", headers))
    classes = set(re.findall(r"^(?:struct|class) (\w+)", headers, re.MULTILINE))
    shown = run("nm", "-DC", "--defined-only", "--format=just-symbols", prefix / "lib" / "liblading.so").splitlines()
    # Of C++ with its arguments, of C (lading_c.h) the bare name.
    rooms = "(?:(?:model|layout|mapping|policy)::)?"
    pattern = rf"(?:lading::{rooms}(?:(\w+)::)?(~?\w+|operator=)(?:\[abi:\w+\])?\(.*|(lading_\w+))"
    names = [re.fullmatch(pattern, symbol) for symbol in shown]
    assert [symbol for symbol, name in zip(shown, names) if not name or (name[1] and name[1] not in classes)] == []
    assert {name[2] or name[3] for name in names} == marked


def test_the_headers_need_the_standard_library_only(prefix):
    for header in (prefix / "include" / "lading").rglob("*.h"):
        for include in re.findall(r"^\s*#\s*include\s*(\S+)", header.read_text(), re.MULTILINE):
            standard = "<stdint.h>" if header.name == "lading_c.h" else r"<\w+>"
            assert re.fullmatch(rf"{standard}|\"lading/(detail/)?\w+\.h\"", include), f"{header.name} includes {include}"


def test_another_minor_version_is_not_taken(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(wants LANGUAGES CXX)\nfind_package(lading 0.0 REQUIRED)\n"
    )
    done = subprocess.run(configure(tmp_path, tmp_path / "build", prefix), capture_output=True, text=True, timeout=60)
    # As CMake 4 says it, and as CMake 3 does.
    words = ("is not compatible with the version requested", 'that is compatible with requested version "0.0"')
    assert done.returncode != 0 and any(text in " ".join(done.stderr.split()) for text in words)
