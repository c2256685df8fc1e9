"""Whether tensors share elements of memory, exactly: two views of one storage may interleave and share none."""

from __future__ import annotations

import math

import torch

from .recording import is_dense


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor are one element of memory, as in `expand`."""
    reach = 0
    for length, step in _dims(tensor):
        if step <= reach:
            break
        reach += (length - 1) * step
    else:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for length, step in zip(tensor.size(), tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(length) * step
    return int(places.unique().numel()) < tensor.numel()


def overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one storage have an element of memory in common."""
    (begin, end), (other_begin, other_end) = byte_extent(one), byte_extent(two)
    if begin >= other_end or other_begin >= end:
        return False
    if all(is_dense(tuple(tensor.size()), tensor.stride()) for tensor in (one, two)):
        return True
    grain = _grain(one, two)
    first = min(begin, other_begin)
    marks = torch.zeros((max(end, other_end) - first) // grain, dtype=torch.uint8)
    _view(marks, one, first, grain).fill_(1)
    return bool(_view(marks, two, first, grain).any())


def byte_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where its elements begin and end in the storage, in bytes."""
    if not tensor.numel():
        return 0, 0
    width = tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.storage_offset() * width, (tensor.storage_offset() + last + 1) * width


def _dims(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Lengths and strides of dims with more than one place, the innermost first."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return sorted(((length, step) for length, step in pairs if length > 1), key=lambda pair: pair[1])


def _grain(*tensors: torch.Tensor) -> int:
    """The largest unit in which all of these tensors can be counted, in bytes."""
    numbers = []
    for tensor in tensors:
        width = tensor.element_size()
        numbers += [width, tensor.storage_offset() * width, *(step * width for _, step in _dims(tensor))]
    return math.gcd(*numbers)


def _view(marks: torch.Tensor, tensor: torch.Tensor, first: int, grain: int) -> torch.Tensor:
    """The marks of a tensor's bytes. Repeated places are looked at once: they are the same marks."""
    width = tensor.element_size()
    size = [length if step else 1 for length, step in zip(tensor.size(), tensor.stride(), strict=True)]
    steps = [step * width // grain for step in tensor.stride()]
    begin = (tensor.storage_offset() * width - first) // grain
    return torch.as_strided(marks, (*size, width // grain), (*steps, 1), begin)
