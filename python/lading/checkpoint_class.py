"""Which config and which class a checkpoint of transformers names: of transformers, or of code that comes with it.

Nothing is downloaded, and code of a checkpoint runs only with `trust_remote_code`. It then wins over a class of the
same name in transformers, as with transformers' Auto classes; without it the class of transformers is taken.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from .errors import LadingError, Problem
from .locating import folder_in_cache, how_to_get, is_repository_folder
from .private_names import check

_TRUST = "Read the code, and pass trust_remote_code=True if you trust it."


def folder_of(location: str) -> Path | None:
    """The folder with the checkpoint's config: of a path, or of a repository in the Hugging Face cache, at
    the location's revision; else None.

    transformers is only ever given this folder. For the name of a repository huggingface_hub asks the network for other
    things than the files, even with local files only.
    """
    if os.path.isfile(location):
        return Path(os.path.dirname(location) or ".")
    if os.path.isdir(location) and not is_repository_folder(location):
        return Path(location)
    return folder_in_cache(location, "config.json")


def read_config(location: str, trust_remote_code: bool, cls: type[nn.Module] | None = None) -> Any:
    """The config of a checkpoint. A class that transformers does not list knows its own config."""
    from transformers import AutoConfig

    folder = folder_of(location)
    if folder is None:
        message = "the model's config could not be read: this is neither a path nor a repository in the cache"
        problem = Problem("not_found", message, file=location, remedy=how_to_get(location))
        raise LadingError(problem, stage="checkpoint", exit_code=3)
    reference = _raw_config(folder).get("auto_map", {}).get("AutoConfig")
    own = getattr(cls, "config_class", None)
    try:
        if own is None and trust_remote_code and reference is not None and "--" in reference:
            own = _class_in_code(reference, folder)
        if own is not None:
            config = own.from_pretrained(folder, local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        message = f"the model's config could not be read: {str(error).splitlines()[0]}"
        remedy = _TRUST if reference is not None and not trust_remote_code else "Correct config.json, or pass config=."
        problem = Problem("not_found", message, file=location, remedy=remedy)
        raise LadingError(problem, stage="checkpoint", exit_code=3) from error
    config.name_or_path = str(location)
    return config


def class_of(location: str, config: Any, trust_remote_code: bool) -> type[nn.Module]:
    """The class of the config's architecture: the checkpoint's own if it has one and is trusted, else transformers'."""
    import transformers

    names = list(getattr(config, "architectures", None) or [])
    known = next((found for name in names if (found := getattr(transformers, name, None)) is not None), None)
    own = _own_classes(config, names, known is not None)
    if trust_remote_code and len(own) == 1:
        ((reference, auto_class),) = own.items()
        return _registered(config, auto_class) or _from_checkpoint(location, reference, auto_class)
    if known is not None:
        return known
    raise LadingError(_no_class(location, names, own, trust_remote_code), stage="request", exit_code=2)


def _own_classes(config: Any, names: list[str], is_known: bool) -> dict[str, str]:
    """References of `auto_map` to the architecture's class, with the Auto class that each stands for: the one that has
    its name. If none has, and transformers does not know the architecture either, all of models."""
    models = {
        reference: key
        for key, reference in (getattr(config, "auto_map", None) or {}).items()
        if key.startswith("AutoModel") and isinstance(reference, str)
    }
    for name in names:
        for reference, key in models.items():
            if reference.rpartition(".")[2] == name:
                return {reference: key}
    return {} if is_known else models


def _registered(config: Any, auto_class: str) -> type[nn.Module] | None:
    """A class that the user registered for this config with transformers' Auto class: it wins, as there."""
    import transformers

    check("transformers", "remote code")
    mapping = getattr(getattr(transformers, auto_class, None), "_model_mapping", {})
    found = mapping[type(config)] if type(config) in mapping else None
    found = found[0] if isinstance(found, tuple) else found
    return None if found is None or found.__module__.startswith("transformers.") else found


def _from_checkpoint(location: str, reference: str, auto_class: str) -> type[nn.Module]:
    """As transformers' Auto classes do it, from files that are on this machine."""
    from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model

    try:
        found = _class_in_code(reference, folder_of(location))
    except (OSError, ValueError, ImportError, AttributeError) as error:
        message = f"the model class {reference} could not be created: {str(error).splitlines()[0]}"
        remedy = how_to_get(reference.rpartition("--")[0] or location)
        problem = Problem("not_found", message, file=location, remedy=remedy)
        raise LadingError(problem, stage="checkpoint", exit_code=3) from error
    found.register_for_auto_class(auto_class)
    return add_generation_mixin_to_remote_model(found)


def _class_in_code(reference: str, folder: Path | None) -> Any:
    """`module.Class` of this folder, or `org/name--module.Class` of another repository in the cache. Runs its code."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    repository, _, reference = reference.rpartition("--")
    if repository:
        file = reference.partition(".")[0] + ".py"
        folder = folder_in_cache(repository, file)
        if folder is None:
            raise OSError(f"{repository} with {file} is not in the Hugging Face cache")
    if folder is None:
        raise OSError("it is neither a path nor a repository in the cache")
    return get_class_from_dynamic_module(reference, folder, local_files_only=True)


def _no_class(location: str, names: list[str], own: dict[str, str], trust_remote_code: bool) -> Problem:
    architecture = ", ".join(names) if names else "no architecture"
    if own and trust_remote_code:
        message = f"the config of {location} names {architecture}, and its auto_map several classes: {', '.join(own)}"
        return Problem("not_found", message, remedy="Pass the class to build as cls=.")
    if own:
        whose = f"{architecture}, whose code comes with the checkpoint ({', '.join(own)})"
        message = f"the config of {location} names {whose}"
        return Problem("not_found", message, remedy=f"{_TRUST} Or pass the class to build as cls=.")
    which = f"names {architecture}, which this transformers does not have" if names else "names no architecture"
    return Problem("not_found", f"the config of {location} {which}", remedy="Pass the class to build as cls=.")


def _raw_config(folder: Path) -> dict[str, Any]:
    try:
        fields = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) and isinstance(fields.get("auto_map", {}), dict) else {}
