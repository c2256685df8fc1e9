"""Recipes: which recorded initial values the engine can make by itself, from a few numbers.

A tensor has a plain recipe if every element is an independent draw from one distribution, or one constant, but for
one row of zeros (`padding_idx`). The last op that overwrote its storage usually says so; chains of casts, copies and
arithmetic with numbers are followed, because authors write `torch.randn(…) * 0.02` as often as `normal_`. Everything
else that can be replayed is `host`. A distribution is followed symbolically; nothing is computed but its parameters."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from typing import Any

import torch

from .recording import Captured, Op, Operand, SkeletonError, Version, unrecorded
from .replay import Seeds, slice_of, value_of

_STANDARD = statistics.NormalDist()
_NEGLIGIBLE = 1e-6  # probability; a clamp that cuts off no more than this is taken for a truncation
_DEPTH = 100  # ops; what has a longer history than this is replayed
_COPIES = {"clone", "_to_copy", "contiguous"}
_FOLLOWED = _COPIES | {"neg", "erfinv", "clamp", "mul", "div", "add", "sub"}
# The value that a factory fills with, or the place of the argument that says it.
_FILLS: dict[str, float | int] = {
    "zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0,
    "full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Initializer:
    """How the engine makes an initial value: a recipe of docs/schema/skeleton.md. The fields that belong to `kind` are
    set, the others None. (`recipes=` of `materialize` takes functions.)

    with lading.skeleton():
        norm = nn.LayerNorm(8)
    lading.recipe_of(norm.weight)                       # Initializer(kind="fill", value=1.0)
    """

    kind: str  # fill, uniform, normal, truncated_normal, host
    value: float | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    zero_row: int | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {key: value for key, value in vars(self).items() if value is not None}
        return {key: _json_number(value) if isinstance(value, float) else value for key, value in fields.items()}


def _json_number(value: float) -> float | int | str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    is_negative_zero = value == 0 and math.copysign(1.0, value) < 0
    return int(value) if value.is_integer() and abs(value) < 1 << 53 and not is_negative_zero else value


@dataclasses.dataclass(frozen=True)
class _Law:
    """What all elements of a storage are, apart from zeroed places."""

    recipe: Initializer
    zeros: tuple[Operand, ...] = ()


def recipe_of_operand(operand: Operand) -> Initializer | None:
    version = operand.version
    if version is None:
        return None
    if operand.numel() == 0:
        return Initializer("fill", value=0.0)
    ops = slice_of(version)
    if any(op.kind == "unknown" for op in ops) or version.op.kind == "blank":
        return None
    host = Initializer("host")
    if not any(op.shared_key or op.frozen for op in ops):
        law = _Reader().law(version)
        if law is not None:
            return _for_tensor(law, operand) or host
    if any(op.kind == "blank" for op in ops):
        try:
            value_of(operand, Seeds())
        except SkeletonError:
            return None
    return host


def _for_tensor(law: _Law, operand: Operand) -> Initializer | None:
    recipe = law.recipe
    if recipe.kind != "fill" and (not operand.dtype.is_floating_point or _repeats(operand)):
        return None
    if not law.zeros:
        return recipe
    if len(law.zeros) != 1 or not operand.size:
        return None
    zero = law.zeros[0]
    step = operand.stride[0]
    row, rest = divmod(zero.offset - operand.offset, step) if step else (0, 1)
    shape, strides = operand.size[1:], operand.stride[1:]
    if rest or not 0 <= row < operand.size[0] or zero.dtype != operand.dtype:
        return None
    as_slice = zero.size == (1, *shape) and zero.stride[1:] == strides  # weight[3:4], not weight[3]
    if not as_slice and (zero.size, zero.stride) != (shape, strides):
        return None
    return dataclasses.replace(recipe, zero_row=row)


class _Reader:
    """Follows versions backwards to their law. Each is read once, and only so far."""

    def __init__(self) -> None:
        self._known: dict[int, _Law | None] = {}
        self._depth = 0

    def law(self, version: Version) -> _Law | None:
        key = id(version)
        if key not in self._known:
            self._known[key] = None
            if self._depth < _DEPTH:
                self._depth += 1
                self._known[key] = self._read(version)
                self._depth -= 1
        return self._known[key]

    def _read(self, version: Version) -> _Law | None:
        op = version.op
        if op.kind != "call" or any(not isinstance(read, Operand) for read in op.reads()):
            return None
        name = op.name.removeprefix("aten.").partition(".")[0]
        written = next((read for read in op.reads() if read.cell == version.cell), None)
        if isinstance(written, Operand):
            return (
                self._overwritten(name, op, written) if written.version is None else self._rewritten(name, op, written)
            )
        out = next((out for _, out in op.outs if out.cell == version.cell), None)
        return self._made(name, op, out) if out is not None else None

    def _made(self, name: str, op: Op, out: Operand) -> _Law | None:
        """A new tensor."""
        args = op.args
        if op.name == "lading.constant":
            return _constant(args[0])
        if name in _FILLS:
            place = _FILLS[name]
            return _fill(place if isinstance(place, float) else args[place], out.dtype)
        if name in ("randn", "randn_like"):
            return _Law(Initializer("normal", mean=0.0, std=1.0))
        if name in ("rand", "rand_like"):
            return _Law(Initializer("uniform", low=0.0, high=1.0))
        if op.name == "aten.normal.float_float":
            return _Law(Initializer("normal", mean=float(args[0]), std=float(args[1])))
        if args and isinstance(args[0], Operand):
            return self._changed(name, op, self._part(args[0]), out.dtype)
        return None

    def _overwritten(self, name: str, op: Op, written: Operand) -> _Law | None:
        """A storage that was written whole."""
        args = op.args
        if name in ("zero_", "fill_"):
            value = self._number(args[1]) if name == "fill_" else 0.0
            return None if value is None else _fill(value, written.dtype)
        if name == "normal_":
            return _Law(Initializer("normal", mean=_at(args, 1, 0.0), std=_at(args, 2, 1.0)))
        if name == "uniform_":
            return _Law(Initializer("uniform", low=_at(args, 1, 0.0), high=_at(args, 2, 1.0)))
        if name == "trunc_normal_":
            return _Law(Initializer("truncated_normal", mean=args[1], std=args[2], low=args[3], high=args[4]))
        if name == "copy_":
            source = self._part(args[1]) if isinstance(args[1], Operand) else _constant(args[1])
            return _cast(source, written.dtype)
        return None

    def _rewritten(self, name: str, op: Op, written: Operand) -> _Law | None:
        """A storage of which something was changed in place."""
        if name == "zero_" or (name == "fill_" and self._number(op.args[1]) == 0):
            law = self.law(written.version) if written.version is not None else None
            return None if law is None else dataclasses.replace(law, zeros=(*law.zeros, written))
        if written.covers_storage() and written is op.args[0] and name.removesuffix("_") in _FOLLOWED:
            return self._changed(name.removesuffix("_"), op, self._part(written), written.dtype)
        return None

    def _part(self, operand: Operand) -> _Law | None:
        """Any part of elements that are alike is alike, unless it shows one draw in many places."""
        if operand.version is None or operand.conj or operand.neg:
            return None
        law = self.law(operand.version)
        if law is None or law.zeros:
            return None
        return None if law.recipe.kind != "fill" and _repeats(operand) else law

    def _changed(self, name: str, op: Op, law: _Law | None, dtype: torch.dtype) -> _Law | None:
        """The law of an op applied to elements of a law. Numbers only; another tensor is not a number."""
        if law is None or name not in _FOLLOWED:
            return None
        args = op.args
        if name in _COPIES:
            return _cast(law, dtype)
        if law.recipe.kind == "fill" or not dtype.is_floating_point:
            return None
        if name == "neg":
            return _affine(law, -1.0, 0.0)
        if name == "erfinv":
            return _inverse_error(law)
        if name == "clamp":
            bounds = [_at(args, 1, None, op.kwargs.get("min")), _at(args, 2, None, op.kwargs.get("max"))]
            if any(isinstance(bound, Operand) for bound in bounds):
                return None
            return _clamped(law, *bounds)
        number = self._number(args[1]) if len(args) > 1 else None
        if number is None:
            return None
        alpha = float(op.kwargs.get("alpha", 1))
        if name == "mul":
            return _affine(law, number, 0.0)
        if name == "div" and number and op.kwargs.get("rounding_mode") is None:
            return _affine(law, 1.0 / number, 0.0)
        if name in ("add", "sub"):
            return _affine(law, 1.0, alpha * number if name == "add" else -alpha * number)
        return None

    def _number(self, value: Any) -> float | None:
        """A Python number, or a recorded or real tensor that is one constant."""
        if isinstance(value, (bool, int, float)):
            return float(value)
        law: _Law | None = None
        if isinstance(value, Captured):
            law = _constant(value)
        elif isinstance(value, Operand) and value.numel() == 1:
            law = self._part(value)
        return law.recipe.value if law is not None and law.recipe.kind == "fill" else None


def _repeats(operand: Operand) -> bool:
    """Whether one element shows in several places."""
    return any(step == 0 and length > 1 for length, step in zip(operand.size, operand.stride, strict=True))


def _constant(value: Any) -> _Law | None:
    if not isinstance(value, Captured) or value.tensor.numel() != 1 or value.tensor.is_complex():
        return None
    with unrecorded():
        return _fill(value.tensor.reshape(()).item(), value.tensor.dtype)


def _affine(law: _Law, scale: float, shift: float) -> _Law | None:
    recipe = law.recipe
    if scale == 0:
        return None
    changes: dict[str, Any] = {}
    if recipe.mean is not None and recipe.std is not None:
        changes = {"mean": recipe.mean * scale + shift, "std": recipe.std * abs(scale)}
    if recipe.low is not None and recipe.high is not None:
        low, high = sorted((recipe.low * scale + shift, recipe.high * scale + shift))
        changes |= {"low": low, "high": high}
    return _Law(dataclasses.replace(recipe, **changes))


def _inverse_error(law: _Law) -> _Law | None:
    """erfinv of uniform numbers: a normal distribution of deviation sqrt(1/2), cut where the uniform one ends."""
    recipe = law.recipe
    if recipe.kind != "uniform" or recipe.low is None or recipe.high is None or recipe.low < -1 or recipe.high > 1:
        return None

    def inverse(x: float) -> float:
        if abs(x) == 1:
            return math.copysign(math.inf, x)
        return _STANDARD.inv_cdf((x + 1) / 2) * math.sqrt(0.5)

    return _Law(
        Initializer(
            "truncated_normal", mean=0.0, std=math.sqrt(0.5), low=inverse(recipe.low), high=inverse(recipe.high)
        )
    )


def _clamped(law: _Law, low: float | None, high: float | None) -> _Law | None:
    recipe = law.recipe
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if recipe.mean is None or recipe.std is None or recipe.std == 0:
        return None
    before = (-math.inf, math.inf) if recipe.low is None or recipe.high is None else (recipe.low, recipe.high)

    def probability(x: float) -> float:
        return _STANDARD.cdf((x - recipe.mean) / recipe.std)  # type: ignore[operator]

    cut = max(0.0, probability(low) - probability(before[0])) + max(0.0, probability(before[1]) - probability(high))
    whole = probability(before[1]) - probability(before[0])
    if whole <= 0 or cut / whole > _NEGLIGIBLE:
        return None
    mean, std = recipe.mean, recipe.std
    return _Law(Initializer("truncated_normal", mean=mean, std=std, low=max(low, before[0]), high=min(high, before[1])))


def _cast(law: _Law | None, dtype: torch.dtype) -> _Law | None:
    if law is None:
        return None
    if law.recipe.kind == "fill":
        return _fill(law.recipe.value, dtype)
    return law if dtype.is_floating_point else None


def _fill(value: Any, dtype: torch.dtype) -> _Law | None:
    """The number that torch really stores, which is not always the nearest: it goes to bfloat16 by way of float32."""
    if not isinstance(value, (bool, int, float)) or dtype.is_complex:
        return None
    if isinstance(value, int) and abs(value) > 1 << 53:
        return None
    stored = _stored(value, repr(value), dtype)
    return None if stored is None else _Law(Initializer("fill", value=stored))


@functools.lru_cache(maxsize=256)
def _stored(value: float, text: str, dtype: torch.dtype) -> float | None:
    """`text` tells apart what Python takes for equal: 0.0 and -0.0, 1 and True."""
    try:
        with unrecorded():
            return float(torch.full((), value, dtype=dtype, device="cpu").to(torch.float64).item())
    except RuntimeError:
        return None


def _at(args: tuple[Any, ...], place: int, default: Any, otherwise: Any = None) -> Any:
    value = args[place] if len(args) > place else default
    value = otherwise if value is None else value
    return float(value) if isinstance(value, (bool, int, float)) else value
