"""Whether the config of a model of transformers is the checkpoint's.

The weights of a checkpoint mean what its `config.json` says: the same tensors under another RoPE base, another epsilon or
another number of heads are another model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import _engine
from .audit_report import Findings

# What a run or a tool writes, and no forward pass computes with.
_BOOKKEEPING = frozenset(
    """_name_or_path name_or_path transformers_version dtype torch_dtype architectures auto_map model_type use_cache
    return_dict output_attentions output_hidden_states output_router_logits id2label label2id num_labels problem_type
    finetuning_task task_specific_params tokenizer_class prefix quantization_config distributed_config
    attn_implementation experts_implementation gradient_checkpointing""".split()
)
_DERIVED = ("rope", "rotary")  # in names of values that go into tables


def config_of_checkpoint(own: Any, location: str) -> tuple[Any | None, str]:
    """The checkpoint's config as an object of the class of `own`; None and the reason if there is none."""
    path = Path(_engine.inspect(location)["path"]).parent / "config.json"
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return None, f"the checkpoint has no config.json that can be read ({type(error).__name__})"
    found = list(_of_type(fields, getattr(own, "model_type", "")))
    if len(found) != 1:
        return None, f"the checkpoint's config.json describes no {type(own).__name__}"
    try:
        return type(own).from_dict(found[0]), ""
    except Exception as error:  # noqa: BLE001 - the class's own checks
        return None, f"{type(own).__name__} does not accept the checkpoint's config.json: {error}"


def _of_type(fields: Any, model_type: str) -> Iterator[dict[str, Any]]:
    """The config of this type: the whole, or a part of a composite."""
    if not isinstance(fields, dict):
        return
    if fields.get("model_type") == model_type:
        yield fields
        return
    for value in fields.values():
        yield from _of_type(value, model_type)


def compare_configs(wanted: Any, own: Any, findings: Findings, *, rope_is_wrong: bool) -> None:
    """Each value that differs is a warning. RoPE goes into tables that are derived, so there it is a problem."""
    for key, expected, found in _differences("", wanted.to_dict(), own.to_dict()):
        is_wrong = rope_is_wrong and _is_rope(key)
        tell = findings.problem if is_wrong else findings.warning
        text = f"{key} of the model's config is not what the checkpoint's config.json says"
        remedy = "Pass like=, a model of this config, if this is intended." if is_wrong else ""
        tell("config", None, text, expected=repr(expected), found=repr(found), remedy=remedy)


def _differences(prefix: str, wanted: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Of keys that both have; of RoPE's of all, since one without a factor is another."""
    keys = {key for key in wanted if isinstance(key, str) and key in own}
    if _is_rope(prefix):
        keys |= {key for key in (*wanted, *own) if isinstance(key, str)}
    for key in sorted(keys):
        if key in _BOOKKEEPING or key.startswith("_") or key.endswith("_token_id"):
            continue
        expected, found = wanted.get(key), own.get(key)
        if isinstance(expected, dict) and isinstance(found, dict):
            yield from _differences(f"{prefix}{key}.", expected, found)
        elif expected != found:
            yield f"{prefix}{key}", expected, found


def _is_rope(key: str) -> bool:
    return any(word in key for word in _DERIVED)
