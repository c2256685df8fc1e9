"""A model of transformers from its config, as transformers builds it, under `lading.skeleton()`."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .dtypes import requested_dtype, torch_dtype
from .one_op import process_default_dtype, process_state
from .own_default_dtype import own_default_dtype
from .while_used import WhileUsed
from .zero3 import transformers_without_zero3

REQUESTABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@contextlib.contextmanager
def construction(config: Any, dtype: Any = "auto", cast: str = "promote") -> Iterator[Any]:
    """The default dtype that transformers would build this config's model under, and a config that says it of all its
    parts (R32). It is what buffers get that the constructor names no dtype for.

    The process's default dtype is set if it is another, as transformers sets it; one thread at a time.
    """
    with process_state:
        config, chosen = _chosen_dtype(config, dtype, cast)
        with transformers_without_zero3(), process_default_dtype(chosen):
            yield config


def _chosen_dtype(config: Any, dtype: Any, cast: str) -> tuple[Any, torch.dtype]:
    """A copy of the config that says it, too."""
    config = copy.deepcopy(config)
    chosen = getattr(config, "dtype", None)
    chosen = chosen if isinstance(chosen, torch.dtype) else torch.get_default_dtype()
    asked = requested_dtype(dtype)
    if asked != "auto" and (cast == "exact" or torch_dtype(asked).itemsize > 1):  # float8 has nothing to promote to: R23
        chosen = torch_dtype(asked) if cast == "exact" else torch.promote_types(chosen, torch_dtype(asked))
    if chosen not in REQUESTABLE:
        return config, torch.get_default_dtype()
    for part in _every_config(config):
        part.dtype = chosen
    return config, chosen


def _every_config(config: Any) -> Iterator[Any]:
    """It, the configs inside it, and theirs."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None:
            yield from _every_config(part)


def build(cls: type[nn.Module], config: Any, dtype: Any = "auto", cast: str = "promote", seed: int = 0) -> nn.Module:
    """Under `lading.skeleton()`, as `from_pretrained` builds: the constructor runs under the load's default dtype,
    `_init_weights` afterwards under the process's own, and rounds only what it writes.

    The default dtype is this thread's alone if the constructor allows it; if not, it runs again under the process's.
    """
    from .skeleton_recorder import skeleton

    with process_state:  # transformers replaces functions of torch.nn.init while it initialises
        own, chosen = _chosen_dtype(config, dtype, cast)
        model: nn.Module | None = None
        with skeleton(seed=seed):
            with own_default_dtype(chosen) as default, transformers_without_zero3(), _initialised_later():
                try:
                    model = cls(own)
                except Exception:
                    if not default.is_incomplete:
                        raise
            if model is not None and not default.is_incomplete:
                return _initialised(model)
        with skeleton(seed=seed):
            with construction(config, dtype, cast) as own, _initialised_later():
                model = cls(own)
            return _initialised(model)


def _initialised(model: nn.Module) -> nn.Module:
    initialise = getattr(model, "initialize_weights", None)
    if callable(initialise):
        initialise()
    return model


_of_thread = threading.local()


@contextlib.contextmanager
def _initialised_later() -> Iterator[None]:
    """On this thread, constructors of transformers leave `initialize_weights` to the caller."""
    _of_thread.initialises_later = True
    try:
        with _initialisation_replaced:
            yield
    finally:
        _of_thread.initialises_later = False


def _replace_initialisation() -> Callable[[], None]:
    from transformers import PreTrainedModel

    real = PreTrainedModel.initialize_weights

    @functools.wraps(real)
    def initialize_weights(self: Any) -> None:
        if not getattr(_of_thread, "initialises_later", False):
            real(self)

    PreTrainedModel.initialize_weights = initialize_weights

    def undo() -> None:
        PreTrainedModel.initialize_weights = real

    return undo


_initialisation_replaced = WhileUsed(_replace_initialisation)
