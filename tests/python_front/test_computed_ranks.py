"""`lading.Computed` from inputs that two ranks share: gathered one at a time, in one order, or refused on both."""

import pytest
from geometry.launch import require, run_ranks, run_worker

require("torch", exactly=False)
DEADLINE_S = 120
CASES = (
    "R66_cut_from_a_shard",
    "R66_uneven_and_narrow",
    "R66_computed_from_computed",
    "R66_one_whole_input_at_a_time",
    "R66_a_rank_without_the_value",
    "R44_one_rank_fails_before_a_gather",
    "R44_one_rank_fails_after_a_gather",
    "R66_an_input_of_another_rank",
    "R66_flat_shards_are_refused",
    "an_input_that_is_whole_needs_nobody",
)


@pytest.fixture(scope="module")
def found():
    return run_worker("test_computed_ranks", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES)
def test_on_two_ranks(found, case):
    for rank in found:
        assert rank[case] == []


# ---- on the ranks


def draft():
    """`table` is uneven over two ranks in both dims. What is made of it has shapes of its own."""
    import torch
    from torch import nn

    class Draft(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Linear(3, 7, bias=False)  # weight [7, 3]
            self.lone = nn.Linear(4, 1, bias=False)  # [1, 4]: the first rank has all of it
            self.head = nn.Linear(3, 4, bias=False)
            self.twice = nn.Linear(3, 4, bias=False)
            self.register_buffer("ids", torch.zeros(7, 2, dtype=torch.int16))
            self.register_buffer("codes", torch.zeros(2, 5, dtype=torch.float8_e4m3fn))
            self.register_buffer("picked", torch.zeros(7, dtype=torch.int16))
            self.register_buffer("firsts", torch.zeros(5, dtype=torch.float8_e4m3fn))

        def forward(self, x):
            return self.head(self.table(x))

    return Draft()


def values():
    import torch

    codes = torch.tensor([[0x7F, 0xFF, 0x80, 0x01, 0x38], [1, 2, 3, 4, 5]], dtype=torch.uint8)  # NaN of both signs, -0
    return {
        "table.weight": torch.arange(21.0).reshape(7, 3) + 1 / 3,
        "lone.weight": torch.arange(4.0)[None] + 0.5,
        "ids": (torch.arange(14, dtype=torch.int16) * 1000 - 7000).reshape(7, 2),
        "codes": codes.view(torch.float8_e4m3fn),
    }


def main():
    import os
    import tempfile

    from safetensors.torch import save_file

    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    save_file(values(), f"{folder}/model.safetensors")
    return run_ranks(2, on_a_rank, DEADLINE_S - 20, f"{folder}/model.safetensors")


def on_a_rank(rank, file):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    names = [case.removeprefix("R66_").removeprefix("R44_") for case in CASES]
    return {case: globals()[name](mesh, file) for case, name in zip(CASES, names, strict=True)}


def sharded(mesh, *, without=(), whole=False):
    import lading
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with lading.skeleton():
        model = draft()
        for name in without:
            delattr(model, name)
    if whole:
        return model
    model._buffers["ids"] = distribute_tensor(model.ids, mesh, [Shard(0)])
    model._buffers["codes"] = distribute_tensor(model.codes, mesh, [Shard(1)])
    for module in (model.table, model.lone):
        fully_shard(module, mesh=mesh)
    return model


def load(model, file, recipes, **options):
    import lading

    missing = ["head.*", "twice.*", "picked", "firsts"]
    lading.materialize(model, file, recipes=recipes, allow_missing=missing, progress=False, timeout=60, **options)
    return model


def full(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def differ(model, **wanted):
    import torch

    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    bad = []
    for name, want in wanted.items():
        name = name.replace("_weight", ".weight")
        got = full(tensors[name])
        if got.dtype != want.dtype or not torch.equal(got.view(torch.uint8), want.contiguous().view(torch.uint8)):
            bad.append(f"{name}: {got} for {want}")
    return bad


def rest():
    """Recipes for what a case is not about."""
    import torch

    return {
        "head.weight": lambda module, name: torch.zeros(4, 3),
        "twice.weight": lambda module, name: torch.zeros(4, 3),
        "picked": lambda module, name: torch.zeros(7, dtype=torch.int16),
        "firsts": lambda module, name: torch.zeros(5, dtype=torch.float8_e4m3fn),
    }


def in_step(problems):
    """After it, a collective of the user's finds the others where they should be."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1)
    dist.all_reduce(one)
    return problems if one.item() == 2 else [*problems, "the group is out of step"]


def cut_from_a_shard(mesh, file):
    """The head of a draft out of a table that FSDP2 has sharded; and the head itself sharded as well."""
    import lading
    from torch.distributed.fsdp import fully_shard

    model = sharded(mesh)
    fully_shard(model.head, mesh=mesh)
    load(model, file, rest() | {"head.weight": lading.Computed(lambda table: table[::2], "table.weight")})
    return in_step(differ(model, head_weight=values()["table.weight"][::2], table_weight=values()["table.weight"]))


def uneven_and_narrow(mesh, file):
    """Shards of several sizes and dims, one rank with everything, and dtypes that gloo does not know. Bits."""
    import lading
    import torch

    recipes = {
        "picked": lading.Computed(lambda ids: ids[:, 1], "ids"),
        "firsts": lading.Computed(lambda codes: codes[0], "codes"),
        "head.weight": lading.Computed(lambda lone: lone[:, :3].expand(4, 3), "lone.weight"),
    }
    model = load(sharded(mesh), file, rest() | recipes)
    want = values()
    head = want["lone.weight"][:, :3].expand(4, 3)
    found = differ(model, picked=want["ids"][:, 1], firsts=want["codes"].view(torch.uint8)[0].view(torch.float8_e4m3fn))
    return in_step(found + differ(model, head_weight=head))


def computed_from_computed(mesh, file):
    """`twice` waits for `head`, which is computed, sharded, and after it by name where recipes are concerned."""
    import lading
    from torch.distributed.fsdp import fully_shard

    model = sharded(mesh)
    fully_shard(model.twice, mesh=mesh)
    recipes = {
        "twice.weight": lading.Computed(lambda table: table[:4] * 2, "table.weight"),
        "head.weight": lading.Computed(lambda twice, table: twice + table[3:], "twice.weight", "table.weight"),
    }
    load(model, file, rest() | recipes)
    table = values()["table.weight"]
    return in_step(differ(model, twice_weight=table[:4] * 2, head_weight=table[:4] * 2 + table[3:]))


def one_whole_input_at_a_time(mesh, file):
    """When a function runs, the whole inputs of those before are gone, though one of them gave a part of its own."""
    import gc
    import weakref

    import lading

    storages, alive = [], []

    def cut(table):
        gc.collect()
        alive.extend(one() is not None for one in storages)
        storages.append(weakref.ref(table.untyped_storage()))
        return table[:4]

    recipes = {name: lading.Computed(cut, "table.weight") for name in ("head.weight", "twice.weight")}
    model = load(sharded(mesh), file, rest() | recipes)
    part = values()["table.weight"][:4]
    problems = differ(model, head_weight=part, twice_weight=part)
    return in_step(problems if alive == [False] else [*problems, f"whole inputs that are still there: {alive}"])


def a_rank_without_the_value(mesh, file):
    """Rank 1 does not have the first value, then not the last: it takes part in the gathers, and runs no function."""
    import lading

    rank, table, problems = mesh.get_local_rank(), values()["table.weight"], []
    for lacking in ("head", "twice"):
        ran = []

        def cut(table, ran=ran):
            ran.append(1)
            return table[:4]

        recipes = {f"{name}.weight": lading.Computed(cut, "table.weight") for name in ("head", "twice")}
        model = load(sharded(mesh, without=[lacking] if rank else ()), file, rest() | recipes)
        held = [name for name in ("head", "twice") if not rank or name != lacking]
        problems += differ(model, **{f"{name}_weight": table[:4] for name in held})
        problems += [] if len(ran) == len(held) else [f"the function ran {len(ran)} times"]
    return in_step(problems)


def told(call):
    """What an error says; all ranks must be told the same, soon, and be able to go on."""
    import time

    import lading
    import torch.distributed as dist

    began = time.monotonic()
    try:
        call()
    except lading.LadingError as error:
        texts = [None] * dist.get_world_size()
        dist.all_gather_object(texts, str(error))
        problems = [] if len(set(texts)) == 1 else [f"different errors: {texts}"]
        return error, problems + ([] if time.monotonic() - began < 20 else ["it took long"])
    return None, ["it was not refused"]


def failing(rank, wanted_rank):
    def function(table):
        if rank == wanted_rank:
            raise ArithmeticError("the function of one rank")
        return table[:4]

    return function


def one_rank_fails_before_a_gather(mesh, file):
    """Rank 1's recipe fails before anything is read: rank 0 does not wait in a collective for it."""
    import lading
    import torch

    def recipe(module, name):
        if mesh.get_local_rank() == 1:
            raise ArithmeticError("the function of one rank")
        return torch.zeros(4, 3)

    cut = lading.Computed(lambda table: table[::2], "table.weight")
    recipes = rest() | {"twice.weight": recipe, "head.weight": cut}
    error, problems = told(lambda: load(sharded(mesh), file, recipes))
    return in_step([*problems, *([] if "the function of one rank" in str(error) else [str(error)])])


def one_rank_fails_after_a_gather(mesh, file):
    """Rank 0's first function fails; rank 1 is on its way to the next gather, and does not go in."""
    import lading

    recipes = {
        "head.weight": lading.Computed(failing(mesh.get_local_rank(), 0), "table.weight"),
        "twice.weight": lading.Computed(lambda table: table[:4], "table.weight"),
    }
    error, problems = told(lambda: load(sharded(mesh), file, rest() | recipes))
    return in_step([*problems, *([] if "the function of one rank" in str(error) else [str(error)])])


def an_input_of_another_rank(mesh, file):
    """A stage cannot compute from what only another stage holds: the engine's word."""
    import lading

    rank = mesh.get_local_rank()
    model = sharded(mesh, whole=True, without=["head"] if rank else ["table"])
    cut = {"head.weight": lading.Computed(lambda table: table[::2], "table.weight")}
    error, problems = told(lambda: load(model, file, rest() | cut, device="cpu"))
    return [*problems, *([] if "which is on other ranks" in str(error) else [str(error)])]


def flat_shards_are_refused(mesh, file):
    import lading
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = sharded(mesh, whole=True)
    how = {"device_id": torch.device("cpu"), "param_init_fn": lading.empty_parameters, "use_orig_params": True}
    model.table = FullyShardedDataParallel(model.table, process_group=mesh.get_group(), **how)
    cut = {"head.weight": lading.Computed(lambda table: table[::2], "table.weight")}
    error, problems = told(lambda: load(model, file, rest() | cut, device="cpu"))
    return [*problems, *([] if "flattened and sharded" in str(error) else [str(error)])]


def an_input_that_is_whole_needs_nobody(mesh, file):
    """One process alone, with sharded company: no collective."""
    import lading

    cut = {"head.weight": lading.Computed(lambda table: table[::2], "table.weight")}
    model = sharded(mesh, whole=True)
    if mesh.get_local_rank() == 0:
        load(model, file, rest() | cut, device="cpu", group=False)
        return in_step(differ(model, head_weight=values()["table.weight"][::2]))
    return in_step([])
