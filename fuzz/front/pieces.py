"""Single tensors of a model: every dtype, every kind of memory, every way in which a module can hold them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

Json = dict[str, Any]

# dtypes that torch cannot compute with: made from bytes, and weighed as bytes
RAW = ("float4_e2m1fn_x2", "float8_e8m0fnu", "uint4", "uint1", "int4")
FLOATS = ("float32", "float64", "bfloat16", "float16")


@dataclasses.dataclass
class Box:
    """A plain attribute that holds tensors without registering them."""

    first: torch.Tensor
    label: str = "box"


def dtype_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _count(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _plain(piece: Json) -> torch.Tensor:
    """The value that the constructor gives it."""
    shape, name = piece["shape"], piece["dtype"]
    dtype, count = dtype_of(name), _count(piece["shape"])
    if name in RAW:
        return torch.arange(count).remainder(7).to(torch.uint8).view(dtype).reshape(shape)
    how = piece["value"]
    if how == "rope":
        value = 1.0 / (10000 ** (torch.arange(count, dtype=torch.float32) / max(1, count)))
    elif how == "random":
        value = torch.rand(count)
    elif how == "empty" and dtype.is_floating_point:
        return torch.empty(shape, dtype=dtype)
    elif how == "const":
        value = torch.full((count,), 1.5)
    elif how == "zeros":
        return torch.zeros(shape, dtype=dtype)
    else:
        value = torch.arange(count, dtype=torch.float32).remainder(5)
    if dtype is torch.bool:
        value = value.remainder(2)
    return value.to(dtype).reshape(shape)


def make_tensor(piece: Json, earlier: list[torch.Tensor]) -> torch.Tensor:
    """A tensor in the memory that the piece asks for."""
    memory, shape = piece["memory"], piece["shape"]
    if memory == "view":
        return _view(piece, earlier)
    value = _plain(piece)
    if memory == "strided" and shape:
        big = torch.zeros([*shape[:-1], 2 * shape[-1]], dtype=value.dtype)
        value = big[..., ::2].copy_(value)
    elif memory == "offset":
        big = torch.zeros(value.numel() + 3, dtype=value.dtype)
        value = big[3:].view(shape).copy_(value)
    elif memory == "transposed" and len(shape) > 1:
        big = torch.zeros(shape[::-1], dtype=value.dtype)
        value = big.permute(*reversed(range(len(shape)))).copy_(value)
    elif memory == "channels_last" and len(shape) == 4:
        value = value.to(memory_format=torch.channels_last)
    elif memory == "conj":
        value = torch.conj_physical(value).conj()
    elif memory == "neg":
        value = torch.complex(torch.zeros_like(value), -value).conj().imag
    elif memory == "expand":
        value = torch.full([1] * len(shape), 2.0, dtype=value.dtype).expand(shape)
    elif memory == "overlap":
        value = torch.zeros(sum(shape) + 1, dtype=value.dtype).as_strided(shape, [1] * len(shape))
    return value


def _view(piece: Json, earlier: list[torch.Tensor]) -> torch.Tensor:
    base = earlier[piece["of"] % len(earlier)].detach()
    how = piece["how"]
    if how == "same":
        return base
    if how == "transpose" and base.dim() > 1:
        return base.transpose(0, 1)
    if how == "row" and base.dim() and base.shape[0]:
        return base[base.shape[0] - 1]
    if how == "slice" and base.dim() and base.shape[0] > 1:
        return base[1:]
    return base.view(-1) if base.is_contiguous() else base.view(base.shape)


def hold(module: nn.Module, piece: Json, tensor: torch.Tensor) -> None:
    """Registers the tensor under the piece's name, or keeps it as a plain attribute."""
    name, role = piece["name"], piece["role"]
    if role == "param":
        can_learn = tensor.is_floating_point() and piece["dtype"] in FLOATS
        module.register_parameter(name, nn.Parameter(tensor, requires_grad=can_learn and piece["grad"]))
    elif role in ("buffer", "constant"):
        module.register_buffer(name, tensor, persistent=role == "buffer")
    else:
        module.__dict__[name] = boxed(tensor, piece["box"])


def boxed(tensor: torch.Tensor, box: str) -> Any:
    if box == "list":
        return [tensor, None]
    if box == "tuple":
        return (1, tensor)
    if box == "dict":
        return {"a.b": tensor, "w*": 3}
    if box == "dataclass":
        return Box(tensor)
    if box == "deep":
        return [{"x": ([tensor],)}]
    if box == "deep dataclass":
        return {"x": [Box(tensor)]}
    return tensor


def unboxed(value: Any) -> list[torch.Tensor]:
    """Every tensor in a plain attribute, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [tensor for field in dataclasses.fields(value) for tensor in unboxed(getattr(value, field.name))]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in unboxed(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in unboxed(item)]
    return []


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that `distribute_tensor` shared out; others as they are."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weigh(tensor: torch.Tensor) -> torch.Tensor:
    """One number that depends on every element and on its place. Gradients flow to what can learn.

    Of a DTensor this rank's part counts: gloo cannot gather every dtype."""
    value: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if value.numel() == 0:
        return torch.zeros((), device=value.device)
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    elif str(value.dtype).removeprefix("torch.") in RAW:
        value = value.contiguous().view(torch.uint8)
    value = value.resolve_neg().to(torch.float32).reshape(-1)
    places = torch.arange(1, value.numel() + 1, dtype=torch.float32, device=value.device)
    return (value * places).sum() / 64
