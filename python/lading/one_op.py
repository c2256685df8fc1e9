"""One operator with a generator and a default dtype of its own.

torch has one default generator and one default dtype for all threads of a process. An operator that a load runs must
not see another thread change them, and another thread must not see the load change them. So neither is set: random
operators get a generator as an argument, by the overload that takes one, and operators whose result depends on the
default dtype get it as an argument, or get their integers cast beforehand, as torch does it inside.

Where an operator has no such form (fused attention with dropout, operators of other libraries), the process's state is
set for the duration of this one call, under a lock of ours, and put back. Other threads of the process can see that.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .skeleton_ops import op_info
from .torch_names import tree_map
from .while_used import free_after_fork

# Operators that take floating numbers and write integers in place, whatever the default dtype.
_WRITES_INTEGERS = {"fill_", "masked_fill_", "index_fill_", "scatter_", "bernoulli_", "geometric_", "random_"}

# Held by who sets something of the process that torch or transformers have once for all threads, until it is put back.
process_state = threading.RLock()
free_after_fork(process_state)


# As they are for the process: a thread may have a default dtype of its own (own_default_dtype.py).
get_process_default_dtype, _set_process_default_dtype = torch.get_default_dtype, torch.set_default_dtype


class _Call(NamedTuple):
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)


def run_op(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    default_dtype: torch.dtype,
    results: Sequence[torch.dtype] = (),
    generator: torch.Generator | None = None,
) -> Any:
    """Runs an operator as if these were the process's default dtype and generator.

    `results` are the dtypes of the new tensors that it gives under this default dtype. A `generator` is for operators
    that draw random numbers, and is advanced by them.
    """
    call = _Call(func, args, kwargs)
    explicit = _with_dtypes(call, default_dtype, results)
    if explicit is not None:
        out = _run(explicit, None, generator)
        if explicit is call or not results or _dtypes(out)[: len(results)] == list(results):
            return out
    return _run(call, default_dtype, generator)


def run_under(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], default_dtype: torch.dtype) -> Any:
    """Runs an operator as if this were the default dtype, where its result is not yet known. Functional operators
    whose result may depend on it run twice."""
    call = _Call(func, args, kwargs)
    results: list[torch.dtype] = []
    if not _is_independent(call) and not op_info(func).writes:
        found = _dtypes(call.run())
        if any(dtype.is_complex for dtype in found):
            return _run(call, default_dtype, None)
        results = [default_dtype if dtype.is_floating_point else dtype for dtype in found]
    return run_op(func, args, kwargs, default_dtype=default_dtype, results=results)


def run_with_generator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> Any:
    """A random operator that draws from `generator`."""
    return _run(_Call(func, args, kwargs), None, generator)


def _run(call: _Call, default_dtype: torch.dtype | None, generator: torch.Generator | None) -> Any:
    """What is not None and cannot be an argument is the process's meanwhile."""
    with contextlib.ExitStack() as process:
        if default_dtype is not None:
            process.enter_context(process_default_dtype(default_dtype))
        if generator is not None:
            drawing = _with_generator(call, generator)
            if drawing is None:
                process.enter_context(_process_generator(generator))
            else:
                call = drawing
        return call.run()


def leaves_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call is given, out of lists and tuples. torch's own walk through trees takes four times as long."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, (list, tuple)):
            found += leaves_of(value, {})
        else:
            found.append(value)
    return found


def _dtypes(out: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in leaves_of((out,), {}) if isinstance(leaf, torch.Tensor)]


# ---- generators


def _with_generator(call: _Call, generator: torch.Generator) -> _Call | None:
    """The same call with a generator as its argument; None if no overload takes one."""
    if not isinstance(call.func, torch._ops.OpOverload):  # a function of ours or of torch.nn.init
        return call._replace(kwargs={**call.kwargs, "generator": generator})
    func = drawing_overload(call.func)
    if func is None:
        return None
    args, kwargs = call.args, call.kwargs
    if func is call.func:
        args, kwargs = op_info(func).with_argument("generator", generator, args, kwargs)
    else:
        kwargs = {**kwargs, "generator": generator}
    return _Call(func, args, kwargs)


@functools.cache
def drawing_overload(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload of a random operator that differs by a generator only; None if there is none."""

    def arguments(overload: torch._ops.OpOverload) -> list[tuple[str, str, bool]]:
        return [(one.name, str(one.type), one.is_out) for one in overload._schema.arguments]

    wanted = arguments(func)
    if any(name == "generator" for name, _, _ in wanted):
        return func
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        found = arguments(other)
        if len(found) == len(wanted) + 1 and [one for one in found if one[0] != "generator"] == wanted:
            return other
    return None


@contextlib.contextmanager
def _process_generator(generator: torch.Generator) -> Iterator[None]:
    """The last resort: the process's generator is this one meanwhile."""
    with process_state:
        default = _default_generator(generator.device)
        state = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(state)


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device.type)
    index = module.current_device() if device.index is None else device.index
    return module.default_generators[index]


def copy_of_default_generator(device: torch.device) -> torch.Generator:
    """A generator that gives what the process's default generator for this device would give next."""
    copy = torch.Generator(device)
    copy.set_state(_default_generator(device).get_state())
    return copy


# ---- the default dtype


def _with_dtypes(call: _Call, default: torch.dtype, results: Sequence[torch.dtype]) -> _Call | None:
    """A call that does the same under every default dtype of the process; None if none is known.

    The default dtype is what tensors get that are made of Python numbers, and what integer tensors become beside
    floating numbers or in operators that only have floating results.
    """
    if _is_independent(call):
        return call
    if call.func.namespace != "aten":
        return None
    info = op_info(call.func)
    leaves = leaves_of(call.args, call.kwargs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    makes_floats = any(dtype.is_floating_point or dtype.is_complex for dtype in results)
    if not tensors:
        if "dtype" in info.places and results:
            args, kwargs = info.with_argument("dtype", results[0], call.args, call.kwargs)
            return _Call(call.func, args, kwargs)
        return None if makes_floats else call
    if any(isinstance(leaf, complex) for leaf in leaves):
        return None
    makes_integers = bool(results) and all(not dtype.is_floating_point and dtype != torch.bool for dtype in results)
    if not makes_floats and (makes_integers or not any(isinstance(leaf, float) for leaf in leaves)):
        return call
    if info.short_name in _WRITES_INTEGERS:
        return call
    if torch.Tag.pointwise not in call.func.tags or info.writes:
        return None

    def cast(leaf: Any) -> Any:
        return leaf.to(default) if isinstance(leaf, torch.Tensor) else leaf

    return _Call(call.func, *tree_map(cast, (call.args, call.kwargs)))


def _is_independent(call: _Call) -> bool:
    """Whether the call does the same under every default dtype: it names a dtype, or a tensor of it is floating."""
    if not isinstance(call.func, torch._ops.OpOverload):  # ours and torch.nn.init's choose their dtypes
        return True
    if call.func.namespace != "aten":
        return False
    if op_info(call.func).argument("dtype", call.args, call.kwargs) is not None:
        return True
    leaves = leaves_of(call.args, call.kwargs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(isinstance(leaf, complex) for leaf in leaves):
        return any(tensor.is_complex() for tensor in tensors)
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


@contextlib.contextmanager
def process_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The last resort: the process's default dtype is this one meanwhile."""
    with process_state:
        before = get_process_default_dtype()
        if before != dtype:
            _set_process_default_dtype(dtype)
        try:
            yield
        finally:
            if before != dtype:
                _set_process_default_dtype(before)
