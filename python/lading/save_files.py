"""What stands beside the weights in a saved checkpoint: config, generation config, tokenizer.

    write_config(model, "/models/.out.tmp", dtype)      # the model's own config, as its save_pretrained would write it
    copy_beside("/models/base", "/models/.out.tmp")     # the tokenizer's files, of the checkpoint that was loaded

They are few and small, and written by one rank into the save's temporary directory, before the engine syncs it.
"""

from __future__ import annotations

import copy
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .huggingface_view import Library, View, original_class
from .inventory import Entry

_MAX_BYTES = 1 << 30  # of one file that is copied; a tokenizer has some MB

# Of transformers' processors and tokenizers. A file of another name stays where it is.
_BESIDE = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm",
    "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
)  # fmt: skip
_CODE = "*.py"  # that a config with auto_map names


def transformers_model(parts: Sequence[nn.Module], entries: Sequence[Entry]) -> Any | None:
    """The model of transformers among the parts; None if there is none, and so no config."""
    library = Library.find()
    view = View.of(parts, library, entries) if library is not None else None
    return view.model if view is not None else None


def write_config(model: Any, folder: str | os.PathLike[str], dtype: torch.dtype) -> list[str]:
    """As `save_pretrained` does, but in a copy: the model's own config stays as it is. Names of the files."""
    config = copy.deepcopy(model.config)
    config.dtype = str(dtype).removeprefix("torch.")
    config.architectures = [original_class(model).__name__]
    before = set(os.listdir(folder))
    config.save_pretrained(folder)
    if model.can_generate() and getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    return sorted(set(os.listdir(folder)) - before)


def copy_beside(base: Path, folder: str | os.PathLike[str], *, has_code: bool = False) -> list[str]:
    """Regular files of known names, which replace files of these names. Names of the files."""
    names = [name for name in _BESIDE if _is_file(base / name)]
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
