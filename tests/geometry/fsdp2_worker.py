"""FSDP2: what fully_shard() stores, alone and over tensor or expert parallelism.

On fake worlds for many shapes and large meshes; on real gloo ranks also whether what all ranks hold, put together,
is the tensor."""

import math
from random import Random

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from .launch import run_ranks
from .torch_tools import FakeWorld, arange, cut_of, indices, random_placement, random_shape, some_ranks

# FSDP2 shards over dp; "replicate" is HSDP's; all others are model axes.
MESHES = [
    {"dp": 8},
    {"dp": 3},
    {"dp": 128},
    {"replicate": 2, "dp": 4},
    {"dp": 4, "tp": 2},
    {"dp": 3, "tp": 4},
    {"dp": 16, "tp": 8},
    {"replicate": 2, "dp": 3, "tp": 2},
    {"dp": 4, "ep": 2, "tp": 2},
]


class Module(nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.weight = nn.Parameter(tensor)


def storage_of(module):
    """The padded memory that FSDP2 gathers from, of which the local tensor is the beginning."""
    state = module._get_fsdp_state()
    (group,) = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    (parameter,) = group.fsdp_params
    return parameter._sharded_param_data


def shard(shape, sizes, device_mesh, placements, dim):
    """The sharded module, or nothing where FSDP2 refuses uneven sharding; placements are of the model axes."""
    tensor = arange(shape)
    if placements:
        tensor = distribute_tensor(tensor, device_mesh[tuple(placements)], list(placements.values()), src_data_rank=None)
    module = Module(tensor)
    data_axes = tuple(axis for axis in sizes if axis in ("replicate", "dp"))
    try:
        fully_shard(module, mesh=device_mesh[data_axes], shard_placement_fn=lambda _: Shard(dim))
    except NotImplementedError as error:
        assert "uneven sharding" in str(error), error
        return None
    return module


def fact(rank, shape, sizes, device_mesh, placements, dim):
    cuts = [cut for axis, placement in placements.items() for cut in cut_of(placement, axis)]
    cuts += cut_of(Shard(dim), "dp", **({"even": True} if dim > 0 else {}))
    asked = {"mesh": list(sizes.items()), "shape": shape, "cuts": cuts, "rank": rank}
    module = shard(shape, sizes, device_mesh, placements, dim)
    if module is None:
        return asked | {"refused": True}, None
    local = module.weight._local_tensor
    storage = storage_of(module)
    assert local.is_contiguous()
    assert local.numel() == 0 or local.data_ptr() == storage.data_ptr()
    padding = storage[local.numel() :]
    held = {"held": indices(local), "local_shape": list(local.shape), "storage": storage.numel()}
    return asked | held | {"zero_padding": bool((padding == 0).all())}, module


def random_case(random, sizes):
    shape = random_shape(random, 40)
    model_axes = [axis for axis in sizes if axis not in ("replicate", "dp")]
    placements = {axis: random_placement(random, len(shape)) for axis in model_axes}
    dim = random.randrange(len(shape)) if random.random() < 0.3 else 0
    if dim > 0 and random.random() < 0.7:
        shape[dim] = random.randint(1, 2) * math.prod(sizes.values())
    return shape, placements, dim


def fake(seed, per_rank):
    random = Random(seed)
    facts = []
    for sizes in MESHES:
        world = math.prod(sizes.values())
        for rank in some_ranks(random, world, 6):
            with FakeWorld(rank, world):
                device_mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
                for _ in range(per_rank):
                    shape, placements, dim = random_case(random, sizes)
                    facts.append(fact(rank, shape, sizes, device_mesh, placements, dim)[0])
    return facts


def real_cases(sizes):
    """Every n from 1 to 33 on dim 0, and some of two dims; fused weights where tensor parallelism is."""
    for n in range(1, 34):
        yield [n], {"tp": Shard(0)} if "tp" in sizes else {}, 0
    for shape in ([7, 3], [1, 5], [0, 4], [5, 6], [9, 2, 2]):
        for placement in (Shard(0), Shard(1), Replicate()):
            yield shape, {"tp": placement} if "tp" in sizes else {}, 0
    if "tp" in sizes:
        for n in (8, 10, 16, 25, 32):
            yield [n], {"tp": _StridedShard(0, split_factor=2)}, 0


def on_a_rank(rank, sizes):
    device_mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    facts = []
    for shape, placements, dim in real_cases(sizes):
        found, module = fact(rank, shape, sizes, device_mesh, placements, dim)
        # FSDP2's own all-gather: the model-parallel local tensor, of which the rank's part is known.
        module.unshard()
        gathered = module.weight
        gathered = gathered._local_tensor if isinstance(gathered, DTensor) else gathered
        facts.append(found | {"gathered": indices(gathered)})
        module.reshard()
    return facts


def main(mode, seed=0, per_rank=0, worlds=(), rank_deadline_s=0):
    if mode == "fake":
        return fake(seed, per_rank)
    results = []
    for sizes in map(dict, worlds):
        ranks = run_ranks(math.prod(sizes.values()), on_a_rank, rank_deadline_s, sizes)
        results.append([fact for facts in ranks for fact in facts])
    return results
