"""Arguments of transformers' `from_pretrained` that lading's takes as well, and those that it cannot take, each with
what to do instead. All of them are checked before anything is built."""

from __future__ import annotations

import copy
import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .dtypes import requested_dtype
from .devices import asked_device, nowhere
from .errors import LadingError, Problem
from .locating import download_command
from .words import Device, DType

_COMMAND = "hf download org/name"
_DOWNLOADED = f"Run `{_COMMAND}` first, and omit this argument: lading does not download."
_ONE_DEVICE = (
    "Pass device= for one device. For several, start one process for each, and shard the model in parallelize=, "
    "such as with fully_shard."
)
_SHARDED = "Shard the model in parallelize=, such as with torch's parallelize_module or fully_shard."
_SAFETENSORS = "Convert the checkpoint with save_pretrained: lading reads only safetensors files."
_KERNELS = "Call model.set_use_kernels(True) on the loaded model."
_QUANTIZE_AFTERWARDS = "Load the model without it and quantize it afterwards: lading does not quantize."
_NOT_NEEDED = (None, False)
_INSTEAD = {
    "token": f"Run `{_COMMAND}` first, and omit token: lading does not download.",
    "use_auth_token": f"Run `{_COMMAND}` first, and omit use_auth_token: lading does not download.",
    "quantization_config": "Omit it to load a quantized checkpoint, which lading dequantizes (docs/guides/quantized.md). "
    + _QUANTIZE_AFTERWARDS,
    "load_in_8bit": _QUANTIZE_AFTERWARDS,
    "load_in_4bit": _QUANTIZE_AFTERWARDS,
    "force_download": f"Run `{_COMMAND} --force-download`, and omit this argument: lading does not download.",
    "proxies": _DOWNLOADED,
    "resume_download": _DOWNLOADED,
    "cache_dir": "Set HF_HUB_CACHE to that folder, or pass the path of its models--org--name.",
    "subfolder": "Pass the path of that folder.",
    "variant": "Pass the path of that file or of its index, and cls= and config=.",
    "code_revision": "Pass revision=: lading reads the code of a checkpoint from the checkpoint's own revision.",
    "ignore_mismatched_sizes": 'Pass allow_mismatch= with the names or patterns that may differ, such as ["score.*"].',
    "output_loading_info": "Call lading.report_of(model), which returns the report of the load.",
    "max_memory": _ONE_DEVICE,
    "offload_folder": _ONE_DEVICE,
    "offload_buffers": _ONE_DEVICE,
    "offload_state_dict": _ONE_DEVICE,
    "tp_plan": _SHARDED,
    "tp_size": _SHARDED,
    "device_mesh": _SHARDED,
    "distributed_config": _SHARDED,
    "state_dict": "Pass external=, tensors by name, or call load_state_dict on the model.",
    "generation_config": "Set model.generation_config on the loaded model.",
    "adapter_kwargs": "Wrap the model with PEFT in parallelize=, and pass adapter=.",
    "adapter_name": "Wrap the model with PEFT in parallelize=, and pass adapter=.",
    "gguf_file": _SAFETENSORS,
    "from_tf": _SAFETENSORS,
    "from_flax": _SAFETENSORS,
    "use_kernels": _KERNELS,
    "kernel_config": _KERNELS,
    "allow_all_kernels": _KERNELS,
    "fusion_config": "Set fusion_config in the checkpoint's config.json, or pass config=.",
}
_ANYWAY = {"local_files_only": _DOWNLOADED, "use_safetensors": _SAFETENSORS, "weights_only": _SAFETENSORS}  # not False
_WITHOUT_EFFECT = ("low_cpu_mem_usage", "disable_mmap")
_NO_DEVICES = ("auto", "balanced", "balanced_low_0", "sequential", "disk")


def split_fields(fields: Mapping[str, Any], location: str) -> tuple[dict[str, Any], list[Problem]]:
    """The fields that are for the config, and problems of arguments that lading does not take."""
    left = {name: value for name, value in fields.items() if name not in {*_INSTEAD, *_ANYWAY, *_WITHOUT_EFFECT}}
    asked = {name: remedy for name, remedy in _INSTEAD.items() if fields.get(name) not in _NOT_NEEDED}
    asked |= {name: remedy for name, remedy in _ANYWAY.items() if fields.get(name) is False}
    command = download_command(location) or _COMMAND
    return left, [_unsupported(name, fields[name], remedy.replace(_COMMAND, command)) for name, remedy in asked.items()]


def _unsupported(name: str, value: Any, remedy: str) -> Problem:
    shown = f"={value!r}" if isinstance(value, bool | int) else ""  # others are long, or secret
    return Problem("usage", f"lading.from_pretrained does not take {name}{shown}", remedy=remedy)


def chosen_dtype(dtype: DType, torch_dtype: DType | None) -> tuple[DType, list[Problem]]:
    """`torch_dtype` is the older name of `dtype`."""
    if torch_dtype is None or requested_dtype(torch_dtype) == requested_dtype(dtype):
        return dtype, []
    if requested_dtype(dtype) == "auto":
        return torch_dtype, []
    message = f"dtype is {dtype} and torch_dtype is {torch_dtype}, but both are the same argument"
    return dtype, [Problem("usage", message, remedy="Omit torch_dtype.")]


def chosen_device(
    device: Device | None, device_map: Any, *, is_needed: bool
) -> tuple[Device | None, list[Problem]]:
    """The one device that `device` or a `device_map` names."""
    if device_map is None:
        try:
            if device is not None:
                asked_device(device)
            elif is_needed:
                raise nowhere()
        except LadingError as error:
            return device, list(error.problems)
        return device, []
    named = device_map
    if isinstance(named, Mapping):
        named = named[""] if set(named) == {""} else None
    is_device = isinstance(named, torch.device | str | int) and not isinstance(named, bool)
    if not is_device or named in _NO_DEVICES:
        message = f"device_map is {device_map!r}, which may spread the model over several devices"
        return device, [Problem("usage", message, remedy=_ONE_DEVICE)]
    if device is not None and str(device) != str(named):
        message = f"device is {device!r} and device_map is {device_map!r}"
        return device, [Problem("usage", message, remedy="Omit device_map.")]
    return chosen_device(named, None, is_needed=is_needed)


def with_fields(config: Any, fields: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """A copy of the config with these values, as transformers sets them. TypeError names what the config has not."""
    config = copy.deepcopy(config)
    unknown = [name for name in fields if not _is_field(config, name)]
    if unknown:
        known = [name for name in (*vars(config), *getattr(config, "attribute_map", ())) if not name.startswith("_")]
        known += [name for name in inspect.signature(function).parameters if name != "config_fields"]
        said = "; ".join(_with_near_names(name, known) for name in unknown)
        takes = f"its own arguments and fields of {type(config).__name__}"
        raise TypeError(f"from_pretrained() takes {takes}, but not {said}")
    for name, value in fields.items():
        held = getattr(config, name)
        if isinstance(value, Mapping) and callable(getattr(held, "to_dict", None)):  # of a config inside this one
            value = type(held)(**(held.to_dict() | dict(value)))
        setattr(config, name, value)
    return config


def _is_field(config: Any, name: str) -> bool:
    return not name.startswith("_") and hasattr(config, name) and not callable(getattr(type(config), name, None))


def _with_near_names(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, sorted(set(known)), 3, 0.6)
    return f"{name!r}" + (f" (did you mean {' or '.join(map(repr, near))}?)" if near else "")


# ---- attention


def set_attention(config: Any, implementation: str | Mapping[str, str]) -> list[Problem]:
    """As transformers sets it, of this config and those inside it. The constructor checks what the model supports."""
    by_config = dict(implementation) if isinstance(implementation, Mapping) else {"": implementation}
    names = {"", *(getattr(config, "sub_configs", None) or ())}
    problems = [
        Problem("usage", f"attn_implementation has {name!r}, but the config has no such part",
                remedy="Pass one of these parts.", expected=", ".join(map(repr, sorted(names))))
        for name in by_config if name not in names
    ]  # fmt: skip
    problems += [problem for word in by_config.values() if (problem := _no_attention(word))]
    if not problems:
        config._attn_implementation = implementation if isinstance(implementation, str) else by_config
    return problems


def _no_attention(word: Any) -> Problem | None:
    from transformers import modeling_flash_attention_utils, modeling_utils

    if isinstance(word, str) and "/" in word:
        message = f"attn_implementation is {word!r}, a kernel that transformers would download"
        return Problem("usage", message, remedy='Pass "eager", "sdpa" or an implementation that is installed.')
    known = ["eager", *modeling_utils.ALL_ATTENTION_FUNCTIONS.valid_keys()]
    if word not in known:
        message, remedy = "attn_implementation is not one that transformers has", "Pass one of those."
        return Problem("usage", message, expected=", ".join(sorted(known)), found=repr(word), remedy=remedy)
    versions = getattr(modeling_flash_attention_utils, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {})
    found = re.search(r"flash_attention_(\d)$", word)
    version = versions.get(int(found[1])) if found else None
    if version is not None and not version["general_availability_check"]():
        message = f"attn_implementation is {word!r}, which is not installed, or not for this machine"
        return Problem("usage", message, remedy='Install it (pip install flash-attn), or pass "sdpa".')
    return None


def refuse(problems: list[Problem]) -> None:
    if problems:
        raise LadingError(problems, stage="request", exit_code=2)
