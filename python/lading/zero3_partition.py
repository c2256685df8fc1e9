"""`lading.zero3_init`: a model on meta becomes one of ZeRO-3, without anybody holding a whole parameter.

    with lading.skeleton():
        model = Model()
    lading.zero3_init(model, config)                    # DeepSpeed's config, as for deepspeed.initialize
    lading.materialize(model, "path/to/checkpoint")
    engine, *_ = deepspeed.initialize(model=model, config=config, …)

    model = lading.from_pretrained(path, parallelize=lambda model: lading.zero3_init(model, config))

`deepspeed.zero.Init` around a constructor makes every parameter on every rank, sends the first rank's values to the
others, and keeps a part; and it rounds what the constructor computes. Here the constructor runs on meta and is
recorded, so that buffers come out as it means them (R29), and partitions are memory without values until they are
loaded. All else is DeepSpeed's own code: which memory, where, and what hangs on a parameter.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .allocate import put
from .dispatch_mode import PlainDispatchMode
from .placements import is_dtensor
from .private_names import check
from .watch import keep_record, note_no_value


def zero3_init(model: nn.Module, config: Any, **options: Any) -> nn.Module:
    """Gives every parameter of `model` to ZeRO-3, as `deepspeed.zero.Init(module=model, …)` does; those on meta without
    values. Floating parameters get the dtype of DeepSpeed's config. Returns `model`.

        with lading.skeleton():
            model = Model()
        lading.zero3_init(model, {"train_batch_size": 2, "zero_optimization": {"stage": 3}})
        lading.materialize(model, "path/to/checkpoint")

    Args:
        model: built on meta, or partly. Parameters that are real keep the first rank's values.
        config: DeepSpeed's, as a dict or the path of one.
        options: further arguments of `deepspeed.zero.Init`.
    """
    _partitioner()(module=model, config_dict_or_path=config, **options)
    return model


@functools.cache
def _partitioner() -> Any:
    base: Any = importlib.import_module("deepspeed").zero.Init
    check("deepspeed", "zero3_init")

    class Partitioner(base):  # type: ignore[misc]
        """Differs in parameters on meta only. Parameters keep it, and DeepSpeed asks it about those that come later."""

        def _convert_to_zero_parameters(self, param_list: Iterable[nn.Parameter]) -> None:
            for parameter in param_list:
                if hasattr(parameter, "ds_id"):
                    continue
                if parameter.is_meta and not is_dtensor(parameter):
                    self._take(parameter)
                else:
                    super()._convert_to_zero_parameters([parameter])

        def _take(self, parameter: nn.Parameter) -> None:
            dtype = self.dtype if parameter.is_floating_point() else parameter.dtype
            keep_record(parameter)
            put(parameter, torch.empty(parameter.shape, dtype=dtype, device="meta"))
            self._convert_to_deepspeed_param(parameter)
            with _CopiesOfNothing():
                parameter.partition()  # type: ignore[attr-defined]
            put(parameter, torch.empty(0, dtype=dtype, device=self.local_device))
            note_no_value(parameter)

    return Partitioner


class _CopiesOfNothing(PlainDispatchMode):
    """A copy from meta leaves what it should write to as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
