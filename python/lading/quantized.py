"""The front's part in quantized checkpoints: it removes `quantization_config` from the config of a dequantized model,
and refuses parameters that another library has quantized in a class of its own. The engine does the rest (R48)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from . import _engine
from .errors import LadingError, Problem
from .inventory import Entry
from .patterns import Pattern, matches

_PAYLOADS = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_FIELDS = ("quantization_config", "compression_config")
# A class that has one of these of its own does not hold its values as plain memory, or changes them as it moves.
_OWN_FORM = ("__torch_dispatch__", "__tensor_flatten__", "to", "cuda", "cpu")
_WHOLE = ("torch", "builtins", "lading")
_PACKED = "I32"  # the words of GPTQ and AWQ
LOAD_FIRST = "Load the model first, and let that library convert it afterwards; or name the tensor in keep=."


def dequantized(plan: _engine.Plan) -> int:
    """How many quantized tensors of the checkpoint the plan dequantizes, on all ranks together."""
    count: int = plan.answer["dequantized"]
    return count


def notes_of(plan: _engine.Plan) -> list[str]:
    count = dequantized(plan)
    how = "each payload times its scale, rounded once"
    return [f"{count} quantized tensor{'s' if count > 1 else ''} dequantized: {how}"] if count else []


def refuse_transposed(plan: _engine.Plan, entries: Sequence[Entry]) -> None:
    """GPTQ and AWQ store every weight as of a Linear, [out, in]; a Conv1D of transformers (GPT-2) has [in, out]. The
    engine refuses other shapes, but knows no modules, and a square weight has the same shape."""
    if not dequantized(plan):
        return
    holders = {entry.name: entry for entry in entries}
    problems = []
    for one in plan.destinations:
        is_unpacked = one.provenance == "file" and one.checkpoint_dtype == _PACKED != one.dtype
        holder = holders.get(one.name)
        if is_unpacked and holder is not None and _is_conv1d(holder.module) and holder.attribute == "weight":
            message = "the weight of a Conv1D is packed by GPTQ or AWQ, where it is transposed: lading does not load it"
            remedy = "Load a checkpoint that is not quantized."
            problems.append(Problem("mapping", message, tensor=one.name, rule="R48", remedy=remedy))
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)


def _is_conv1d(module: nn.Module) -> bool:
    known = ("transformers.pytorch_utils", "Conv1D")
    return any((cls.__module__, cls.__name__) == known for cls in type(module).__mro__)


def forget_quantization(plan: _engine.Plan, parts: Sequence[nn.Module]) -> list[str]:
    """After a load that dequantized the model, its config must not say that it is quantized: `save_pretrained` would
    write that beside ordinary weights. A model that also holds payloads keeps its config."""
    if not dequantized(plan) or any(one.dtype in _PAYLOADS for one in plan.destinations):
        return []
    found = [vars(config).pop(field) for config in _configs(parts) for field in _FIELDS if field in vars(config)]
    return ["the model's config no longer has quantization_config"] if found else []


def _configs(parts: Sequence[nn.Module]) -> Iterator[Any]:
    """Of all modules, with the configs inside of them, each once."""
    left = [getattr(module, "config", None) for part in parts for module in part.modules()]
    seen: set[int] = set()
    while left:
        config = left.pop()
        if id(config) in seen or not callable(getattr(config, "to_dict", None)):
            continue
        seen.add(id(config))
        yield config
        left += [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]


def why_wrapped(tensor: Any) -> str:
    """Why the tensor's memory cannot be filled with plain values, or "". A DTensor is judged by this rank's part."""
    own = type(getattr(tensor, "_local_tensor", tensor))
    strangers = [cls for cls in own.__mro__ if cls.__module__.partition(".")[0] not in _WHOLE]
    if not any(name in vars(cls) for cls in strangers for name in _OWN_FORM):
        return ""
    return f"the tensor is a {own.__module__}.{own.__qualname__}, a class that stores its values in its own format"


def refuse_wrapped(entries: Sequence[Entry], keep: Sequence[Pattern]) -> None:
    """Parameters of bitsandbytes, torchao and the like would be filled as if they were plain memory."""
    problems = [
        Problem("skeleton", why, tensor=entry.name, rule="R48", remedy=LOAD_FIRST)
        for entry in entries
        if entry.is_tensor
        and (why := why_wrapped(entry.value))
        and not any(matches(pattern, entry.name) for pattern in keep)
    ]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
