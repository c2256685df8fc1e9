"""The record of what a constructor did to its tensors: a graph of versions of storages.

Every tensor that is made under `lading.skeleton()` is on meta. Its storage carries a `Cell`, and the cell knows the
storage's newest `Version`; a version knows the `Op` that wrote it, and an op knows the versions that it read. Views
need no record: a tensor is a storage and a geometry, whoever made it (`view`, `.data`, `Parameter`, `detach`), and an
`Operand` is just that.

Invariants
- A version never changes. Writing to a storage gives it a new version, whose op reads the old one, unless the op
  writes every byte, in which case the old one is let go. So what no live tensor depends on is freed with its last
  reference: there is no list of ops, and the memory of a record is that of the ops that still matter.
- Serial numbers of ops grow in the order in which they ran, over all recordings. Replaying any set of ops in this
  order, each storage written in place, is what happened, less what was left out.
- Real tensors enter by value (`Captured`).

Recording is done by one thread, that of the context. Reading the graph changes nothing but the keys of random ops.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .errors import LadingError, Problem
from .torch_names import _disable_current_modes

CAPTURE_BYTES = 1 << 20  # up to here a real tensor is captured by copying it, beyond by reference and checksum

_serials = itertools.count(1)
_idents = itertools.count(1)
# What each module held when its recording ended. After a load most of it is forgotten (replay.forget_derivations).
_snapshots: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, Snapshot]] = weakref.WeakKeyDictionary()


_REMEDY = "Build the model under lading.skeleton(), or pass the value in external= or recipes=."
NESTED = "Store it as plain tensors, or list it in keep=."
_REMEDIES = {
    "internal": "Please report this bug in lading.",
    "lazy": "Run a forward pass on real inputs first, or give the layer its sizes.",
    "nested": NESTED,
    "duplicate_name": "Rename one of the two tensors.",
    "unknown_dtype": "Use a dtype that safetensors has.",
    "autocast": "Build the model outside torch.autocast.",
    "extra_state": "Correct get_extra_state of that module.",
}


class SkeletonError(LadingError):
    """A value that cannot be derived. `code` is a stable word; `op` and `tensor` say where, as far as it is known.

    try:
        lading.derive(model.mask)
    except lading.SkeletonError as error:
        print(error.code, error)
    """

    def __init__(self, code: str, message: str, *, op: str = "", tensor: str = "") -> None:
        self.remedy = _REMEDIES.get(code, _REMEDY)
        super().__init__(Problem(code, message, tensor=tensor or None, remedy=self.remedy), exit_code=4)
        self.op, self.tensor, self.reason = op, tensor, message

    def at(self, tensor: str) -> SkeletonError:
        """The same error, with the tensor's name."""
        return SkeletonError(self.code, self.reason, op=self.op, tensor=tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _skeleton_error, (self.code, self.reason, self.op, self.tensor)


def _skeleton_error(code: str, message: str, op: str, tensor: str) -> SkeletonError:
    return SkeletonError(code, message, op=op, tensor=tensor)


class Version:
    """One state of one storage (or of a user's generator): what it held after `op`."""

    __slots__ = ("cell", "op")

    def __init__(self, op: Op, cell: int) -> None:
        self.op, self.cell = op, cell


class Operand:
    """A tensor as an op saw it. `version` is None where the op overwrites the whole storage."""

    __slots__ = ("cell", "conj", "dtype", "nbytes", "neg", "offset", "size", "stride", "version")

    def __init__(self, tensor: torch.Tensor, cell: int, version: Version | None) -> None:
        self.cell, self.version = cell, version
        self.size, self.stride = tuple(tensor.size()), tuple(tensor.stride())
        self.offset = int(tensor.storage_offset())
        self.dtype, self.nbytes = tensor.dtype, tensor.untyped_storage().nbytes()
        self.conj, self.neg = tensor.is_conj(), tensor.is_neg()

    def whole_storage(self) -> Operand:
        """All bytes of the storage that it is a view of, in this version."""
        whole = copy.copy(self)
        whole.size, whole.stride, whole.offset, whole.dtype = (self.nbytes,), (1,), 0, torch.uint8
        whole.conj = whole.neg = False
        return whole

    def covers_storage(self) -> bool:
        return (
            self.offset == 0 and is_dense(self.size, self.stride) and self.numel() * self.dtype.itemsize == self.nbytes
        )

    def numel(self) -> int:
        return torch.Size(self.size).numel()

    def is_same_view(self, other: Operand) -> bool:
        """Whether both are the same elements of one storage."""
        return all(
            getattr(self, field) == getattr(other, field)
            for field in ("cell", "size", "stride", "offset", "dtype", "conj", "neg")
        )


class GeneratorUse:
    """A generator of the user's, in the state that earlier uses left."""

    __slots__ = ("cell", "version")

    def __init__(self, cell: int, version: Version) -> None:
        self.cell, self.version = cell, version


class Captured:
    """A real tensor that a recorded op read, as it was then."""

    __slots__ = ("checksum", "tensor")

    def __init__(self, tensor: torch.Tensor, *, owned: bool = False) -> None:
        self.checksum: int | None = None
        with unrecorded():
            self.tensor = tensor.detach()
            if owned:
                return
            if tensor.numel() * tensor.element_size() <= CAPTURE_BYTES:
                self.tensor = self.tensor.clone(memory_format=torch.preserve_format)
            else:
                self.checksum = checksum(self.tensor)

    def value(self) -> torch.Tensor:
        if self.checksum is not None and checksum(self.tensor) != self.checksum:
            raise SkeletonError("captured_changed", "a real tensor that the constructor read changed afterwards")
        return self.tensor.cpu()


class Op:
    """One call. `kind` is `call`; `blank`: memory that was never written; `generator`: the state that a user's
    generator had; `unknown`: not seen, and `note` says why.
    """

    __slots__ = (
        "args",
        "default_dtype",
        "frozen",
        "func",
        "kind",
        "kwargs",
        "name",
        "note",
        "outs",
        "random",
        "seeded",
        "serial",
        "shared_key",
    )

    def __init__(
        self,
        func: Callable[..., Any] | None,
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ):
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs or {}
        self.kind, self.note, self.random = "call", "", False
        self.seeded = False  # random, and the constructor has seeded the process's random numbers before
        self.serial = next(_serials)
        self.default_dtype = torch.get_default_dtype()
        self.outs: list[tuple[int, Operand]] = []  # (place among the flat results, what it was): new storages only
        self.frozen: tuple[int, str, int] | None = None  # seed, name, ordinal: its values were already looked at
        self.shared_key: tuple[str, int] | None = None  # name, ordinal: where several named tensors depend on it

    def reads(self) -> Iterator[Operand | GeneratorUse]:
        for value in itertools.chain(self.args, self.kwargs.values()):
            yield from _operands(value)


def _operands(value: Any) -> Iterator[Operand | GeneratorUse]:
    if isinstance(value, (Operand, GeneratorUse)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _operands(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _operands(item)


class Cell:
    """What a storage knows of itself. It hangs on the storage object, which lives as long as the storage does."""

    __slots__ = ("aliases", "device", "epoch", "head", "ident", "recording", "sealed", "shadow", "shadow_checksum")

    def __init__(self, recording: Recording | None, device: torch.device) -> None:
        self.recording, self.device, self.ident = recording, device, next(_idents)
        self.head: Version | None = None
        self.shadow: torch.Tensor | None = None  # the memory that `.numpy()` gave away, of the whole storage
        self.shadow_checksum = 0
        self.epoch = 0  # of the seals: a later recording that touches the storage begins another
        self.sealed: set[int] = set()  # write counts of its tensors when the recording ended (watch.py)
        self.aliases: list[torch.Tensor] = []  # tensors that `.data` gave away, which count by themselves


class Snapshot:
    """A parameter or buffer at the end of its recording: what the constructor made, whatever came afterwards."""

    __slots__ = ("kind", "operand", "requires_grad")

    def __init__(self, tensor: torch.Tensor, kind: str) -> None:
        self.kind, self.operand, self.requires_grad = kind, operand_of(tensor), tensor.requires_grad


def _kind(module: torch.nn.Module, name: str) -> str:
    """In the inventory's words."""
    if name in module._parameters:
        return "parameter"
    return "non_persistent_buffer" if name in module._non_persistent_buffers_set else "buffer"


class Recording:
    """What one `lading.skeleton()` recorded. `seed` is for random values that the constructor itself looked at.

    with lading.skeleton() as recording:
        model = Model()
    assert lading.recording_of(model.weight) is recording
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.process_seed = torch.default_generator.initial_seed()  # a constructor that seeds has another one since
        self.op_count = 0
        self.early_reads = 0  # how often the constructor asked for a value
        self.random_count = 0
        self.claim: torch.device | None = None  # where what is made just now would be, if the call was rewritten
        self.autocast: set[str] = set()  # device types that autocast was on for in the constructor's last call
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.reopened: list[weakref.ref[torch.Tensor]] = []  # tensors of earlier recordings that this one touched
        self._generators: dict[int, list[Any]] = {}

    def remember_modules(self) -> None:
        """Notes what the modules hold, so that it is known after others have replaced their tensors."""
        for module in list(self.modules):
            held = {}
            for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
                if tensor is not None and not torch.nn.parameter.is_lazy(tensor) and cell_of(tensor) is not None:
                    held[name] = Snapshot(tensor, _kind(module, name))
            if held:
                _snapshots[module] = held

    def generator_use(self, generator: torch.Generator) -> GeneratorUse:
        """The generator as an operand. Setting its state between two uses begins a new chain."""
        state = generator.get_state()
        known = self._generators.get(id(generator))
        if known is None or not torch.equal(known[1], state):
            ident = next(_idents)
            op = Op(None, "generator", (Captured(state, owned=True),))
            op.kind = "generator"
            known = self._generators[id(generator)] = [generator, state, Version(op, ident)]
        return GeneratorUse(known[2].cell, known[2])

    def generator_used(self, generator: torch.Generator, op: Op) -> None:
        known = self._generators[id(generator)]
        known[2] = Version(op, known[2].cell)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Without modes, autocast and gradients: what we do ourselves belongs to no constructor."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), torch.no_grad():
        yield


def checksum(tensor: torch.Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements lie side by side, each once, in whatever order of dims."""
    expected = 1
    for length, step in sorted(zip(size, stride, strict=True), key=lambda pair: pair[1]):
        if length != 1:
            if step != expected:
                return False
            expected *= length
    return True


def cell_of(tensor: torch.Tensor) -> Cell | None:
    """The cell of a tensor that was recorded; None of one that was not, or that is real or has no storage."""
    if (
        type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
        or tensor.layout is not torch.strided
    ):
        return None
    return getattr(tensor.untyped_storage(), "_lading_cell", None)


def attach(tensor: torch.Tensor, recording: Recording | None, device: torch.device, op: Op) -> Cell:
    """Says that the tensor's storage was made by `op`."""
    cell = Cell(recording, device)
    cell.head = Version(op, cell.ident)
    tensor.untyped_storage()._lading_cell = cell  # type: ignore[attr-defined]
    return cell


def add_out(op: Op, place: int, tensor: torch.Tensor, cell: int) -> None:
    """Notes what a result looked like. Without its version: an op that led to its own results would never be freed."""
    op.outs.append((place, Operand(tensor, cell, None)))


def unknown_op(note: str) -> Op:
    """Something that was not seen."""
    op = Op(None, "unknown")
    op.kind, op.note = "unknown", note
    return op


def operand_of(tensor: torch.Tensor) -> Operand:
    """A meta tensor as it is now. One that was made elsewhere becomes known as unknown."""
    cell = cell_of(tensor)
    if cell is None:
        op = unknown_op("it was created on meta outside lading.skeleton(), so that its value is unknown")
        cell = attach(tensor, None, torch.device("meta"), op)
    refresh_shadow(cell)
    return Operand(tensor, cell.ident, cell.head)


def refresh_shadow(cell: Cell) -> None:
    """If memory that was given away as a numpy array was written there, that is a new version."""
    if cell.shadow is None:
        return
    with unrecorded():
        now = checksum(cell.shadow)
        if now != cell.shadow_checksum:
            replace_bytes(cell, cell.shadow.clone())
            cell.shadow_checksum = now


def replace_bytes(cell: Cell, storage_bytes: torch.Tensor) -> None:
    """A version of the whole storage that is given as bytes."""
    op = Op(_same, "lading.bytes", (Captured(storage_bytes, owned=True),))
    add_out(op, 0, storage_bytes, cell.ident)
    cell.head = Version(op, cell.ident)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.preserve_format)


def constant(tensor: torch.Tensor, recording: Recording, *, owned: bool) -> torch.Tensor:
    """A meta tensor whose value is this real one."""
    with unrecorded():
        out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    op = Op(_same, "lading.constant", (Captured(tensor, owned=owned),))
    add_out(op, 0, out, attach(out, recording, recording.claim or tensor.device, op).ident)
    return out


def recording_of(tensor: torch.Tensor) -> Recording | None:
    """The recording that a tensor's storage was made in, or None.

    if lading.recording_of(model.mask) is not None:     # built under lading.skeleton()
        value = lading.derive(model.mask)
    """
    cell = cell_of(tensor)
    return cell.recording if cell is not None else None


def snapshot_of(module: torch.nn.Module, name: str) -> Snapshot | None:
    """What `module.<name>` was when its recording ended, whatever stands there now."""
    return _snapshots.get(module, {}).get(name)


def snapshots_of(module: torch.nn.Module) -> dict[str, Snapshot]:
    """What a module held when its recording ended, by name."""
    return dict(_snapshots.get(module, {}))
