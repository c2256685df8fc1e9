"""`lading.audit` of models that PEFT has wrapped: adapters against their files, and base weights that PEFT writes."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading

peft = pytest.importorskip("peft")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.fc(x))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_file(net().state_dict(), folder / "model.safetensors")
    return folder


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def wrap(**options):
    options = {"target_modules": ["fc"], "r": 2} | options
    return peft.get_peft_model(net(), peft.LoraConfig(**options))


def trained(folder, **options):
    """A model whose adapters are no initial ones, and its adapter's files."""
    model = wrap(**options)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    model.save_pretrained(folder)
    return model


def by_peft(folder):
    return peft.PeftModel.from_pretrained(net(), folder)


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


FC, HEAD = "base_model.model.fc", "base_model.model.head"
LORA_A, LORA_B = (f"{FC}.lora_{letter}.default.weight" for letter in "AB")
COPY = f"{HEAD}.modules_to_save.default.weight"


@pytest.mark.parametrize("load", ["memory", "peft", "lading"])
def test_a_trained_adapter_is_right(base, tmp_path, load):
    model = trained(tmp_path, modules_to_save=["head"])
    if load == "peft":
        model = by_peft(tmp_path)
    elif load == "lading":
        with lading.skeleton():
            model = peft.get_peft_model(Net(), peft.PeftConfig.from_pretrained(tmp_path))
        lading.materialize(model, base, adapter=tmp_path, device="cpu", progress=False)
    report = lading.audit(model, base, adapter=tmp_path, raise_on="warning")
    assert report.checked["with the checkpoint"] == 3 + 4
    assert not any("not judged" in note for note in report.notes)
    report = lading.audit(model, base, raise_on="warning")
    assert report.checked["with the checkpoint"] == 3
    assert any("4 adapter tensors were not judged" in note and "adapter=" in note for note in report.notes)


@pytest.mark.parametrize("name", [LORA_A, LORA_B, COPY])
def test_a_wrong_adapter_is_found(base, tmp_path, name):
    model = trained(tmp_path, modules_to_save=["head"])
    with torch.no_grad():
        model.get_parameter(name).fill_(7.0)
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == {("value", name)}
    assert lading.audit(model, base).ok


def test_a_base_tensor_in_an_adapter_file_is_judged_by_that_file(base, tmp_path):
    """With bias="all" PEFT trains and saves the base's biases."""
    model = trained(tmp_path, bias="all")
    bias = f"{HEAD}.bias"
    assert any(key.endswith("head.bias") for key in load_file(tmp_path / "adapter_model.safetensors"))
    report = lading.audit(model, base, adapter=tmp_path, raise_on="warning")
    assert report.checked["with the checkpoint"] == 2 + 3
    assert flagged(lading.audit(model, base)) == {("value", bias)}
    with torch.no_grad():
        model.get_parameter(bias).copy_(net().head.bias)
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == {("value", bias)}


def test_a_wrong_base_under_an_adapter_is_found(base, tmp_path):
    model = trained(tmp_path, modules_to_save=["head"])
    with torch.no_grad():
        model.get_parameter(f"{FC}.base_layer.weight").fill_(7.0)
        model.get_parameter(f"{HEAD}.original_module.bias").fill_(7.0)
    wrong = {("value", f"{FC}.base_layer.weight"), ("value", f"{HEAD}.original_module.bias")}
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == wrong == flagged(lading.audit(model, base))


def test_several_adapters_by_name(base, tmp_path):
    model = trained(tmp_path / "one")
    model.add_adapter("two", peft.LoraConfig(target_modules=["fc"], r=3))
    model.save_pretrained(tmp_path / "both")
    files = {"default": tmp_path / "both", "two": tmp_path / "both" / "two"}
    assert lading.audit(model, base, adapter=files).ok
    report = lading.audit(model, base, adapter={"default": tmp_path / "one"})
    assert report.ok and any("2 adapter tensors were not judged" in note for note in report.notes)
    with torch.no_grad():
        model.get_parameter(LORA_B.replace("default", "two")).fill_(7.0)
    assert flagged(lading.audit(model, base, adapter=files)) == {("value", LORA_B.replace("default", "two"))}


def test_keys_of_an_adapter_file(base, tmp_path):
    """What the file lacks, or has too much of, is a finding; the rest is judged."""
    model = trained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    state = load_file(path)
    key = next(key for key in state if "lora_A" in key)
    save_file({name: value for name, value in state.items() if name != key} | {"surplus": torch.ones(1)}, path)
    with torch.no_grad():
        model.get_parameter(LORA_B).fill_(7.0)
    found = flagged(lading.audit(model, base, adapter=tmp_path))
    assert found == {("adapter", LORA_A), ("adapter", "surplus"), ("value", LORA_B)}


def test_an_adapter_in_half_precision_may_be_widened(base, tmp_path):
    model = trained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    save_file({name: value.bfloat16() for name, value in load_file(path).items()}, path)
    wide = by_peft(tmp_path)
    assert wide.get_parameter(LORA_A).dtype == torch.float32
    assert lading.audit(wide, base, adapter=tmp_path).ok
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == {("value", LORA_A), ("value", LORA_B)}


def test_adapter_of_a_plain_model_is_a_wrong_argument(base, tmp_path):
    trained(tmp_path)
    with pytest.raises(lading.LadingError, match="not a PeftModel"):
        lading.audit(net(), base, adapter=tmp_path)


# ---- base weights that PEFT writes


def test_merged_adapters_are_said(base, tmp_path):
    model = trained(tmp_path, target_modules=["fc", "head"])
    model.merge_adapter()
    names = [f"{FC}.base_layer.weight", f"{HEAD}.base_layer.weight"]
    report = lading.audit(model, base, adapter=tmp_path)
    assert flagged(report) == {("merged", name) for name in names}
    assert "default" in str(report) and "audit before merge_adapter()" in str(report)
    excused = lading.audit(model, base, adapter=tmp_path, allow_mismatch=["*.base_layer.weight"])
    assert excused.ok and all(any(name in note for note in excused.notes) for name in names)


def test_a_base_that_was_loaded_under_merged_adapters(base, tmp_path):
    """The file's value, though the layer says that its adapter is merged: forward leaves the adapter out."""
    model = trained(tmp_path)
    model.merge_adapter()
    with torch.no_grad():
        model.get_parameter(f"{FC}.base_layer.weight").copy_(net().fc.weight)
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == {("merged", f"{FC}.base_layer.weight")}


@pytest.mark.parametrize("word", ["pissa", "olora"])
def test_a_base_less_its_initial_adapter_is_right(base, tmp_path, word):
    wrap(init_lora_weights=word).save_pretrained(tmp_path)
    model = by_peft(tmp_path)
    report = lading.audit(model, base, adapter=tmp_path, raise_on="warning")
    assert report.checked["with the checkpoint"] == 3 + 2
    with torch.no_grad():
        model.get_parameter(f"{FC}.base_layer.weight").copy_(net().fc.weight)  # as a loader that does not know
    assert flagged(lading.audit(model, base, adapter=tmp_path)) == {("value", f"{FC}.base_layer.weight")}


def test_an_initialiser_that_cannot_be_repeated_is_said(base, tmp_path):
    model = wrap(init_lora_weights="pissa_niter_2")
    assert flagged(lading.audit(model, base)) == {("not_judged", f"{FC}.base_layer.weight")}
    assert lading.audit(model, base, allow_mismatch=["*.fc.base_layer.weight"]).ok


@pytest.mark.parametrize("word", [True, "gaussian", "orthogonal", "eva"])
def test_initialisers_that_leave_the_base_alone(base, word):
    assert lading.audit(wrap(init_lora_weights=word), base).ok


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}, {"lora_bias": True, "target_modules": ["head"]}])
def test_other_adapters(base, tmp_path, options):
    model = trained(tmp_path, **options)
    lading.audit(model, base, adapter=tmp_path, raise_on="warning")


def test_a_wrapped_llama(tmp_path):
    pytest.importorskip("transformers")
    import zoo

    llama = zoo.make("llama", str(tmp_path / "base"))
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, modules_to_save=["lm_head"])
    model = peft.get_peft_model(llama, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    model.save_pretrained(tmp_path / "adapter")
    for adapter in (None, tmp_path / "adapter"):
        lading.audit(model, tmp_path / "base", adapter=adapter, raise_on="warning")
    rotary = model.base_model.model.model.rotary_emb
    del rotary._buffers["inv_freq"]
    assert flagged(lading.audit(model, tmp_path / "base")) == {("absent", "model.rotary_emb.inv_freq")}


def test_adapters_that_the_base_file_has(tmp_path):
    """A state dict of the wrapped model: its own keys are judged, adapters' and trained copies' too."""
    model = trained(tmp_path / "adapter", modules_to_save=["head"])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    report = lading.audit(model, tmp_path / "model.safetensors", raise_on="warning")
    assert report.checked["with the checkpoint"] == 3 + 4 and report.notes == ()
    with torch.no_grad():
        model.get_parameter(COPY).fill_(7.0)
    assert flagged(lading.audit(model, tmp_path / "model.safetensors")) == {("value", COPY)}
