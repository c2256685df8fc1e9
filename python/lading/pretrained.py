"""`lading.from_pretrained`: config → skeleton → the user's `parallelize` → materialize.

    model = lading.from_pretrained("org/name", device="cuda:0")
    model = lading.from_pretrained("org/name", parallelize=fully_shard)

The model is built on meta by its own class, and what its constructor computes is recorded, so that `parallelize` may
do as it likes: shard, freeze, wrap with PEFT, or return another module. Weights are read afterwards, each rank its
own part.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .checkpoint_class import class_of, folder_of, read_config
from .exiting import ending_before_python
from .huggingface_build import build
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
    """Builds a model of transformers and loads its weights. It is in evaluation mode before `parallelize` runs.

        model = lading.from_pretrained("org/name", device="cuda:0")
        model = lading.from_pretrained("org/name", parallelize=shard)    # shard(model) calls fully_shard, or anything

    Args:
        path_or_id: a directory with `config.json` and safetensors files, or a repository in the Hugging Face cache.
        cls: the class to build. None takes the one that the config names.
        config: instead of the checkpoint's own.
        parallelize: gets the model on meta and changes it, or returns another one.
        trust_remote_code: build the classes whose code comes with the checkpoint (`auto_map` in its config). They then
            win over classes of transformers that have the same name. Never on by itself, and never downloaded.
        seed: seed for initial values, and for constructors that look at their own random numbers.
        options: everything that `lading.materialize` takes.

    `lading.report_of(model)` is the report of the load.
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
