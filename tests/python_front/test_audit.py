"""`lading.audit` after loads that are wrong, made by the loaders that make them, and after right ones."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading


class Model(nn.Module):
    """What some loader gets wrong: buffers that no file holds, 0-dim ones, a tie, a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.lin = nn.Linear(4, 4, bias=False)
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.A_log = nn.Parameter(torch.full((4,), 1 + 2.0**-10))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("layer_scalar", torch.tensor(1.0))
        self.register_buffer("input_max", torch.tensor(float("inf")))
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
        self.register_buffer("inv_freq", 1.0 / torch.arange(1, 5).float(), persistent=False)

    def forward(self, ids):
        return self.head(self.norm(self.lin(self.embed(ids)) * self.layer_scalar + self.A_log)) / self.softcap


def original():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model()
        with torch.no_grad():
            model.layer_scalar.fill_(0.5)
            model.input_max.fill_(42.0)
    return model


@pytest.fixture
def folder(tmp_path):
    state = original().state_dict()
    del state["head.weight"]
    state["lin.weight"] = state["lin.weight"].bfloat16()
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def twin():
    with lading.skeleton():
        return Model()


def meta():
    with torch.device("meta"):
        return Model()


def audit(model, folder, **options):
    return lading.audit(model, folder, like=twin(), **options)


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


@pytest.fixture
def loaded(folder):
    model = twin()
    lading.materialize(model, folder, device="cpu", progress=False)
    return model


# ---- right loads


def test_a_right_load_is_right(loaded, folder):
    report = audit(loaded, folder, raise_on="warning")
    assert report.ok and report.problems == report.warnings == ()
    assert report.checked == {"with the checkpoint": 8, "with their derivation": 2, "between ranks": 0}


def test_a_record_is_as_good_as_a_twin(loaded, folder):
    assert lading.audit(loaded, folder).ok
    loaded.softcap.fill_(49.0)
    assert flagged(lading.audit(loaded, folder)) == {("value", "softcap")}


def test_nothing_is_changed(loaded, folder):
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    rng = torch.get_rng_state()
    audit(loaded, folder)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(before[name], value) for name, value in loaded.state_dict().items())


def test_what_nothing_says_is_a_note_and_no_problem(folder):
    model = original()
    model.lin.bfloat16()
    report = lading.audit(model, folder)
    assert report.ok
    assert any("softcap was not judged" in note for note in report.notes)


# ---- each kind of wrong


def test_left_on_meta(loaded, folder):
    loaded.norm.weight = nn.Parameter(loaded.norm.weight.detach().to("meta"))
    loaded.layer_scalar = loaded.layer_scalar.to("meta")
    assert flagged(audit(loaded, folder)) == {("meta", "norm.weight"), ("meta", "layer_scalar")}


def test_wrong_value_by_its_first_index(loaded, folder):
    with torch.no_grad():
        loaded.embed.weight[2, 3] += 1
        loaded.embed.weight[4, 0] += 1
    report = audit(loaded, folder)
    assert {problem.tensor for problem in report.problems} == {"embed.weight", "head.weight"}
    assert "2 of 24 elements, the first at [2, 3]" in report.problems[0].message


def test_a_single_bit_of_a_zero(loaded, folder):
    """-0.0 equals 0.0, and is another value."""
    state = load_file(folder / "model.safetensors")
    state["frozen"] = torch.zeros(4)
    save_file(state, folder / "model.safetensors")
    with torch.no_grad():
        loaded.frozen.copy_(torch.tensor([0.0, 0.0, -0.0, 0.0]))
    (problem,) = audit(loaded, folder).problems
    assert problem.tensor == "frozen" and "[2]" in problem.message


def test_a_nan_of_the_file_is_right(loaded, folder):
    state = load_file(folder / "model.safetensors")
    nan = torch.tensor(struct.unpack("i", struct.pack("I", 0x7FC00123))[0], dtype=torch.int32).view(torch.float32)
    state["layer_scalar"] = nan.clone()
    save_file(state, folder / "model.safetensors")
    loaded.layer_scalar.view(torch.int32).fill_(0x7FC00123)
    assert audit(loaded, folder).ok


def test_wrong_dtype_and_what_was_asked_for(loaded, folder):
    loaded.lin.float()
    assert flagged(audit(loaded, folder)) == {("dtype", "lin.weight")}
    assert audit(loaded, folder, dtype="fp32").ok


def test_dtype_restored_and_bits_gone(loaded, folder):
    """fp32 → bf16 → fp32: the dtype is right again, and the value is not (R24)."""
    with torch.no_grad():
        loaded.A_log.copy_(loaded.A_log.bfloat16().float())
    report = audit(loaded, folder, dtype="bf16")
    assert flagged(report) == {("rounded", "A_log")}
    assert "rounding to bfloat16" in report.problems[0].message


def test_derived_buffer_in_another_dtype(loaded, folder):
    loaded.inv_freq = loaded.inv_freq.bfloat16()
    assert flagged(audit(loaded, folder)) == {("dtype", "inv_freq")}


def test_untied_and_equal(loaded, folder):
    loaded.head.weight = nn.Parameter(loaded.embed.weight.detach().clone())
    assert flagged(audit(loaded, folder)) == {("untied", "head.weight")}


def test_unfrozen(loaded, folder):
    loaded.frozen.requires_grad_(True)
    assert flagged(audit(loaded, folder)) == {("unfrozen", "frozen")}
    loaded.frozen.requires_grad_(False)
    loaded.lin.weight.requires_grad_(False)  # to freeze more is the user's own affair
    assert audit(loaded, folder).ok


def test_wrong_device(loaded, folder):
    (problem, *more) = audit(loaded, folder, device="cuda:0").problems
    assert problem.code == "device" and len(more) == 9


def test_keys_of_the_checkpoint(loaded, folder):
    state = load_file(folder / "model.safetensors")
    del state["norm.weight"]
    state["surplus"] = torch.zeros(2)
    state["frozen"] = torch.zeros(5)
    save_file(state, folder / "model.safetensors")
    report = audit(loaded, folder)
    assert {"norm.weight", "frozen"} <= set(report.tensors) and "surplus" in str(report)
    with torch.no_grad():
        loaded.A_log[0] = 0  # the rest is looked at all the same
    assert "A_log" in audit(loaded, folder).tensors


def test_raise_on_lists_everything(loaded, folder):
    loaded.frozen.requires_grad_(True)
    loaded.softcap.zero_()
    with pytest.raises(lading.LadingError, match="2 problems") as failure:
        audit(loaded, folder, raise_on="error")
    assert failure.value.exit_code == 6 and not failure.value.report.ok
    assert json.loads(failure.value.report.to_json())["schema"] == "lading.audit/1"
    with pytest.raises(ValueError, match="raise_on"):
        audit(loaded, folder, raise_on="always")


# ---- loaders that are wrong today, for real


def dirty(model):
    """As memory may be that nobody wrote: torch.empty gives NaN."""
    before, fill = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        return model.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def set_full(model, folder, **options):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    state = load_file(folder / "model.safetensors")
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, **options))
    return model


@pytest.fixture
def process_group(tmp_path):
    """Of one rank: torch's distributed loaders want one even then."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_dcp_after_to_empty(folder):
    """Case c: what no file holds stays as it was allocated."""
    report = audit(set_full(dirty(meta()), folder, strict=False), folder)
    assert {("value", "softcap"), ("value", "inv_freq")} <= flagged(report)


def test_dcp_on_meta(folder, process_group):
    """Cases f and g: the tie is broken and half of it left on meta; buffers that no file holds too."""
    report = audit(set_full(meta(), folder, strict=False), folder)
    assert {("meta", "softcap"), ("meta", "inv_freq")} <= flagged(report)


def test_dcp_strict_with_a_missing_key(folder):
    """Case h: strict=True says that all keys matched."""
    state = load_file(folder / "model.safetensors")
    del state["norm.weight"]
    save_file(state, folder / "model.safetensors")
    report = audit(set_full(dirty(meta()), folder, strict=False), folder)
    assert "norm.weight" in report.tensors


def test_dcp_hugging_face_reader(folder):
    """Cases c and g: the legal checkpoint without the head's key; what was never written."""
    import torch.distributed.checkpoint as dcp

    model = dirty(meta())
    state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    model.load_state_dict(state, strict=False)
    report = audit(model, folder)
    assert {("value", "softcap"), ("dtype", "lin.weight"), ("untied", "head.weight")} <= flagged(report)


def test_load_state_dict_assign(folder):
    """Case g: `assign=True` unties, and what has no key stays on meta."""
    model = meta()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False, assign=True)
    report = audit(model, folder)
    assert {("meta", "head.weight"), ("untied", "head.weight"), ("meta", "softcap")} <= flagged(report)
    assert ("unfrozen", "frozen") not in flagged(report)


def test_reset_parameters_after_to_empty(folder):
    """Case n: norms without reset_parameters, and everything that was there before."""
    model = original()
    model.lin.bfloat16()
    dirty(model)
    for module in model.modules():
        if module is not model and hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert {("value", "embed.weight"), ("value", "softcap"), ("value", "A_log")} <= flagged(audit(model, folder))


def test_accelerate_to_empty_and_load(folder):
    """Cases c and g."""
    accelerate = pytest.importorskip("accelerate")
    model = dirty(meta())
    accelerate.load_checkpoint_in_model(model, str(folder))
    report = audit(model, folder)
    assert {("value", "softcap"), ("untied", "head.weight")} <= flagged(report)


# ---- transformers


@pytest.fixture(scope="module")
def out_of_tree():
    transformers = pytest.importorskip("transformers")

    class MineConfig(transformers.PreTrainedConfig):
        model_type = "mine_of_the_audit"

    class MineModel(transformers.PreTrainedModel):
        config_class = MineConfig
        _keep_in_fp32_modules_strict = ("A_log",)

        def __init__(self, config):
            super().__init__(config)
            self.lin = nn.Linear(4, 4)
            self.A_log = nn.Parameter(torch.full((4,), 1 + 2.0**-10))
            self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
            self.register_buffer("scale", torch.tensor([1 + 2.0**-10]))
            self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
            self.post_init()

        def _init_weights(self, module):
            pass

    return MineConfig, MineModel


def test_from_pretrained_of_a_model_outside_the_tree(out_of_tree, tmp_path):
    """Cases b, c and m: the softcap is whatever memory held, and the frozen parameter trains."""
    config_class, model_class = out_of_tree
    with torch.random.fork_rng():
        model_class(config_class()).save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path)
    model.softcap.fill_(5.3e20)  # what it holds differs from run to run, and may be right by luck
    assert flagged(lading.audit(model, tmp_path)) == {("value", "softcap"), ("unfrozen", "frozen")}
    assert lading.audit(model_class(config_class()), None).ok


def test_from_pretrained_rounds(out_of_tree, tmp_path):
    """Case d: a request of bf16 rounds what the contract keeps; the pinned parameter stays."""
    config_class, model_class = out_of_tree
    with torch.random.fork_rng():
        model_class(config_class()).save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    model.softcap.fill_(50.0)
    model.frozen.requires_grad_(False)
    promoted = flagged(lading.audit(model, tmp_path, dtype="bf16"))
    assert {("dtype", "scale"), ("dtype", "lin.weight")} <= promoted
    assert not any(tensor == "A_log" for _, tensor in promoted)
    assert lading.audit(model, tmp_path, dtype="bf16", cast="exact").ok


def test_rope_tables_in_bf16(tmp_path):
    """Case a: as ZeRO-3 with bf16 leaves them."""
    pytest.importorskip("transformers")
    import zoo

    zoo.make("llama", str(tmp_path))
    model = zoo.build("llama")
    assert lading.audit(model, tmp_path).ok
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16()
    assert flagged(lading.audit(model, tmp_path)) == {("dtype", "model.rotary_emb.inv_freq")}


def test_mismatched_sizes_that_were_ignored(tmp_path):
    """Case i, on one process: rows that come from nowhere."""
    transformers = pytest.importorskip("transformers")
    import zoo

    zoo.make("llama", str(tmp_path))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.vocab_size += 1
    with torch.random.fork_rng():
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, config=config, ignore_mismatched_sizes=True)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(lading.audit(model, tmp_path).tensors)
