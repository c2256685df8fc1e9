"""What a conversion of transformers does to its tensors, as an expression of docs/schema/mapping.md.

    with Trace() as trace:
        sources = [trace.source("experts.0.w1", (8, 4)), trace.source("experts.1.w1", (8, 4))]
        fused = operation.convert(...)                  # transformers' own code, on tensors without memory
    trace.expression(fused)                             # {"stack": {"dim": 0, "parts": [...]}}

The library's own code decides; nothing here knows its operations by name. Tensors are on meta, and each op that moves
elements is written down as it reaches PyTorch's dispatcher. An op that changes values has no expression: it is an error
where it happens, and never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .conversion import braced
from .dispatch_mode import PlainDispatchMode

Expression = Any  # a key, or an object with one member (docs/schema/mapping.md)


class NotMoving(Exception):
    """A conversion did something else than to move elements."""


class Trace(PlainDispatchMode):
    """Follows tensors on meta through ops that move elements."""

    def __init__(self) -> None:
        super().__init__()
        # The tensors are kept, so that no other one gets their id.
        self._known: dict[int, tuple[torch.Tensor, Expression]] = {}

    def source(self, key: str, shape: Sequence[int]) -> torch.Tensor:
        """A tensor that stands for a key of the checkpoint."""
        tensor = torch.empty(tuple(shape), dtype=torch.uint8, device="meta")
        self._known[id(tensor)] = (tensor, braced(key))
        return tensor

    def expression(self, tensor: torch.Tensor) -> Expression:
        if id(tensor) not in self._known:
            raise NotMoving("it returns a tensor that does not come from the checkpoint")
        return self._known[id(tensor)][1]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        sources = [value for value in _tensors(args, kwargs) if id(value) in self._known]
        if not sources:
            return result
        handler = _HANDLERS.get(func.overloadpacket.__name__)
        if handler is None:
            raise NotMoving(f"it calls {func.overloadpacket}, which a mapping cannot express")
        bound = _bound(func, args, kwargs)
        operand = bound["tensors"] if "tensors" in bound else bound["self"]
        if isinstance(operand, (list, tuple)):
            of: Any = [self.expression(tensor) for tensor in operand]
        else:
            of = self.expression(operand)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        for tensor, expression in zip(outputs, handler(of, operand, outputs, bound), strict=True):
            if tensor.dtype != torch.uint8:
                raise NotMoving(f"it changes the dtype, by {func.overloadpacket}")
            self._known[id(tensor)] = (tensor, expression)
        return result


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found = []
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                found.append(item)
    return found


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names that the op's schema has, defaults included."""
    bound = {}
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            bound[argument.name] = args[place]
        elif argument.name in kwargs:
            bound[argument.name] = kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


# ---- ops: each answers one expression per output


def _same(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    return [of]


def _reshaped(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    shape = list(outputs[0].shape)
    return [of if shape == list(operand.shape) else {"reshape": {"shape": shape, "of": of}}]


def _cat(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    dim = bound["dim"] % outputs[0].dim()
    return [of[0] if len(of) == 1 else {"concat": {"dim": dim, "parts": of}}]


def _stack(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    return [{"stack": {"dim": bound["dim"] % outputs[0].dim(), "parts": of}}]


def _permuted(of: Any, order: Sequence[int]) -> Expression:
    moved = [place for place, dim in enumerate(order) if place != dim]
    if not moved:
        return of
    if len(moved) == 2:
        return {"transpose": {"dims": moved, "of": of}}
    return {"permute": {"order": list(order), "of": of}}


def _transpose(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    order = list(range(operand.dim()))
    one, two = bound.get("dim0", 0), bound.get("dim1", 1)
    if order:
        one, two = one % len(order), two % len(order)
        order[one], order[two] = order[two], order[one]
    return [_permuted(of, order)]


def _t(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    return [_permuted(of, list(range(operand.dim()))[::-1])]


def _permute(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    return [_permuted(of, [dim % operand.dim() for dim in bound["dims"]])]


def _cut(of: Any, operand: torch.Tensor, dim: int, begin: int, end: int) -> Expression:
    if begin == 0 and end == operand.shape[dim]:
        return of
    return {"slice": {"dim": dim, "begin": begin, "end": end, "of": of}}


def _split(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    dim, begin, found = bound["dim"] % operand.dim(), 0, []
    for part in outputs:
        found.append(_cut(of, operand, dim, begin, begin + part.shape[dim]))
        begin += part.shape[dim]
    return found


def _slice(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    if (bound.get("step") or 1) != 1:
        raise NotMoving("it takes every n-th element, which a mapping cannot express")
    dim, size = bound["dim"] % operand.dim(), operand.shape[bound["dim"]]
    begin = bound["start"] or 0
    begin = min(size, begin + size if begin < 0 else begin)
    return [_cut(of, operand, dim, begin, begin + outputs[0].shape[dim])]


def _select(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    dim = bound["dim"] % operand.dim()
    begin = bound["index"] % operand.shape[dim]
    return _reshaped_as(_cut(of, operand, dim, begin, begin + 1), outputs[:1])


def _unbind(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    dim = bound["dim"] % operand.dim()
    return [_reshaped_as(_cut(of, operand, dim, place, place + 1), [part])[0] for place, part in enumerate(outputs)]


def _reshaped_as(of: Any, outputs: Sequence[torch.Tensor]) -> list[Expression]:
    return [{"reshape": {"shape": list(outputs[0].shape), "of": of}}]


def _as_strided(of: Any, operand: Any, outputs: Any, bound: dict[str, Any]) -> list[Expression]:
    """What composite ops may end in. Only the whole tensor in its own order is understood."""
    contiguous = outputs[0].is_contiguous() and operand.is_contiguous() and not bound.get("storage_offset")
    if not contiguous or math.prod(outputs[0].shape) != math.prod(operand.shape):
        raise NotMoving("it sets strides itself, which a mapping cannot express")
    return _reshaped(of, operand, outputs, bound)


_HANDLERS: dict[str, Callable[..., list[Expression]]] = {
    "alias": _same,
    "as_strided": _as_strided,
    "cat": _cat,
    "clone": _same,
    "contiguous": _same,
    "detach": _same,
    "lift_fresh": _same,
    "permute": _permute,
    "reshape": _reshaped,
    "_reshape_alias": _reshaped,
    "select": _select,
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": _reshaped,
    "stack": _stack,
    "t": _t,
    "transpose": _transpose,
    "unbind": _unbind,
    "_unsafe_view": _reshaped,
    "unsqueeze": _reshaped,
    "view": _reshaped,
}
