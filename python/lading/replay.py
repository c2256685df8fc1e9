"""Values from a record: take the ops that one tensor needs, run them on the CPU, give the tensor back.

The slice of a version is every op that it depends on. It runs in the order of serial numbers, writing in place, so
that each op finds the storages as they were (recording.py says why). A storage is dropped after the last op that
reads it.

Each random op has a generator of its own, seeded from (seed, name, ordinal), and each op runs under the default dtype
that it was recorded under. Neither is set for the process (one_op.py), so other threads may load, draw and build.
Memory that was never written gets a pattern; where there is such memory the slice runs twice, with two patterns,
and if the results differ the value was never defined, which is an error and not a value."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import torch

from .bits import same_bits
from .one_op import run_op
from .recording import (
    CAPTURE_BYTES,
    Captured,
    GeneratorUse,
    Op,
    Operand,
    Recording,
    SkeletonError,
    Version,
    cell_of,
    operand_of,
    replace_bytes,
    snapshots_of,
    unrecorded,
)
from .torch_names import tree_flatten

_PATTERNS = (0, 1)
_LONG_SLICE = 16  # ops


class Seeds:
    """Which random values a replay gets: those of `name` under `seed`, unless the op says otherwise."""

    def __init__(self, seed: int = 0, name: str = "", freeze_for: Recording | None = None) -> None:
        self.seed, self.name, self.freeze_for = seed, name, freeze_for

    def of(self, op: Op, ordinal: int) -> int:
        if op.frozen is None and self.freeze_for is not None:
            op.frozen = (self.freeze_for.seed, "", self.freeze_for.random_count)
            self.freeze_for.random_count += 1
        if op.frozen is not None:
            return seed_number(*op.frozen)
        if op.shared_key is not None:
            return seed_number(self.seed, *op.shared_key)
        return seed_number(self.seed, self.name, ordinal)


def seed_number(seed: int, name: str, ordinal: int) -> int:
    text = f"{seed}\0{ordinal}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def slice_of(version: Version) -> list[Op]:
    """Every op that a version depends on, in the order in which they ran."""
    waiting = [read.version.op for read in version.op.reads() if read.version is not None]
    if not waiting:
        return [version.op]
    found: dict[int, Op] = {version.op.serial: version.op}
    while waiting:
        op = waiting.pop()
        if op.serial in found:
            continue
        found[op.serial] = op
        waiting.extend(read.version.op for read in op.reads() if read.version is not None)
    return [found[serial] for serial in sorted(found)]


def is_random(version: Version) -> bool:
    return any(op.random for op in slice_of(version))


def forget_derivations(module: torch.nn.Module) -> None:
    """After a load: lets go of how the module's tensors were made, and of the real tensors that its constructor read.

    Of a non-persistent buffer the record stays if it is small: no file has its value, and `audit` asks for it.
    """
    for snapshot in snapshots_of(module).values():
        version = snapshot.operand.version
        is_asked_for = snapshot.kind == "non_persistent_buffer"
        if version is not None and not (is_asked_for and _captured_bytes(version) <= CAPTURE_BYTES):
            snapshot.operand.version = None


def _captured_bytes(version: Version) -> int:
    arguments = tree_flatten([(op.args, op.kwargs) for op in slice_of(version)])[0]
    return sum(argument.tensor.nbytes for argument in arguments if isinstance(argument, Captured))


def value_of(target: Operand, seeds: Seeds) -> torch.Tensor:
    """The tensor on the CPU, with memory of its own."""
    if target.version is None:
        raise SkeletonError("internal", "an operand without a version has no value")
    if target.numel() == 0:
        return torch.empty_strided(target.size, target.stride, dtype=target.dtype, device="cpu")
    ops = slice_of(target.version)
    for op in ops:
        if op.kind == "unknown":
            raise SkeletonError("unrecorded", op.note, op=op.name)
    if ops[-1] is target.version.op and ops[-1].kind == "blank":
        raise _unwritten(ops[-1])
    blanks = [op for op in ops if op.kind == "blank"]
    with unrecorded():
        first = _run(ops, target, seeds, _PATTERNS[0])
        if blanks and not same_bits(first, _run(ops, target, seeds, _PATTERNS[1])):
            raise _unwritten(blanks[-1])
    return first


def early_value(tensor: torch.Tensor, recording: Recording) -> torch.Tensor:
    """The value of a recorded tensor while the recording goes on. Random values that were looked at stay what they are.

    A constructor that reads in a loop would have its own history replayed each time: where a history is long and the
    storage small, it becomes a constant.
    """
    recording.early_reads += 1
    seeds = Seeds(recording.seed, freeze_for=recording)
    operand = operand_of(tensor)
    value = value_of(operand, seeds)
    cell = cell_of(tensor)
    if cell is None or operand.version is None or operand.nbytes > CAPTURE_BYTES:
        return value
    if len(slice_of(operand.version)) > _LONG_SLICE:
        with contextlib.suppress(SkeletonError):  # a part of it may not have been written yet
            replace_bytes(cell, value_of(operand.whole_storage(), seeds))
    return value


def _unwritten(op: Op) -> SkeletonError:
    return SkeletonError(
        "uninitialised", f"the constructor created it with {op.name} and never wrote all of it", op=op.name
    )


def _run(ops: list[Op], target: Operand, seeds: Seeds, pattern: int) -> torch.Tensor:
    storages: dict[int, Any] = {}
    last_use = {read.cell: op.serial for op in ops for read in op.reads()}
    ordinal = 0
    for op in ops:
        seed = None
        if op.random:
            seed = seeds.of(op, ordinal)
            ordinal += 1
        try:
            _run_op(op, storages, seed, pattern)
        except SkeletonError:
            raise
        except Exception as error:
            raise SkeletonError(
                "replay_failed", f"{op.name} failed when it was replayed: {error}", op=op.name
            ) from error
        for cell in [cell for cell in storages if last_use.get(cell, 0) <= op.serial and cell != target.cell]:
            del storages[cell]
    value = view(storages[target.cell], target)
    if not target.covers_storage() or target.conj or target.neg:
        value = value.clone(memory_format=torch.preserve_format)
    return value


def _run_op(op: Op, storages: dict[int, Any], seed: int | None, pattern: int) -> None:
    if op.kind == "generator":  # made where it is first used
        return
    if op.kind == "blank":
        for _, out in op.outs:
            storages[out.cell] = _patterned(out, pattern)
        return
    inputs: set[int] = set()

    def real(value: Any) -> Any:
        if isinstance(value, Operand):
            if value.version is None:
                storages[value.cell] = torch.empty(value.nbytes, dtype=torch.uint8).untyped_storage()
            tensor = view(storages[value.cell], value)
        elif isinstance(value, GeneratorUse):
            return _generator(value, storages)
        elif isinstance(value, Captured):
            tensor = value.value()
        elif isinstance(value, (list, tuple)):
            return type(value)(real(item) for item in value)
        elif isinstance(value, dict):
            return {key: real(item) for key, item in value.items()}
        else:
            return value
        inputs.add(tensor.untyped_storage()._cdata)
        return tensor

    args = real(op.args)
    kwargs = real(op.kwargs)
    assert op.func is not None
    result = run_op(
        op.func,
        args,
        kwargs,
        default_dtype=op.default_dtype,
        results=[out.dtype for _, out in op.outs],
        generator=None if seed is None else torch.Generator().manual_seed(seed),
    )
    flat = tree_flatten(result)[0]
    for place, out in op.outs:
        storages[out.cell] = _kept(flat[place], out, op, inputs)


def _kept(tensor: torch.Tensor, out: Operand, op: Op, inputs: set[int]) -> torch.UntypedStorage:
    """The storage of a result, laid out as the record has it."""
    if tuple(tensor.shape) != out.size or tensor.dtype != out.dtype:
        found, said = f"{tuple(tensor.shape)} {tensor.dtype}", f"{out.size} {out.dtype}"
        raise SkeletonError(
            "replay_differs", f"{op.name} gave {found} when it was replayed, but {said} when it ran", op=op.name
        )
    storage = tensor.untyped_storage()
    alike = (
        tuple(tensor.stride()) == out.stride
        and tensor.storage_offset() == out.offset
        and storage.nbytes() >= out.nbytes
    )
    if (
        alike
        and storage._cdata not in inputs
        and tensor.device.type == "cpu"
        and not tensor.is_conj()
        and not tensor.is_neg()
    ):
        return storage
    fresh = torch.zeros(out.nbytes, dtype=torch.uint8).untyped_storage()
    view(fresh, out).copy_(tensor)
    return fresh


def view(storage: torch.UntypedStorage, operand: Operand) -> torch.Tensor:
    tensor = torch.empty(0, dtype=operand.dtype).set_(storage, operand.offset, operand.size, operand.stride)
    if operand.conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if operand.neg else tensor


def _generator(use: GeneratorUse, storages: dict[int, Any]) -> torch.Generator:
    generator = storages.get(use.cell)
    if generator is None:
        if use.version.op.kind != "generator":
            raise SkeletonError("internal", "a generator's earlier uses were not replayed")
        generator = storages[use.cell] = torch.Generator()
        generator.set_state(use.version.op.args[0].value())
    return generator


def _patterned(out: Operand, pattern: int) -> torch.UntypedStorage:
    count = out.nbytes // out.dtype.itemsize
    if out.dtype.is_floating_point or out.dtype.is_complex:
        number: Any = float("nan") if pattern == 0 else 1.0
    elif out.dtype == torch.bool:
        number = pattern == 0
    else:
        number = torch.iinfo(out.dtype).max if pattern == 0 else 0
    try:
        return torch.full((count,), number, dtype=out.dtype).untyped_storage()
    except (RuntimeError, TypeError):  # a dtype that cannot be filled: bytes will do
        return torch.full((out.nbytes,), 255 if pattern == 0 else 0, dtype=torch.uint8).untyped_storage()
