"""What a model holds on this rank, as plain facts, and where two models differ."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .pieces import RAW

_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module")
_EVERY_MODULE = frozenset({*vars(nn.Module()), "_original_parameters"})  # the latter is DeepSpeed's
_DEPTH = 6


@dataclasses.dataclass
class Fact:
    """One name of a model on one rank."""

    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    kind: str
    is_meta: bool
    requires_grad: bool
    placements: str
    identity: int
    storage: int
    bits: bytes
    value: torch.Tensor  # this rank's part

    def digest(self) -> str:
        return hashlib.blake2b(self.bits, digest_size=8).hexdigest()


def facts(model: nn.Module) -> dict[str, Fact]:
    """Every tensor that the model reaches, under every name."""
    found: dict[str, Fact] = {}
    for name, kind, tensor in tensors(model):
        found.setdefault(name, _fact(kind, tensor))
    return found


def tensors(model: nn.Module, prefix: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, str, torch.Tensor]]:
    if id(model) in above:
        return
    dot = f"{prefix}." if prefix else ""
    for name, parameter in model._parameters.items():
        if parameter is not None:
            yield dot + name, "parameter", parameter
    for name, buffer in model._buffers.items():
        if buffer is not None:
            kind = "constant" if name in model._non_persistent_buffers_set else "buffer"
            yield dot + name, kind, buffer
    is_ours = type(model).__module__.startswith(("front.", "torch.nn.modules"))
    for name, value in vars(model).items() if is_ours else ():
        if name not in _EVERY_MODULE and not name.endswith("_hooks"):
            for path, tensor in _within(name, value, _DEPTH):
                yield dot + path, "attribute", tensor
    for name, child in model._modules.items():
        if child is not None:
            wraps = name in _WRAPPED or (name == "module" and type(model).__name__ in _MODULE_WRAPPERS)
            yield from tensors(child, prefix if wraps else dot + name, (*above, id(model)))


_MODULE_WRAPPERS = ("DistributedDataParallel", "DeepSpeedEngine")


def _within(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif not depth:
        return
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _within(f"{name}[{key!r}]", item, depth - 1)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _within(f"{name}[{place}]", item, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _within(f"{name}.{field.name}", getattr(value, field.name), depth - 1)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    partition = getattr(tensor, "ds_tensor", None)
    if partition is not None:  # the padded end of ZeRO-3's last part holds nothing
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        size = partition.numel()
        used = max(0, min(size, tensor.ds_numel - size * rank)) if ranks > 1 else tensor.ds_numel  # type: ignore[attr-defined]
        part: torch.Tensor = partition.detach().view(-1)[:used]
        return part
    inner: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return inner.detach()


def bits_of(tensor: torch.Tensor) -> bytes:
    value = tensor.detach().resolve_conj().resolve_neg()
    if not value.numel():
        return b""
    if str(value.dtype).removeprefix("torch.") in RAW:
        value = value.view(torch.uint8)
    value = value.clone(memory_format=torch.contiguous_format).view(-1)
    return bytes(value.view(torch.uint8).numpy().tobytes())


def _is_freed(tensor: torch.Tensor) -> bool:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    return tensor.numel() > 0 and tensor.untyped_storage().nbytes() < end


def _fact(kind: str, tensor: torch.Tensor) -> Fact:
    if nn.parameter.is_lazy(tensor):
        return Fact((), (), "lazy", kind, is_meta=False, requires_grad=tensor.requires_grad, placements="", identity=0,
                    storage=0, bits=b"", value=torch.zeros(0))  # fmt: skip
    local = local_part(tensor)
    is_meta = local.device.type == "meta"
    if not is_meta and _is_freed(local):  # FSDP1 leaves views of what it had gathered
        local = local.new_empty(0)
    storage = 0 if is_meta or not local.numel() else local.untyped_storage().data_ptr()
    placements = f"{tensor.placements} {tensor.device_mesh.mesh.tolist()}" if hasattr(tensor, "placements") else ""
    placements = "ZeRO-3" if hasattr(tensor, "ds_tensor") else placements
    shape = tuple(getattr(tensor, "ds_shape", tensor.shape))
    return Fact(
        shape,
        tuple(local.shape),
        str(local.dtype).removeprefix("torch."),
        kind,
        is_meta,
        tensor.requires_grad,
        placements,
        id(tensor),
        storage,
        b"" if is_meta else bits_of(local),
        local,
    )


def differences(
    expected: dict[str, Fact], found: dict[str, Fact], unknown: frozenset[str], *, memory: str
) -> list[str]:
    """In words, each with the name. Values of `unknown` names are not compared. `memory`: which names lie in one is
    compared "exactly", or they may also lie "apart", or are "free"."""
    said = [f"gone: {name} is not in the loaded model" for name in expected if name not in found]
    said += [f"new: {name} is only in the loaded model" for name in found if name not in expected]
    both = [name for name in expected if name in found]
    for name in both:
        said += _differing(name, expected[name], found[name], is_known=name not in unknown)
    said += _partition(both, expected, found, "identity", "object")
    if memory != "free":
        said += _partition(both, expected, found, "storage", "memory", may_be_apart=memory == "apart")
    return said


def _differing(name: str, one: Fact, two: Fact, *, is_known: bool) -> Iterator[str]:
    if two.is_meta and not one.is_meta:
        yield f"meta: {name} is on meta after the load"
        return
    for field in ("kind", "shape", "local_shape", "dtype", "requires_grad", "placements"):
        if getattr(one, field) != getattr(two, field) and not (
            field == "local_shape" and not one.value.numel() and not two.value.numel()
        ):
            yield f"{field}: {name} should have {getattr(one, field)}, and has {getattr(two, field)}"
            return
    if is_known and not one.is_meta and one.bits != two.bits:
        yield f"value: {name} should be {_few(one.value)}, and is {_few(two.value)}"


def _few(tensor: torch.Tensor) -> str:
    if str(tensor.dtype).removeprefix("torch.") in RAW:
        tensor = tensor.contiguous().view(torch.uint8)
    return str(tensor.flatten()[:6].tolist())


def _partition(
    names: list[str], one: dict[str, Fact], two: dict[str, Fact], field: str, word: str, *, may_be_apart: bool = False
) -> Iterator[str]:
    """Which names are one object, or lie in one memory."""

    def groups(of: dict[str, Fact]) -> dict[str, frozenset[str]]:
        members: dict[int, list[str]] = {}
        for name in names:
            members.setdefault(getattr(of[name], field), []).append(name)
        members.pop(0, None)
        return {name: frozenset(group) for group in members.values() for name in group}

    expected, found = groups(one), groups(two)
    for name in names:
        wanted, there = expected.get(name), found.get(name)
        if wanted is None or there is None or wanted == there:
            continue
        # What no file has and the constructor makes may be made apart.
        lost = {other for other in wanted - there if one[other].kind not in ("constant", "attribute")}
        is_made = word == "memory" and (not lost or one[name].kind in ("constant", "attribute"))
        if not (there < wanted and (may_be_apart or is_made)):
            yield f"{word}: {name} should be one {word} with {sorted(wanted)}, and is with {sorted(there)}"
            return
