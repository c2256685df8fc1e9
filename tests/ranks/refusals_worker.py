"""Four ranks, one of which has something else than the others. What each is told, and whether its model is as it was.

Run by geometry.launch. lading is imported by the ranks, not here: in one of the groups each rank has a library of its
own.
"""

import mmap
import os
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from geometry.launch import run_ranks

RANKS = 4
ODD = 2  # the rank that has something else
BUILDS = ("meta", "real")
GROUP_DEADLINE_S = 40
TIMEOUT_S = 20.0  # nobody should have to wait for it
FILE = "model.safetensors"

CASES = ("same", "truncated", "vanished", "torn", "checkpoint", "values", "dtype", "model", "mesh")


def main(library):
    folder = Path(os.environ["LADING_SCRATCH"])
    write_checkpoints(folder)
    other = folder / "liblading.so"
    other.write_bytes(of_another_version(Path(library).read_bytes()))
    return {
        "others": run_ranks(RANKS, play_all, GROUP_DEADLINE_S, str(folder)),
        "version": run_ranks(RANKS, play_versions, GROUP_DEADLINE_S, str(folder), library, str(other)),
    }


def of_another_version(program):
    """The bytes of a library or a program of ours, but for its version, which compilers also put into instructions.

    Not if `_` stands before it: so are the versions of other libraries' symbols written.
    """
    lines = (Path(__file__).resolve().parents[2] / "CMakeLists.txt").read_text().splitlines()
    version = next(line.split()[2] for line in lines if line.startswith("project(lading VERSION"))
    major, minor, _ = version.split(".")
    other = f"{major}.{(int(minor) + 1) % 10}."
    changed, count = re.subn(rb"(?<!_)" + re.escape(f"{major}.{minor}.".encode()), other.encode(), program)
    if count == 0:
        raise RuntimeError(f"{version} is not in the program")
    return changed


def write_checkpoints(folder):
    tensors = {name: torch.randn(value.shape) for name, value in Model().state_dict().items()}
    last = tensors["last.weight"]
    other = {"checkpoint": last.half(), "values": last + 1}
    for name in ("right", "truncated", "torn", *other):
        (folder / name).mkdir()
        save_file(tensors | {"last.weight": other.get(name, last)}, folder / name / FILE)
    path = folder / "truncated" / FILE
    os.truncate(path, path.stat().st_size - 100)


class Model(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.last = torch.nn.Linear(16, width)


# ---- on a rank


def play_all(rank, folder):
    """Each case with a model on meta and one that has memory. A mesh is made by all ranks together."""
    meshes = {shape: dist.init_device_mesh("cpu", shape) for shape in ((RANKS,), (2, 2))}
    told = {}
    for case in CASES:
        for build in BUILDS:
            options = options_of(case, Path(folder), is_odd=rank == ODD)
            model = built(case, build, meshes, is_odd=rank == ODD)
            with written_to(options["checkpoint"] / FILE) if case == "torn" and rank == ODD else nullcontext():
                told[f"{case}, {build}"] = load(model, options)
    return told


@contextmanager
def written_to(path):
    """Stores to a mapping of the file when a load has read all of it: its size and mtime stay as they are."""
    from lading import _engine

    original = _engine.Plan.load
    with open(path, "r+b") as handle, mmap.mmap(handle.fileno(), 0) as memory:
        before = memory[:]
        memory[:] = before
        os.utime(path)  # so young that the load waits

        def load(plan, memories, *, progress, **options):
            def write(done):
                if done.done_bytes == done.total_bytes:
                    memory[-64:] = bytes(64)
                progress(done)

            return original(plan, memories, progress=write, **options)

        _engine.Plan.load = load
        try:
            yield
        finally:
            _engine.Plan.load = original
            memory[:] = before


def play_versions(rank, folder, library, other):
    os.environ["LADING_LIBRARY"] = other if rank == ODD else library
    return {
        f"version, {build}": load(built("version", build, {}, is_odd=False), {"checkpoint": Path(folder) / "right"})
        for build in BUILDS
    }


def options_of(case, folder, *, is_odd):
    has_place = is_odd and case in ("truncated", "vanished", "torn", "checkpoint", "values")
    options = {"checkpoint": folder / (case if has_place else "right")}
    if case == "dtype":
        options |= {"dtype": torch.bfloat16 if is_odd else torch.float32, "cast": "exact"}
    return options


def built(case, build, meshes, *, is_odd):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with torch.device("meta" if build == "meta" else "cpu"):
        model = Model(width=9 if case == "model" and is_odd else 8)
    if case == "mesh":
        mesh = meshes[(2, 2) if is_odd else (RANKS,)]
        placements = [Shard(0)] if mesh.ndim == 1 else [Replicate(), Shard(0)]
        for module in (model.first, model.last):
            for name, value in list(module.named_parameters()):
                local = distribute_tensor(value.detach(), mesh, placements, src_data_rank=None)
                setattr(module, name, torch.nn.Parameter(local))
    return model


def load(model, options):
    import lading
    from lading import _engine

    before = {name: bits(value) for name, value in model.named_parameters()}
    ended = {"text": "well", "id": "", "code": "", "begun": False}
    try:
        lading.materialize(model, device="cpu", progress=False, timeout=TIMEOUT_S, **options)
    except lading.LadingError as error:
        ended = {"text": error.full_text(), "id": error.error_id, "code": error.code, "begun": error.begun}
    changed = [name for name, value in model.named_parameters() if bits(value) != before[name]]
    return ended | {"changed": changed, "incomplete": lading.is_incomplete(model), "version": _engine.version()}


def bits(value):
    """Of what this rank holds; on meta, that it is there."""
    local = getattr(value, "_local_tensor", value).detach()
    return (
        "meta"
        if local.is_meta
        else (str(local.dtype), local.data_ptr(), bytes(local.contiguous().view(torch.uint8).numpy()))
    )
