"""`lading.from_pretrained`: config → skeleton → the user's `parallelize` → materialize.

    model = lading.from_pretrained("org/name", device="cuda:0")
    model = lading.from_pretrained("org/name", parallelize=fully_shard)

The model is built on meta by its own class, and what its constructor computes is recorded, so that `parallelize` may
do as it likes: shard, freeze, wrap with PEFT, or answer another module. Weights are read afterwards, each rank its
own part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .errors import LadingError, Problem
from .huggingface import build, load_generation_config
from .loading import materialize


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
        trust_remote_code: build classes whose code comes with the checkpoint. Never on by itself.
        seed: of initial values, and of constructors that look at their own random numbers.
        options: everything that `lading.materialize` takes.
    """
    location = os.fspath(path_or_id)
    asked = {name: options[name] for name in ("dtype", "cast") if name in options}
    together = Agreement.of(options.get("group"), options.get("timeout", TIMEOUT_S))
    with together as ranks, agreed(ranks, "the configuration"):  # one that has none must not leave the others waiting
        config = config if config is not None else _config(location, trust_remote_code, cls)
        chosen = cls if cls is not None else _class_of(location, config)
        model = build(chosen, config, seed=seed, **asked)
    model.eval()
    if parallelize is not None:
        changed = parallelize(model)
        model = changed if isinstance(changed, nn.Module) else model
    materialize(model, location, seed=seed, **options)
    load_generation_config(model, location)
    return model


def _config(location: str, trust_remote_code: bool, cls: type[nn.Module] | None = None) -> Any:
    """A class that transformers does not list knows its own config."""
    from transformers import AutoConfig

    own = getattr(cls, "config_class", None)
    folder = os.path.dirname(location) or "." if os.path.isfile(location) else location
    try:
        if own is not None:
            return own.from_pretrained(folder, local_files_only=True)
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError) as error:
        message = f"no config of a model could be read: {str(error).splitlines()[0]}"
        remedy = "Nothing is downloaded: name a folder, or a repository that is in the Hugging Face cache"
        problem = Problem("not_found", message, file=location, remedy=remedy)
        raise LadingError(problem, stage="checkpoint", exit_code=3) from error


def _class_of(location: str, config: Any) -> type[nn.Module]:
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    which = f"names {', '.join(names)}, which this transformers does not have" if names else "names no architecture"
    message = f"the config of {location} {which}"
    raise LadingError(Problem("not_found", message, remedy="Pass cls="), stage="request", exit_code=2)
