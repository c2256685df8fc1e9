"""What a model holds: every tensor of every kind, by its canonical name.

    for entry in lading.take_inventory(model):
        print(entry.name, entry.kind, entry.shape, entry.is_meta)

Parameters, persistent and non-persistent buffers, tensors that hang on a module without being registered (an LSTM's
`_flat_weights`, a codec's paddings) and `_extra_state`. Names are listed without removing duplicates, storages are
compared (R9): two names of one tensor are two entries of one tie class. Wrappers (compile, FSDP1, DDP, activation
checkpointing) leave no trace in names. `model` may be a list of parts. Nothing is changed but the keys of random ops
that tensors share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .fsdp1 import FlatMember, flat_members, is_flat_buffer
from .recipes import Initializer, recipe_of_operand
from .overlap import byte_extent
from .private_names import check_model
from .reach import attributes
from .recording import Operand, SkeletonError, is_dense
from .replay import Seeds, slice_of, value_of
from .watch import GIVEN_MEMORY, record_of, record_of_sharded, why_lost

PARAMETER, BUFFER, NON_PERSISTENT, ATTRIBUTE, EXTRA_STATE = (
    "parameter",
    "buffer",
    "non_persistent_buffer",
    "attribute",
    "extra_state",
)
_SEEDED = (
    "its constructor seeds the process's random numbers (torch.manual_seed), which no recording follows; a "
    "torch.Generator of its own would be followed"
)
_KINDS = (PARAMETER, BUFFER, NON_PERSISTENT, ATTRIBUTE, EXTRA_STATE)

# Names that only a wrapper gives to the module that it wraps, and the wrappers that use a name which others use too.
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_MODULE_WRAPPERS = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "PipelineEngine"}
_WRAPPERS = _MODULE_WRAPPERS | {"OptimizedModule", "CheckpointWrapper", "OffloadWrapper", "FullyShardedDataParallel"}


@dataclasses.dataclass(eq=False)
class Entry:
    """One name. `value` is the tensor, or what `get_extra_state()` gave."""

    name: str
    kind: str
    module: nn.Module
    attribute: str  # the name within the module; for lists and dicts such as "_flat_weights[0]"
    value: Any
    tie_class: int | None = None  # entries with one number are one tensor
    view_of: str | None = None  # an entry whose storage this one is another view of
    recorded: Operand | None = None  # as the constructor left it
    problem: str = ""  # why what was recorded does not count
    random_name: str = ""  # what random values are keyed by: the first registered name of the tie class

    @functools.cached_property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """Global, before sharding."""
        shape = getattr(self.value, "ds_shape", None)
        return tuple(self.value.shape if shape is None else shape)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._held.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self._held.device
        return device

    @property
    def _held(self) -> Any:
        """What has the values: of ZeRO-3 the partition, which may be elsewhere than what is gathered."""
        partition = getattr(self.value, "ds_tensor", None)
        return self.value if partition is None else partition

    @property
    def requires_grad(self) -> bool:
        return self.is_tensor and self.value.requires_grad

    @property
    def is_meta(self) -> bool:
        return self.is_tensor and self.value.device.type == "meta"

    @property
    def presence(self) -> str:
        """`meta`, `real`, or `empty`: memory of fixed dtype without a value yet (ZeRO-3, FSDP1)."""
        if self.is_meta:
            return "meta"
        if isinstance(self.value, FlatMember):
            was_meta = self.recorded is not None or self.value.is_empty  # when FSDP1 made its buffers
            return "empty" if was_meta and not self.value.unit.is_filled else "real"
        return "empty" if hasattr(self.value, "ds_shape") else "real"

    @property
    def is_real(self) -> bool:
        return self.presence == "real"

    def recipe(self) -> Initializer | None:
        """How to make the recorded value, or None if there is none."""
        return recipe_of_operand(self.recorded) if self.recorded is not None and not self.problem else None

    def is_random(self) -> bool:
        return (
            self.recorded is not None
            and self.recorded.version is not None
            and any(op.random for op in slice_of(self.recorded.version))
        )

    def derive(self, seed: int = 0) -> torch.Tensor:
        """The recorded value, on the CPU. The same for every name of a tie class, whatever it is sharded like."""
        if self.problem:
            raise SkeletonError("written_later", self.problem, tensor=self.name)
        if self.recorded is None:
            raise SkeletonError("unrecorded", "it was not created under lading.skeleton()", tensor=self.name)
        try:
            return value_of(self.recorded, Seeds(seed, self.random_name or self.name))
        except SkeletonError as error:
            raise error.at(self.name) from error.__cause__


def parts_of(model: Any) -> list[nn.Module]:
    """A model, or a model in parts, as a list of modules. Or TypeError."""
    parts = [model] if isinstance(model, nn.Module) else list(model) if isinstance(model, list | tuple) else []
    if not parts or not all(isinstance(part, nn.Module) for part in parts):
        raise TypeError(f"model should be a torch.nn.Module or a list of them, but is a {type(model).__name__}")
    return parts


def take_inventory(
    model: nn.Module | Sequence[nn.Module], problems: list[SkeletonError] | None = None
) -> list[Entry]:
    """Every tensor of a model, or of its parts, sorted by name.

        for entry in lading.take_inventory(model):
            print(entry.name, entry.kind, entry.shape)

    A tensor that cannot be listed raises SkeletonError; with a list `problems` it is left out, and the error added.
    """
    entries: dict[str, Entry] = {}
    for part in parts_of(model):
        for entry in _entries(part):
            known = entries.setdefault(entry.name, entry)
            if known is not entry and known.value is not entry.value:
                text = "two different tensors of the model have this name"
                _tell(SkeletonError("duplicate_name", text, tensor=entry.name), problems)
    unlisted = [error for name, entry in sorted(entries.items()) if (error := _why_not_listed(name, entry))]
    for error in unlisted:
        _tell(error, problems)
    found = [entries[name] for name in sorted(set(entries) - {error.tensor for error in unlisted})]
    check_model((), (entry.value for entry in found))
    for entry in found:
        _find_record(entry)
    _share_records(found)
    _tie(found)
    _share_random_ops(found)
    return found


def _why_not_listed(name: str, entry: Entry) -> SkeletonError | None:
    if not entry.is_tensor:
        return None
    if nn.parameter.is_lazy(entry.value):
        return SkeletonError("lazy", "the shape is unknown before the first forward pass", tensor=name)
    if entry.value.is_nested:
        text = "the tensor is nested, and has no plain memory to fill"
        return SkeletonError("nested", text, tensor=name)
    return None


def _tell(error: SkeletonError, problems: list[SkeletonError] | None) -> None:
    if problems is None:
        raise error
    problems.append(error)


def canonical_modules(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module under every name that it has. A wrapper comes under the name of what it wraps."""
    found: list[tuple[str, nn.Module]] = []
    above: set[int] = set()

    def walk(prefix: str, module: nn.Module) -> None:
        found.append((prefix, module))
        if not module._modules:
            return
        above.add(id(module))
        for name, child in module._modules.items():
            if child is not None and id(child) not in above:  # in a cycle every name of it was seen
                walk(prefix if is_wrapped(module, name) else f"{prefix}.{name}" if prefix else name, child)
        above.remove(id(module))

    walk("", root)
    return found


def is_wrapped(parent: nn.Module, name: str) -> bool:
    """Whether the child of this name is what the parent is only a wrapper of."""
    return name in _WRAPPED or (name == "module" and _class_names(parent) & _MODULE_WRAPPERS != set())


def _class_names(module: nn.Module) -> frozenset[str]:
    return _names_of(type(module))


@functools.lru_cache(maxsize=4096)
def _names_of(cls: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in cls.__mro__)


def _entries(root: nn.Module) -> Iterator[Entry]:
    modules = canonical_modules(root)
    check_model(module for _, module in modules)
    yield from (Entry(*held) for held in _held(modules))
    for prefix, module in modules:
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            dot = f"{prefix}." if prefix else ""
            try:
                state = module.get_extra_state()
            except Exception as error:
                text = f"its get_extra_state failed: {type(error).__name__}: {error}"
                raise SkeletonError("extra_state", text, tensor=dot + "_extra_state") from error
            yield Entry(dot + "_extra_state", EXTRA_STATE, module, "_extra_state", state)


def tensors_of(modules: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of these modules of a model with its canonical name, as an inventory lists them."""
    return ((name, tensor) for name, _, _, _, tensor in _held(modules))


def _held(modules: Sequence[tuple[str, nn.Module]]) -> Iterator[tuple[str, str, nn.Module, str, torch.Tensor]]:
    """Name, kind, module, name in the module, and tensor."""
    flat = flat_members(modules)
    for prefix, module in modules:
        dot = f"{prefix}." if prefix else ""
        own = {name: member for (owner, name), member in flat.items() if owner == id(module)} if flat else {}
        for name, member in own.items():
            yield dot + name, PARAMETER, module, name, member
        for name, parameter in module._parameters.items():
            if parameter is not None and name not in own and not is_flat_buffer(parameter):
                yield dot + name, PARAMETER, module, name, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None:
                kind = NON_PERSISTENT if name in module._non_persistent_buffers_set else BUFFER
                yield dot + name, kind, module, name, buffer
        if not _class_names(module) & _WRAPPERS:
            for name, tensor in attributes(module):
                # DeepSpeed's modules know parameters of other modules
                if name not in own and not hasattr(tensor, "ds_id") and not (own and _is_of_fsdp1(tensor, module, own)):
                    yield dot + name, ATTRIBUTE, module, name, tensor


def _is_of_fsdp1(tensor: torch.Tensor, module: nn.Module, members: Mapping[str, FlatMember]) -> bool:
    """Whether it is another name of a parameter that FSDP1 took, as in an RNN's list of weights: the parameter that it
    left, a view of its shard, or a view of what it gathered, whose storage it has resized to nothing since."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        return False
    if any(tensor is module._parameters.get(name) for name in members):
        return True
    storage = tensor.untyped_storage()
    shards = {member.unit.memory.untyped_storage()._cdata for member in members.values()}
    return storage._cdata in shards or storage.nbytes() < byte_extent(tensor)[1]


def _find_record(entry: Entry) -> None:
    """The record hangs on the storage. Of a tensor that was sharded it is that of the tensor it was made of."""
    if not entry.is_tensor:
        return
    record = record_of(entry.value)
    if record is None and is_sharded(entry.value):
        record = record_of_sharded(entry.module, entry.attribute, entry.value)
        if record is not None and tuple(record.operand.size) != entry.shape:
            return
    if record is not None:
        entry.recorded, entry.problem = record.operand, record.problem
        if not entry.problem and entry.kind in (NON_PERSISTENT, ATTRIBUTE) and _is_seeded(record.operand):
            entry.problem = _SEEDED
    elif entry.is_meta:
        entry.problem = why_lost(entry.value)


def _is_seeded(operand: Operand) -> bool:
    return operand.version is not None and any(op.seeded for op in slice_of(operand.version))


def _share_records(entries: Sequence[Entry]) -> None:
    """One object has one record, whichever of its names it was found by: an LSTM lists its parameters once more."""
    known = {id(entry.value): entry for entry in entries if entry.recorded is not None}
    for entry in entries:
        if entry.is_tensor and entry.recorded is None and id(entry.value) in known:
            entry.recorded, entry.problem = known[id(entry.value)].recorded, known[id(entry.value)].problem


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether FSDP1, FSDP2, tensor parallelism or ZeRO-3 has it."""
    return isinstance(tensor, FlatMember) or hasattr(tensor, "device_mesh") or hasattr(tensor, "ds_shape")


def _tie(entries: Iterable[Entry]) -> None:
    """One object, or one view of one storage, is one tensor. Other views are noted, with the largest."""
    classes: dict[Any, list[Entry]] = {}
    by_storage: dict[Any, list[Entry]] = {}
    by_object: dict[int, Any] = {}  # one object is one tensor, whatever was recorded of it
    for entry in entries:
        if entry.is_tensor:
            identity = by_object.setdefault(id(entry.value), _identity(entry))
            classes.setdefault(identity, []).append(entry)
    for members in classes.values():
        storage = _storage(members[0])
        if storage is not None:
            by_storage.setdefault(storage, []).append(members[0])
    for number, members in enumerate(members for members in classes.values() if len(members) > 1):
        for entry in members:
            entry.tie_class = number
    for members in classes.values():
        registered = (entry.name for entry in members if entry.kind not in (ATTRIBUTE, EXTRA_STATE))
        random_name = next(registered, members[0].name)  # as the engine keys them: sharding may lose an attribute
        for entry in members:
            entry.random_name = random_name
    for sharers in by_storage.values():
        if len(sharers) > 1:
            _note_views(sharers, {id(members[0]): members for members in classes.values()})


def _note_views(sharers: list[Entry], classes: dict[int, list[Entry]]) -> None:
    """A tensor that another one contains comes with it. One that no file has, and that is partly memory of one that a
    file has, cannot be made again; other sharers are made apart."""
    sharers = sorted(sharers, key=lambda entry: (-entry.value.numel(), _KINDS.index(entry.kind), entry.name))
    for place, entry in enumerate(sharers):
        in_file = [one for one in sharers if one is not entry and one.kind in (PARAMETER, BUFFER)]
        comes_with = entry.kind in (NON_PERSISTENT, ATTRIBUTE)
        bases = in_file if comes_with and any(_overlap(one, entry) for one in in_file) else sharers[:place]
        base = next((one for one in bases if entry.value.numel() and _contains(one, entry)), None)
        for member in classes[id(entry)]:
            if base is not None:
                member.view_of = base.name
            elif bases is in_file and comes_with and member.is_meta:
                names = ", ".join(one.name for one in in_file if _overlap(one, entry))
                member.problem = (
                    f"it shares storage with {names}, but is not a plain view of it (other elements, or another dtype)"
                )


def _extent(entry: Entry) -> tuple[int, int]:
    """Of this rank's elements in the storage, in bytes."""
    return byte_extent(getattr(entry.value, "_local_tensor", entry.value))


def _overlap(one: Entry, two: Entry) -> bool:
    (begin, end), (other_begin, other_end) = _extent(one), _extent(two)
    return begin < other_end and other_begin < end


def _contains(base: Entry, view: Entry) -> bool:
    """Whether the view is elements of the base, as they are. A base with gaps may lack some."""
    one, two = (getattr(entry.value, "_local_tensor", entry.value) for entry in (base, view))
    if one.dtype != two.dtype or one.is_conj() != two.is_conj() or one.is_neg() != two.is_neg():
        return False
    (begin, end), (view_begin, view_end) = _extent(base), _extent(view)
    return is_dense(tuple(one.size()), one.stride()) and begin <= view_begin and view_end <= end


def _storage(entry: Entry) -> int | None:
    """None of what has no storage of its own: sparse tensors, ZeRO-3 placeholders, subclasses made of other tensors."""
    tensor = getattr(entry.value, "_local_tensor", entry.value)
    if tensor.layout is not torch.strided or hasattr(tensor, "ds_shape") or hasattr(tensor, "__tensor_flatten__"):
        return None
    if isinstance(tensor, FlatMember):
        return None
    return int(tensor.untyped_storage()._cdata)


def _identity(entry: Entry) -> Any:
    recorded = entry.recorded
    was_meta = recorded is not None and entry.problem != GIVEN_MEMORY
    if was_meta and is_sharded(entry.value):  # ties as they were before sharding
        return "recorded", recorded.cell, recorded.size, recorded.stride, recorded.offset, recorded.dtype
    tensor = getattr(entry.value, "_local_tensor", entry.value)
    storage = _storage(entry)
    # FSDP2 pads: where this rank has no rows of a tensor, there is memory all the same, that of its ties too.
    is_padding = tensor is not entry.value and storage is not None and tensor.untyped_storage().nbytes() > 0
    if storage is None or not (tensor.numel() or is_padding):
        return "object", id(entry.value)
    bits = tensor.is_conj(), tensor.is_neg()
    return "storage", storage, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), tensor.dtype, bits


def _share_random_ops(entries: Iterable[Entry]) -> None:
    """A random op that several storages depend on gives all of them the same numbers: it is keyed by the first name."""
    first: dict[int, tuple[Any, str, int, int]] = {}
    for entry in sorted(entries, key=lambda entry: entry.random_name):
        if entry.recorded is None or entry.recorded.version is None:
            continue
        random_ops = [op for op in slice_of(entry.recorded.version) if op.random]
        for ordinal, op in enumerate(random_ops):
            _, name, place, cell = first.setdefault(op.serial, (op, entry.random_name, ordinal, entry.recorded.cell))
            if cell != entry.recorded.cell:
                op.shared_key = (name, place)
