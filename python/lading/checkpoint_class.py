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

_DOWNLOAD = "Nothing is downloaded: name a folder, or a repository that is in the Hugging Face cache."
_TRUST = "Read the code, and pass trust_remote_code=True if you trust it."


def place_of(location: str) -> str:
    """What transformers is asked for: the folder of a file, else the location itself."""
    return os.path.dirname(location) or "." if os.path.isfile(location) else location


def snapshot_of_checkpoint(location: str) -> Path | None:
    """The folder with the checkpoint's files, as transformers finds it without a network; None if it has no config."""
    from transformers.utils import cached_file

    place = place_of(location)
    if os.path.isdir(place):
        return Path(place)
    try:
        found = cached_file(place, "config.json", local_files_only=True)
    except (OSError, ValueError):
        return None
    return Path(found).parent if found is not None else None


def read_config(location: str, trust_remote_code: bool, cls: type[nn.Module] | None = None) -> Any:
    """The config of a checkpoint. A class that transformers does not list knows its own config."""
    from transformers import AutoConfig

    own = getattr(cls, "config_class", None)
    place = place_of(location)
    try:
        if own is not None:
            return own.from_pretrained(place, local_files_only=True)
        return AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        message = f"no config of a model could be read: {str(error).splitlines()[0]}"
        needs_trust = not trust_remote_code and "AutoConfig" in _raw_config(location).get("auto_map", {})
        remedy = _TRUST if needs_trust else _DOWNLOAD
        problem = Problem("not_found", message, file=location, remedy=remedy)
        raise LadingError(problem, stage="checkpoint", exit_code=3) from error


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

    mapping = getattr(getattr(transformers, auto_class, None), "_model_mapping", {})
    found = mapping[type(config)] if type(config) in mapping else None
    found = found[0] if isinstance(found, tuple) else found
    return None if found is None or found.__module__.startswith("transformers.") else found


def _from_checkpoint(location: str, reference: str, auto_class: str) -> type[nn.Module]:
    """As transformers' Auto classes do it, from files that are on this machine."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model

    try:
        found = get_class_from_dynamic_module(reference, place_of(location), local_files_only=True)
    except (OSError, ValueError, ImportError, AttributeError) as error:
        message = f"the checkpoint's class {reference} could not be made: {str(error).splitlines()[0]}"
        problem = Problem("not_found", message, file=location, remedy=_DOWNLOAD)
        raise LadingError(problem, stage="checkpoint", exit_code=3) from error
    found.register_for_auto_class(auto_class)
    return add_generation_mixin_to_remote_model(found)


def _no_class(location: str, names: list[str], own: dict[str, str], trust_remote_code: bool) -> Problem:
    architecture = ", ".join(names) if names else "no architecture"
    if own and trust_remote_code:
        message = f"the config of {location} names {architecture}, and its auto_map has several classes: {', '.join(own)}"
        return Problem("not_found", message, remedy="Pass the class to build as cls=.")
    if own:
        message = f"the config of {location} names {architecture}, whose code comes with the checkpoint ({', '.join(own)})"
        return Problem("not_found", message, remedy=f"{_TRUST} Or pass the class to build as cls=.")
    which = f"names {architecture}, which this transformers does not have" if names else "names no architecture"
    return Problem("not_found", f"the config of {location} {which}", remedy="Pass the class to build as cls=.")


def _raw_config(location: str) -> dict[str, Any]:
    folder = snapshot_of_checkpoint(location)
    try:
        fields = json.loads((folder / "config.json").read_text()) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) and isinstance(fields.get("auto_map", {}), dict) else {}
