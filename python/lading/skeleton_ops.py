"""What the recorder must know of an operator, read from its schema once."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .torch_names import tree_flatten

_BLANK = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "_empty_affine_quantized",
}
# Each writes every element of its first argument and reads none of it.
_OVERWRITES = {
    "zero_",
    "fill_",
    "copy_",
    "normal_",
    "uniform_",
    "exponential_",
    "random_",
    "cauchy_",
    "log_normal_",
    "geometric_",
}
_LIFTS = {"lift", "lift_fresh", "lift_fresh_copy"}


class OpInfo:
    """Facts about one overload."""

    __slots__ = (
        "dynamic", "is_blank", "is_factory", "is_lift", "is_metadata", "is_overwrite", "is_random", "name", "out_names",
        "places", "qualified_name", "short_name", "writes",
    )  # fmt: skip

    def __init__(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        self.name = str(func)
        self.qualified_name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.short_name = short = schema.name.rpartition("::")[2]
        self.places = {argument.name: place for place, argument in enumerate(schema.arguments)}
        self.writes = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.out_names = {argument.name for argument in schema.arguments if argument.is_out}
        self.is_metadata = torch.Tag.inplace_view in func.tags or short in ("set_", "resize_", "resize_as_")
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.dynamic = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        self.is_blank = short in _BLANK
        self.is_lift = short in _LIFTS
        self.is_overwrite = short in _OVERWRITES
        self.is_factory = "device" in self.places or short.endswith("_like")

    def is_autocast(self, device_type: str) -> bool:
        """Whether autocast would change what it computes, on a device of this type. It passes meta tensors by."""
        if self.short_name == "convolution":
            return True
        return torch._C._dispatch_has_kernel_for_dispatch_key(self.qualified_name, f"Autocast{device_type.upper()}")

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = self.places.get(name)
        if place is None:
            return None
        return args[place] if place < len(args) else kwargs.get(name)

    def with_argument(
        self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        place = self.places.get(name)
        if place is None:
            return args, kwargs
        if place < len(args):
            return (*args[:place], value, *args[place + 1 :]), kwargs
        return args, {**kwargs, name: value}

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that a call writes to."""
        found: list[torch.Tensor] = []
        for place, name in self.writes:
            value = args[place] if place < len(args) else kwargs.get(name)
            found.extend(leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor))
        return found


@functools.cache
def op_info(func: torch._ops.OpOverload) -> OpInfo:
    return OpInfo(func)
