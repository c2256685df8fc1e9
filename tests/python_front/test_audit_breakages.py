"""Models that were broken in one place each, and models that are right though unusual: `lading.audit` must find the
first by code and name, and must be silent about the second. Breakages that need ranks are in test_audit_ranks.py and
test_audit_masters.py."""

import copy
import dataclasses

import audit_models as models
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading
from lading.errors import Problem

pytest.importorskip("transformers")

ROPE = "model.rotary_emb"
TEXT = "model.language_model"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each model that is broken below."""
    import zoo

    folder = tmp_path_factory.mktemp("breakages")
    for name in ("llama", "gemma3"):
        zoo.make(name, str(folder / name))
    (folder / "lstm").mkdir()
    save_file(lstm().state_dict(), folder / "lstm" / "model.safetensors")
    return folder


def load(folders, name, **options):
    import transformers

    if name == "lstm":
        model = lstm()
        model.load_state_dict(load_file(folders / name / "model.safetensors"))
        return model
    cls = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForConditionalGeneration"}[name]
    return getattr(transformers, cls).from_pretrained(folders / name, **options)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 3)


def lstm():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Recurrent()


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


def value_of(model, name):
    owner, _, attribute = name.rpartition(".")
    return model.get_submodule(owner), attribute


# ---- breakages: (model, what is done to it, what must be found)


def one_for_two(model):
    model.lm_head.weight = model.model.embed_tokens.weight


def one_layer_twice(model):
    model.model.layers[1] = model.model.layers[0]


def as_buffer(name, *, persistent, factor):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone() * factor
        delattr(owner, attribute)
        owner.register_buffer(attribute, value, persistent=persistent)

    return change


def as_attribute(name, factor=3):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone() * factor
        delattr(owner, attribute)
        owner.__dict__[attribute] = value

    return change


def as_parameter(name):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone()
        delattr(owner, attribute)
        setattr(owner, attribute, nn.Parameter(value))

    return change


def without(name):
    def change(model):
        owner, attribute = value_of(model, name)
        del owner._buffers[attribute]

    return change


def filled(name, value=7.0):
    def change(model):
        owner, attribute = value_of(model, name)
        with torch.no_grad():
            getattr(owner, attribute).fill_(value)

    return change


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


Q0, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
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


# ---- right models


def offloaded(model):
    import accelerate

    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


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


# ---- what the checkpoint has and nobody judged


def test_a_planning_refusal_becomes_a_finding(tmp_path, monkeypatch):
    """Such as R48: a quantized payload without its scale. The rest is judged."""
    from lading import _engine

    folder = models.save(tmp_path)
    model = models.original()
    real, problem = _engine.plan, Problem("plan", "it has no scale", tensor="lin.weight", rule="R48")

    def plan(request):
        if any(tensor["name"] == "lin.weight" for tensor in request["skeleton"]["tensors"]):
            raise lading.LadingError(problem, stage="planning", exit_code=4)
        return real(request)

    monkeypatch.setattr(_engine, "plan", plan)
    report = lading.audit(model, folder)
    assert flagged(report) == {("plan", "lin.weight")} and report.problems[0].rule == "R48"
    assert report.checked["with the checkpoint"] == 7


def test_a_load_that_fails_becomes_a_finding(tmp_path, monkeypatch):
    from lading import _engine

    folder = models.save(tmp_path)
    real = _engine.Plan.load

    def load_(self, memories, **options):
        if any("lin.weight" in (one.name, *one.aliases) for one in self.destinations):
            problem = Problem("data_read", "it cannot be read", tensor="lin.weight")
            raise lading.LadingError(problem, stage="loading", exit_code=5)
        return real(self, memories, **options)

    monkeypatch.setattr(_engine.Plan, "load", load_)
    report = lading.audit(models.original(), folder)
    assert flagged(report) == {("data_read", "lin.weight")}
    assert report.checked["with the checkpoint"] == 7


def test_two_keys_of_a_tie_that_differ(tmp_path):
    """The file has both names of a tie with different values: nothing is raised, and the rest is judged."""
    folder = models.save(tmp_path, extra={"head.weight": torch.full((6, 4), 9.0)})
    model = models.original()
    with torch.no_grad():
        model.norm.weight[0] = 77.0
    report = lading.audit(model, folder)
    assert ("value", "norm.weight") in flagged(report) and "head.weight" in report.tensors


def test_a_lazy_parameter_is_a_finding(tmp_path):
    folder = models.save(tmp_path)
    model = models.original()
    model.late = nn.LazyLinear(3)
    report = lading.audit(model, folder)
    assert {"late.weight", "late.bias"} <= set(report.tensors)
    assert report.checked["with the checkpoint"] == 8


class Plain(nn.Module):
    """With a buffer that no file has."""

    def __init__(self, **buffers):
        super().__init__()
        self.w = nn.Parameter(torch.arange(3.0))
        self.register_buffer("softcap", torch.full((2,), 50.0), persistent=False)
        for name, value in buffers.items():
            self.register_buffer(name, value)


def saved(folder, **state):
    save_file({name: value.clone() for name, value in state.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name, value", [("sparse", torch.eye(3).to_sparse()), ("coarse", None)])
def test_a_tensor_that_no_plan_can_say_hides_no_other(tmp_path, name, value):
    value = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8) if value is None else value
    model = Plain(**{name: value})
    folder = saved(tmp_path, w=torch.arange(3.0) + 1)
    report = lading.audit(model, folder)
    assert set(report.tensors) == {name, "w"} and ("value", "w") in flagged(report)


def test_extra_state_that_is_a_tensor(tmp_path):
    class Counting(Plain):
        def get_extra_state(self):
            return torch.tensor([7])

        def set_extra_state(self, state):
            pass

    right = saved(tmp_path, w=torch.arange(3.0), _extra_state=torch.tensor([7]))
    assert lading.audit(Counting(), right, like=Counting()).ok
    wrong = saved(tmp_path, w=torch.arange(3.0), _extra_state=torch.tensor([8]))
    assert flagged(lading.audit(Counting(), wrong, like=Counting())) == {("value", "_extra_state")}


def test_an_offload_map_without_a_value_is_said(folders):
    model = load(folders, "llama")
    offloaded(model)
    model.model.norm._hf_hook.weights_map.dataset.pop(NORM)
    assert flagged(lading.audit(model, folders / "llama")) == {("not_judged", NORM)}


def test_strict_false_excuses_keys_and_no_tensor(tmp_path):
    """A key that nothing reads is a warning; one that the model has a tensor for must be judged."""
    folder = saved(tmp_path, w=torch.arange(3.0), surplus=torch.ones(1))
    report = lading.audit(Plain(), folder, strict=False)
    assert report.ok and [warning.tensor for warning in report.warnings] == ["surplus"]
    folder = saved(tmp_path, w=torch.arange(3.0), softcap=torch.ones(2))
    assert flagged(lading.audit(Plain(), folder, strict=False)) == {("not_judged", "softcap")}
    assert lading.audit(Plain(), folder, strict=False, allow_unexpected=["softcap"]).ok
    model = Plain()
    del model.w
    model.w = torch.arange(3.0) * 3
    assert flagged(lading.audit(model, folder, strict=False)) == {("not_judged", "softcap"), ("not_judged", "w")}


def test_a_key_that_transformers_passes_over(tmp_path, monkeypatch):
    """A buffer that the library does not expect in a file, where nothing says what its constructor makes."""
    from lading import huggingface

    model = models.outsider()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file(state | {"softcap": torch.tensor(3.0)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert lading.audit(model, tmp_path).ok  # judged by its constructor

    def build(*arguments, **options):
        raise TypeError("it wants more than a config")

    monkeypatch.setattr(huggingface, "build", build)
    assert flagged(lading.audit(model, tmp_path)) == {("not_judged", "softcap")}


def test_two_parts_with_one_name(tmp_path):
    folder = saved(tmp_path, w=torch.arange(3.0))
    assert "w" in lading.audit([Plain(), Plain()], folder).tensors


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
