"""Which keys a saved checkpoint has, in which dtypes and shapes, and in which of its files.

    tensors, conversion = model_keys([model], entries)      # what its library writes, and how that is read back
    files = in_files(tensors, size_of("5GB"))

Values play no part: transformers' own code removes ties and reverts its conversions, on tensors without memory, in the
whole shapes of the model. What it makes is only believed as far as its names, dtypes and shapes: which elements a key
has is what a load of that key would read (saving.py).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import peft
from .conversion import Catalog, Conversion
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .huggingface import describe
from .huggingface_view import Library, View, original_classes
from .inventory import BUFFER, EXTRA_STATE, PARAMETER, Entry, canonical_modules, tensors_of
from .inventory_json import dtype_name
from .private_names import check

_UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([TGMK]B)\s*", re.IGNORECASE)
_IN_FILES = (PARAMETER, BUFFER)


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """One key of a checkpoint that is to be written. `dtype` is named as in safetensors. `piece`: of keys that
    transformers makes of one tensor, such as the experts of a layer, and keeps in one file; with that tensor's size."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    piece: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize


def as_transformers_saves(parts: Sequence[nn.Module], view: View, dtype: str | None = None) -> list[SavedTensor]:
    """What `save_pretrained` of the whole model in one process writes, in its order. `dtype`: of floats, if not theirs.
    """
    check("transformers", "saving")
    from transformers import core_model_loading, modeling_utils

    stub = _Stub(parts, view)
    ignored = getattr(view.model, "_keys_to_ignore_on_save", None) or ()
    order = [name for name in stub.order if name not in ignored]
    state = {name: stub.get_parameter(name).to(_as_asked(view.entries[name].dtype, dtype)) for name in order}
    try:
        with original_classes(view.model):
            model: Any = stub
            state = modeling_utils.remove_tied_weights_from_state_dict(state, model)
            state = core_model_loading.revert_weight_conversion(model, state)
    except Exception as error:  # whatever transformers' code raises
        message = f"transformers cannot revert its conversions of this model: {type(error).__name__}: {error}"
        remedy = "Pass base=, the checkpoint that the model was loaded from: then its keys are written."
        raise LadingError(Problem("conversion", message, remedy=remedy), stage="documents", exit_code=4) from error
    return [_saved(key, tensor) for key, tensor in state.items()]


def _saved(key: str, tensor: torch.Tensor) -> SavedTensor:
    storage = tensor.untyped_storage()
    return SavedTensor(key, dtype_name(tensor.dtype), tuple(tensor.shape), (storage._cdata, storage.nbytes()))


class _Stub:
    """A model of transformers as its code for saving sees it, in whole tensors without memory."""

    def __init__(self, parts: Sequence[nn.Module], view: View) -> None:
        self.config, self.base_model_prefix = view.config, view.base_model_prefix
        self._view, self._modules = view, canonical_modules(view.model)
        loaded_with = getattr(view.model, "_weight_conversions", None)  # by transformers itself
        if loaded_with is not None:
            self._weight_conversions = loaded_with
        plain = {own: name for name, held in view.names.items() for own in held if name in view.state}
        ordered = (name for part in parts for name, _ in tensors_of(canonical_modules(part)))
        self.order = list(dict.fromkeys(plain[name] for name in ordered if name in plain))
        ties = {name: entry.tie_class for name, entry in view.entries.items() if entry.tie_class is not None}
        shared: dict[int, object] = {}
        self._identities = {name: shared.setdefault(tie, object()) for name, tie in ties.items()}

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        seen: set[int] = set()
        for name, module in self._modules:
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def get_parameter(self, name: str) -> torch.Tensor:
        return torch.empty(self._view.state[name], dtype=self._view.entries[name].dtype, device="meta")

    def get_parameter_or_buffer(self, name: str) -> object:
        """What its code asks for the identity of: names that are tied have one object."""
        return self._identities.setdefault(name, object())


def as_named(
    parts: Sequence[nn.Module], entries: Iterable[Entry], dtype: str | None, plain: Mapping[str, str]
) -> list[SavedTensor]:
    """What a file has of a model that no library knows more about: every parameter and persistent buffer under its own
    name, of a tie the first. `plain`: names that tensors had before PEFT."""
    by_name = {entry.name: entry for entry in entries if entry.is_tensor and entry.kind in (*_IN_FILES, EXTRA_STATE)}
    ordered = dict.fromkeys(name for part in parts for name, _ in tensors_of(canonical_modules(part)))
    ordered |= dict.fromkeys(by_name)  # extra state, which is no tensor of a module
    found, told = [], set()
    for entry in (by_name[name] for name in ordered if name in by_name):
        if entry.tie_class is None or entry.tie_class not in told:
            told.add(entry.tie_class)
            key = plain.get(entry.name, entry.name)
            found.append(SavedTensor(key, dtype_name(_as_asked(entry.dtype, dtype)), entry.shape))
    return found


def _as_asked(own: torch.dtype, asked: str | None) -> torch.dtype:
    return torch_dtype(asked) if asked is not None and own.is_floating_point else own


def model_keys(
    parts: Sequence[nn.Module], entries: Sequence[Entry], dtype: str | None = None
) -> tuple[list[SavedTensor], Conversion]:
    """What the model's own library would write, and how it would be read back into the model."""
    library = Library.find()
    view = View.of(parts, library, entries) if library is not None else None
    if view is None:
        wrapped = peft.unwrapped(parts, entries)
        tensors = as_named(parts, entries, dtype, wrapped.plain if wrapped is not None else {})
        if wrapped is None:
            return tensors, Conversion()
        return tensors, peft.conversion(wrapped, Catalog({tensor.key: tensor.shape for tensor in tensors}))
    tensors = as_transformers_saves(parts, view, dtype)
    catalog = Catalog({tensor.key: tensor.shape for tensor in tensors})
    conversion = describe(parts, None, entries, catalog)
    assert conversion is not None
    return tensors, conversion


def parameter_count(entries: Iterable[Entry]) -> int:
    """Elements of the parameters, a tie once: `total_parameters` of an index, as transformers counts them."""
    own = [entry for entry in entries if entry.kind == PARAMETER]
    distinct = {entry.name if entry.tie_class is None else entry.tie_class: entry for entry in own}
    return sum(math.prod(entry.shape) for entry in distinct.values())


# ---- files


def size_of(text: int | str) -> int:
    """Bytes, of a number or of a text such as "5GB". Or ValueError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return text
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found is not None else 0
    if size < 1:
        raise ValueError(f'max_shard_size is {text!r}; it should be a number of bytes, or a text such as "5GB"')
    return size


def in_files(tensors: Iterable[SavedTensor], max_bytes: int) -> dict[str, list[SavedTensor]]:
    """By the name of the file, as huggingface_hub shares them out: in their order, a piece at the place of its first
    key, and what is larger than a file may be in one of its own."""
    pieces: dict[Any, list[SavedTensor]] = {}
    for tensor in tensors:
        pieces.setdefault(tensor.key if tensor.piece is None else tensor.piece, []).append(tensor)
    files: list[list[SavedTensor]] = []
    current: list[SavedTensor] = []
    size = 0
    for members in pieces.values():
        size_bytes = members[0].size_bytes if members[0].piece is None else members[0].piece[1]
        if size_bytes > max_bytes:
            files.append(members)
            continue
        if size + size_bytes > max_bytes:
            files.append(current)
            current, size = [], 0
        current += members
        size += size_bytes
    if current:
        files.append(current)
    if len(files) == 1:
        return {"model.safetensors": files[0]}
    return {f"model-{place:05d}-of-{len(files):05d}.safetensors": file for place, file in enumerate(files, 1)}
