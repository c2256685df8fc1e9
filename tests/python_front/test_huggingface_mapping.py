"""The table of conversions that lading reads: row by row the one that transformers makes, and no row more than needed."""

import re

import pytest

from lading import huggingface_mapping

transformers = pytest.importorskip("transformers")
from transformers import conversion_mapping, core_model_loading  # noqa: E402


def _described(row) -> str:
    """Every field of a row, with those of its operations; addresses left out."""
    fields = {
        name: getattr(row, name, None)
        for cls in type(row).__mro__
        for name in getattr(cls, "__slots__", ())
        if name not in ("collected_tensors", "layer_targets")
    }
    fields["operations"] = [(type(one).__name__, vars(one)) for one in fields.get("operations") or ()]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(row).__name__} {fields}")


def test_every_row_is_the_one_that_transformers_makes(monkeypatch):
    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", None)
    huggingface_mapping._finder.cache_clear()
    find = huggingface_mapping._finder()
    assert find is not None
    rows_of = find.__globals__["get_checkpoint_conversion_mapping"]
    whole = conversion_mapping._build_checkpoint_conversion_mapping()
    assert len(whole) > 100
    for identifier, rows in whole.items():
        assert [_described(one) for one in rows_of(identifier)] == [_described(one) for one in rows]
    assert rows_of("no such model") is None


def test_a_model_gets_its_own_rows_and_leaves_the_others_unmade(monkeypatch):
    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", None)
    huggingface_mapping._finder.cache_clear()
    config = transformers.MixtralConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=8,
    )
    model = transformers.MixtralForCausalLM(config)
    made = []
    real = core_model_loading.WeightTransform.__init__
    monkeypatch.setattr(
        core_model_loading.WeightTransform,
        "__init__",
        lambda self, *a, **k: made.append(self) or real(self, *a, **k),
    )
    ours = [_described(one) for one in huggingface_mapping.model_conversions(model)]
    assert len(made) < 100 and conversion_mapping._checkpoint_conversion_mapping_cache is None
    assert ours == [_described(one) for one in conversion_mapping.get_model_conversion_mapping(model)]


def test_what_a_user_registered_counts(monkeypatch):
    monkeypatch.setattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", None)
    monkeypatch.setattr(conversion_mapping, "USER_REGISTERED_MAPPINGS", set())
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            vocab_size=8,
        )
    )
    before = len(huggingface_mapping.model_conversions(model))
    row = core_model_loading.WeightRenaming("old", "new")
    conversion_mapping.register_checkpoint_conversion_mapping("LlamaForCausalLM", [row])
    after = huggingface_mapping.model_conversions(model)
    assert len(after) == before + 1 and after[0].source_patterns == ["old"]
