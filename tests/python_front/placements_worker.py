"""Placements that are unusual and right, or refused: every order of the ranks in a mesh, names of every kind, random
placements with an exchange. On four gloo ranks, against what torch itself does with a real model. Run by
geometry.launch."""

import inspect
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
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lading

WORLD = 4
CPU = torch.device("cpu")
DEADLINE_S = 170
NAMES = (
    "w*", "wa", "*", "a?", "ab", "[a]", "a", "{x}", "{{x}}",
    "a\\b", "\\1", "é", "名前", " ", "x" * 300, "^a$", "a|b",
)  # fmt: skip


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


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def outcome(load):
    """"" if it was loaded, or what was said, which must be the same on all ranks."""
    try:
        load()
        text = ""
    except lading.LadingError as error:
        text = error.full_text()
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


def group_of(ranks):
    """A process group with its ranks in this order. Before torch 2.13, torch sorts them."""
    keeps_order = "sort_ranks" in inspect.signature(dist.new_group).parameters
    return dist.new_group(ranks, **({"sort_ranks": False} if keeps_order else {}))


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

    # A group that is not sorted. It comes first: torch then takes its mesh for others that are equal.
    unsorted = group_of([0, 2, 1, 3])
    judge("a group in its own order", DeviceMesh.from_group(unsorted, "cpu"), False, fsdp2, distributed)
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


def flat_groups(rank, scratch):
    """FSDP1 over groups of some ranks, also in another order than theirs: as FSDP1 has it, or refused."""
    torch.manual_seed(11)
    state = Net().state_dict()
    path = saved(rank, scratch / "flat.safetensors", state)
    problems, loaded = [], []
    for ranks in ([0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0], [0, 1], [2, 3], [1, 2], [1, 3], [0, 1, 2], [1, 2, 3]):
        group = group_of(ranks)
        model = nn.Module()
        if rank in ranks:
            with lading.skeleton():
                model = Net()
            model = FullyShardedDataParallel(model, process_group=group, param_init_fn=empty_on_cpu, device_id=CPU)
        said = outcome(lambda m=model: lading.materialize(m, path, device="cpu", strict=False, progress=False))
        if said:
            problems += [] if "R43" in said else [f"{ranks}: {said}"]
            continue
        loaded.append(ranks)
        if rank in ranks:
            real = Net()
            real.load_state_dict(state)
            real = FullyShardedDataParallel(real, process_group=group, device_id=CPU)
            for got, want in zip(model.parameters(), real.parameters(), strict=True):
                if not torch.equal(got, want):
                    problems.append(f"{ranks}: {got.tolist()} for {want.tolist()}")
    missing = [ranks for ranks in ([0, 1, 2, 3], [0, 2, 1, 3], [0, 1], [2, 3], [1, 3]) if ranks not in loaded]
    return problems + [f"{ranks} was refused" for ranks in missing]


def empty_on_cpu(module):
    lading.empty_parameters(module, "cpu")


# ---- exchange


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn)
WORLDS = 40


def drawn(seed):
    """(shape of the mesh, {name: value}, {name: placements}), the same on all ranks"""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    shape = draw.choice([(4,), (2, 2), (2, 2), (1, 4), (2, 1, 2)])
    values, places = {}, {}
    for place in range(12):
        size = tuple(draw.choice([0, 1, 2, 3, 5, 8]) for _ in range(draw.choice([0, 1, 1, 2, 2, 3])))
        value = torch.randint(0, 2, size, generator=numbers).to(draw.choice(DTYPES))
        values[f"p{place}"] = value
        cuts = [draw.random() < 0.5 for _ in shape]
        places[f"p{place}"] = [
            Shard(draw.randrange(value.dim())) if value.dim() and cut else Replicate() for cut in cuts
        ]
    return shape, values, places


def random_exchanges(rank, scratch):
    """Random placements, of which many are empty on some ranks only; who has a part gets it, and nobody waits."""
    problems, meshes = [], {}
    for seed in range(WORLDS):
        shape, values, places = drawn(seed)
        mesh = meshes.get(shape) or meshes.setdefault(shape, init_device_mesh("cpu", shape))
        path = saved(rank, scratch / f"drawn{seed}.safetensors", values)
        model = nn.Module()
        for name, value in values.items():
            blank = distribute_tensor(torch.empty_like(value, device="meta"), mesh, places[name], src_data_rank=None)
            model.register_parameter(name, nn.Parameter(blank, requires_grad=False))
        scope = random.Random(seed).choice(["job", "job", "node", "never"])
        lading.materialize(model, path, exchange=scope, progress=False)
        for name, value in values.items():
            want = local(distribute_tensor(value, mesh, places[name], src_data_rank=None))
            got = local(getattr(model, name))
            if got.numel() + want.numel() and not torch.equal(bits(got), bits(want)):
                problems.append(f"seed {seed}, {name}: {got} for {want}")
    return problems


def stalled_exchange(rank, scratch):
    """Blocks that one rank does not know of: the message is about the exchange and its ranks, not about storage."""
    from lading import exchange

    path = saved(rank, scratch / "stalled.safetensors", {"a": torch.arange(4.0), "b": torch.arange(8.0)})
    model = nn.Module()
    for name, size in (("a", 4), ("b", 8)):
        model.register_parameter(name, nn.Parameter(torch.empty(size, device="meta")))
    stall, blocks = exchange._STALL_S, exchange.Exchange._blocks
    exchange._STALL_S = 1.0
    if rank == 1:
        exchange.Exchange._blocks = lambda self: blocks(self)[:-1]
    try:
        said = outcome(lambda: lading.materialize(model, path, device="cpu", exchange="job", progress=False))
    finally:
        exchange._STALL_S, exchange.Exchange._blocks = stall, blocks
    wanted = ("the exchange of bytes from rank", "made no progress", "R44", 'exchange="never"')
    problems = [f"{text!r} is not in {said!r}" for text in wanted if text not in said]
    return problems + ([f"storage is blamed: {said}"] if "storage" in said else [])


# ---- ranks whose models differ


class Tied(nn.Module):
    def __init__(self, is_tied):
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight


def ties_of_some_ranks(rank, scratch):
    """R30: what is one tensor on one rank and two on another is refused; what a rank has one name of is not."""
    problems = []
    both = {"embed.weight": torch.arange(12.0).reshape(4, 3), "head.weight": torch.arange(12.0).reshape(4, 3)}
    for keys in (["embed.weight"], list(both)):
        path = saved(rank, scratch / f"tied{len(keys)}.safetensors", {key: both[key] for key in keys})
        for how in ("skeleton", "real"):
            if how == "skeleton":
                with lading.skeleton():
                    model = Tied(rank == 0)
            else:
                model = Tied(rank == 0)
            said = outcome(lambda model=model, path=path: lading.materialize(model, path, device="cpu", progress=False))
            wanted = ("embed.weight = head.weight on ranks 0", "embed.weight and head.weight on ranks 1-3", "R30")
            problems += [f"{keys}, {how}: {text!r} is not in {said!r}" for text in wanted if text not in said]
    with lading.skeleton():  # stages: rank 0 has both names, 1 one of them, 2 the other, 3 neither
        model = Tied(True)
    if rank in (1, 3):
        del model.head
    if rank in (2, 3):
        del model.embed
    path = scratch / "tied1.safetensors"
    lading.materialize(model, path, device="cpu", progress=False)
    for name, parameter in model.named_parameters():
        if not torch.equal(parameter, both[name]):
            problems.append(f"{name} of a stage is {parameter.tolist()}")
    return problems


class WithNew(nn.Module):
    """`new` is in no file; `number` is each rank's own."""

    def __init__(self, rank):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.new = nn.Parameter(torch.full((4,), float(rank)))
        self.register_buffer("number", torch.tensor(rank), persistent=False)


def kept_replicas(rank, scratch):
    """R17: values that were there before are compared among replicas, but for those that `keep=` names."""
    torch.manual_seed(0)
    path = saved(rank, scratch / "kept.safetensors", nn.Linear(4, 4).state_dict(prefix="linear."))
    problems = []

    def load(model, **options):
        options = {"allow_missing": "new", "progress": False, **options}
        return outcome(lambda: lading.materialize(model, path, **options))

    def hsdp(model):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(model, mesh=mesh)

    for sharded in (lambda model: model, hsdp):
        said = load(sharded(WithNew(rank)))
        for text in ('"new"', '"number"', "R17", "values_differ", "keep="):
            if text not in said:
                problems.append(f"{text} is not in {said!r}")
        if '"linear' in said:
            problems.append(f"what was loaded is named: {said}")
        model = sharded(WithNew(rank))
        if said := load(model, keep=["number", "new"]):
            problems.append(f"what is kept on purpose was refused: {said}")
        if int(model.number) != rank:
            problems.append(f"number is {model.number}")
        if said := load(sharded(WithNew(7)), keep="number"):
            problems.append(f"equal values were refused: {said}")
    return problems
