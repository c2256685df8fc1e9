"""Skeleton documents of checkpoints' models, for the command line (docs/schema/skeleton.md).

    lading.write_skeleton("path/to/model", "model.json")

and then `lading load path/to/model --skeleton model.json`. Everything comes from the config and from the headers of the
files: no weights are read.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .allocate import is_made_with
from .bits import bytes_of
from .checkpoint_class import class_of, folder_of, read_config
from .conversion import Conversion
from .huggingface import describe, pins_of
from .huggingface_build import build
from .huggingface_view import Library, View
from .inventory import Entry, take_inventory
from .inventory_json import recipe_fields, skeleton_json
from .locating import Location, located, pinned
from .words import StrPath

_SMALL_BYTES = 4096  # a value of at most this stands in the document itself


def build_skeleton(location: str, *, cls: type[nn.Module] | None = None, trust_remote_code: bool = False) -> Any:
    """The model of a checkpoint under `lading.skeleton()`: its config, its class, no weights."""
    config = read_config(location, trust_remote_code, cls)
    return build(cls if cls is not None else class_of(location, config, trust_remote_code), config)


def skeleton_of(
    path: StrPath, *, revision: str | None = None, cls: type[nn.Module] | None = None, trust_remote_code: bool = False
) -> str:
    """The skeleton document of a checkpoint's model, from its config alone (docs/schema/skeleton.md).

        Path("skeleton.json").write_text(lading.skeleton_of("path/to/model"))

    No weights are read: a directory with only `config.json` will do. What the constructor computes is in it up to 4 KiB
    a tensor; `lading.write_skeleton` puts the rest into a file beside the document, for `lading load`.

    Args:
        path: a directory with `config.json`, or a repository in the Hugging Face cache.
        revision: a branch, a tag or a commit of a cached repository. None means "main".
        cls: the class to build. None means the class that the config names.
        trust_remote_code: build the class whose code comes with the checkpoint, as in `lading.from_pretrained`.
    """
    return _Described.of(located(path, revision), cls, trust_remote_code).document()


def write_skeleton(
    path: StrPath,
    output: StrPath,
    *,
    revision: str | None = None,
    cls: type[nn.Module] | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Writes the skeleton document of a checkpoint's model, and beside it what `lading plan` and `lading load` need.

        lading.write_skeleton("path/to/model", "model.json")        # then: lading load … --skeleton model.json

    Beside "model.json" are, if the model needs them: "model.values.safetensors", what constructors compute beyond 4 KiB
    a tensor; "model.mapping.json", how the checkpoint's keys become tensors; and "model.policy.json", what may be
    missing. `lading plan` and `lading load` find them there. The last two need the checkpoint's files, of which only
    headers are read. Existing files with these names are overwritten; they are deleted if the model does not need them,
    or if the checkpoint has no safetensors files.

    Args:
        output: the document's file.
        path, revision, cls, trust_remote_code: as in `lading.skeleton_of`.
    """
    write_files(skeleton_files(path, output, revision=revision, cls=cls, trust_remote_code=trust_remote_code))


def skeleton_files(
    path: StrPath,
    output: StrPath,
    *,
    revision: str | None = None,
    cls: type[nn.Module] | None = None,
    trust_remote_code: bool = False,
) -> dict[Path, bytes]:
    """What `write_skeleton` writes, by place, the document first. Empty: no such file is written, because one of
    another model would be taken for this one's."""
    described = _Described.of(located(path, revision), cls, trust_remote_code)
    place = Path(output)
    stem = place.name.removesuffix(".json")
    return {
        place: described.document().encode(),
        place.with_name(f"{stem}.values.safetensors"): described.values(),
        place.with_name(f"{stem}.mapping.json"): described.mapping(),
        place.with_name(f"{stem}.policy.json"): described.policy(),
    }


@dataclasses.dataclass
class _Described:
    """A model under `skeleton()`; `entries` are its tensors less the views of others, which come with those."""

    model: nn.Module
    location: str
    inventory: list[Entry]

    @classmethod
    def of(cls, location: Location, model_class: type[nn.Module] | None, trust_remote_code: bool) -> _Described:
        location = pinned(location, folder_of(location))
        model = build_skeleton(location, cls=model_class, trust_remote_code=trust_remote_code)
        return cls(model, location, take_inventory(model))

    @functools.cached_property
    def entries(self) -> list[Entry]:
        return [entry for entry in self.inventory if not is_made_with(entry)]

    @functools.cached_property
    def conversion(self) -> Conversion:
        """Of the checkpoint's files, if it has any. Only headers are read."""
        folder = folder_of(self.location)
        has_files = folder is not None and any(Path(folder).glob("*.safetensors"))
        return (describe(self.model, self.location, self.inventory) if has_files else None) or Conversion()

    def document(self) -> str:
        library = Library.find()
        view = View.of([self.model], library) if library is not None else None
        pins = pins_of(view, library) if view is not None and library is not None else []
        data = {
            name: base64.b64encode(bytes_of(value).clone().numpy().tobytes()).decode()
            for name, value in self.computed.items()
            if name not in self.large
        }
        return skeleton_json(self.entries, pins=pins, data=data)

    @functools.cached_property
    def computed(self) -> dict[str, torch.Tensor]:
        """What constructors compute and no recipe of the engine's makes, by name."""
        return {
            entry.name: entry.derive(0).contiguous().clone()
            for entry in self.entries
            if entry.is_tensor and recipe_fields(entry).get("derivation", {}).get("kind") == "host"
        }

    @functools.cached_property
    def large(self) -> list[str]:
        """Names of those that do not stand in the document."""
        stated = {entry.name: entry.dtype for entry in self.entries}
        return [
            name for name, value in self.computed.items()
            if value.numel() * value.element_size() > _SMALL_BYTES or value.dtype != stated[name]
        ]  # fmt: skip

    def values(self) -> bytes:
        from safetensors.torch import save

        return save({name: self.computed[name] for name in self.large}) if self.large else b""

    def mapping(self) -> bytes:
        document = self.conversion.mapping_document()
        return _json_bytes(document) if document else b""

    def policy(self) -> bytes:
        said = {
            "not_expected": [{"name": name} for name in self.conversion.not_expected],
            "may_untie": [{"name": name} for name in self.conversion.may_untie],
        }
        return _json_bytes({"schema": "lading.policy/1", **said}) if any(said.values()) else b""


def _json_bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def write_files(files: Mapping[Path, bytes]) -> None:
    """Each whole, or as it was. Only plain files are replaced: a link or a device belongs to another program."""
    for place in files:
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise FileExistsError(f"{place} exists and is not a regular file. Remove it, or choose another output path.")
    for place, data in files.items():
        if data:
            _write(place, data)
        else:
            place.unlink(missing_ok=True)


def _write(place: Path, data: bytes) -> None:
    part = place.with_name(f"{place.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
