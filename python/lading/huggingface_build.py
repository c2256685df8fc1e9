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
from .while_used import WhileUsed
from .zero3 import transformers_without_zero3

REQUESTABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@contextlib.contextmanager
def construction(config: Any, dtype: Any = "auto", cast: str = "promote") -> Iterator[Any]:
    """The default dtype that transformers would build this config's model under, and a config that says it of all its
    parts (R32). It is what buffers get that the constructor names no dtype for.

    A constructor may do anything, and much of torch only knows the process's default dtype. So that one is set, as
    transformers sets it, if it is another; one thread at a time.
    """
    with process_state, transformers_without_zero3():
        config = copy.deepcopy(config)
        chosen = getattr(config, "dtype", None)
        chosen = chosen if isinstance(chosen, torch.dtype) else torch.get_default_dtype()
        asked = requested_dtype(dtype)
        if asked != "auto":
            chosen = torch_dtype(asked) if cast == "exact" else torch.promote_types(chosen, torch_dtype(asked))
        if chosen not in REQUESTABLE:
            yield config
            return
        for part in _every_config(config):
            part.dtype = chosen
        with process_default_dtype(chosen):
            yield config


def _every_config(config: Any) -> Iterator[Any]:
    """It, the configs inside it, and theirs."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        part = getattr(config, name, None)
        if part is not None:
            yield from _every_config(part)


def build(cls: type[nn.Module], config: Any, dtype: Any = "auto", cast: str = "promote", seed: int = 0) -> nn.Module:
    """Under `lading.skeleton()`, as `from_pretrained` builds: the constructor runs under the load's default dtype,
    `_init_weights` afterwards under the process's own, and rounds only what it writes."""
    from .skeleton_recorder import skeleton

    with process_state, skeleton(seed=seed):  # transformers replaces functions of torch.nn.init while it initialises
        with construction(config, dtype, cast) as own, _initialised_later():
            model = cls(own)
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
