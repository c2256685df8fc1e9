"""Meshes as numbers: many DeviceMeshes of one set of ranks, and the one mesh that has them all.

Slices, transposes and flattenings of a mesh have this in common: along each of their dims the ranks lie at regular
distances (`Span`). The distances of all meshes of a model, put together, are the axes of one mesh of all ranks
(`Axes`), in which every one of them is a run of neighbouring axes. It depends neither on names nor on which mesh was
made from which.

A dim of a mesh has a process group, and that sorts its ranks. FSDP2 shards and gathers by the rank in the group,
`full_tensor()` and `distribute_tensor` partly by that and partly by the coordinate in the mesh: where the two orders
differ, torch disagrees with itself, and nothing is loaded. Meshes that are equal may have different groups, and torch
takes one for the other. So a dim must have its ranks ascending, as a group has them, and FSDP2's own group counts too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .private_names import needed

ASCENDING = "Build every mesh and process group of the model with its ranks in ascending order, at regular distances."


@dataclasses.dataclass(frozen=True)
class Span:
    """A dim of a mesh, or a part of it: `size` ranks, `stride` apart."""

    size: int
    stride: int

    def line(self, rank: int) -> list[int]:
        """The ranks along it, of which `rank` is one."""
        first = rank - rank // self.stride % self.size * self.stride
        return [first + step * self.stride for step in range(self.size)]


class Grid:
    """A DeviceMesh as spans of places among the ranks; or why it is none."""

    def __init__(self, mesh: Any, place_of: dict[int, int]) -> None:
        self.mesh = mesh  # as long as this lives no other mesh has its id
        self.problem, self.remedy = "", ""
        self.spans: list[tuple[Span, ...]] = []
        self.sizes: list[int] = list(mesh.mesh.shape)
        self.names: list[tuple[Span, str]] = []
        self.lines: list[list[int]] = [_line(mesh, dim) for dim in range(mesh.ndim)]
        self.disorder: dict[int, str] = {}  # by dim: why it cannot shard anything
        try:
            self.spans = _regular(mesh.mesh, place_of)
            self.names = _named(self.spans, mesh.mesh_dim_names)
            root = _root_of(mesh)
            self.names += _named(_regular(root.mesh, place_of), root.mesh_dim_names)
            self.disorder = {dim: text for dim in range(mesh.ndim) if (text := self._disorder(dim))}
        except _IrregularError as error:
            self.problem, self.remedy = f"{error} (mesh {_mesh_text(mesh)})", error.remedy

    def _disorder(self, dim: int) -> str:
        line = self.lines[dim]
        if not line:
            return ""  # the ranks of the mesh find out
        try:
            group = dist.get_process_group_ranks(self.mesh.get_group(dim))
        except (RuntimeError, ValueError, KeyError, IndexError):  # a mesh that was made without groups
            group = sorted(line)
        names = self.mesh.mesh_dim_names
        return "" if line == group == sorted(line) else disorder(names[dim] if names else f"dim {dim}", line, group)


def _line(mesh: Any, dim: int) -> list[int]:
    """The ranks along a dim that this rank is on; none if it is not in the mesh."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    place = tuple(slice(None) if other == dim else index for other, index in enumerate(coordinate))
    line: list[int] = mesh.mesh[place].tolist()
    return line


def disorder(name: str, line: Sequence[int], group: Sequence[int]) -> str:
    """Why torch would not agree with itself on which part of a tensor a rank has."""
    text = f"the tensor's mesh ({name}) has its ranks in the order {list(line)}"
    return f"{text}, and a process group in the order {list(group)}" if list(line) != list(group) else text


def line_of(ranks: Sequence[int], place_of: dict[int, int]) -> tuple[tuple[Span, ...], str, str]:
    """The ranks of a process group as spans, outermost first; or why they are none, and what to do."""
    try:
        return _regular(torch.tensor(ranks, dtype=torch.int64), place_of)[0], "", ""
    except _IrregularError as error:
        return (), str(error).replace("mesh", "process group"), error.remedy


class _IrregularError(ValueError):
    def __init__(self, message: str, remedy: str = ASCENDING) -> None:
        super().__init__(message)
        self.remedy = remedy


def _root_of(mesh: Any) -> Any:
    return needed(mesh, "_get_root_mesh", "torch")()


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
        message = f"the tensor's mesh has rank {unknown[0]}, which does not take part in this call"
        raise _IrregularError(message, "Make the call on all ranks of the mesh, with a group that contains them.")
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
        raise _IrregularError("the ranks of the tensor's mesh have no regular order")
    if any(base // span.stride % span.size for dim in dims for span in dim):
        message = f"the tensor's mesh begins at rank {flat[0]}, in the middle of a row of a mesh of all ranks"
        raise _IrregularError(message, "Build the mesh as a slice of one DeviceMesh of all ranks.")
    return dims


def _spans(offsets: list[int]) -> Iterator[Span]:
    """Offsets from the first rank as spans, outermost first."""
    if len(offsets) == 1:
        return
    stride = offsets[1]
    run = next((place for place, offset in enumerate(offsets) if offset != place * stride), len(offsets))
    if stride <= 0 or len(offsets) % run:
        raise _IrregularError("the ranks of the tensor's mesh have no regular order")
    outer = offsets[::run]
    if any(offsets[place] != outer[place // run] + place % run * stride for place in range(len(offsets))):
        raise _IrregularError("the ranks of the tensor's mesh have no regular order")
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
            self.problem = "the model's tensors are on meshes that do not fit into one mesh of all ranks"
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
        return all(held.issuperset(Span(axis.size, axis.stride).line(rank)) for rank in held)
