"""Random numbers for a function of another library, apart from those of the process.

    with own_random_numbers(seed=1):
        run(initialiser)                            # torch.rand, random.random, numpy.random.rand: its own numbers

Initialisers, recipes and `Computed` functions may draw. They draw from generators of this thread: a copy of the
process's, or seeded ones. The process's generators are neither advanced nor put back, so that other threads see the
numbers that they would see alone.

How: a dispatch mode, which is the thread's own, hands a generator to torch's random operators. Module functions
(`torch.manual_seed`, `random.random`, `numpy.random.rand`, …) are replaced meanwhile by functions that ask which thread
calls them. A function that imported `random.random` itself before (`from random import random`) draws from the process.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .dispatch_mode import PlainDispatchMode
from .one_op import copy_of_default_generator, leaves_of, run_with_generator
from .skeleton_ops import op_info
from .torch_names import _device_constructors
from .while_used import WhileUsed

_CPU = torch.device("cpu")
_of_thread = threading.local()


@contextlib.contextmanager
def own_random_numbers(seed: int | None = None) -> Iterator[None]:
    """Numbers of this thread: those that the process would give next, or with a seed those of the seed."""
    before = getattr(_of_thread, "numbers", None)
    _of_thread.numbers = _Numbers(seed)
    try:
        with _functions_replaced, _of_thread.numbers.torch:
            yield
    finally:
        _of_thread.numbers = before


class OnCpu(TorchFunctionMode):
    """What names no device is made on the CPU. `with torch.device(…)` would set a variable of the process."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = _CPU
        return func(*args, **kwargs)


class _Numbers:
    """The generators of one thread. Those of `random` and numpy are made when they are first asked for."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self.torch = _Drawing(seed)

    @functools.cached_property
    def random(self) -> random.Random:
        own = random.Random(self._seed)
        if self._seed is None:
            own.setstate(_originals["random", "getstate"]())
        return own

    @functools.cached_property
    def numpy(self) -> Any:
        own = sys.modules["numpy"].random.RandomState(self._seed)
        if self._seed is None:
            own.set_state(_originals["numpy.random", "get_state"]())
        return own


class _Drawing(PlainDispatchMode):
    """Gives torch's random operators a generator, where they would take the process's."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._process_seed = torch.default_generator.initial_seed()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a subclass first; what it does inside comes here again
        info = op_info(func)
        if not info.is_random:
            return func(*args, **kwargs)
        given = info.argument("generator", args, kwargs)
        device = _device_of(info.argument("device", args, kwargs), args, kwargs)
        if device.type == "meta" or (given is not None and given is not torch.default_generator):
            return func(*args, **kwargs)
        return run_with_generator(func, args, kwargs, self.generator(device))

    def generator(self, device: torch.device = _CPU) -> torch.Generator:
        seed = torch.default_generator.initial_seed()
        if seed != self._process_seed:  # by torch.default_generator.manual_seed, which nothing can replace
            self._process_seed = seed
            self._generators.clear()
            self._seed = None
        known = self._generators.get(device)
        if known is None:
            if self._seed is None:
                known = copy_of_default_generator(device)
            else:
                known = torch.Generator(device).manual_seed(self._seed)
            self._generators[device] = known
        return known

    # As in torch.random.

    def manual_seed(self, seed: Any) -> torch.Generator:
        self._seed = int(seed)
        self._generators.clear()
        return self.generator()

    def seed(self) -> int:
        return self.manual_seed(torch.Generator().seed()).initial_seed()

    def initial_seed(self) -> int:
        return self.generator().initial_seed()

    def get_rng_state(self) -> torch.Tensor:
        return self.generator().get_state()

    def set_rng_state(self, new_state: torch.Tensor) -> None:
        self.generator().set_state(new_state)


def _device_of(device: Any, args: Any, kwargs: Any) -> torch.device:
    if device is not None:
        return torch.device(device)
    tensors = (leaf for leaf in leaves_of(args, kwargs) if isinstance(leaf, torch.Tensor))
    return next((tensor.device for tensor in tensors), _CPU)


# ---- functions of modules

_TORCH_FUNCTIONS = ("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state")
_NUMPY_FUNCTIONS = {"seed": "seed", "sample": "random_sample", "ranf": "random_sample"}  # that are no methods
_originals: dict[tuple[str, str], Callable[..., Any]] = {}


def _replace_functions() -> Callable[[], None]:
    """For threads without numbers of their own the functions do what they did."""
    replaced: list[tuple[Any, str, Any]] = []

    def replace(module: Any, name: str, kind: str, method: str) -> None:
        original = _originals[module.__name__, name] = getattr(module, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            numbers = getattr(_of_thread, "numbers", None)
            function = original if numbers is None else getattr(getattr(numbers, kind), method)
            return function(*args, **kwargs)

        replaced.append((module, name, original))
        setattr(module, name, call)

    def undo() -> None:
        for module, name, original in replaced:
            setattr(module, name, original)

    for module in (torch, torch.random):
        for name in _TORCH_FUNCTIONS:
            replace(module, name, "torch", name)
    for name in _methods_in(random, random.Random):
        replace(random, name, "random", name)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        names = {name: name for name in _methods_in(numpy.random, numpy.random.RandomState)}
        for name, method in (names | _NUMPY_FUNCTIONS).items():
            replace(numpy.random, name, "numpy", method)
    return undo


def _methods_in(module: Any, cls: type) -> list[str]:
    """The functions of a module that are methods of its one generator."""
    return [name for name, value in vars(module).items() if isinstance(getattr(value, "__self__", None), cls)]


_functions_replaced = WhileUsed(_replace_functions)
