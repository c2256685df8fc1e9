"""What a rank holds of a tensor that an audit compares, and how two tensors differ.

    for part in flat_parts(parameter, rank):        # ZeRO-3, FSDP1: pieces of the flattened tensor
        difference(part.of(wanted), part.memory)    # None: the same bits

Nothing here plans: where a piece begins is the frameworks' own record.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from . import zero3
from .bits import bits_digest, bytes_of
from .fsdp1 import FlatMember
from .placements import is_dtensor


@dataclasses.dataclass(frozen=True)
class FlatPart:
    """A stretch of the flattened tensor, padding left out."""

    memory: torch.Tensor
    begin: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole.reshape(-1)[self.begin : self.begin + self.memory.numel()]


def is_flat(value: Any) -> bool:
    """Whether ranks share out the flattened tensor, rather than a dim of it."""
    return isinstance(value, FlatMember) or zero3.is_partitioned(value)


def why_not_judged(value: Any) -> str:
    """What keeps a flat tensor from being looked at; "" if nothing does."""
    return value.problem if isinstance(value, FlatMember) else zero3.refusal(value)[0]


def flat_parts(value: Any, rank: int) -> list[FlatPart]:
    """This rank's stretches, by its global number: one, or of ZeRO-3 one for each memory that a parameter has."""
    if isinstance(value, FlatMember):
        return [_fsdp1_part(value, rank)]
    parts = []
    for one in zero3.memories(value):
        memory = zero3.memory_of(value, one.slot).detach().reshape(-1)
        begin = one.ranks.index(rank) * memory.numel() if one.ranks is not None else 0
        elems = torch.Size(value.ds_shape).numel()
        parts.append(FlatPart(memory[: max(0, elems - begin)], begin))
    return parts


def _fsdp1_part(member: FlatMember, rank: int) -> FlatPart:
    memory, ranks = member.unit.memory.reshape(-1), member.unit.ranks([rank])
    first = ranks.index(rank) * memory.numel()  # of the unit's buffer, on this rank
    begin = min(max(first, member.offset), member.offset + member.numel())
    end = max(begin, min(first + memory.numel(), member.offset + member.numel()))
    return FlatPart(memory[begin - first : end - first] if end > begin else memory[:0], begin - member.offset)


def place_of(value: Any) -> str:
    """Which part of the whole a rank holds: replicas have the same."""
    if not is_dtensor(value):
        return ""
    coordinate = value.device_mesh.get_coordinate()
    cuts = [place for place, one in enumerate(value.placements) if not one.is_replicate()]
    return ",".join(f"{place}:{coordinate[place]}" for place in cuts)


def part_like(whole: torch.Tensor, value: Any) -> torch.Tensor | None:
    """Of a value that is the same everywhere, the part that a DTensor has of it here; None if it is unknown."""
    if not is_dtensor(value):
        return whole
    from torch.distributed.tensor import distribute_tensor

    if not all(one.is_replicate() or type(one).__name__ == "Shard" for one in value.placements):
        return None
    if value.device_mesh.device_type != "cpu":
        whole = whole.to(value._local_tensor.device)
    spread: Any = distribute_tensor(whole, value.device_mesh, value.placements, src_data_rank=None)
    local: torch.Tensor = spread._local_tensor
    return local.cpu()


# ---- how two tensors differ


@dataclasses.dataclass(frozen=True)
class Difference:
    """`code` is "shape", "dtype", "rounded" (of the right dtype, but what another left) or "value"."""

    code: str
    message: str
    expected: str
    found: str


def difference(wanted: torch.Tensor, there: torch.Tensor, where: str = "") -> Difference | None:
    """None if both are the same to the last bit. `where` says what an index counts in, if not the whole tensor."""
    there = there.detach().resolve_conj().resolve_neg().cpu()
    if tuple(wanted.shape) != tuple(there.shape):
        return Difference("shape", "its shape" + where, str(list(wanted.shape)), str(list(there.shape)))
    if wanted.dtype != there.dtype:
        return Difference("dtype", "its dtype", _short(wanted.dtype), _short(there.dtype))
    if wanted.numel() == 0:
        return None
    differs = (bytes_of(wanted) != bytes_of(there)).view(-1, wanted.element_size()).any(dim=1)
    count = int(differs.sum())
    if count == 0:
        return None
    place = int(differs.nonzero()[0])
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), wanted.shape)] if wanted.dim() else []
    text = f"{count} of {wanted.numel()} elements, the first " + (f"at {index}{where}" if index else "in its value")
    rounded = _rounded_to(wanted, there)
    if rounded:
        text += f", and it holds what rounding to {rounded} leaves"
    want, found = wanted.reshape(-1)[place].item(), there.reshape(-1)[place].item()
    return Difference("rounded" if rounded else "value", text, repr(want), repr(found))


def digest(tensor: torch.Tensor) -> str:
    """Of the bits and the dtype: replicas have the same."""
    return bits_digest(tensor)


def _rounded_to(wanted: torch.Tensor, there: torch.Tensor) -> str:
    for dtype in (torch.bfloat16, torch.float16):
        if wanted.dtype.is_floating_point and wanted.dtype.itemsize > dtype.itemsize:
            rounded = wanted.to(dtype).to(wanted.dtype)
            if torch.equal(bytes_of(rounded), bytes_of(there)):
                return _short(dtype)
    return ""


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
