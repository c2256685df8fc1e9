"""DTensor: what distribute_tensor() stores, and what its metadata says, on fake worlds of up to 512 ranks."""

import math
from random import Random

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from .torch_tools import FakeWorld, arange, cut_of, indices, random_placement, random_shape, some_ranks

MESHES = [(8,), (3,), (64,), (4, 2), (2, 4), (5, 3), (16, 8), (2, 3, 4), (8, 8, 8)]


def question(random, mesh):
    shape = random_shape(random, 40)
    placements = [random_placement(random, len(shape)) for _ in mesh]
    cuts = [cut for axis, placement in enumerate(placements) for cut in cut_of(placement, f"a{axis}")]
    named = [(f"a{axis}", size) for axis, size in enumerate(mesh)]
    return shape, placements, {"mesh": named, "shape": shape, "cuts": cuts}


def stored(random, per_rank):
    facts = []
    for mesh in MESHES:
        world = math.prod(mesh)
        for rank in some_ranks(random, world, 5):
            with FakeWorld(rank, world):
                device_mesh = init_device_mesh("cpu", mesh)
                for _ in range(per_rank):
                    shape, placements, asked = question(random, mesh)
                    tensor = distribute_tensor(arange(shape), device_mesh, placements, src_data_rank=None)
                    local = tensor._local_tensor
                    facts.append(asked | {"rank": rank, "held": indices(local), "local_shape": list(local.shape)})
    return facts


def described(random, count):
    """Shape and offset of the local part by DTensor's own arithmetic."""
    facts = []
    for _ in range(count):
        mesh = tuple(random.randint(1, 6) for _ in range(random.randint(1, 3)))
        rank = random.randrange(math.prod(mesh))
        coordinate, rest = [], rank
        for size in reversed(mesh):
            coordinate.insert(0, rest % size)
            rest //= size
        shape, placements, asked = question(random, mesh)
        local_shape, offset = _compute_local_shape_and_global_offset(tuple(shape), mesh, coordinate, placements)
        facts.append(asked | {"rank": rank, "local_shape": list(local_shape), "offset": list(offset)})
    return facts


def main(seed, per_rank, described_count):
    random = Random(seed)
    return {"stored": stored(random, per_rank), "described": described(random, described_count)}
