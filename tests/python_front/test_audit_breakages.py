"""Models that were broken in one place each: `lading.audit` must find that by code and name, and nothing else. Breakages
that need ranks are in test_audit_ranks.py and test_audit_masters.py, those of PEFT in test_audit_peft.py."""

import dataclasses

import pytest
import torch
from torch import nn

import lading

pytest.importorskip("transformers")

from audit_changes import (  # noqa: E402
    NORM,
    ROPE,
    TEXT,
    Plain,
    as_attribute,
    as_buffer,
    as_parameter,
    filled,
    flagged,
    load,
    lstm,
    save_all,
    saved,
    value_of,
    without,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("checkpoints"))


# ---- breakages: (model, what is done to it, what must be found)


def one_for_two(model):
    model.lm_head.weight = model.model.embed_tokens.weight


def one_layer_twice(model):
    model.model.layers[1] = model.model.layers[0]


def stale_flat_weights(model):
    model.rnn._flat_weights = [weight.detach().clone() * 0 for weight in model.rnn._flat_weights]


def equal_flat_weights(model):
    """The values of now: the next step of an optimizer does not reach them."""
    model.rnn._flat_weights = [weight.detach().clone() for weight in model.rnn._flat_weights]


@dataclasses.dataclass
class Held:
    tensor: torch.Tensor


def in_a_dataclass(model):
    model.held = Held(torch.ones(2, device="meta"))


def in_deep_containers(model):
    model.held = {"a": [[[{"b": (torch.ones(2, device="meta"),)}]]]}


def transposed(model):
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.t().contiguous()


def swapped(model):
    attention = model.model.layers[0].self_attn
    attention.q_proj, attention.k_proj = attention.k_proj, attention.q_proj


def reordered(model):
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


def rounded(model):
    model.model.norm.weight.data = (model.model.norm.weight.data + 0.001).bfloat16().float()


def nan(model):
    model.model.norm.weight.data[1] = float("nan")


def meta(name):
    def change(model):
        owner, attribute = value_of(model, name)
        tensor = getattr(owner, attribute)
        moved = tensor.detach().to("meta")
        setattr(owner, attribute, nn.Parameter(moved) if isinstance(tensor, nn.Parameter) else moved)

    return change


def untied(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def half(model):
    model.model.layers[0].half()


Q0 = "model.layers.0.self_attn.q_proj.weight"
LAYER1 = [
    f"model.layers.1.{name}.weight"
    for name in (
        "input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm",
        "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj",
    )
]  # fmt: skip
LAYER0 = [name.replace("layers.1", "layers.0") for name in LAYER1]
FLAT = [("untied", f"rnn._flat_weights[{place}]") for place in range(4)]
EMBED_SCALE = f"{TEXT}.embed_tokens.embed_scale"
BROKEN = {
    "one for two": ("llama", one_for_two, {("tied", "lm_head.weight"), ("value", "lm_head.weight")}),
    "one layer twice": (
        "llama", one_layer_twice, {("tied", name) for name in LAYER1} | {("value", name) for name in LAYER1},
    ),
    "parameter as non-persistent buffer": (
        "llama", as_buffer(NORM, persistent=False, factor=3), {("kind", NORM), ("value", NORM)},
    ),
    "parameter as persistent buffer": ("llama", as_buffer(NORM, persistent=True, factor=1), {("kind", NORM)}),
    "parameter as right buffer": ("llama", as_buffer(NORM, persistent=False, factor=1), {("kind", NORM)}),
    "parameter as attribute": ("llama", as_attribute(NORM), {("kind", NORM), ("value", NORM)}),
    "parameter as right attribute": ("llama", as_attribute(NORM, 1), {("kind", NORM)}),
    "buffer as attribute": ("llama", as_attribute(f"{ROPE}.inv_freq"), {("value", f"{ROPE}.inv_freq")}),
    "buffer as parameter": ("llama", as_parameter(f"{ROPE}.inv_freq"), {("kind", f"{ROPE}.inv_freq")}),
    "buffer deleted": ("llama", without(f"{ROPE}.inv_freq"), {("absent", f"{ROPE}.inv_freq")}),
    "buffer of Gemma 3 deleted": (
        "gemma3", without(f"{TEXT}.rotary_emb.full_attention_inv_freq"),
        {("absent", f"{TEXT}.rotary_emb.full_attention_inv_freq")},
    ),
    "scale of Gemma 3 deleted": ("gemma3", without(EMBED_SCALE), {("absent", EMBED_SCALE)}),
    "scale of Gemma 3 filled": ("gemma3", filled(EMBED_SCALE), {("value", EMBED_SCALE)}),
    "scale of Gemma 3 as attribute": ("gemma3", as_attribute(EMBED_SCALE), {("value", EMBED_SCALE)}),
    "inv_freq filled": ("llama", filled(f"{ROPE}.inv_freq"), {("value", f"{ROPE}.inv_freq")}),
    "stale _flat_weights": ("lstm", stale_flat_weights, set(FLAT)),
    "copied _flat_weights": ("lstm", equal_flat_weights, set(FLAT)),
    "weight of an LSTM": (
        "lstm", filled("rnn.weight_hh_l0"), {("value", "rnn.weight_hh_l0")},
    ),
    "parameter of an LSTM as buffer": (
        "lstm", as_buffer("rnn.bias_ih_l0", persistent=False, factor=2),
        {("kind", "rnn.bias_ih_l0"), ("value", "rnn.bias_ih_l0")},
    ),
    "meta in a dataclass": ("llama", in_a_dataclass, {("meta", "held.tensor")}),
    "meta in deep containers": ("llama", in_deep_containers, {("meta", "held['a'][0][0][0]['b'][0]")}),
    "meta parameter": ("llama", meta(NORM), {("meta", NORM)}),
    "meta buffer": ("llama", meta(f"{ROPE}.inv_freq"), {("meta", f"{ROPE}.inv_freq")}),
    "transposed": ("llama", transposed, {("value", Q0)}),
    "swapped modules": ("llama", swapped, {("value", Q0), ("value", Q0.replace("q_proj", "k_proj"))}),
    "reordered layers": ("llama", reordered, {("value", name) for name in LAYER0 + LAYER1}),
    "filled": ("llama", filled(NORM), {("value", NORM)}),
    "rounded": ("llama", rounded, {("value", NORM)}),
    "nan": ("llama", nan, {("value", NORM)}),
    "untied": ("gemma3", untied, {("untied", "model.language_model.embed_tokens.weight")}),
    "half a layer": ("llama", half, {("dtype", name) for name in LAYER0}),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_breakage_is_found(folders, case):
    name, change, expected = BROKEN[case]
    model = load(folders, name)
    change(model)
    report = lading.audit(model, folders / name, like=lstm() if name == "lstm" else None)
    assert flagged(report) == expected, str(report)
    assert not report.ok


@pytest.mark.parametrize("case", ["stale _flat_weights", "copied _flat_weights"])
def test_flat_weights_need_no_twin(folders, case):
    name, change, expected = BROKEN[case]
    model = load(folders, name)
    change(model)
    assert flagged(lading.audit(model, folders / name)) == expected


# ---- models that were built under lading.skeleton(): the record is the twin


@pytest.fixture
def recorded(tmp_path):
    folder = saved(tmp_path, w=torch.arange(3.0))
    with lading.skeleton():
        model = Plain()
    lading.materialize(model, folder, device="cpu", progress=False)
    return model, folder


RECORDED = {
    "nothing": (lambda model: None, set()),
    "deleted": (without("softcap"), {("absent", "softcap")}),
    "filled": (filled("softcap"), {("value", "softcap")}),
    "buffer as attribute": (as_attribute("softcap"), {("value", "softcap")}),
    "parameter as buffer": (as_buffer("w", persistent=False, factor=3), {("kind", "w"), ("value", "w")}),
    "parameter as attribute": (as_attribute("w"), {("kind", "w"), ("value", "w")}),
    "buffer as parameter": (as_parameter("softcap"), {("kind", "softcap")}),
}


@pytest.mark.parametrize("case", RECORDED)
def test_a_breakage_of_a_recorded_model(recorded, case):
    model, folder = recorded
    change, expected = RECORDED[case]
    change(model)
    assert flagged(lading.audit(model, folder)) == expected


def test_surgery_after_skeleton_that_the_file_knows(tmp_path):
    """A tie, and a bias that was taken away: the file has neither a second weight nor a bias."""
    with lading.skeleton():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].bias = model[1].bias = None
    folder = saved(tmp_path, **{"0.weight": torch.ones(2, 2)})
    lading.materialize(model, folder, device="cpu", progress=False)
    lading.audit(model, folder, raise_on="warning")
