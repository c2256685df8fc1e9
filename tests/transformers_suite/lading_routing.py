"""A pytest plugin for transformers' own tests of its models: `from_pretrained` goes through lading, and only tests
that load are run. tools/transformers_suite uses it, with LADING_ROUTE=0 for a run of transformers as it is.

Calls that lading has no words for (a state dict in memory, offloading, a pickle) stay with transformers and are counted.
What was routed, and what not and why, is appended to the file LADING_ROUTED names, a JSON line for each call.
"""

import copy
import json
import os
import re
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import PreTrainedConfig
from transformers.utils import logging

import lading

LOADING_TESTS = {
    "test_base_model_prefix_loads_base_weights",
    "test_bc_torch_dtype",
    "test_can_load_from_already_mapped_keys",
    "test_can_load_ignoring_mismatched_shapes",
    "test_can_load_with_device_context_manager",
    "test_can_load_with_global_device_set",
    "test_can_use_safetensors",
    "test_correct_missing_keys",
    "test_from_pretrained_no_checkpoint",
    "test_keep_in_fp32_modules",
    "test_load_contiguous_weights",
    "test_load_save_without_tied_weights",
    "test_load_with_mismatched_shapes",
    "test_model_weights_reload_no_missing_tied_weights",
    "test_reverse_loading_mapping",
    "test_save_load",
    "test_save_load_keys_to_ignore_on_save",
    "test_tied_weights_keys",
    "test_torch_save_load",
}
HARMLESS = {"low_cpu_mem_usage", "local_files_only", "use_safetensors", "weights_only", "_fast_init", "token", "revision"}
ON_HOST = (None, "cpu", {"": "cpu"}, torch.device("cpu"))
ORIGINAL = PreTrainedModel.from_pretrained.__func__


def why_not(path, arguments, options):
    """What keeps this call with transformers, or nothing."""
    if path is None or not os.path.isdir(path):
        return "no folder"
    if arguments:
        return "arguments of the constructor"
    if not list(Path(path).glob("*.safetensors")):
        return "no safetensors file"
    for name in ("state_dict", "quantization_config", "gguf_file", "distributed_config", "tp_plan", "device_mesh"):
        if options.get(name) is not None:
            return name
    for name in ("variant", "subfolder", "max_memory", "offload_folder", "adapter_kwargs", "use_kernels", "fusion_config"):
        if options.get(name):
            return name
    if options.get("use_safetensors") is False:
        return "use_safetensors=False"
    if not any(options.get("device_map") == known for known in ON_HOST):
        return "device_map"
    if torch.get_default_device().type != "cpu":
        return "a default device"
    return None


def configured(cls, path, config, options):
    """The config, with what the caller overrides, and the options that no config took."""
    implementations = {
        name: options.pop(name) for name in ("attn_implementation", "experts_implementation") if name in options
    }
    if not isinstance(config, PreTrainedConfig):
        config, options = cls.config_class.from_pretrained(
            config if config is not None else path, return_unused_kwargs=True, **options
        )
    else:
        config = copy.deepcopy(config)
        for name in list(options):
            if hasattr(config, name):
                setattr(config, name, options.pop(name))
    for name, value in implementations.items():
        setattr(config, f"_{name}", value)
    return config, options


def loading_info(model, report):
    """transformers' loading info, from lading's report."""
    saved = model.state_dict()
    ignored = model._keys_to_ignore_on_load_missing or []
    mismatched = {warning.tensor for warning in report.warnings if warning.rule in ("R21", "R41")}
    made = {name for name, tensor in report.tensors.items() if tensor.provenance in ("random", "fill", "call", "host")}
    missing = {name for name in made & saved.keys() if not any(re.search(pattern, name) for pattern in ignored)}
    return {
        "missing_keys": missing - mismatched,
        "unexpected_keys": {warning.tensor for warning in report.warnings if warning.rule == "R39"},
        "mismatched_keys": mismatched,
        "error_msgs": [],
    }


def load(folder, **options):
    """With the exception that transformers raises, and the words that its tests look for in its log."""
    try:
        model = lading.from_pretrained(folder, **options)
    except lading.LadingError as error:
        raise RuntimeError(str(error)) from error
    if loading_info(model, lading.report_of(model))["mismatched_keys"]:
        logging.get_logger("transformers.modeling_utils").warning("Reinit due to size mismatch")
    return model


def note(**what):
    place = os.environ.get("LADING_ROUTED")
    if place:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
        with open(place, "a") as out:
            out.write(json.dumps({"test": test, **what}) + "\n")


def from_pretrained(cls, pretrained_model_name_or_path, *arguments, config=None, ignore_mismatched_sizes=False, **options):
    reason = why_not(pretrained_model_name_or_path, arguments, options)
    if reason is not None:
        note(routed=False, why=reason)
        return ORIGINAL(
            cls, pretrained_model_name_or_path, *arguments, config=config,
            ignore_mismatched_sizes=ignore_mismatched_sizes, **options,
        )  # fmt: skip
    folder = os.fspath(pretrained_model_name_or_path)
    given = {name: value for name, value in options.items() if name not in HARMLESS and name != "device_map"}
    wants_info = given.pop("output_loading_info", False)
    dtype = given.pop("dtype", None) or given.pop("torch_dtype", None) or "auto"
    key_mapping = given.pop("key_mapping", None)
    trust = bool(given.pop("trust_remote_code", False))
    config, unused = configured(cls, folder, config, given)
    if isinstance(dtype, str) and dtype != "auto":
        dtype = getattr(torch, dtype)
    model = load(
        folder, cls=cls, config=config, trust_remote_code=trust, device="cpu", progress=False, dtype=dtype,
        cast="promote" if dtype == "auto" else "exact", strict=False, allow_missing=["*"], key_mapping=key_mapping,
        allow_mismatch=["*"] if ignore_mismatched_sizes else [], **unused,
    )  # fmt: skip
    note(routed=True)
    return (model, loading_info(model, lading.report_of(model))) if wants_info else model


def pytest_configure(config):
    if os.environ.get("LADING_ROUTE") != "0":
        PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if getattr(item, "originalname", item.name) in LOADING_TESTS]
