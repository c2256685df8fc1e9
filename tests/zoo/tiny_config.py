"""A small config for any architecture of transformers: its default config with fewer layers and narrower ones.

    for config, name in tiny_configs("bert"): …      # the smallest first; the caller takes the first that builds

Fields are known by their names alone, so that no list of architectures has to be kept. Widths are all divided by one
number, which keeps what they have to do with each other; numbers of heads stay.
"""

import contextlib
import copy
import re
from pathlib import Path

import zoo

DIVISORS = (16, 8, 32, 4, 2, 1)
LAYERS = 2
MOST_LAYERS = 8  # where kinds of layers alternate, until each has occurred
_DERIVED = (
    "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path", "stage_names", "out_features",
    "out_indices", "_out_features", "_out_indices",
)  # fmt: skip
_TABLES = ("rope_parameters", "rope_scaling", "id2label", "label2id", "task_specific_params", "quantization_config")
_IDS = re.compile(r"_ids?$|token_index$|^eos|^bos|^pad")
_VOCABULARY = re.compile(r"vocab|num_embeddings$|codebook_size|num_codevectors|num_tokens$|^n_tokens")
_LAYERS = re.compile(r"layers?$|^depths?$|_depths?$|n_layer$|num_blocks|num_.*blocks$|_layers_|^layers")
_EXPERTS = re.compile(r"num_(local_|routed_)?experts$|n_routed_experts|moe_num_experts|num_experts$|n_experts")
_CHOSEN = re.compile(r"per_tok|top_?k|experts_topk")
_GROUPS = re.compile(r"n_group$|topk_group$")
_LENGTHS = re.compile(r"position|max_.*length|context_length|seq_len|num_queries|max_.*len$")
_WIDTHS = re.compile(r"size|dim|d_model|width|channels|n_embd|n_inner|d_ff|d_kv|rank|filters|hidden|units|ffn|features|d_head|d_state|d_inner|d_conv_|latent|_d$|rnn")
_NOT_WIDTHS = re.compile(r"image|patch|kernel|window|crop|stride|in_channels|num_channels|sampl|hop|chunk|grid|block_size|pool|num_|batch|buffer")


def tiny_configs(model_type):
    """(config, name of the class): the zoo's own; for each divisor that gives a config; last the default itself. After
    that the same for the other classes of the type."""
    if (Path(zoo.CONFIGS) / f"{model_type}.json").exists():
        yield zoo.build_config(model_type)
    kind = zoo.config_class(model_type)
    for name in zoo.model_types()[model_type]:
        for divisor in DIVISORS:
            for keep_lengths in (False, True):
                with contextlib.suppress(Exception):  # the next one may be possible
                    yield kind(**shrunk(kind().to_dict(), divisor, keep_lengths=keep_lengths)), name
        with contextlib.suppress(Exception):
            yield kind(), name


def shrunk(fields, divisor, *, keep_lengths):
    found = copy.deepcopy(fields)
    for name in _DERIVED:
        found.pop(name, None)
    found |= {name: value for name, value in _NEEDED.items() if name in found and found[name] is None}
    layers = _layers(found)
    for key, value in list(found.items()):
        if not isinstance(key, str):
            continue
        if isinstance(value, dict):
            if key not in _TABLES:
                found[key] = shrunk(value, divisor, keep_lengths=keep_lengths)
        elif isinstance(value, list) and value:
            found[key] = _list(key, value, layers, divisor)
        elif isinstance(value, int) and not isinstance(value, bool):
            found[key] = _number(key, value, layers, divisor, keep_lengths=keep_lengths)
    return found


def _layers(fields):
    """Enough for each kind of layer."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type") or fields.get("hybrid_override_pattern")
    if not kinds:
        return LAYERS
    last = max(list(kinds).index(kind) for kind in set(kinds))
    return min(max(LAYERS, last + 1), MOST_LAYERS)


def _list(key, value, layers, divisor):
    if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        if _LAYERS.search(key) and "dim" not in key:
            return [min(one, 1) for one in value] if len(value) <= 8 and max(value) > 1 else value
        if _WIDTHS.search(key) and not _NOT_WIDTHS.search(key) and min(value) >= 16:
            return [_narrow(one, divisor) for one in value]
        return value
    return value[:layers] if "layer" in key else value


_NEEDED = {"prediction_length": 8}  # fields that have no default


def _number(key, value, layers, divisor, *, keep_lengths):
    small = value
    if _IDS.search(key):
        small = value if value < 100 else 100 + value % 20
    elif _VOCABULARY.search(key):
        small = min(value, 128)
    elif _EXPERTS.search(key):
        small = min(value, 4)
    elif _CHOSEN.search(key):
        small = min(value, 2)
    elif _GROUPS.search(key):
        small = min(value, 1)
    elif _LENGTHS.search(key):
        small = value if keep_lengths else min(value, 128)
    elif _LAYERS.search(key):
        small = min(value, layers)
    elif _WIDTHS.search(key) and not _NOT_WIDTHS.search(key) and value >= 32:
        small = _narrow(value, divisor)
    return small


def _narrow(value, divisor):
    return max(value // divisor, 2)
