"""A default dtype for one thread, under `lading.skeleton()`: the process's stays as it is.

    with own_default_dtype(torch.bfloat16) as own, skeleton():
        model = Model(config)
    if own.is_incomplete: …                             # build it again, under the process's default dtype

Every operator that a constructor calls comes to the recorder, which runs it as if this were the default dtype. What
torch decides before that is caught where it is known: numbers in `torch.tensor`, `torch.get_default_dtype()` and
`torch.set_default_dtype()`. Everything else is found out: an operator that comes with the process's default dtype as
an argument, though neither the call nor its tensors have that dtype, got it from the process. `torch.Tensor(2, 3)` and
`torch.where(mask, 1.0, 0.0)` are such calls. `is_incomplete` then says that what was built is worth nothing.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .one_op import get_process_default_dtype, leaves_of, run_under
from .skeleton_ops import OpInfo
from .while_used import WhileUsed

_of_thread = threading.local()
_COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}


def own_default() -> OwnDefault | None:
    return getattr(_of_thread, "own", None)


@contextlib.contextmanager
def own_default_dtype(dtype: torch.dtype) -> Iterator[OwnDefault]:
    before = own_default()
    own = _of_thread.own = OwnDefault(dtype)
    try:
        with _functions_replaced:
            yield own
    finally:
        _of_thread.own = before


class OwnDefault:
    """The default dtype of a thread, and what is known of the call that it is in."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.is_incomplete = False
        self._of_process = get_process_default_dtype()
        self._known: set[torch.dtype] | None = set()  # dtypes that the present call has; None: it names one

    # ---- of functions

    @contextlib.contextmanager
    def calling(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Around a function of torch, which gets these keyword arguments."""
        before = self._known
        if func in _made_of_numbers() and kwargs.get("dtype") is None and len(args) < 2:
            kinds = set(_kinds_of(args[0] if args else kwargs.get("data", kwargs.get("obj"))))
            if kinds <= {bool, int, float} and (float in kinds or not kinds):
                kwargs = {**kwargs, "dtype": self.dtype}
            elif kinds & {float, complex}:
                self.is_incomplete = True
        leaves = leaves_of(args, kwargs)
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}
        names = any(isinstance(leaf, torch.dtype) or _has_other_dtype(leaf) for leaf in leaves) or func in _casts()
        self._known = None if names else dtypes
        try:
            yield kwargs
        finally:
            self._known = before

    def answered(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """What a function gave: a dtype that it was not given is perhaps the process's default."""
        if isinstance(out, torch.dtype) and out in self._suspects():
            leaves = leaves_of(args, kwargs)
            if not any(leaf is out or getattr(leaf, "dtype", None) is out for leaf in leaves):
                self.is_incomplete = True

    # ---- of operators

    def run(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = info.argument("dtype", args, kwargs)
        if dtype is None:
            return run_under(func, args, kwargs, self.dtype)
        self.look_at(dtype, leaves_of(args, kwargs))
        return func(*args, **kwargs)

    def look_at(self, dtype: torch.dtype | None, leaves: Sequence[Any] = ()) -> None:
        """Of a dtype that an operator was given, or that numbers became on the way to it."""
        if self._known is None or dtype not in self._suspects() or dtype in self._known:
            return
        if not any(isinstance(leaf, torch.Tensor) and leaf.dtype is dtype for leaf in leaves):
            self.is_incomplete = True

    def _suspects(self) -> tuple[torch.dtype | None, ...]:
        return self._of_process, _COMPLEX.get(self._of_process)


def _kinds_of(data: Any) -> Iterator[type]:
    """The types of numbers in nested lists; that of anything else."""
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from _kinds_of(item)
    else:
        kind = type(data)
        yield next((known for known in (bool, int, float, complex) if isinstance(data, known)), kind)


def _has_other_dtype(leaf: Any) -> bool:
    """An array of another library."""
    return not isinstance(leaf, torch.Tensor) and hasattr(leaf, "dtype")


@functools.cache
def _made_of_numbers() -> set[Any]:
    return {torch.tensor, torch.as_tensor, torch.asarray}


@functools.cache
def _casts() -> set[Any]:
    """Functions that name a dtype by their own name."""
    names = ("float", "double", "half", "bfloat16", "cfloat", "cdouble", "chalf", "type", "type_as")
    return {getattr(torch.Tensor, name) for name in names}


def _replace_functions() -> Callable[[], None]:
    get, put = torch.get_default_dtype, torch.set_default_dtype

    def get_default_dtype() -> torch.dtype:
        own = own_default()
        return get() if own is None else own.dtype

    def set_default_dtype(d: torch.dtype, /) -> None:
        own = own_default()
        if own is None:
            put(d)
        elif isinstance(d, torch.dtype) and d.is_floating_point:
            own.dtype = d
        else:
            raise TypeError("only floating-point types are supported as the default type")

    torch.get_default_dtype, torch.set_default_dtype = get_default_dtype, set_default_dtype

    def undo() -> None:
        torch.get_default_dtype, torch.set_default_dtype = get, put

    return undo


_functions_replaced = WhileUsed(_replace_functions)
