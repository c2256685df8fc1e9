"""`mapping=` and `key_mapping=`: checkpoints under other names (python/lading/naming.py)."""

import json

import naming_models as models
import pytest
import torch
from ranks_launch import run_script
from safetensors.torch import save_file

import lading


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return models.save(tmp_path_factory.mktemp("renamed"))


def skeleton():
    with lading.skeleton():
        return models.Decoder().eval()


def assert_same(model):
    wanted = models.original()
    for name, tensor in (*wanted.named_parameters(), *wanted.named_buffers()):
        assert torch.equal(model.get_parameter(name) if name != "rope" else model.rope, tensor), name
    assert model.head.weight is model.embed.weight
    assert torch.equal(model(torch.arange(5)), wanted(torch.arange(5)))


@pytest.mark.parametrize("way", models.WAYS)
def test_a_checkpoint_under_other_names_is_loaded(way, folder):
    model = skeleton()
    report = lading.materialize(model, folder, device="cpu", verify="full", **models.WAYS[way])
    assert_same(model)
    assert lading.audit(model, folder, **models.WAYS[way]).ok
    assert lading.resolve_dtypes(skeleton(), folder, **models.WAYS[way])["embed.weight"].checkpoint == torch.float32
    assert report.by_provenance


def test_the_document_may_be_a_file(folder, tmp_path):
    (tmp_path / "mapping.json").write_text(json.dumps(models.DOCUMENT))
    model = skeleton()
    lading.materialize(model, folder, device="cpu", mapping=tmp_path / "mapping.json")
    assert_same(model)


def test_audit_sees_what_is_wrong_under_other_names(folder):
    model = skeleton()
    lading.materialize(model, folder, device="cpu", mapping=models.MAPPING)
    with torch.no_grad():
        model.blocks[1].qkv.bias[3] += 1
    report = lading.audit(model, folder, mapping=models.MAPPING)
    assert [problem.tensor for problem in report.problems] == ["blocks.1.qkv.bias"]


def test_R47_audit_reads_a_document_with_templates(tmp_path):
    """Three keys of each block make one tensor. The rule is for the tensors that its template names, all of them."""
    model, keys = models.Decoder(), {}
    for name, value in model.state_dict().items():
        parts = value.chunk(3) if ".qkv." in name else [value]
        keys |= {name.replace("qkv", letter): part.clone() for letter, part in zip("qkv", parts)} if len(parts) > 1 else {}
        keys |= {name: value.clone()} if len(parts) == 1 and name != "head.weight" else {}
    save_file(keys, tmp_path / "model.safetensors")
    rules = [
        {"id": kind, "kind": "build", "to": f"blocks.{{i}}.qkv.{kind}", "expression": {
            "concat": {"dim": 0, "parts": [f"blocks.{{i}}.{letter}.{kind}" for letter in "qkv"]}}}
        for kind in ("weight", "bias")
    ]  # fmt: skip
    document = {"schema": "lading.mapping/1", "rules": rules}
    loaded = skeleton()
    lading.materialize(loaded, tmp_path, device="cpu", mapping=document)
    for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)
    report = lading.audit(loaded, tmp_path, mapping=document)
    assert report.ok, report
    with torch.no_grad():
        loaded.blocks[2].qkv.weight[5, 1] += 1
    assert lading.audit(loaded, tmp_path, mapping=document).tensors == ("blocks.2.qkv.weight",)


def refusal(folder, **options):
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(skeleton(), folder, device="cpu", **options)
    return str(raised.value)


def test_R43_what_matches_nothing_is_told_with_names_that_are_there(folder):
    text = refusal(folder, mapping=models.MAPPING | {"encoder.*": "blocks.*"})
    assert "'encoder.*' matches no key of the checkpoint" in text and "transformer.h.0.attn.out.weight" in text


def test_R46_two_names_for_a_key(folder):
    text = refusal(folder, mapping=models.MAPPING | {"transformer.h.*.attn.qkv.*": "blocks.*.fused.*"})
    assert "by several names" in text and "transformer.h.0.attn.qkv.bias" in text


def test_R46_two_keys_of_one_name(folder):
    text = refusal(folder, key_mapping=models.KEY_MAPPING | {r"qkv\.bias": "norm.bias"})
    assert '"blocks.0.norm.bias"' in text and "2 keys would be called this" in text


def test_an_exact_name_goes_before_a_pattern_and_none_passes_a_key_over(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    one = tmp_path / "model.safetensors"
    every = {}
    for shard in folder.glob("*.safetensors"):
        every |= load_file(shard)
    save_file(every | {"transformer.h.0.attn.mask": torch.ones(2), "odd": torch.ones(1)}, one)
    model = skeleton()
    lading.materialize(
        model, one, device="cpu", mapping=models.MAPPING | {"transformer.h.0.attn.mask": None, "od*": None}
    )
    assert_same(model)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mapping": {}, "key_mapping": {}}, ValueError),
        ({"mapping": {"a.*": "b"}}, ValueError),
        ({"mapping": {"a": 3}}, TypeError),
        ({"mapping": 3}, TypeError),
        ({"key_mapping": {"(": "b"}}, ValueError),
        ({"key_mapping": ["a"]}, TypeError),
    ],
)
def test_words_that_are_none(folder, options, error):
    with pytest.raises(error):
        lading.materialize(skeleton(), folder, device="cpu", **options)


def test_R39_without_a_common_name_that_is_said_first_and_the_rest_by_patterns(folder):
    lines = refusal(folder).splitlines()
    assert "have no tensor in common" in lines[1] and "mapping={" in lines[1]
    assert "blocks.0.norm.bias" in lines[1] and "transformer.wte.weight" in lines[1]
    assert any("blocks.*.norm.bias" in line and "the model has 3 tensors" in line for line in lines)
    assert any("transformer.h.*.ln.bias" in line and "the checkpoint has 3 tensors" in line for line in lines)
    assert len(lines) < 17


# ---- transformers


def test_names_are_changed_before_transformers_converts(tmp_path):
    """A fused mixture of experts: transformers' own conversion reads keys that the user renames first."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    config = transformers.MixtralConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=2, vocab_size=16, max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(1)
    wanted = transformers.MixtralForCausalLM(config)
    wanted.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({f"wrapped.{key}": value for key, value in state.items()}, tmp_path / "model.safetensors")
    for options in ({"mapping": {"wrapped.*": "*"}}, {"key_mapping": {r"^wrapped\.": ""}}):
        model = lading.from_pretrained(tmp_path, device="cpu", **options)
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
        assert lading.audit(model, tmp_path, **options).ok


# ---- ranks


@pytest.mark.parametrize("layout", ["fsdp2", "tp"])
@pytest.mark.parametrize("way", models.WAYS)
def test_on_ranks(layout, way, ranks_results):
    assert ranks_results[f"{layout}, {way}"] == []


@pytest.fixture(scope="module")
def ranks_results():
    from pathlib import Path

    return run_script(Path(__file__).resolve().parent / "naming_worker.py", 200)
