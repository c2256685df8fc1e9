"""transformers as lading sees it: the names of the library that are used, and a model by the names that its own code
knows.

What is private to transformers is looked for first (private_names.py), and if it is not there the error says which
version is installed, what is missing, and which versions work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import peft
from .inventory import BUFFER, PARAMETER, Entry, canonical_modules, take_inventory
from .private_names import check


@dataclasses.dataclass(frozen=True)
class Library:
    """The names of transformers that are used, found once."""

    version: str
    model_class: type
    mapping_of: Callable[..., list[Any]]
    rename: Callable[..., tuple[str, str | None]]
    natural_order: Callable[[str], Any]
    alternation: Callable[[list[str]], tuple[re.Pattern[str], Any, Any]]
    renaming: type[Any]
    converter: type[Any]

    @classmethod
    def find(cls) -> Library | None:
        """None if transformers was not imported: then no model can be one of its."""
        utilities = sys.modules.get("transformers.modeling_utils")
        if utilities is None:
            return None
        import transformers

        check("transformers")
        from transformers import conversion_mapping, core_model_loading

        return cls(
            transformers.__version__,
            utilities.PreTrainedModel,
            conversion_mapping.get_model_conversion_mapping,
            core_model_loading.rename_source_key,
            core_model_loading.dot_natural_key,
            core_model_loading.build_glob_alternation,
            core_model_loading.WeightRenaming,
            core_model_loading.WeightConverter,
        )


def original_class(module: nn.Module) -> type:
    """The class that a module was built by: `fully_shard` gives it one of its own, under another name."""
    cls = type(module)
    if any(base.__name__ == "FSDPModule" for base in cls.__bases__):
        return next((base for base in cls.__bases__ if base.__name__ != "FSDPModule"), cls)
    return cls


@contextlib.contextmanager
def original_classes(model: nn.Module) -> Iterator[None]:
    """transformers finds conversions by the names of classes, so meanwhile every module has its own again."""
    changed = [(module, type(module)) for module in model.modules() if original_class(module) is not type(module)]
    try:
        for module, _ in changed:
            module.__class__ = original_class(module)
        yield
    finally:
        for module, cls in changed:
            module.__class__ = cls


class View:
    """A model of transformers as its own code would see it: without wrappers, before PEFT, in whole tensors."""

    def __init__(self, model: Any, entries: Iterable[tuple[str | None, Entry]]) -> None:
        self.model = model
        self.part: View | None = None  # of a checkpoint's whole model: the part of it that is loaded
        self.config = model.config
        self.base_model_prefix: str = getattr(model, "base_model_prefix", "") or ""
        self.names: dict[str, list[str]] = {}  # by transformers' name, those of the inventory
        self.entries: dict[str, Entry] = {}
        self.state: dict[str, tuple[int, ...]] = {}  # what a state dict has, as shapes
        self.adapters: list[str] = []
        for plain, entry in entries:  # None: an adapter's
            if plain is None:
                self.adapters.append(entry.name)
                continue
            self.names.setdefault(plain, []).append(entry.name)
            self.entries.setdefault(plain, entry)
            if entry.kind in (PARAMETER, BUFFER):
                self.state[plain] = entry.shape

    @classmethod
    def of(cls, parts: Sequence[nn.Module], library: Library, entries: Iterable[Entry] | None = None) -> View | None:
        """The model among these parts, if there is one. `entries`: their inventory, if it was taken before."""
        taken = [entry for entry in (take_inventory(list(parts)) if entries is None else entries) if entry.is_tensor]
        wrapped = peft.unwrapped(parts, taken)
        before = wrapped.plain_modules if wrapped is not None else {}
        found = (
            module
            for part in parts
            for name, module in canonical_modules(part)
            if isinstance(module, library.model_class) and before.get(name, name) == ""
        )
        model = next(found, None)
        if model is None:
            return None
        if wrapped is None:
            return cls(model, [(entry.name, entry) for entry in taken])
        return cls(model, [(wrapped.plain.get(entry.name), entry) for entry in taken])

    def get_parameter(self, name: str) -> torch.Tensor:
        """For operations that look at the shapes of what they make."""
        if name not in self.state:
            raise AttributeError(f"the model has no parameter {name}")
        return torch.empty(self.state[name], device="meta")

    get_parameter_or_buffer = get_parameter
