"""What stands beside the weights in a saved checkpoint: config, generation config, tokenizer.

    files = config_files(model, dtype, None)            # the model's own config, as its save_pretrained would write it
    copy_beside("/models/base", "/models/.out.tmp")     # the tokenizer's files, of the checkpoint that was loaded

They are few and small. Configs are made before anything is written, because transformers may refuse to write them. One
rank puts all of them into the save's temporary directory, before the engine syncs it.
"""

from __future__ import annotations

import copy
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import LadingError, Problem
from .huggingface_view import Library, View, original_class
from .inventory import Entry

_MAX_BYTES = 1 << 30  # of one file that is copied; a tokenizer has some MB

CONFIG = "config.json"
_GENERATION = "generation_config.json"
_CODE = "*.py"  # that a config with auto_map names


def transformers_model(parts: Sequence[nn.Module], entries: Sequence[Entry]) -> Any | None:
    """The model of transformers among the parts; None if there is none, and so no config."""
    library = Library.find()
    view = View.of(parts, library, entries) if library is not None else None
    return view.model if view is not None else None


def config_files(model: Any, dtype: torch.dtype, base: Path | None) -> dict[str, bytes]:
    """What `save_pretrained` writes beside the weights, by name. Of a copy: the model's own config stays as it is. The
    generation config is only the model's where `base` has none. LadingError where transformers refuses to write it."""
    try:
        with tempfile.TemporaryDirectory(prefix="lading-config-") as folder:
            _write_config(model, dtype, folder)
            if (
                model.can_generate()
                and getattr(model, "generation_config", None) is not None
                and not (base is not None and _is_file(base / _GENERATION))
            ):
                _written("generation_config", model.generation_config, folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
    except OSError as error:
        message, remedy = f"could not write the config: {error.strerror}", "Free space, or set TMPDIR to another directory."
        problem = Problem("write_failed", message, file=str(error.filename or tempfile.gettempdir()), remedy=remedy)
        raise LadingError(problem, stage="documents", exit_code=4) from error


def _write_config(model: Any, dtype: torch.dtype, folder: str) -> None:
    config = copy.deepcopy(model.config)
    config.dtype = str(dtype).removeprefix("torch.")
    config.architectures = [original_class(model).__name__]
    _written("config", config, folder)


def _written(name: str, config: Any, folder: str) -> None:
    try:
        config.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # whatever transformers' code raises
        message = f"transformers cannot save model.{name}: {type(error).__name__}: {error}"
        remedy = f"Correct model.{name}, so that its save_pretrained accepts it."
        raise LadingError(Problem("usage", message, remedy=remedy), stage="request", exit_code=2) from error


def copy_beside(base: Path, folder: str | os.PathLike[str], names: Sequence[str], *, has_code: bool = False) -> list[str]:
    """Regular files of these names, which replace files of these names. Names of the files."""
    names = [name for name in names if _is_file(base / name)]
    if has_code:
        names += sorted(path.name for path in base.glob(_CODE) if _is_file(path))
    for name in names:
        shutil.copyfile(base / name, Path(folder) / name)
    return names


def _is_file(path: Path) -> bool:
    """Links count: a repository in the Hugging Face cache has nothing else."""
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES
