"""What the torch workers share: random shapes, and placements as lading's cuts."""

import math

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore


def arange(shape):
    """Every element says where it is. fp32 counts exactly to 2^24."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def indices(tensor):
    return [int(value) for value in tensor.detach().flatten().tolist()]


def random_shape(random, largest, most_dims=3, empty=True):
    """Dims small against the mesh, so that uneven and empty shards are common."""
    dims = random.randint(1, most_dims)
    low = 0 if empty and random.random() < 0.1 else 1
    return [random.randint(low, largest if d == 0 else max(1, largest // 2)) for d in range(dims)]


def random_placement(random, dims):
    kind, dim = random.random(), random.randrange(dims)
    if kind < 0.2:
        return Replicate()
    return Shard(dim) if kind < 0.6 else _StridedShard(dim, split_factor=random.choice([2, 3, 4]))


def cut_of(placement, axis, **more):
    """The cut of one mesh axis; nothing for Replicate."""
    if isinstance(placement, Replicate):
        return []
    if isinstance(placement, _StridedShard):
        return [{"strided_shard": placement.dim, "split_factor": placement.split_factor, "axes": [axis], **more}]
    return [{"shard": placement.dim, "axes": [axis], **more}]


class FakeWorld:
    """A process that believes to be one rank of many."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def __enter__(self):
        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world)

    def __exit__(self, *_):
        dist.destroy_process_group()


def some_ranks(random, world, count):
    """The first, the last, and some between."""
    return sorted({0, world - 1, *(random.randrange(world) for _ in range(count - 2))})
