"""How values that no file has get into the engine: one at a time, copied at most once, digested where they lie.

Memory of the user's that is plain (in host memory, row by row) is passed as it is. Everything else takes memory of
ours: a copy of a tensor on a GPU, what a recipe makes, what is derived. Such a value is deferred: the engine asks for
it when it writes it, and it is freed before the next one is made. Small ones are not worth the trouble. Where memory
that the model had before is written, what may yet fail is made before the first byte.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from . import _engine
from .agreement import VALUE
from .inventory_json import dtype_name

if TYPE_CHECKING:
    from .allocate import Slot
    from .host_values import HostValues

_SMALL_BYTES = 64 << 10
_MOST_SMALL_BYTES = 8 << 20  # of all small ones together


@dataclasses.dataclass(frozen=True)
class Offer:
    """A value that will be supplied. `tensor` is on meta if it has yet to be made."""

    tensor: torch.Tensor
    is_ours: bool = False  # it is there already, in memory that lading holds for it

    @property
    def is_ready(self) -> bool:
        """Whether the engine can read it where it is."""
        return is_plain(self.tensor)

    @property
    def size_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in host memory as the engine reads them."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class HandedIn:
    """Of one load, on one rank. `digests` gets that of every value, for ranks to compare."""

    def __init__(
        self, values: HostValues, slots: Sequence[Slot], names: Mapping[str, Sequence[str]], *, is_compared: bool
    ) -> None:
        self._values, self._names, self._is_compared = values, names, is_compared
        self._must_be_sure = any(slot.writes for slot in slots)
        asked = [slot.destination for slot in slots if slot.destination.provenance in ("host", "call")]
        self._calls = {one.name for one in asked if one.provenance == "call"}
        self._left = collections.Counter(one.name for one in asked)  # a tensor may have several memories
        self._small_bytes = 0
        self.digests: dict[str, str] = {}

    def planned_bytes(self) -> int:
        """The most memory that values take beside the user's own: those that are held already, all small ones, and the
        largest that is made; or what it took to gather those that are held."""
        held, small, largest = 0, 0, 0
        for name in self._left:
            try:
                offer = self._values.offered(self._names[name])
            except Exception:  # noqa: BLE001  # told when the engine asks
                continue
            size = offer.size_bytes + self._values.input_bytes(self._names[name])
            if offer.is_ready:
                held += offer.size_bytes if offer.is_ours else 0
            elif self._is_made_first(name, offer):
                held += offer.size_bytes
            elif size <= _SMALL_BYTES:
                small += size
            else:
                largest = max(largest, size)
        return held + max(min(small, _MOST_SMALL_BYTES + _SMALL_BYTES) + largest, self._values.gathering_bytes)

    def value(self, name: str, _rank: int) -> _engine.HostValue:
        """What the engine is given when it first asks."""
        if name in self._calls:
            return self._given(name, self._values.value(self._names[name]), is_brief=True)
        offer = self._values.offered(self._names[name])
        if offer.is_ready and not offer.is_ours:
            return self._given(name, offer.tensor, is_brief=False)
        is_small = offer.size_bytes <= _SMALL_BYTES and self._small_bytes <= _MOST_SMALL_BYTES
        self._small_bytes += offer.size_bytes if is_small else 0
        if is_small or self._is_made_first(name, offer):
            return self._given(name, self._values.value(self._names[name]), is_brief=False)
        return _engine.HostValue.deferred(offer.size_bytes, dtype_name(offer.tensor.dtype))

    def _is_made_first(self, name: str, offer: Offer) -> bool:
        return self._must_be_sure and offer.tensor.is_meta and name not in self._calls

    def deferred_value(self, name: str, _rank: int) -> _engine.HostValue:
        """What it is given when it writes what was deferred."""
        tensor = self._values.value(self._names[name])
        self._left[name] -= 1
        if not self._left[name]:
            self._values.release(self._names[name])
        return self._given(name, tensor, is_brief=True)

    def _given(self, name: str, tensor: torch.Tensor, *, is_brief: bool) -> _engine.HostValue:
        size_bytes = tensor.numel() * tensor.element_size()
        dtype = dtype_name(tensor.dtype)
        if self._is_compared and VALUE + name not in self.digests:
            self.digests[VALUE + name] = f"{dtype} {_engine.digest(tensor.data_ptr(), size_bytes)}"
        return _engine.HostValue(tensor.data_ptr(), size_bytes, dtype, tensor, is_brief)
