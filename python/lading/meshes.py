"""Meshes as numbers: many DeviceMeshes of one set of ranks, and the one mesh that has them all.

Slices, transposes and flattenings of a mesh have this in common: along each of their dims the ranks lie at regular
distances (`Span`). The distances of all meshes of a model, put together, are the axes of one mesh of all ranks
(`Axes`), in which every one of them is a run of neighbouring axes. It depends neither on names nor on which mesh was
made from which.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Span:
    """A dim of a mesh, or a part of it: `size` ranks, `stride` apart."""

    size: int
    stride: int


class Grid:
    """A DeviceMesh as spans of places among the ranks; or why it is none."""

    def __init__(self, mesh: Any, place_of: dict[int, int]) -> None:
        self.mesh = mesh  # as long as this lives no other mesh has its id
        self.problem = ""
        self.spans: list[tuple[Span, ...]] = []
        self.sizes: list[int] = list(mesh.mesh.shape)
        self.names: list[tuple[Span, str]] = []
        try:
            self.spans = _regular(mesh.mesh, place_of)
            self.names = _named(self.spans, mesh.mesh_dim_names)
            root = _root_of(mesh)
            self.names += _named(_regular(root.mesh, place_of), root.mesh_dim_names)
        except _IrregularError as error:
            self.problem = f"{error} (mesh {_mesh_text(mesh)})"


def line_of(ranks: Sequence[int], place_of: dict[int, int]) -> tuple[tuple[Span, ...], str]:
    """The ranks of a process group as spans, outermost first; or why they are none."""
    try:
        return _regular(torch.tensor(ranks, dtype=torch.int64), place_of)[0], ""
    except _IrregularError as error:
        return (), str(error).replace("mesh", "process group")


class _IrregularError(ValueError):
    pass


def _root_of(mesh: Any) -> Any:
    find = getattr(mesh, "_get_root_mesh", None)
    return find() if find is not None else mesh


def _mesh_text(mesh: Any) -> str:
    names = mesh.mesh_dim_names or [f"dim {place}" for place in range(mesh.ndim)]
    return ", ".join(f"{name}={size}" for name, size in zip(names, mesh.mesh.shape, strict=True))


def _named(dims: list[tuple[Span, ...]], dim_names: Sequence[str] | None) -> list[tuple[Span, str]]:
    return [(dim[0], name) for dim, name in zip(dims, dim_names or (), strict=False) if len(dim) == 1]


def _regular(ranks: torch.Tensor, place_of: dict[int, int]) -> list[tuple[Span, ...]]:
    """The dims of a mesh as spans."""
    flat = ranks.reshape(-1).tolist()
    unknown = [rank for rank in flat if rank not in place_of]
    if unknown:
        raise _IrregularError(f"its mesh has rank {unknown[0]}, which does not take part in this load; pass its group")
    places = torch.tensor([place_of[rank] for rank in flat], dtype=torch.int64).reshape(ranks.shape)
    base = int(places.reshape(-1)[0])
    expected = torch.full_like(places, base)
    dims: list[tuple[Span, ...]] = []
    for dim in range(places.ndim):
        line = places[tuple(slice(None) if other == dim else 0 for other in range(places.ndim))]
        offsets = (line - base).tolist()
        dims.append(tuple(_spans(offsets)))
        shape = [1] * places.ndim
        shape[dim] = -1
        expected = expected + (line - base).reshape(shape)
    if not torch.equal(expected, places):
        raise _IrregularError("the ranks of its mesh are in no regular order")
    return dims


def _spans(offsets: list[int]) -> Iterator[Span]:
    """Offsets from the first rank as spans, outermost first."""
    if len(offsets) == 1:
        return
    stride = offsets[1]
    run = next((place for place, offset in enumerate(offsets) if offset != place * stride), len(offsets))
    if stride <= 0 or len(offsets) % run:
        raise _IrregularError("the ranks of its mesh are in no regular order")
    outer = offsets[::run]
    if any(offsets[place] != outer[place // run] + place % run * stride for place in range(len(offsets))):
        raise _IrregularError("the ranks of its mesh are in no regular order")
    yield from _spans(outer)
    yield Span(run, stride)


@dataclasses.dataclass(frozen=True)
class _Axis:
    name: str
    size: int
    stride: int


class Axes:
    """One mesh that has every span as a run of neighbouring axes: between two strides there is one axis."""

    def __init__(self, size: int, spans: Iterable[Span], names: dict[Span, str]) -> None:
        self.size, self.problem = size, ""
        marks = {1, size}
        for span in spans:
            marks |= {span.stride, span.stride * span.size}
        marks = {mark for mark in marks if mark >= 1}
        ordered = sorted(marks)
        if any(high % low for low, high in zip(ordered, ordered[1:], strict=False)) or ordered[-1] > size:
            self.problem = "its tensors lie on meshes that do not fit into one mesh of all ranks"
            ordered = [1, size]
        steps = list(zip(ordered, ordered[1:], strict=False))[::-1]
        self.axes = [self._axis(place, low, high // low, names) for place, (low, high) in enumerate(steps)]
        self._has_lonely = False

    def _axis(self, place: int, stride: int, size: int, names: dict[Span, str]) -> _Axis:
        wanted = re.sub(r"[^A-Za-z0-9_-]", "_", names.get(Span(size, stride), "")) or f"axis{place}"
        others = [name for span, name in names.items() if span != Span(size, stride)]
        return _Axis(wanted if wanted not in others else f"{wanted}_{place}", size, stride)

    def names_of(self, spans: Iterable[Span]) -> list[str]:
        """The axes of these spans, outermost first."""
        found = []
        for span in spans:
            found += [axis.name for axis in self.axes if span.stride <= axis.stride < span.stride * span.size]
        return found

    def lonely(self) -> str:
        """An axis of one rank, for an FSDP2 unit that is not really sharded. Rank numbers do not change by it."""
        if not self._has_lonely:
            self.axes.append(_Axis("alone", 1, 1))
            self._has_lonely = True
        return "alone"

    def owner_cut(self, held: set[int]) -> list[dict[str, Any]]:
        """Only these ranks have the tensor: said of the axes that it depends on."""
        if len(held) == self.size:
            return []
        decisive = [axis for axis in self.axes if axis.size > 1 and not self._is_indifferent(axis, held)]
        indices = set()
        for rank in held:
            index = 0
            for axis in decisive:
                index = index * axis.size + rank // axis.stride % axis.size
            indices.add(index)
        return [{"owner": sorted(indices), "axes": [axis.name for axis in decisive]}]

    @staticmethod
    def _is_indifferent(axis: _Axis, held: set[int]) -> bool:
        """Whether a rank that has it has neighbours along the axis that have it too."""
        for rank in held:
            first = rank - rank // axis.stride % axis.size * axis.stride
            if any(first + step * axis.stride not in held for step in range(axis.size)):
                return False
        return True
