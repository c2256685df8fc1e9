"""Placements that are unusual and right, or refused: every order of the ranks in a mesh, names of every kind, random
placements with an exchange. On four gloo ranks, against what torch itself does with a real model. Run by
geometry.launch."""

import itertools
import os
import random
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import same_everywhere
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

WORLD = 4
DEADLINE_S = 170
NAMES = ("w*", "wa", "*", "a?", "ab", "[a]", "a", "{x}", "{{x}}", "a\\b", "\\1", "é", "名前", " ", "x" * 300, "^a$", "a|b")


def main(cases):
    """{case: [what is wrong on which rank]}"""
    scratch = Path(os.environ["LADING_SCRATCH"])
    by_rank = run_ranks(WORLD, run, DEADLINE_S, cases, scratch)
    return {case: [text for answer in by_rank for text in answer[case]] for case in cases}


def run(rank, cases, scratch):
    found = {}
    for case in cases:
        try:
            found[case] = [f"rank {rank}: {problem}" for problem in globals()[case](rank, scratch)]
        except Exception:
            found[case] = [f"rank {rank}: {traceback.format_exc()[-3000:]}"]
        dist.barrier()
    return found


def saved(rank, path, tensors):
    if rank == 0:
        save_file(tensors, path)
    dist.barrier()
    return path


def local(tensor):
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def outcome(load):
    """"" if it was loaded, or what was said, which must be the same on all ranks."""
    try:
        load()
        text = ""
    except lading.LadingError as error:
        text = str(error)
    if different := same_everywhere(text):
        raise AssertionError(different)
    return text


# ---- names


def names(rank, scratch):
    """A tensor's name is no pattern: each one lies as its own placements say."""
    mesh = init_device_mesh("cpu", (2, 2))
    torch.manual_seed(5)
    whole = {name: torch.randn(4, 4) for name in NAMES}
    path = saved(rank, scratch / "names.safetensors", whole)
    choices = ([Shard(0), Replicate()], [Replicate(), Shard(0)], [Shard(1), Shard(0)], [Replicate(), Replicate()])
    model, want = nn.Module(), {}
    for place, (name, value) in enumerate(whole.items()):
        places = choices[place % len(choices)]
        want[name] = local(distribute_tensor(value, mesh, places))
        blank = distribute_tensor(torch.empty(4, 4, device="meta"), mesh, places, src_data_rank=None)
        model.register_parameter(name, nn.Parameter(blank))
    lading.materialize(model, path, progress=False)
    got = dict(model.named_parameters())
    return [f"{name} is {local(got[name]).tolist()}" for name in whole if not torch.equal(local(got[name]), want[name])]


# ---- meshes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=False), nn.Linear(8, 5)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def fsdp2(model, mesh):
    fully_shard(model.up, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def both(model, mesh):
    tensor_parallel(model, mesh["b"])
    return fsdp2(model, mesh["a"])


def distributed(model, mesh):
    """By `distribute_tensor` alone, over every dim of the mesh."""
    for module in (model.up, model.down):
        for name, value in list(module.named_parameters(recurse=False)):
            places = [Shard(dim % value.dim()) for dim in range(mesh.ndim)]
            is_meta = value.is_meta
            part = distribute_tensor(value.detach(), mesh, places, **({"src_data_rank": None} if is_meta else {}))
            setattr(module, name, nn.Parameter(part))
    return model


def compare(shard, mesh, rank, path, real):
    """What differs from a real model that torch itself has sharded; and whether lading refused."""
    with lading.skeleton():
        model = Net()
    if mesh.get_coordinate() is None:  # not in the mesh: it takes part in the load only
        mine, theirs = nn.Module(), None
    else:
        mine, theirs = shard(model, mesh), shard(real(), mesh)
    said = outcome(lambda: lading.materialize(mine, path, device="cpu", strict=False, progress=False))
    if said or theirs is None:
        return said, []
    problems = []
    for (name, got), want in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        if not torch.equal(local(got), local(want)):
            problems.append(f"{name} is {local(got).tolist()}, and torch's is {local(want).tolist()}")
        if isinstance(got, DTensor) and not torch.equal(got.full_tensor(), want.full_tensor()):
            problems.append(f"{name} as a whole differs from torch's")
    if shard is not distributed:
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        if not torch.equal(mine(x), theirs(x)):
            problems.append("forward differs from torch's")
        if not torch.allclose(theirs(x), real()(x), atol=1e-5):
            problems.append("torch's own forward is wrong")
    return "", problems


def mesh_orders(rank, scratch):
    """Every order of four ranks in one dim and in two, slices of them, and subsets: as torch has it, or refused."""

    def real():
        torch.manual_seed(11)
        return Net()

    path = saved(rank, scratch / "net.safetensors", real().state_dict())
    problems, loaded, refused = [], set(), set()

    def judge(label, mesh, is_ascending, *shards):
        for shard in shards:
            said, wrong = compare(shard, mesh, rank, path, real)
            problems.extend(f"{label}, {shard.__name__}: {text}" for text in wrong)
            (refused if said else loaded).add(f"{label}, {shard.__name__}")
            if said and is_ascending:
                problems.append(f"{label}, {shard.__name__}: {said[:300]}")
            if said and "R43" not in said:
                problems.append(f"{label}, {shard.__name__}: {said[:300]}")

    # An equal mesh whose group has this order. It comes first: torch then takes it for the others that are equal.
    unsorted = dist.new_group([0, 2, 1, 3], sort_ranks=False)
    judge("a group in its own order", DeviceMesh.from_group(unsorted, "cpu"), True, fsdp2)
    for order in itertools.permutations(range(WORLD)):
        ascending = list(order) == sorted(order)
        others = (tensor_parallel, distributed) if order[0] == 0 else ()  # the rest are like these
        judge(f"{order}", DeviceMesh("cpu", list(order)), ascending, fsdp2, *others)
        rows = [list(order[:2]), list(order[2:])]
        mesh = DeviceMesh("cpu", rows, mesh_dim_names=("a", "b"))
        regular = rows in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
        judge(f"{rows}", mesh, regular, fsdp2, *others[1:])
        if order[0] == 0:
            judge(f"{rows}", mesh, regular, both)
            judge(f"{rows} a", mesh["a"], regular, fsdp2)
            judge(f"{rows} b", mesh["b"], regular, fsdp2)
    for some in ([0, 1], [2, 3], [0, 2], [1, 3], [1, 2], [3, 1], [0, 1, 2], [1, 2, 3], [2]):
        mesh = DeviceMesh("cpu", some)
        judge(f"{some}", mesh, some in ([0, 1], [2, 3], [0, 2], [1, 3], [2]), fsdp2)
    expected = {f"{tuple(range(WORLD))}, fsdp2", "[[0, 2], [1, 3]], both", "[[0, 1], [2, 3]], fsdp2"}
    return problems + [f"{label} was not loaded" for label in expected - loaded] + ([] if refused else ["none refused"])
