"""How a model is shared out, read off the tensors themselves, as the engine's layout document (docs/schema/layout.md).

    placements = read_placements(take_inventory(model), ranks=range(4), modules=model.modules())
    placements.layout.document(devices=["cpu"] * 4)

A DTensor says on which mesh and by which placements it lies; FSDP2's state says which parameters are gathered
together; a partition of ZeRO-3 says which ranks have the others. Several meshes may be in one model: meshes.py finds
what they have in common. Nothing here computes which elements a rank has: that is the engine's.

Facts only. What cannot be expressed is a problem by name; all of them are collected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import zero3
from .errors import Problem
from .fsdp1 import FlatMember
from .inventory import ATTRIBUTE, BUFFER, NON_PERSISTENT, PARAMETER, Entry, _class_names, is_sharded
from .meshes import ASCENDING, Axes, Grid, Span, disorder, line_of
from .private_names import check, needed

SCHEMA = "lading.layout/1"


@dataclasses.dataclass(frozen=True)
class Cut:
    """One step of sharing out, over a dim of a mesh, which may be several spans (a flattened mesh), outermost first."""

    dim: int | None  # None: the tensor is flattened, and padded to a multiple
    spans: tuple[Span, ...]
    split_factor: int | None = None
    pad_multiple: int | None = None  # None: of the number of ranks
    flat_group: tuple[str, int, int] | None = None  # FSDP1: a buffer's name, where the tensor begins, its elements

    def to_json(self) -> list[Any]:
        spans = [[span.size, span.stride] for span in self.spans]
        return [self.dim, spans, self.split_factor, self.pad_multiple, self.flat_group]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Cut:
        dim, spans, factor, multiple, group = fields
        return cls(dim, tuple(Span(*span) for span in spans), factor, multiple, tuple(group) if group else None)


@dataclasses.dataclass
class Unit:
    """What FSDP2 gathers by one call."""

    name: str
    shard_dims: dict[int, int]  # of each parameter, by id
    shard_ranks: dict[int, list[int]]  # the ranks of the group that shards and gathers it, in their order there
    device: torch.device | None
    is_offloaded: bool
    pins_memory: bool
    members: list[Any]  # torch's FSDPParam objects


@dataclasses.dataclass(frozen=True)
class Spot:
    """How one name is shared out, without the tensor: what ranks tell each other."""

    cuts: tuple[Cut, ...] = ()
    unit: str = ""
    is_offloaded: bool = False
    slots: tuple[tuple[str, tuple[Cut, ...]], ...] = ()  # further memories of it, by name

    def all_cuts(self) -> Iterator[Cut]:
        yield from self.cuts
        for _, cuts in self.slots:
            yield from cuts

    def to_json(self) -> list[Any]:
        slots = [[name, [cut.to_json() for cut in cuts]] for name, cuts in self.slots]
        return [[cut.to_json() for cut in self.cuts], self.unit, self.is_offloaded, slots]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Spot:
        cuts, unit, is_offloaded, slots = fields
        further = tuple((name, tuple(map(Cut.from_json, of_slot))) for name, of_slot in slots)
        return cls(tuple(map(Cut.from_json, cuts)), unit, is_offloaded, further)


def layout_problem(tensor: str, message: str, rule: str = "", remedy: str = "") -> Problem:
    """Something about a tensor that no layout can say."""
    return Problem("layout", message, tensor=tensor or None, rule=rule, remedy=remedy)


class Layout:
    """How the names of a model are shared out over `size` ranks. `holders`: the ranks that have a name, if not all."""

    def __init__(
        self,
        size: int,
        spots: dict[str, Spot],
        names: dict[Span, str],
        holders: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.size, self.spots, self.names = size, spots, names
        self.holders = holders or {}
        self.axes = Axes(
            size, [span for spot in spots.values() for cut in spot.all_cuts() for span in cut.spans], names
        )

    def leave_on_cpu(self, names: Iterable[str]) -> None:
        for name in names:
            self.spots[name] = dataclasses.replace(self.spots[name], is_offloaded=True)

    def document(self, devices: Sequence[str]) -> dict[str, Any]:
        """The layout document; `devices` has one device per rank."""
        rules = [rule for name, spot in sorted(self.spots.items()) if (rule := self._rule(name, spot)) is not None]
        return {
            "schema": SCHEMA,
            "mesh": [{"name": axis.name, "size": axis.size} for axis in self.axes.axes],
            "devices": "cpu" if set(devices) <= {"cpu"} else list(devices),
            "rules": rules,
        }

    def _rule(self, name: str, spot: Spot) -> dict[str, Any] | None:
        owners = self.axes.owner_cut(set(self.holders.get(name, range(self.size))))
        cuts = owners + self._cuts(spot.cuts, is_unit=bool(spot.unit))
        rule: dict[str, Any] = {"name": name}
        if cuts:
            rule["cuts"] = cuts
        if spot.slots:
            rule["slots"] = {slot: owners + self._cuts(of_slot) for slot, of_slot in spot.slots}
        if spot.unit:
            rule["fsdp_group"] = spot.unit
        if spot.is_offloaded:
            rule["device"] = "cpu"
        return rule if len(rule) > 1 else None

    def _cuts(self, cuts: Sequence[Cut], *, is_unit: bool = False) -> list[dict[str, Any]]:
        documents: list[dict[str, Any]] = []
        for cut in cuts:
            axes = self.axes.names_of(cut.spans)
            if not axes and (cut.dim is None or (is_unit and cut is cuts[-1])):
                axes = [self.axes.lonely()]
            if not axes:
                continue
            if cut.flat_group is not None:
                unit, offset, elems = cut.flat_group
                documents.append({"flat_group": {"unit": unit, "offset": offset, "elems": elems}, "axes": axes})
            elif cut.dim is None:
                flat = {} if cut.pad_multiple is None else {"pad_multiple": cut.pad_multiple}
                documents.append({"flat": flat, "axes": axes})
            elif cut.split_factor is None:
                documents.append({"shard": cut.dim, "axes": axes})
            else:
                documents.append({"strided_shard": cut.dim, "split_factor": cut.split_factor, "axes": axes})
        return documents


@dataclasses.dataclass
class Placements:
    """What was read off a model. `problems` are to be told before `layout` is used."""

    layout: Layout
    units: list[Unit]
    problems: list[Problem]


def read_placements(
    entries: Iterable[Entry], ranks: Sequence[int] = (0,), modules: Iterable[nn.Module] = ()
) -> Placements:
    """The placements of these entries over the global `ranks`. `modules` are asked for FSDP2's state."""
    place_of = {rank: place for place, rank in enumerate(ranks)}
    problems: list[Problem] = []
    entries = [entry for entry in entries if entry.is_tensor]
    units = find_units(modules, entries)
    unit_of = {key: unit for unit in units for key in unit.shard_dims}
    names: dict[Span, str] = {}
    spots: dict[str, Spot] = {}
    grids: dict[int, Grid] = {}
    for entry in entries:
        unit = unit_of.get(id(entry.value))
        refusal = _unsupported(entry)
        if refusal:
            problems.append(layout_problem(entry.name, refusal))
        if zero3.is_partitioned(entry.value):
            spots[entry.name] = _zero3_spot(entry, place_of, problems)
            continue
        if isinstance(entry.value, FlatMember):
            spots[entry.name] = _fsdp1_spot(entry.name, entry.value, place_of, problems)
            continue
        cuts: list[Cut] = []
        if is_dtensor(entry.value):
            mesh = entry.value.device_mesh
            grid = grids.get(id(mesh)) or grids.setdefault(id(mesh), Grid(mesh, place_of))
            if grid.problem:
                problems.append(layout_problem(entry.name, grid.problem, "R43", grid.remedy))
                continue
            for span, name in grid.names:
                names.setdefault(span, name)
            cuts = _physical_cuts(entry, unit, grid, problems)
        spots[entry.name] = Spot(
            tuple(cuts), unit.name if unit is not None else "", unit is not None and unit.is_offloaded
        )
    problems += _lost_views(entries)
    if any(unit.is_offloaded and unit.pins_memory for unit in units) and not torch.accelerator.is_available():
        message = "CPUOffloadPolicy asks for pinned memory, but torch finds no accelerator"
        problems.append(layout_problem("", message, "R36", "Pass CPUOffloadPolicy(pin_memory=False)."))
    layout = Layout(len(place_of), spots, names)
    if layout.axes.problem:
        problems.append(
            layout_problem("", layout.axes.problem, "R43", "Build all meshes of one model from one DeviceMesh.")
        )
    return Placements(layout, units, problems)


def is_dtensor(value: Any) -> bool:
    return hasattr(value, "_local_tensor") and hasattr(value, "device_mesh")


def is_elsewhere(value: Any) -> bool:
    """Whether its mesh does not have this rank, which then holds nothing of it."""
    return is_dtensor(value) and value.device_mesh.get_coordinate() is None


def local_of(value: torch.Tensor) -> torch.Tensor:
    """This rank's part: of a plain tensor the tensor itself, of one in an FSDP1 unit the unit's."""
    if isinstance(value, FlatMember):
        return value.unit.memory
    return value._local_tensor if is_dtensor(value) else value


def is_foreign(entry: Entry) -> bool:
    """A tensor that is not plain memory (sparse, a subclass), is real, and in no file: it is left alone."""
    return (
        entry.is_tensor
        and entry.kind in (NON_PERSISTENT, ATTRIBUTE)
        and not entry.is_meta
        and not is_memory(entry.value)
    )


def is_memory(value: torch.Tensor) -> bool:
    """Whether this rank's part is plain memory: neither sparse nor a subclass made of other tensors."""
    local = local_of(value)
    return local.layout is torch.strided and type(local).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def _unsupported(entry: Entry) -> str:
    if isinstance(entry.value, FlatMember):
        return entry.value.problem
    if not is_memory(entry.value):
        local = local_of(entry.value)
        return f"lading cannot fill a {type(local).__name__} of layout {local.layout}: it is not plain memory"
    return ""


def _lost_views(entries: Iterable[Entry]) -> Iterator[Problem]:
    """Tensors on meta that were a parameter's memory before it was sharded, and hang in the air since. One that was tied
    to it has a key of its own: only what was recorded of it does not count."""
    sharded = {one.recorded.cell: one for one in entries if one.recorded is not None and is_sharded(one.value)}
    for entry in entries:
        if entry.recorded is None or not entry.is_meta or is_sharded(entry.value):
            continue
        other = sharded.get(entry.recorded.cell)
        if other is None:
            continue
        message = f"the tensor shared memory with {other.name}, which has since been sharded"
        if entry.kind in (PARAMETER, BUFFER) and entry.recorded.is_same_view(other.recorded):
            entry.problem = entry.problem or message
        else:
            yield layout_problem(entry.name, message, "R52", "Shard both tensors, or compute this one in a property of the module.")


# ---- cuts of one tensor


def _physical_cuts(entry: Entry, unit: Unit | None, grid: Grid, problems: list[Problem]) -> list[Cut]:
    """The cuts in the order in which memory was shared out (R54).

    DTensor applies placements from left to right, or as `shard_order` says. `_StridedShard` with another cut of the
    same dim to its right stands for one that comes after those, which is how FSDP2 over tensor parallelism is; alone
    it is a strided cut. A cut over a single rank is none.
    """
    tensor = entry.value
    placements = tensor.placements
    shards = {
        place: one for place, one in enumerate(placements) if one.is_shard() or type(one).__name__ == "_StridedShard"
    }
    for one in placements:
        if one.is_partial():
            problems.append(
                layout_problem(entry.name, f"placements {placements} include Partial: it cannot be loaded", "R43",
                               "Redistribute it to Replicate or Shard.")
            )
        elif not one.is_replicate() and not any(one is shard for shard in shards.values()):
            problems.append(layout_problem(entry.name, f"lading does not support the placement {one}", "R43",
                                           "Use Replicate or Shard."))
    order = _left_to_right(tensor, shards)
    late: list[int] = []
    cuts: list[tuple[int, Cut]] = []
    for text in _disorders(entry, unit, grid, order):
        problems.append(layout_problem(entry.name, text, "R43", ASCENDING))
    for place in order:
        one, dim = shards[place], shards[place].dim % max(1, tensor.dim())
        inside = [
            other
            for other in order
            if other > place and grid.sizes[other] > 1 and shards[other].dim % max(1, tensor.dim()) == dim
        ]
        factor = getattr(one, "split_factor", None) if type(one).__name__ == "_StridedShard" else None
        if factor is not None and inside:
            parts = 1
            for other in inside:
                parts *= grid.sizes[other]
            text = ""
            last = inside[-1]
            is_own = unit is not None and grid.lines[place] == unit.shard_ranks[id(entry.value)]
            is_cut = grid.sizes[place] > 1
            if is_cut and not is_own and getattr(shards[last], "split_factor", 1) != 1:
                text = f"placements {placements} end with a strided cut of dim {dim}: torch itself cannot gather them"
            elif parts != factor and is_cut:
                text = (
                    f"the placements {placements} are strided by {factor}, but the cuts to the right make {parts} parts"
                )
            if text:
                remedy = "Shard the dim over one mesh dim, or use fully_shard over tensor parallelism."
                problems.append(layout_problem(entry.name, text, "R54", remedy))
            late.append(place)
            factor = None
        cuts.append((place, Cut(dim, grid.spans[place], factor if factor != 1 else None)))
    first = [cut for place, cut in cuts if place not in late]
    last = [cut for place, cut in reversed(cuts) if place in late]
    return _unit_last(entry, unit, first + last)


def _disorders(entry: Entry, unit: Unit | None, grid: Grid, order: Sequence[int]) -> Iterator[str]:
    """Dims of the mesh whose process groups have another order of ranks: the groups' or FSDP2's own."""
    found = [grid.disorder[place] for place in order if place in grid.disorder]
    yield from found
    group = unit.shard_ranks[id(entry.value)] if unit is not None else []
    lines = [grid.lines[place] for place in order]
    if group and group not in lines and not found:
        line = next((line for line in lines if set(line) == set(group)), lines[0] if lines else [])
        yield disorder("FSDP2", line, group)


def _left_to_right(tensor: Any, shards: dict[int, Any]) -> list[int]:
    stated = needed(tensor._spec, "shard_order", "torch")
    if not stated or any(type(one).__name__ == "_StridedShard" for one in shards.values()):
        return sorted(shards)
    order = [place for entry in stated for place in entry.mesh_dims]
    return order if sorted(order) == sorted(shards) else sorted(shards)


def _unit_last(entry: Entry, unit: Unit | None, cuts: list[Cut]) -> list[Cut]:
    """FSDP2's own cut is the last (docs/schema/layout.md); cuts of different dims may change places."""
    dim = unit.shard_dims[id(entry.value)] if unit is not None else None
    ours = [cut for cut in cuts if cut.dim == dim]
    if not ours:
        return cuts
    return [cut for cut in cuts if cut is not ours[-1]] + [ours[-1]]


# ---- ZeRO-3


def _zero3_spot(entry: Entry, place_of: dict[int, int], problems: list[Problem]) -> Spot:
    """Flat cuts: the partition, and the further memories of the same parameter as slots."""
    message, remedy = zero3.refusal(entry.value)
    if message:
        problems.append(layout_problem(entry.name, message, "R13", remedy))
        return Spot()
    cuts: dict[str, tuple[Cut, ...]] = {}
    for memory in zero3.memories(entry.value):
        if memory.ranks is None:
            cuts[memory.slot] = ()
            continue
        spans, problem, remedy = line_of(memory.ranks, place_of)
        if problem:
            problems.append(layout_problem(entry.name, problem, "R43", remedy))
            return Spot()
        cuts[memory.slot] = (Cut(None, spans, pad_multiple=memory.pad_multiple),)
    partition = cuts.pop(zero3.PARTITION)
    return Spot(partition, "", zero3.is_offloaded(entry.value), tuple(cuts.items()))


# ---- FSDP1


def _fsdp1_spot(name: str, member: FlatMember, place_of: dict[int, int], problems: list[Problem]) -> Spot:
    spans, problem, remedy = line_of(member.unit.ranks(place_of), place_of)
    if problem:
        problems.append(layout_problem(name, problem, "R43", remedy))
    group = (member.unit.name, member.offset, member.unit.elems)
    return Spot((Cut(None, spans, flat_group=group),), "", member.unit.is_offloaded)


# ---- FSDP2


def fsdp_states(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, list[Any]]]:
    """Modules that `fully_shard` was called on, each with its parameter groups. LibraryError if torch has no state of
    theirs where it should be: a unit that is not found would be loaded as if it were no unit."""
    seen = set()
    for module in modules:
        if "FSDPModule" not in _class_names(module):
            continue
        check("torch", "FSDP2")
        state = module._get_fsdp_state()  # type: ignore[operator]
        if id(state) in seen:
            continue
        seen.add(id(state))
        if hasattr(state, "_fsdp_param_groups"):
            groups = list(state._fsdp_param_groups)
        else:  # before torch 2.12 a state had one at most
            single = needed(state, "_fsdp_param_group", "torch")
            groups = [] if single is None else [single]
        yield module, groups


def _shard_ranks(member: Any, group: Any) -> list[int]:
    info = getattr(member, "mesh_info", None) or group.mesh_info
    process_group = getattr(info, "shard_process_group", None)  # none where FSDP2 only replicates
    return [] if process_group is None else dist.get_process_group_ranks(process_group)


def find_units(modules: Iterable[nn.Module], entries: Iterable[Entry]) -> list[Unit]:
    """FSDP2's parameter groups, each named by the first of its parameters."""
    names: dict[int, str] = {}
    for entry in entries:
        names.setdefault(id(entry.value), entry.name)
    units = []
    for _, groups in fsdp_states(modules):
        for group in groups:
            members = [member for member in needed(group, "fsdp_params", "torch") if id(member.sharded_param) in names]
            if not members:
                continue
            policy = needed(group, "offload_policy", "torch")
            units.append(
                Unit(
                    name=min(names[id(member.sharded_param)] for member in members),
                    shard_dims={id(member.sharded_param): member.fsdp_placement.dim for member in members},
                    shard_ranks={id(member.sharded_param): _shard_ranks(member, group) for member in members},
                    device=needed(group, "device", "torch"),
                    is_offloaded=type(policy).__name__ == "CPUOffloadPolicy",
                    pins_memory=bool(getattr(policy, "pin_memory", False)),
                    members=members,
                )
            )
    return units
