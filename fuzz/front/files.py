"""Checkpoint files of a world. Values depend on the seed and the name alone."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from .pieces import FLOATS, RAW, Json, dtype_of

_UNSAVED = ("uint4", "uint1", "int4", "complex128")


def noise(like: torch.Tensor, seed: int, name: str) -> torch.Tensor:
    """Values of its shape and dtype: small, exact in every floating dtype, and different for each name."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    count = like.numel()
    numbers = torch.randint(-63, 64, (count,), generator=generator)
    kind = str(like.dtype).removeprefix("torch.")
    if kind in RAW or kind.startswith("float8"):
        value = (numbers.abs() % 48 + 1).to(torch.uint8).view(like.dtype)
    elif like.dtype is torch.bool:
        value = numbers > 0
    elif like.is_complex():
        other = torch.randint(-63, 64, (count,), generator=generator)
        value = torch.complex(numbers / 32.0, other / 32.0).to(like.dtype)
    elif like.is_floating_point():
        value = (numbers / 32.0).to(like.dtype)
    else:
        value = numbers.abs().to(like.dtype)
    return value.reshape(like.shape)


def fill_with_noise(model: nn.Module, seed: int) -> None:
    """Every registered tensor of a real model, each object once, under its first name."""
    done: set[int] = set()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if id(tensor) in done or nn.parameter.is_lazy(tensor):
                continue
            done.add(id(tensor))
            value = noise(tensor, seed, name)
            if str(tensor.dtype).removeprefix("torch.") in RAW:
                if tensor.is_contiguous():
                    tensor.view(torch.uint8).copy_(value.view(torch.uint8))
                continue
            try:
                tensor.copy_(value)
            except RuntimeError:  # memory that torch does not write to, such as an expanded tensor
                continue


def state_for(model: nn.Module, spec: Json) -> dict[str, torch.Tensor]:
    """What the files hold: the model's own state dict after it was filled, then the world's changes to it."""
    files = spec["files"]
    fill_with_noise(model, spec["seed"] + 17)
    state = {
        key: value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
        and str(value.dtype).removeprefix("torch.") not in _UNSAVED
        and not nn.parameter.is_lazy(value)
    }
    return change(state, model, files, spec["seed"])


def change(state: dict[str, torch.Tensor], model: nn.Module, files: Json, seed: int) -> dict[str, torch.Tensor]:
    tied = tie_groups(model)
    if files["tied"] != "all":
        for group in tied:
            known = [name for name in group if name in state]
            if files["tied"] == "different":
                for name in known[1:]:
                    state[name] = noise(state[name], seed + 1, "tied " + name)
            else:
                kept = (known[0] if files["tied"] == "first" else known[-1]) if known else ""
                for name in known:
                    if name != kept:
                        del state[name]
    for pick in files["missing"]:
        if len(state) > 1:
            del state[sorted(state)[pick % len(state)]]
    for place in range(files["extra"]):
        state[f"extra{place}.weight"] = noise(torch.zeros(3), seed, f"extra{place}")
    if files["dtype"] != "same":
        floats = [dtype_of(name) for name in FLOATS]
        wanted = dtype_of(files["dtype"])
        state = {
            key: value.to(wanted) if value.dtype in floats and not key.endswith("_extra_state") else value
            for key, value in state.items()
        }
    return state


def tie_groups(model: nn.Module) -> list[list[str]]:
    """Names of one tensor object, for tensors that have several."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    for name, tensor in model.named_buffers(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def write(state: dict[str, torch.Tensor], files: Json, folder: Path) -> str:
    """The files, and the path to load."""
    folder.mkdir(parents=True, exist_ok=True)
    if files["shards"] <= 1 or not state:
        save_file(state, folder / "model.safetensors")
        return str(folder / "model.safetensors" if files["by_file"] else folder)
    names = sorted(state)
    count = files["shards"]
    shards = {f"model-{at + 1:05d}-of-{count:05d}.safetensors": names[at::count] for at in range(count)}
    for name, keys in shards.items():
        save_file({key: state[key] for key in keys}, folder / name)
    index = {"metadata": {"total_size": 0}, "weight_map": {key: name for name, keys in shards.items() for key in keys}}
    size = sum(value.numel() * value.element_size() for value in state.values())
    index["metadata"]["total_size"] = size
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def read(folder: Path) -> dict[str, Any]:
    """All tensors of the files, by the safetensors package."""
    state: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
    return state
