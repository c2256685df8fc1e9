"""`external=` of tensors that two ranks share: put together before the load, or refused on both ranks at once."""

import pytest
from geometry.launch import require, run_ranks, run_worker

require("torch", exactly=False)
DEADLINE_S = 120
COLLECTIVE_TIMEOUT_S = 60  # of the ranks' group: what a rank would wait that goes in alone
CASES = (
    "sharded_values_are_put_together",
    "a_rank_without_the_tensor_takes_no_part",
    "R44_one_rank_fails_just_before_the_gather",
    "R44_one_rank_gives_another_tensor",
    "R44_one_rank_has_another_dtype",
    "R44_one_rank_has_another_shape",
    "R44_one_rank_has_another_placement",
    "a_value_of_other_ranks_is_refused",
)


@pytest.fixture(scope="module")
def found():
    return run_worker("test_external_ranks", DEADLINE_S, package="python_front")


@pytest.mark.parametrize("case", CASES)
def test_on_two_ranks(found, case):
    for rank in found:
        assert rank[case] == []


# ---- on the ranks


def main():
    import os
    import tempfile

    import torch
    from safetensors.torch import save_file

    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    save_file({"rest.weight": torch.arange(6.0).reshape(2, 3)}, f"{folder}/model.safetensors")
    return run_ranks(2, on_a_rank, DEADLINE_S - 20, f"{folder}/model.safetensors")


def on_a_rank(rank, file):
    import datetime

    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S), mesh.get_group())
    return {case: globals()[case.removeprefix("R44_")](mesh, file) for case in CASES}


def skeleton(without=()):
    import lading
    import torch
    from torch import nn

    with lading.skeleton():
        model = nn.Module()
        model.head, model.rest = nn.Linear(3, 7, bias=False), nn.Linear(3, 2, bias=False)
        model.register_buffer("codes", torch.zeros(2, 5, dtype=torch.float8_e4m3fn))
        for name in without:
            delattr(model, name)
    return model


def values():
    import torch

    codes = torch.tensor([[0x7F, 0xFF, 0x80, 0x01, 0x38], [1, 2, 3, 4, 5]], dtype=torch.uint8)  # NaN of both signs, -0
    return {"head.weight": torch.arange(21.0).reshape(7, 3) + 1 / 3, "codes": codes.view(torch.float8_e4m3fn)}


def sharded(mesh):
    """Uneven over two ranks, in another dim each."""
    from torch.distributed.tensor import Shard, distribute_tensor

    return {
        name: distribute_tensor(value, mesh, [Shard(dim)], src_data_rank=None)
        for (name, value), dim in zip(values().items(), (0, 1), strict=True)
    }


def load(model, file, external):
    import lading

    missing = ["head.weight", "codes"]
    lading.materialize(model, file, external=external, allow_missing=missing, device="cpu", progress=False, timeout=60)
    return model


def wrong(model):
    import torch

    found = {name: tensor.detach() for name, tensor in model.state_dict().items() if name in values()}
    return [
        f"{name}: {found[name]}"
        for name in found
        if not torch.equal(found[name].view(torch.uint8), values()[name].view(torch.uint8))
    ]


def told(call):
    """What the error says, which all ranks must be told, long before a collective times out; and all can go on."""
    import time

    import lading
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    try:
        call()
    except lading.LadingError as error:
        waited, texts, one = time.monotonic() - began, [None, None], torch.ones(1)
        dist.all_gather_object(texts, str(error))
        dist.all_reduce(one)
        problems = [] if texts[0] == texts[1] else [f"different errors: {texts}"]
        problems += [] if waited < COLLECTIVE_TIMEOUT_S / 4 else [f"it took {waited:.1f} s"]
        return error, problems + ([] if one.item() == 2 else ["the group is out of step"])
    return None, ["it was not refused"]


def sharded_values_are_put_together(mesh, file):
    """Bits, of a dtype too that gloo does not know."""
    return wrong(load(skeleton(), file, sharded(mesh)))


def a_rank_without_the_tensor_takes_no_part(mesh, file):
    """Rank 1 has no head: it comes to the agreement all the same, and rank 0 brings a whole tensor."""
    rank = mesh.get_local_rank()
    external = sharded(mesh) | {"head.weight": values()["head.weight"]}
    return wrong(load(skeleton(["head"] if rank else ()), file, external))


def one_rank_fails_just_before_the_gather(mesh, file):
    """The model that rank 1 hands in lacks the tensor: rank 0 does not wait in a collective for it."""
    from torch import nn

    other = nn.Module()
    other.head = nn.Linear(3, 7, bias=False)
    if mesh.get_local_rank():
        del other.head.weight
    else:
        other.head.weight = nn.Parameter(sharded(mesh)["head.weight"])
    error, problems = told(lambda: load(skeleton(), file, {"head.weight": other, "codes": values()["codes"]}))
    wanted = "which has no tensor of that name"
    is_named = error is not None and wanted in str(error) and error.rank == 1
    return problems if is_named else [*problems, str(error)]


def one_rank_gives_another_tensor(mesh, file):
    """Rank 1 hands in a whole tensor where rank 0 hands in its part."""
    given = sharded(mesh) if mesh.get_local_rank() == 0 else sharded(mesh) | {"head.weight": values()["head.weight"]}
    error, problems = told(lambda: load(skeleton(), file, given))
    is_named = error is not None and "ranks 0, and not on ranks 1" in str(error) and error.tensors == ("head.weight",)
    return problems if is_named else [*problems, str(error)]


def one_rank_has_another_dtype(mesh, file):
    """Of the same size, which a gather would mix without a word."""
    import torch

    return refused_parts(mesh, file, dtype=torch.bfloat16, told_of="float16 [7, 3] [Shard(dim=0)] on ranks 0")


def one_rank_has_another_shape(mesh, file):
    return refused_parts(mesh, file, shape=(9, 3), told_of="float16 [9, 3] [Shard(dim=0)] on ranks 1")


def one_rank_has_another_placement(mesh, file):
    return refused_parts(mesh, file, dim=1, told_of="float16 [7, 3] [Shard(dim=1)] on ranks 1")


def refused_parts(mesh, file, *, told_of, **of_rank_1):
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    how = {"dtype": torch.float16, "shape": (7, 3), "dim": 0} | (of_rank_1 if mesh.get_local_rank() else {})
    whole = torch.ones(how["shape"], dtype=how["dtype"])
    part = distribute_tensor(whole, mesh, [Shard(how["dim"])], src_data_rank=None)
    error, problems = told(lambda: load(skeleton(["codes"]), file, {"head.weight": part}))
    is_named = error is not None and told_of in str(error) and error.tensors == ("head.weight",)
    return problems if is_named else [*problems, str(error)]


def a_value_of_other_ranks_is_refused(mesh, file):
    """A tensor that only rank 0 has, of a mesh of its own."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    alone = DeviceMesh("cpu", [0])
    external = {"head.weight": distribute_tensor(values()["head.weight"], alone, [Shard(0)], src_data_rank=None)}
    error, problems = told(lambda: load(skeleton(["codes"]), file, external))
    is_named = error is not None and "this rank has no part of it; expected" in str(error) and error.rank == 1
    is_named = is_named and "ValueError" not in str(error) and error.tensors == ("head.weight",)
    return problems if is_named else [*problems, str(error)]
