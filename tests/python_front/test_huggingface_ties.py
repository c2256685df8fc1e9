"""Ties that a checkpoint's config takes apart while its class makes them (R50): T5 and its kin."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import lading
from lading import huggingface


def small_t5():
    return T5Config(
        vocab_size=24, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_decoder_layers=1, num_heads=2, tie_word_embeddings=False
    )  # fmt: skip


@pytest.fixture
def untied(tmp_path):
    """A model that was saved without ties, all values different."""
    torch.manual_seed(1)
    config = small_t5()
    config.tie_word_embeddings = False
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    return model, tmp_path


def edited(folder, **changes):
    """The file with keys replaced, or dropped where the value is None."""
    state = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        state.pop(name.replace("__", "."), None)
        if value is not None:
            state[name.replace("__", ".")] = value.clone()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def loaded(folder, **options):
    return lading.from_pretrained(folder, cls=T5ForConditionalGeneration, device="cpu", progress=False, **options)


def test_R50_keys_with_other_values_are_tensors_of_their_own(untied):
    right, folder = untied
    model = loaded(folder)
    assert model.config.tie_word_embeddings, "the class says so whatever the file says"
    for name, value in right.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert model.lm_head.weight is not model.shared.weight
    assert not model.all_tied_weights_keys
    model.save_pretrained(folder / "again")
    assert load_file(folder / "again" / "model.safetensors").keys() == right.state_dict().keys()


def test_R50_what_has_no_key_or_equal_values_stays_tied(untied):
    right, folder = untied
    shared = right.shared.weight.detach()
    edited(folder, encoder__embed_tokens__weight=None, decoder__embed_tokens__weight=shared)
    model = loaded(folder)
    assert model.encoder.embed_tokens.weight is model.shared.weight is model.decoder.embed_tokens.weight
    assert torch.equal(model.shared.weight, shared)
    assert model.lm_head.weight is not model.shared.weight and torch.equal(model.lm_head.weight, right.lm_head.weight)
    assert sorted(model.all_tied_weights_keys) == ["decoder.embed_tokens.weight", "encoder.embed_tokens.weight"]
    assert lading.audit(model, folder).ok


def test_R50_equal_values_of_another_dtype_and_allowed_mismatches_load(untied):
    right, folder = untied
    edited(folder, lm_head__weight=right.shared.weight.detach().bfloat16())
    for options in ({}, {"dtype": torch.float32}):
        model = loaded(folder, **options)
        assert torch.equal(model.lm_head.weight.float(), right.shared.weight.bfloat16().float())
    edited(folder, lm_head__weight=torch.ones(3, 8))
    model = loaded(folder, allow_mismatch=["lm_head.weight"])
    assert torch.equal(model.shared.weight, right.shared.weight)


@pytest.mark.parametrize("has_memory", [False, True])
def test_R50_a_config_that_ties_is_believed_and_nothing_is_written(tmp_path, has_memory):
    config = LlamaConfig(
        vocab_size=24, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=True
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    edited(tmp_path, lm_head__weight=torch.ones(24, 8))
    with lading.skeleton():
        model = LlamaForCausalLM(config)
    if has_memory:
        model = LlamaForCausalLM(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(lading.LadingError, match="two keys of one tie have different values") as caught:
        lading.materialize(model, tmp_path, device="cpu", progress=False)
    assert not caught.value.begun and not lading.is_incomplete(model)
    assert not has_memory or all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_R50_a_tie_of_names_that_fsdp1_has_flattened_is_left_as_it_is():
    """FSDP1 without use_orig_params takes parameters out of their modules. Other ties are looked at."""
    config = {"vocab_size": 24, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**config, tie_word_embeddings=True))
    model.model.norm.bias, model.model.layers[0].input_layernorm.bias = (torch.nn.Parameter(torch.ones(8)) for _ in "ab")
    untied = {"model.norm.bias": "model.layers.0.input_layernorm.bias"}
    flattened = {"lm_head.weight": "model.embed_tokens.weight"}
    model.all_tied_weights_keys = flattened | untied
    del model.lm_head.weight
    huggingface.forget_untied([model])
    assert model.all_tied_weights_keys == flattened
