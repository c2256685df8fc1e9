"""Arguments of `from_pretrained`: those of transformers mean the same here, or are refused with what to do instead; all
are checked before anything is built."""

import importlib.util
import inspect
import re

import lading
import pytest
import torch

pytest.importorskip("transformers")
from lading import pretrained, pretrained_arguments
from transformers import (
    CLIPConfig, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedModel,
)  # fmt: skip

HAS_FLASH = importlib.util.find_spec("flash_attn") is not None
REFUSED = pretrained_arguments._INSTEAD
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=32)).save_pretrained(place)
    return place


@pytest.fixture
def unbuilt(monkeypatch):
    """Fails if anything is built."""

    def built(*arguments, **options):
        raise AssertionError("a model was built")

    monkeypatch.setattr(pretrained, "build", built)


@pytest.mark.parametrize("pins", [{"*.norm": "F32"}, [{"pattern": "*.norm"}], [("*.norm",)], [("*.norm", 1)], [5]])
def test_pins_of_another_form_are_refused_in_words(folder, unbuilt, pins):
    with pytest.raises(TypeError, match="pins should be patterns"):
        lading.from_pretrained(folder, device="cpu", pins=pins)


def load(folder, **options):
    return lading.from_pretrained(folder, **{"device": "cpu", "progress": False} | options)


def fields_of(config):
    return {key: value for key, value in config.to_dict().items() if key != "architectures"}


# ---------------------------------------------------------------- fields of the config


def test_fields_of_the_config_are_set_as_transformers_sets_them(folder):
    given = {"use_cache": False, "num_labels": 3, "output_attentions": True, "attn_implementation": "eager"}
    theirs = LlamaForSequenceClassification.from_pretrained(folder, **given)
    ours = load(folder, cls=LlamaForSequenceClassification, allow_missing=["score.weight"], strict=False, **given)
    assert fields_of(ours.config) == fields_of(theirs.config)
    assert ours.config._attn_implementation == theirs.config._attn_implementation == "eager"
    assert ours.score.weight.shape == (3, 16) and ours.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}


def test_fields_of_a_config_inside_the_config(tmp_path):
    config = CLIPConfig(text_config=SIZES, vision_config=SIZES)
    config.save_pretrained(tmp_path)
    given = {"text_config": {"hidden_size": 8}, "projection_dim": 4}
    theirs = CLIPConfig.from_pretrained(tmp_path, **given)
    ours = pretrained_arguments.with_fields(config, given, lading.from_pretrained)
    assert ours.to_dict() | {"transformers_version": ""} == theirs.to_dict() | {"transformers_version": ""}
    assert config.text_config.hidden_size == 16, "the user's own config is left alone"


def test_a_name_that_is_no_field_is_refused_with_near_names(folder, unbuilt):
    with pytest.raises(TypeError) as refusal:
        load(folder, use_cach=False, dtyp="bf16", to_dict=1, qqqqq=2, _name_or_path="x")
    text = str(refusal.value)
    near = ("'use_cach' (did you mean 'use_cache'", "'dtyp' (did you mean 'dtype'")
    for said in (*near, "'to_dict'", "'qqqqq'", "'_name_or_path'"):
        assert said in text


def test_the_users_own_config_with_fields(folder):
    own = LlamaConfig.from_pretrained(folder)
    assert load(folder, config=own, use_cache=False).config.use_cache is False
    assert own.use_cache is True
    assert load(folder, config=folder).config.vocab_size == 32


# ---------------------------------------------------------------- attention


def test_attention_is_chosen_as_in_transformers(folder):
    ids = torch.arange(6)[None]
    for word in ("eager", "sdpa"):
        theirs = LlamaForCausalLM.from_pretrained(folder, attn_implementation=word)
        ours = load(folder, attn_implementation=word)
        assert ours.config._attn_implementation == word
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sdpaa", "expected eager.*sdpa"),
        ("kernels-community/flash-attn2", "would download"),
        ({"": "eager", "tower": "sdpa"}, "'tower'"),
        pytest.param("flash_attention_2", "not installed", marks=pytest.mark.skipif(HAS_FLASH, reason="it is")),
    ],
)
def test_attention_that_cannot_be_had_is_refused(folder, unbuilt, word, said):
    with pytest.raises(lading.LadingError, match=said):
        load(folder, attn_implementation=word)


# ---------------------------------------------------------------- device and dtype


@pytest.mark.parametrize("device_map", ["cpu", torch.device("cpu"), {"": "cpu"}])
def test_a_device_map_for_one_device(folder, device_map):
    model = load(folder, device=None, device_map=device_map)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    "device_map", ["auto", "balanced", "sequential", {"model": "cpu", "lm_head": "cpu"}, {"": "disk"}, {}, True]
)
def test_a_device_map_over_several_devices_is_refused(folder, unbuilt, device_map):
    with pytest.raises(lading.LadingError, match=r"several devices.*Pass device=.*parallelize="):
        load(folder, device=None, device_map=device_map)


def test_devices_are_checked_before_anything_is_built(folder, unbuilt):
    for options, said in (
        ({"device": None}, "its device is unknown"),
        ({"device": "gpu"}, "which torch does not know"),
        ({"device": "meta"}, "holds no values"),
        ({"device": None, "device_map": "gpu"}, "which torch does not know"),
        ({"device_map": "cuda:0"}, "Omit device_map"),
    ):
        with pytest.raises(lading.LadingError, match=said):
            load(folder, **options)


def test_torch_dtype_is_dtype(folder, unbuilt):
    with pytest.raises(lading.LadingError, match="Omit torch_dtype"):
        load(folder, dtype="bf16", torch_dtype=torch.float16)


def test_torch_dtype_rounds_as_dtype_does(folder):
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ours = load(folder, torch_dtype="bfloat16", dtype="bf16", cast="exact")
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    assert load(folder, torch_dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("word", ["cast", "compute_record", "ties", "quantized", "arithmetic", "verify", "exchange"])
def test_words_are_checked_before_anything_is_built(folder, unbuilt, word):
    with pytest.raises(ValueError, match=f"{word} is 'nonsense'"):
        load(folder, **{word: "nonsense"})


# ---------------------------------------------------------------- what lading does not take


def test_all_that_is_refused_is_refused_at_once_and_no_secret_is_told(folder, unbuilt):
    with pytest.raises(lading.LadingError) as refusal:
        load(
            "org/name", token="hf_secret", quantization_config={"bits": 4}, device=None, device_map="auto",
            local_files_only=False, force_download=True, ignore_mismatched_sizes=True, use_safetensors=False,
        )  # fmt: skip
    text = str(refusal.value)
    assert len(refusal.value.problems) == 7 and all(problem.remedy for problem in refusal.value.problems)
    assert "hf_secret" not in text and "`hf download org/name --force-download`" in text
    for said in ("quantize it afterwards", "allow_mismatch=", "only safetensors files"):
        assert said in text


def test_what_asks_for_nothing_else_is_accepted(folder):
    harmless = {"token": None, "quantization_config": None, "tp_plan": None, "force_download": False}
    anyway = {"local_files_only": True, "use_safetensors": True, "weights_only": True, "low_cpu_mem_usage": True}
    model = load(folder, **harmless, **anyway)
    assert type(model) is LlamaForCausalLM


def test_every_argument_of_transformers_is_taken_or_refused():
    """A new one would else be taken for a field of the config."""
    theirs = PreTrainedModel.from_pretrained
    names = set(inspect.signature(theirs).parameters)
    names |= set(re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(theirs)))
    names -= {"pretrained_model_name_or_path", "model_args", "kwargs", "tqdm_class"}
    ours = set(inspect.signature(lading.from_pretrained).parameters)
    known = ours.union(*map(set, (REFUSED, pretrained_arguments._ANYWAY, pretrained_arguments._WITHOUT_EFFECT)))
    assert {name for name in names if not name.startswith("_")} - known == set()
    for name in REFUSED:
        left, problems = pretrained_arguments.split_fields({name: "given"}, "org/name")
        assert not left and problems[0].remedy.endswith(".")
