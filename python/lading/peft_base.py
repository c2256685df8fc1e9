"""Methods of PEFT that change base weights, or compute adapters from them.

PiSSA, OLoRA, CorDA and LoftQ subtract the first adapter from the base weight when a layer is built, and do so again
when `PeftModel.from_pretrained` reads such an adapter. A base checkpoint has the weight unchanged, so a load would add
the first adapter once more: it is refused. Others (DoRA, OSF, trainable tokens, …) leave the base alone, and keep
tensors that were computed from it. Those are stale once a load has replaced the base.

Which method does what was found by building each of PEFT 0.21.2 over two bases; `peft_methods_worker.py` does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from . import zero3
from .errors import Problem
from .inventory import ATTRIBUTE, Entry

# Values of `init_lora_weights` that leave base weights alone. LoRA-GA changes them where gradients were prepared, which
# no loader repeats: an adapter of it is used with the base as it is, by PEFT too.
_HARMLESS = (True, False, None, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
# Other methods, none of which changes a base weight whatever its options are.
_KNOWN = frozenset(
    "ADALORA ADAMSS ADAPTION_PROMPT BEFT BOFT C3A CARTRIDGE CPT DEFT DELORA FOURIERFT FROD GLORA GRALORA HIRA HRA IA3 "
    "LILY LN_TUNING LOHA LOKR MISS MULTITASK_PROMPT_TUNING OFT OSF PEANUT POLY PREFIX_TUNING PROMPT_TUNING PSOFT PVERA "
    "P_TUNING RANDLORA ROAD SHADOW SHIRA SUPERTUNING TINYLORA TRAINABLE_TOKENS UNILORA VBLORA VERA WAVEFT XLORA".split()
)
# Parts of names of tensors that are computed from base weights when a layer is built.
_COMPUTED = frozenset(
    "lora_magnitude_vector adamss_newB deft_R delora_w_norm frod_U frod_V frod_lambda_l ln_tuning_layers "
    "osf_svd_params _osf_U_high _osf_S_high _osf_V_high _osf_U_low_init _osf_S_low_init _osf_V_low_init "
    "_psoft_A_cache _psoft_B_cache supertuning_indices tinylora_A tinylora_B trainable_tokens_delta "
    "trainable_tokens_original".split()
)
_COMPUTED_BY_INIT = {"mica": ("lora_B",), "lora_ga": ("lora_A", "lora_B")}
_REMEDY = (
    "Convert the adapter (save_pretrained with path_initial_model_for_weight_conversion), or pass the changed base "
    "weights in external=."
)


def changes_base(config: Mapping[str, Any]) -> str:
    """What changes base weights when a layer is built from this config of PEFT, for a message; "" if nothing does."""
    kind = _kind(config)
    if kind == "LORA":
        init = config.get("init_lora_weights", True)
        known = init.lower() if isinstance(init, str) else init
        return "" if known in _HARMLESS else f"init_lora_weights={init!r}"
    return "" if kind in _KNOWN else f"the method {kind} (unknown to lading)"


def _kind(config: Mapping[str, Any]) -> str:
    kind = config.get("peft_type")
    return str(getattr(kind, "value", kind))


def configs_of(modules: Iterable[nn.Module]) -> dict[str, Mapping[str, Any]]:
    """PEFT's configs by the names of adapters, of a PeftModel or of a model that adapters were injected into."""
    found: dict[str, Mapping[str, Any]] = {}
    for module in modules:
        configs = getattr(module, "peft_config", None)
        if isinstance(configs, Mapping):
            found |= {str(name): vars(config) for name, config in configs.items() if hasattr(config, "peft_type")}
    return found


def changed_bases(
    configs: Mapping[str, Mapping[str, Any]],
    layers: Sequence[Any],
    entries: Sequence[Entry],
    is_spoken_for: Callable[[str], bool],
) -> Iterator[Problem]:
    """A problem for each base weight that PEFT changes, and that the load would fill unchanged."""
    by_module: dict[int, list[Entry]] = {}
    for entry in entries:
        by_module.setdefault(id(entry.module), []).append(entry)
    for adapter, config in configs.items():
        what = changes_base(config)
        for layer in layers if what else ():
            if not hasattr(layer, "get_base_layer") or adapter not in getattr(layer, "r", (adapter,)):
                continue
            for entry in by_module.get(id(layer.get_base_layer()), ()):
                if entry.attribute == "weight" and not is_spoken_for(entry.name):
                    message = f"{what} of the adapter {adapter!r} changes this base weight, but no file has the result"
                    yield Problem("adapter", message, tensor=entry.name, rule="R66", remedy=f"{_REMEDY}.")


def stale(
    configs: Mapping[str, Mapping[str, Any]],
    adapters: Iterable[str],
    entries: Sequence[Entry],
    is_spoken_for: Callable[[str], bool],
) -> Iterator[Problem]:
    """A problem for each real tensor of an adapter that PEFT computed from base weights which the load replaces."""
    computed = set(_COMPUTED)
    for config in configs.values():
        if _kind(config) == "LORA":
            computed.update(_COMPUTED_BY_INIT.get(str(config.get("init_lora_weights")).lower(), ()))
        how = config.get("prompt_tuning_init")
        if _kind(config) == "CPT" or getattr(how, "value", how) not in (None, "RANDOM"):
            computed.add("prompt_encoder")  # begins with rows of the embedding
    names = {name for name in adapters if computed & set(name.split("."))}
    for entry in entries:
        if entry.kind == ATTRIBUTE:  # a cache of DoRA's, which is cleared
            continue
        has_value = entry.is_tensor and entry.recorded is None and (entry.is_real or zero3.is_partitioned(entry.value))
        if entry.name in names and has_value and not is_spoken_for(entry.name):
            message = "PEFT computed this tensor from base weights that the load replaces"
            remedy = "Build the model over loaded weights, pass adapter=, or list it in keep= if it fits the file."
            yield Problem("adapter", message, tensor=entry.name, rule="R66", remedy=remedy)
