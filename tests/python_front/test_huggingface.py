"""Models of transformers: their conversions, heads and bases, sub-models, pins, ties and refusals; what comes out is
what transformers' own save_pretrained had put in. The whole zoo runs by tools/zoo."""

import json

import pytest
import torch

pytest.importorskip("transformers")
import transformers
import zoo
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertModel, LlamaConfig, LlamaForCausalLM, LlamaModel

import lading
from lading import huggingface
from lading.huggingface_trace import NotMoving, Trace
from lading.patterns import Name

FAST = ["gpt2", "mixtral", "t5", "encodec", "ernie4_5_vl_moe", "nomic_bert"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Each model of the zoo, made once: (original, folder) by type."""
    made = {}

    def get(model_type):
        if model_type not in made:
            folder = tmp_path_factory.mktemp(model_type)
            made[model_type] = (zoo.make(model_type, str(folder)), folder)
        return made[model_type]

    return get


def under_skeleton(model_type):
    config, name = zoo.build_config(model_type)
    with lading.skeleton():
        return zoo.model_class(name, config)(config)


def under_meta(model_type):
    return zoo.build(model_type, "meta")


def under_accelerate(model_type):
    accelerate = pytest.importorskip("accelerate")
    config, name = zoo.build_config(model_type)
    with accelerate.init_empty_weights(include_buffers=True):
        return zoo.model_class(name, config)(config)


def load(model, folder, **options):
    with zoo.poisoned_memory():
        lading.materialize(model, folder, device="cpu", progress=False, **options)
    return model


@pytest.mark.parametrize("build", [under_skeleton, under_meta, under_accelerate])
@pytest.mark.parametrize("model_type", FAST)
def test_everything_is_as_it_was_saved(checkpoints, model_type, build):
    original, folder = checkpoints(model_type)
    loaded = load(build(model_type), folder)
    assert zoo.differences(original, loaded) == []
    assert zoo.attribute_differences(original, loaded) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("model_type", ["t5", "zamba"])
def test_exact_is_what_from_pretrained_gives(checkpoints, model_type, dtype):
    original, folder = checkpoints(model_type)
    theirs = type(original).from_pretrained(folder, dtype=dtype)
    ours = lading.from_pretrained(
        folder, cls=type(original), device="cpu", dtype=dtype, cast="exact", progress=False
    )
    found = [one for one in zoo.differences(theirs, ours) if one[0] != "requires_grad"]
    assert found == []


def test_initialize_weights_changes_no_bit(checkpoints):
    original, folder = checkpoints("gemma4")
    loaded = load(under_meta("gemma4"), folder)
    loaded.initialize_weights()
    assert zoo.differences(original, loaded) == []


# ---- names


def test_mapping_is_explicit(checkpoints):
    _, folder = checkpoints("mixtral")
    conversion = huggingface.describe(under_meta("mixtral"), folder)
    rules = {rule["id"]: rule for rule in conversion.mapping["rules"]}
    fused = rules["transformers.convert:model.layers.0.mlp.experts.gate_up_proj"]["expression"]
    keys = [f"model.layers.0.block_sparse_moe.experts.{e}.w1.weight" for e in range(4)]
    assert fused["concat"]["dim"] == 1
    assert fused["concat"]["parts"][0] == {"stack": {"dim": 0, "parts": keys}}
    gate = rules["transformers.rename:model.layers.0.block_sparse_moe.gate.weight"]
    assert gate["to"] == "model.layers.0.mlp.gate.weight"


def test_base_model_from_a_head_checkpoint(checkpoints):
    original, folder = checkpoints("llama")
    with torch.device("meta"):
        model = LlamaModel(original.config)
    report = lading.materialize(model, folder, device="cpu", progress=False)
    assert zoo.differences(original.model, model) == []
    assert any("1 keys belong to parts" in note for note in report.notes)


def test_head_model_from_a_base_checkpoint(checkpoints, tmp_path):
    original, _ = checkpoints("llama")
    original.model.save_pretrained(tmp_path)
    with lading.skeleton():
        model = LlamaForCausalLM(original.config)
    with pytest.raises(lading.LadingError, match=r"lm_head\.weight") as failure:
        load(model, tmp_path)
    assert failure.value.tensors == ("lm_head.weight",)
    load(model, tmp_path, allow_missing=["lm_head.weight"])
    assert zoo.differences(original.model, model.model) == []
    assert model.lm_head.weight.std() > 0.001


def test_a_key_too_many_is_not_another_part(checkpoints, tmp_path):
    """Of the model's own class: a layer that it does not have is refused, not passed over."""
    original, folder = checkpoints("llama")
    original.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.9.self_attn.q_proj.weight"] = torch.zeros(2, 2)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(lading.LadingError, match=r"model\.layers\.9\.self_attn\.q_proj\.weight"):
        load(under_meta("llama"), tmp_path)
    with torch.device("meta"):
        base = LlamaModel(original.config)
    with pytest.raises(lading.LadingError, match=r"layers\.9"):
        load(base, tmp_path)


def test_text_model_of_a_composite(checkpoints):
    """transformers itself has no mapping for this one: the checkpoint's own class says where the part is."""
    original, folder = checkpoints("gemma3")
    assert original.model.vision_tower is not None
    with torch.device("meta"):
        text = transformers.Gemma3ForCausalLM(original.config.text_config)
    report = lading.materialize(text, folder, device="cpu", progress=False)
    assert zoo.differences(original.model.language_model, text.model) == []
    assert text.lm_head.weight is text.model.embed_tokens.weight
    assert any("part of the checkpoint's Gemma3ForConditionalGeneration" in note for note in report.notes)


def test_tower_of_a_composite(checkpoints):
    original, folder = checkpoints("clip")
    with torch.device("meta"):
        tower = transformers.CLIPVisionModel(original.config.vision_config)
    load(tower, folder)
    assert zoo.differences(original.vision_model, tower) == []


def test_legacy_rotary_keys_are_ignored_by_name(checkpoints, tmp_path):
    original, _ = checkpoints("llama")
    original.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.full((4,), 7.0)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    model = under_meta("llama")
    rules = huggingface.describe(model, tmp_path).ignore
    assert [rule["id"].partition(":")[0] for rule in rules] == ["transformers.rotary_emb_inv_freq"]
    load(model, tmp_path)
    assert zoo.differences(original, model) == []


# ---- declarations


def test_pins_are_those_that_transformers_matches(checkpoints):
    original, folder = checkpoints("t5")
    pins = huggingface.describe(under_meta("t5"), folder).pins
    assert pins and all(strength == "float16" for _, strength in pins)
    assert {pin.text for pin, _ in pins} == {name for name in original.state_dict() if ".wo." in name}


def test_pins_whose_pattern_means_something_else_are_named(checkpoints):
    _, folder = checkpoints("llama")
    model = under_meta("llama")
    model._keep_in_fp32_modules_strict = {"q_pro"}
    pins = huggingface.describe(model, folder).pins
    assert (Name("model.layers.0.self_attn.q_proj.weight"), "float16_and_bfloat16") in pins
    loaded = load(model, folder, dtype="bf16", cast="exact")
    assert loaded.model.layers[0].self_attn.q_proj.weight.dtype == torch.float32
    assert loaded.model.layers[0].self_attn.k_proj.weight.dtype == torch.bfloat16


def test_tied_names_are_declared(tmp_path):
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        LlamaForCausalLM(config).save_pretrained(tmp_path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    assert huggingface.describe(model, tmp_path).ties == [["lm_head.weight", "model.embed_tokens.weight"]]
    load(model, tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_generation_config_comes_along(checkpoints, tmp_path):
    original, _ = checkpoints("llama")
    original.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "generation_config.json").read_text()) | {"max_length": 77}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert lading.from_pretrained(tmp_path, device="cpu", progress=False).generation_config.max_length == 77


# ---- refusals


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin"])
def test_pickles_are_refused(checkpoints, tmp_path, name):
    (tmp_path / name).write_bytes(b"not even read")
    for where in (tmp_path, tmp_path / name):
        with pytest.raises(lading.LadingError, match="runs its code") as failure:
            huggingface.describe(under_meta("llama"), where)
        assert failure.value.exit_code == 3


def test_code_of_a_checkpoint_is_not_run(tmp_path):
    fields = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}, "architectures": ["Mine"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(lading.LadingError, match="trust_remote_code|does not recognize|custom code"):
        lading.from_pretrained(tmp_path, device="cpu")


def test_other_models_are_none_of_its_business(tmp_path):
    assert huggingface.describe(torch.nn.Linear(2, 2), tmp_path) is None


# ---- the trace


def test_a_conversion_that_computes_is_refused():
    with Trace() as trace, pytest.raises(NotMoving, match="mul"):
        trace.source("a", (2, 2)) * 2


def test_moves_become_expressions():
    with Trace() as trace:
        a, b = trace.source("a", (4, 6)), trace.source("b{0}", (4, 6))
        made = torch.stack([a, b], dim=0).transpose(1, 2).reshape(12, 4)[2:8]
        halves = torch.cat([a, b], dim=-1).chunk(2, dim=0)
    stacked = {"stack": {"dim": 0, "parts": ["a", "b{{0}}"]}}
    turned = {"reshape": {"shape": [12, 4], "of": {"transpose": {"dims": [1, 2], "of": stacked}}}}
    assert trace.expression(made) == {"slice": {"dim": 0, "begin": 2, "end": 8, "of": turned}}
    joined = {"concat": {"dim": 1, "parts": ["a", "b{{0}}"]}}
    assert trace.expression(halves[1]) == {"slice": {"dim": 0, "begin": 2, "end": 4, "of": joined}}


# ---- skeletons for the command


def test_skeleton_of_a_config_alone(checkpoints, tmp_path):
    original, folder = checkpoints("t5")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    document = json.loads(lading.skeleton_of(tmp_path))
    names = {tensor["name"] for tensor in document["tensors"]}
    assert names >= set(original.state_dict())
    assert document["pins"] and all(".wo." in pin["name"] and pin["strength"] == "float16" for pin in document["pins"])
    assert ["encoder.embed_tokens.weight"] not in document["ties"]
    assert any("shared.weight" in tie for tie in document["ties"])


def test_bert_head_to_base_and_back(tmp_path):
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    with torch.random.fork_rng():
        original = BertForMaskedLM(config)
    original.save_pretrained(tmp_path)
    with torch.device("meta"):
        base = BertModel(config, add_pooling_layer=False)
    load(base, tmp_path)
    assert zoo.differences(original.bert, base) == []


# ---- wrappers


def test_peft_on_top(checkpoints):
    """R65: base keys go to the wrapped names, adapters are initialised as PEFT does it."""
    peft = pytest.importorskip("peft")
    original, folder = checkpoints("llama")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2)
    with lading.skeleton():
        model = peft.get_peft_model(LlamaForCausalLM(original.config), config)
    load(model, folder)
    projection = model.base_model.model.model.layers[0].self_attn.q_proj
    assert torch.equal(projection.base_layer.weight, original.model.layers[0].self_attn.q_proj.weight)
    assert projection.lora_A["default"].weight.std() > 0 and not projection.lora_B["default"].weight.any()
    assert projection.lora_A["default"].weight.requires_grad and not projection.base_layer.weight.requires_grad
    assert lading.audit(model, folder).ok
