"""Models that are right though unusual, about which `lading.audit` must be silent; and configs that are not the
checkpoint's."""

import copy

import pytest
import torch
from torch import nn

import lading

pytest.importorskip("transformers")

from audit_changes import NORM, ROPE, TEXT, flagged, load, offloaded, save_all  # noqa: E402


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("checkpoints"))


# ---- a config in memory that is not the checkpoint's


def with_config(folders, name, **fields):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folders / name)
    for key, value in fields.items():
        setattr(config, key, value)
    return load(folders, name, config=config)


def warned(report):
    return {(warning.code, warning.message.split(" ")[0]) for warning in report.warnings}


def test_another_rope_theta(folders):
    model = with_config(folders, "llama", rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    report = lading.audit(model, folders / "llama")
    names = {("value", f"{ROPE}.inv_freq"), ("value", f"{ROPE}.original_inv_freq")}
    assert flagged(report) == names | {("config", None)}
    (problem,) = [problem for problem in report.problems if problem.code == "config"]
    assert "rope_parameters.rope_theta" in problem.message
    assert (problem.expected, problem.found) == ("10000.0", "500000.0")


def test_another_rope_scaling(folders):
    scaling = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}
    report = lading.audit(with_config(folders, "llama", rope_parameters=scaling), folders / "llama")
    assert ("value", f"{ROPE}.inv_freq") in flagged(report) and ("config", None) in flagged(report)


def test_another_rope_theta_of_gemma3(folders):
    model = load(folders, "gemma3")
    config = copy.deepcopy(model.config)
    config.text_config.rope_parameters["sliding_attention"]["rope_theta"] *= 2
    report = lading.audit(load(folders, "gemma3", config=config), folders / "gemma3")
    assert ("value", f"{TEXT}.rotary_emb.sliding_attention_inv_freq") in flagged(report)
    assert any("text_config.rope_parameters.sliding_attention.rope_theta" in one.message for one in report.problems)


@pytest.mark.parametrize("key, value", [("rms_norm_eps", 1e-3), ("hidden_act", "gelu"), ("num_attention_heads", 2)])
def test_another_number_is_a_warning(folders, key, value):
    from transformers import AutoConfig

    was = getattr(AutoConfig.from_pretrained(folders / "llama"), key)
    model = load(folders, "llama")
    setattr(model.config, key, value)
    report = lading.audit(model, folders / "llama")
    assert report.ok
    (warning,) = report.warnings
    assert warning.code == "config" and key in warning.message
    assert (warning.expected, warning.found) == (repr(was), repr(value))


def test_bookkeeping_is_no_difference(folders):
    model = load(folders, "llama")
    model.config.use_cache = False
    model.config._name_or_path = "elsewhere"
    model.config.transformers_version = "4.0"
    model.config._attn_implementation = "eager"
    model.config.architectures = None
    lading.audit(model, folders / "llama", raise_on="warning")


def test_a_twin_of_the_users_excuses_rope(folders):
    """RoPE that was stretched on purpose: like= says what is meant."""
    scaling = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}
    model = with_config(folders, "llama", rope_parameters=scaling)
    like = type(model)(model.config)
    report = lading.audit(model, folders / "llama", like=like)
    assert report.ok and ("config", "rope_parameters.rope_type") in warned(report)


def test_a_part_of_a_composite(folders):
    """The text model of Gemma 3: its config is a part of the checkpoint's."""
    from transformers import Gemma3ForCausalLM

    model = lading.from_pretrained(folders / "gemma3", cls=Gemma3ForCausalLM, device="cpu", progress=False)
    report = lading.audit(model, folders / "gemma3", raise_on="warning")
    assert not any("config" in note for note in report.notes)
    config = copy.deepcopy(model.config)
    config.rope_parameters["full_attention"]["rope_theta"] *= 2
    options = {"cls": Gemma3ForCausalLM, "config": config, "device": "cpu", "progress": False}
    model = lading.from_pretrained(folders / "gemma3", **options)
    assert ("value", "model.rotary_emb.full_attention_inv_freq") in flagged(lading.audit(model, folders / "gemma3"))


# ---- right models


def offloaded_with_buffers(model):
    import accelerate

    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"), offload_buffers=True)


def two_objects_of_one_storage(model):
    model.lm_head.weight = nn.Parameter(model.get_input_embeddings().weight.detach())


def other_strides(model):
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.t().contiguous().t()


def negated(model):
    weight = model.model.norm.weight
    weight.data = torch._neg_view(-weight.data)


def after_a_forward(model):
    model(torch.arange(8)[None])


RIGHT = {
    "llama": ("llama", lambda model: None),
    "gemma3": ("gemma3", lambda model: None),
    "lstm": ("lstm", lambda model: None),
    "cpu_offload": ("llama", offloaded),
    "cpu_offload of a tie": ("gemma3", offloaded),
    "cpu_offload with buffers": ("gemma3", offloaded_with_buffers),
    "two objects of one storage": ("gemma3", two_objects_of_one_storage),
    "other strides": ("llama", other_strides),
    "neg bit": ("llama", negated),
    "after a forward": ("llama", after_a_forward),
    "a module less to train": ("llama", lambda model: model.requires_grad_(False)),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_model_is_silent(folders, case):
    name, change = RIGHT[case]
    model = load(folders, name)
    change(model)
    report = lading.audit(model, folders / name, raise_on="warning")
    assert report.checked["with the checkpoint"] > 3


def test_disk_offload_is_judged(folders, tmp_path):
    import accelerate

    model = load(folders, "llama")
    accelerate.disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    assert lading.audit(model, folders / "llama", raise_on="warning").checked["with the checkpoint"] == 21


def test_a_stale_offload_map_is_found(folders):
    model = load(folders, "llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(-5.0)
    offloaded(model)
    assert flagged(lading.audit(model, folders / "llama")) == {("value", NORM)}


def test_weights_beside_an_offload_map(folders):
    """A parameter that was filled in place of the hook's: forward drops it, and takes what the hook has."""
    model = load(folders, "llama")
    right = model.model.norm.weight.detach().clone()
    with torch.no_grad():
        model.model.norm.weight.fill_(-5.0)
    offloaded(model)
    model.model.norm.weight = nn.Parameter(right)
    assert flagged(lading.audit(model, folders / "llama")) == {("value", NORM)}


ROPES = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 64, "factor": 4.0,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=ROPES)
def stretched(request, folders, tmp_path_factory):
    model = with_config(folders, "llama", rope_parameters=ROPES[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("length", [(80,), (8,), (80, 8), (70, 100)])
def test_rope_that_forward_writes(stretched, length):
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(stretched)
    for one in length:
        model(torch.zeros(1, one, dtype=torch.long))
    lading.audit(model, stretched, raise_on="warning")
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 2
    assert flagged(lading.audit(model, stretched)) == {("value", f"{ROPE}.inv_freq")}
