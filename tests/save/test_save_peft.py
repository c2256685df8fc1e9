"""`lading.save` of models that PEFT has wrapped: the base without adapters, an adapter alone, and what is refused."""

import pytest
from geometry.launch import require, run_worker

require("torch", "deepspeed")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft_models  # noqa: E402
import save_models as models  # noqa: E402
import torch  # noqa: E402
from save_checks import refused, save  # noqa: E402

DEADLINE_S = 280
LAYOUTS, NAMES = ("ddp", "fsdp2", "tp", "fsdp1", "zero3"), ("llama_tied", "qwen3_moe", "small")
CASES = [f"{layout}, {name}" for layout in LAYOUTS for name in NAMES] + [
    "merged_after_sharding", "merged_before_sharding", "another_adapter_on_a_rank", "merged_on_ranks",
]  # fmt: skip
WAYS = {
    "lora": {"target_modules": ["q_proj"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["norm"]},
    "all": {"target_modules": "all-linear", "r": 3, "bias": "all"},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 5]},
    "for a task": {"target_modules": ["v_proj"], "task_type": "CAUSAL_LM", "rank_pattern": {"layers.1": 4}},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama_tied", "llama"])
def test_R69_base_and_adapter_are_what_peft_has(tmp_path, folder, name, way):
    model = peft_models.wrapped(name, **WAYS[way])
    model.save_pretrained(tmp_path / "theirs")
    report = save(model, tmp_path / "adapter", adapter="default")
    assert peft_models.adapter_differences(tmp_path / "adapter", tmp_path / "theirs") == []
    assert set(report.files) == {"adapter_model.safetensors"} and "adapter_config.json" in report.beside
    report = save(model, tmp_path / "base")
    assert models.differences(tmp_path / "base", folder / name) == []
    assert "adapter=" in " ".join(report.notes)


def test_R69_peft_and_lading_load_what_was_saved(tmp_path, folder):
    model = peft_models.wrapped("llama")
    save(model, tmp_path / "adapter", adapter="default")
    theirs = peft.PeftModel.from_pretrained(models.original("llama"), tmp_path / "adapter")
    with torch.device("meta"):
        ours = peft_models.with_adapters(models.MODELS["llama"]())
    import lading

    lading.materialize(ours, folder / "llama", adapter=tmp_path / "adapter", device="cpu", progress=False)
    for name, value in model.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value) and torch.equal(ours.state_dict()[name], value), name


def test_R69_one_of_several_adapters(tmp_path):
    model = peft_models.wrapped("llama")
    model.add_adapter("second", peft.LoraConfig(target_modules=["k_proj"], r=4))
    model.save_pretrained(tmp_path / "theirs")
    save(model, tmp_path / "first", adapter="default")
    save(model, tmp_path / "second", adapter="second")
    assert peft_models.adapter_differences(tmp_path / "second", tmp_path / "theirs" / "second") == []
    first = models.load_file(tmp_path / "first" / "adapter_model.safetensors")
    assert first.keys() == models.load_file(tmp_path / "theirs" / "adapter_model.safetensors").keys()


def test_an_adapter_in_another_dtype(tmp_path):
    model = peft_models.wrapped("llama")
    save(model, tmp_path / "out", adapter="default", dtype=torch.bfloat16)
    found = models.load_file(tmp_path / "out" / "adapter_model.safetensors")
    own = peft.get_peft_model_state_dict(model)
    assert all(torch.equal(value, own[key].bfloat16()) for key, value in found.items()) and len(found) == len(own)


def test_the_users_config_stays_as_it_is(tmp_path):
    model = peft_models.wrapped("llama")
    config = model.peft_config["default"]
    config.base_model_name_or_path = "somebody/a-model"
    before = {**vars(config)}
    save(model, tmp_path / "out", adapter="default")
    assert model.peft_config["default"] is config and vars(config) == before and not config.inference_mode


def test_what_is_refused(tmp_path, folder):
    model = peft_models.wrapped("llama")
    out = tmp_path / "out"
    assert "'other'" in str(refused(lambda: save(model, out, adapter="other")))
    assert "not a PeftModel" in str(refused(lambda: save(models.original("llama"), out, adapter="default")))
    with pytest.raises(ValueError, match="base was passed"):
        save(model, out, adapter="default", base=folder / "llama")
    with pytest.raises(TypeError, match="name of an adapter"):
        save(model, out, adapter=1)
    model.merge_adapter()
    assert "merged default" in str(refused(lambda: save(model, out)))
    assert not out.exists()
    model.unmerge_adapter()
    save(model, out)


def test_prompts_are_left_to_peft(tmp_path, folder):
    """Its keys are computed when they are saved."""
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(models.original("llama"), config)
    assert refused(lambda: save(model, tmp_path / "out", adapter="default")).code == "adapter"
    save(model, tmp_path / "out")
    assert models.differences(tmp_path / "out", folder / "llama") == []


@pytest.fixture(scope="module")
def results():
    return run_worker("peft_worker", DEADLINE_S, package="save")


@pytest.mark.parametrize("case", CASES)
def test_R69_the_case_holds(results, case):
    assert results[case] == []


def test_none_is_forgotten(results):
    assert set(results) == set(CASES)
