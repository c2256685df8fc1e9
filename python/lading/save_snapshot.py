"""A copy of the memory that a save reads on this rank, so that training may change the model while it is written.

    snapshot = snapshot_of(memories, plan.writes, device)
    plan.write(snapshot.memories.addresses, target, from_host=snapshot.is_on_host)
    snapshot.release()                                  # the host memory is kept for the next snapshot

Only what this rank writes is copied: of replicas, that is a share. It is copied to the model's own device if there is
room beside what training has needed so far, otherwise to host memory.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Iterable, Sequence

import torch

from .bits import bytes_of
from .devices import wait_for
from .errors import LadingError, Problem
from .save_memory import Memories

_ALIGNMENT_BYTES = 64
_MARGIN = 16  # of a device's memory, one part in so many stays free
_REMEDY = "Save without background=True, or free memory."


@dataclasses.dataclass
class Snapshot:
    """`size_bytes` of memory, in one piece, on `device`."""

    memories: Memories
    size_bytes: int
    device: torch.device
    _memory: torch.Tensor | None

    @property
    def is_on_host(self) -> bool:
        return self.device.type == "cpu"

    def release(self) -> None:
        memory, self._memory = self._memory, None
        self.memories = Memories()
        if memory is not None and self.is_on_host:
            _host.put_back(memory)


def snapshot_of(memories: Memories, writes: Sequence[int], device: torch.device) -> Snapshot:
    """`writes`: for each memory, how many writes of this rank read it. LadingError if there is no room."""
    pieces = {  # several destinations may lie in one memory (FSDP1)
        address: tensor
        for address, tensor, count in zip(memories.addresses, memories.tensors, writes, strict=True)
        if count and address[1]
    }
    places, size_bytes = _places(pieces)
    memory = _on_device(size_bytes, device)
    if memory is None:
        memory = _host.take(size_bytes, pinned=device.type == "cuda")
    for address, tensor in pieces.items():
        begin = places[address]
        memory[begin : begin + address[1]].copy_(bytes_of(tensor, tensor.device), non_blocking=True)
    wait_for(device)
    base = memory.data_ptr()
    addresses = [(base + places[one], one[1]) if one in places else (0, one[1]) for one in memories.addresses]
    copied = Memories(addresses, [memory], memories.copied_bytes)
    return Snapshot(copied, size_bytes, memory.device, memory)


def _places(pieces: Iterable[tuple[int, int]]) -> tuple[dict[tuple[int, int], int], int]:
    places, end = {}, 0
    for piece in pieces:
        places[piece] = end
        end += -(-piece[1] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, end


def _on_device(size_bytes: int, device: torch.device) -> torch.Tensor | None:
    if device.type != "cuda" or not _has_room(size_bytes, device):
        return None
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None


def _has_room(size_bytes: int, device: torch.device) -> bool:
    """Beside the most that torch has ever needed there, and a margin: the next step needs as much again."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    growth_bytes = torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
    return size_bytes + total_bytes // _MARGIN <= free_bytes - growth_bytes


class _HostMemory:
    """The host memory of the last snapshots, weights and optimizer, kept for the next ones: new memory is first cleared
    by the kernel, and pinned for a GPU, which takes longer than the copy."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._pinned: set[int] = set()  # addresses

    def take(self, size_bytes: int, *, pinned: bool) -> torch.Tensor:
        if large := [memory for memory in self._kept if memory.nbytes >= size_bytes]:
            best = min(large, key=lambda memory: memory.nbytes)
            self._kept = [memory for memory in self._kept if memory is not best]
            return best
        while self._kept:
            self._give_back(self._kept.pop())
        try:
            pages = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            message = f"there is no host memory for a snapshot of {size_bytes} bytes: {error.strerror}"
            raise LadingError(Problem("out_of_memory", message, remedy=_REMEDY), stage="planning", exit_code=5) from error
        pages.madvise(mmap.MADV_HUGEPAGE)
        pages.madvise(mmap.MADV_DONTFORK)  # no child needs a copy of it
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        if pinned and not int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)):
            self._pinned.add(memory.data_ptr())
        return memory

    def _give_back(self, memory: torch.Tensor) -> None:
        if memory.data_ptr() in self._pinned:
            self._pinned.remove(memory.data_ptr())
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())

    def put_back(self, memory: torch.Tensor) -> None:
        self._kept.append(memory)

    def forget(self) -> None:
        """In a forked child, where the memory is not mapped."""
        self._kept = []


_host = _HostMemory()
os.register_at_fork(after_in_child=_host.forget)
