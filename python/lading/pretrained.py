"""`lading.from_pretrained`: config → skeleton → the user's `parallelize` → materialize.

    model = lading.from_pretrained("org/name", device="cuda:0")
    model = lading.from_pretrained("org/name", parallelize=fully_shard)

The model is built on meta by its own class, and what its constructor computes is recorded, so that `parallelize` may
do as it likes: shard, freeze, wrap with PEFT, or answer another module. Weights are read afterwards, each rank its
own part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .allocate import is_made_with
from .checkpoint_class import class_of, folder_of, read_config
from .conversion import Conversion
from .exiting import ending_before_python
from .huggingface import describe, pins_of
from .huggingface_build import build
from .huggingface_view import Library, View
from .inventory import Entry, take_inventory
from .inventory_json import recipe_fields, skeleton_json
from .loading import materialize


@ending_before_python
def from_pretrained(
    path_or_id: str | os.PathLike[str],
    *,
    cls: type[nn.Module] | None = None,
    config: Any = None,
    parallelize: Callable[[nn.Module], nn.Module | None] | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """A model of transformers with its weights, in evaluation mode.

        model = lading.from_pretrained("org/name", device="cuda:0")
        model = lading.from_pretrained("org/name", parallelize=shard)    # shard(model) calls fully_shard, or anything

    Args:
        path_or_id: a directory with `config.json` and safetensors files, or a repository in the Hugging Face cache.
        cls: the class to build. None takes the one that the config names.
        config: instead of the checkpoint's own.
        parallelize: gets the model on meta and changes it, or answers another one.
        trust_remote_code: build the classes whose code comes with the checkpoint (`auto_map` in its config). They then
            win over classes of transformers that have the same name. Never on by itself, and never downloaded.
        seed: of initial values, and of constructors that look at their own random numbers.
        options: everything that `lading.materialize` takes.
    """
    location = os.fspath(path_or_id)
    asked = {name: options[name] for name in ("dtype", "cast") if name in options}
    together = Agreement.of(options.get("group"), options.get("timeout", TIMEOUT_S))
    with together as ranks, agreed(ranks, "the configuration"):  # one that has none must not leave the others waiting
        config = config if config is not None else read_config(location, trust_remote_code, cls)
        chosen = cls if cls is not None else class_of(location, config, trust_remote_code)
        model = build(chosen, config, seed=seed, **asked)
    model.eval()
    if parallelize is not None:
        changed = parallelize(model)
        model = changed if isinstance(changed, nn.Module) else model
    materialize(model, location, seed=seed, **options)
    _load_generation_config(model, location, trust_remote_code)
    return model


def _load_generation_config(model: Any, location: str, trust_remote_code: bool) -> None:
    """Gives a model that can generate the generation config of its checkpoint, and its way to generate if the code is
    trusted, as transformers does it. Only from files that are on this machine."""
    can_generate = getattr(model, "can_generate", None)
    folder = folder_of(location)
    if not callable(can_generate) or not can_generate() or folder is None:
        return
    from transformers import GenerationConfig

    try:
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:  # the checkpoint has none: what its config says about generating
        with contextlib.suppress(OSError):  # a checkpoint without a config, for a model that was given one
            model.generation_config = GenerationConfig.from_pretrained(
                folder, config_file_name="config.json", local_files_only=True, _from_model_config=True
            )
    if trust_remote_code and hasattr(model, "load_custom_generate"):
        with contextlib.suppress(OSError):  # it has none
            custom = model.load_custom_generate(folder, trust_remote_code=True, local_files_only=True)
            model.generate = functools.partial(custom, model=model)


# ---- skeletons


def build_skeleton(location: str, *, cls: type[nn.Module] | None = None, trust_remote_code: bool = False) -> Any:
    """The model of a checkpoint under `lading.skeleton()`: its config, its class, no weights."""
    config = read_config(location, trust_remote_code, cls)
    return build(cls if cls is not None else class_of(location, config, trust_remote_code), config)


def skeleton_of(
    path: str | os.PathLike[str], *, cls: type[nn.Module] | None = None, trust_remote_code: bool = False
) -> str:
    """The skeleton document of a checkpoint's model, from its config alone (docs/schema/skeleton.md).

        Path("skeleton.json").write_text(lading.skeleton_of("path/to/model"))

    No weights are read: a directory with only `config.json` will do. `lading load` also needs what the constructor
    computes, which `lading.write_skeleton` puts beside the document.
    """
    return _Described.of(path, cls, trust_remote_code).document()


def write_skeleton(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    cls: type[nn.Module] | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Writes the skeleton document of a checkpoint's model, and beside it all that `lading plan` and `lading load` need.

        lading.write_skeleton("path/to/model", "model.json")        # then: lading load … --skeleton model.json

    Beside "model.json" are "model.values.safetensors", if constructors compute anything; "model.mapping.json", how the
    checkpoint's keys become tensors; and "model.policy.json", what may be missing. The last two need the checkpoint's
    files, of which only headers are read. Files of these names are overwritten.
    """
    write_files(skeleton_files(path, output, cls=cls, trust_remote_code=trust_remote_code))


def skeleton_files(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    cls: type[nn.Module] | None = None,
    trust_remote_code: bool = False,
) -> dict[Path, bytes]:
    """What `write_skeleton` writes, by place, the document first. Without values there is no such file: one of another
    model would be taken for it."""
    described = _Described.of(path, cls, trust_remote_code)
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
    def of(cls, path: str | os.PathLike[str], model_class: type[nn.Module] | None, trust_remote_code: bool) -> _Described:
        location = os.fspath(path)
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
        return skeleton_json(self.entries, pins=pins)

    def values(self) -> bytes:
        from safetensors.torch import save

        values = {
            entry.name: entry.derive(0).contiguous().clone()
            for entry in self.entries
            if entry.is_tensor and recipe_fields(entry).get("derivation", {}).get("kind") == "host"
        }
        return save(values) if values else b""

    def mapping(self) -> bytes:
        return _json_bytes(self.conversion.mapping_document() or {"schema": "lading.mapping/1", "rules": []})

    def policy(self) -> bytes:
        said = {
            "allow_missing": [{"name": name} for name in self.conversion.allow_missing],
            "may_untie": [{"name": name} for name in self.conversion.may_untie],
        }
        return _json_bytes({"schema": "lading.policy/1", **said})


def _json_bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def write_files(files: Mapping[Path, bytes]) -> None:
    """Each whole, or as it was. Only plain files are replaced: a link or a device is somebody's."""
    for place in files:
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise FileExistsError(f"{place} is there, and no plain file")
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
