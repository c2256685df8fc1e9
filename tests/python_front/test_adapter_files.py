"""Adapter files are second checkpoints of a load: planned, proved, in the ledger, verified, and never mapped."""

import json
import os
from pathlib import Path

import lading
import pytest
import torch
from lading import _engine
from safetensors.torch import load_file, save_file
from torch import nn

peft = pytest.importorskip("peft")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)
        self.register_buffer("seen", torch.zeros(1), persistent=False)


def wrapped():
    return peft.get_peft_model(Model(), peft.LoraConfig(target_modules=["layer"], r=2))


@pytest.fixture
def files(tmp_path):
    """(base, adapter's folder, what the adapter holds)"""
    model = wrapped()
    for parameter in model.parameters():
        nn.init.normal_(parameter.data)
    model.save_pretrained(tmp_path / "adapter")
    save_file({"layer.weight": torch.ones(4, 4)}, tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors", tmp_path / "adapter", model


def test_R65_an_adapter_file_is_never_mapped(files):
    base, adapter, trained = files
    maps = []

    def look(module, name):
        maps.append(Path("/proc/self/maps").read_text())
        return torch.ones(1)

    with torch.device("meta"):
        model = wrapped()
    report = lading.materialize(model, base, device="cpu", adapter=adapter, recipes={"*.seen": look}, progress=False)
    assert maps and not any(str(adapter) in text for text in maps)
    wanted = dict(trained.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, wanted[name] if "lora" in name else torch.ones(4, 4))
    assert report.memory.handed_in == 4, "the value of the recipe, and nothing of the adapter's file"


def loaded(base, adapter, **options):
    with torch.device("meta"):
        model = wrapped()
    given = {"device": "cpu", "recipes": {"*.seen": lambda *_: torch.ones(1)}, "progress": False} | options
    return lading.materialize(model, base, adapter=adapter, **given)


def test_R62_an_adapter_is_in_the_ledger_and_verify_finds_a_flipped_byte(files):
    base, adapter, _ = files
    report = loaded(base, adapter, verify="full")
    ledger = json.loads(report.ledger)
    file = adapter / "adapter_model.safetensors"
    assert ledger["adapters"] == [str(file)]
    of_adapter = {tensor["name"]: tensor for tensor in ledger["tensors"] if "lora" in tensor["name"]}
    assert len(of_adapter) == 2
    for tensor in of_adapter.values():
        assert (tensor["provenance"], tensor["checkpoint"], tensor["rule"]) == ("file", 1, "R65")
    adapters = [{"checkpoint": str(adapter)}]
    found = _engine.verify(base, ledger, adapters=adapters)
    assert found["ok"] and not [one for one in found["not_verified"] if "lora" in one["name"]]
    data = bytearray(file.read_bytes())
    data[-1] ^= 4  # the last byte of the last tensor
    file.write_bytes(data)
    found = _engine.verify(base, ledger, adapters=adapters)
    assert [(one["code"], "lora" in one["tensor"]) for one in found["problems"]] == [("values_differ", True)]
    with pytest.raises(lading.LadingError, match="a path for each adapter"):
        _engine.verify(base, ledger)


def test_R65_base_and_adapter_may_have_the_same_keys(files):
    """The base has keys of the adapter's own names too, which nothing reads."""
    base, adapter, trained = files
    same = {key: torch.full_like(value, 9) for key, value in load_file(adapter / "adapter_model.safetensors").items()}
    save_file({"layer.weight": torch.ones(4, 4), **same}, base)
    with torch.device("meta"):
        model = wrapped()
    options = {"recipes": {"*.seen": lambda *_: torch.ones(1)}, "progress": False, "verify": "full"}
    report = lading.materialize(model, base, device="cpu", adapter=adapter, allow_unexpected="base_model.*", **options)
    wanted = dict(trained.named_parameters())
    assert all(torch.equal(one, wanted[name]) for name, one in model.named_parameters() if "lora" in name)
    assert sorted(report.unexpected_keys) == sorted(same)


def test_R23_an_adapter_is_stored_in_the_dtype_that_peft_made_it_in(files):
    base, adapter, _ = files
    file = adapter / "adapter_model.safetensors"
    save_file({key: value.bfloat16() for key, value in load_file(file).items()}, file)
    report = loaded(base, adapter, dtype=torch.bfloat16, verify="full")
    assert {one.dtype for name, one in report.tensors.items() if "lora" in name} == {"F32"}
    warned = [str(one) for one in report.warnings if one.rule == "R23"]
    assert all("1 tensor of the checkpoint is stored in F32" in one for one in warned), "the base's, and no adapter"


def test_R23_an_exact_request_is_for_adapters_too(files):
    base, adapter, _ = files
    report = loaded(base, adapter, dtype=torch.bfloat16, cast="exact")
    assert {one.dtype for name, one in report.tensors.items() if "lora" in name} == {"BF16"}


def test_texts_about_adapters_give_no_advice_on_mappings(files):
    """adapter= has no mapping that a user could change."""
    base, adapter, _ = files
    file = adapter / "adapter_model.safetensors"
    first, second = load_file(file).items()
    save_file(dict([first, ("surplus", second[1])]), file)
    with pytest.raises(lading.LadingError, match='expected a tensor "surplus" in the model') as raised:
        loaded(base, adapter)
    assert "mapping" not in str(raised.value)


def test_a_method_that_lading_does_not_know_is_told_in_one_sentence(files):
    base, adapter, _ = files
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "NEW"}))
    with pytest.raises(lading.LadingError, match=r"has the method NEW \(unknown to lading\), with which"):
        loaded(base, adapter)


def test_R39_R41_keys_that_do_not_go_with_the_model_are_told_together(files):
    base, adapter, _ = files
    file = adapter / "adapter_model.safetensors"
    state = load_file(file)
    first, second = sorted(state)
    save_file({first: torch.zeros(3, 3), "surplus": torch.zeros(1)}, file)
    with pytest.raises(lading.LadingError) as raised:
        loaded(base, adapter)
    told = {(one.rule, one.tensor, one.file) for one in raised.value.problems}
    name = "base_model.model.layer.lora_{}.default.weight"
    assert told == {(rule, tensor, str(file)) for rule, tensor in
                    (("R41", name.format("A")), ("R39", name.format("B")), ("R39", "surplus"))}
    assert all(one.remedy for one in raised.value.problems)


def test_R45_a_file_that_is_too_short_is_refused(files):
    base, adapter, _ = files
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with torch.device("meta"):
        model = wrapped()
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, base, device="cpu", adapter=adapter, recipes={"*.seen": lambda *_: torch.ones(1)})
    assert raised.value.exit_code == 3 and model.base_model.model.layer.weight.is_meta


def test_external_wins_over_the_adapters_file(files):
    base, adapter, _ = files
    mine = torch.full((2, 4), 7.0)
    name = "base_model.model.layer.lora_A.default.weight"
    with torch.device("meta"):
        model = wrapped()
    options = {"external": {name: mine}, "recipes": {"*.seen": lambda *_: torch.ones(1)}, "progress": False}
    lading.materialize(model, base, device="cpu", adapter=adapter, **options)
    assert torch.equal(model.get_parameter(name), mine)
    file = load_file(adapter / "adapter_model.safetensors")
    other = next(value for key, value in file.items() if "lora_B" in key)
    assert torch.equal(model.get_parameter(name.replace("lora_A", "lora_B")), other)


def pissa(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"init_lora_weights": "pissa"}))


@pytest.mark.parametrize("way", ["folder", "file", "link", "link to a link", "hub"])
def test_R66_a_config_is_found_however_the_adapter_is_named(files, tmp_path, monkeypatch, way):
    base, adapter, _ = files
    pissa(adapter)
    file = adapter / "adapter_model.safetensors"
    place = {"folder": adapter, "file": file, "hub": "me/pissa"}.get(way, tmp_path / "link.safetensors")
    if way == "link":
        place.symlink_to(file)
    elif way == "link to a link":
        (tmp_path / "inner.safetensors").symlink_to(file)
        place.symlink_to("inner.safetensors")
    elif way == "hub":
        repository, commit = tmp_path / "hub" / "models--me--pissa", "a" * 40
        (repository / "snapshots").mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        adapter.rename(repository / "snapshots" / commit)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(lading.LadingError, match="init_lora_weights='pissa'") as raised:
        loaded(base, place)
    assert [one.rule for one in raised.value.problems] == ["R66"]


@pytest.mark.parametrize("what", ["broken", "list", "deep", "not UTF-8", "pipe", "dangling"])
def test_R66_a_config_that_cannot_be_read_is_refused(files, what):
    base, adapter, _ = files
    config = adapter / "adapter_config.json"
    config.unlink()
    if what == "pipe":
        os.mkfifo(config)
    elif what == "dangling":
        config.symlink_to("nowhere")
    else:
        config.write_bytes({"broken": b"{}}", "list": b"[1]", "deep": b"[" * 200_000, "not UTF-8": b"\xff\xfe{"}[what])
    with pytest.raises(lading.LadingError, match="cannot be read") as raised:
        loaded(base, adapter)
    (problem,) = raised.value.problems
    assert (problem.rule, problem.file) == ("R66", str(config)) and problem.remedy


def test_an_adapter_without_a_config_is_loaded_with_a_note(files):
    base, adapter, _ = files
    (adapter / "adapter_config.json").unlink()
    assert any("no adapter_config.json is beside" in note for note in loaded(base, adapter).notes)


def test_what_a_config_says_is_escaped_in_notes(files):
    base, adapter, _ = files
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": "a\nb\x1b[31m"}))
    (note,) = [note for note in loaded(base, adapter).notes if "lora_dropout" in note]
    assert note.isprintable() and r"a\nb\x1b" in note


def test_R23_a_copy_of_a_module_has_the_dtype_of_the_rest_of_the_model(tmp_path):
    """PEFT copies a module of the base in the base's dtype, and keeps LoRA in F32."""

    def made():
        return peft.get_peft_model(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
            peft.LoraConfig(target_modules=["0"], modules_to_save=["1"], r=2),
        )

    made().save_pretrained(tmp_path / "adapter")
    base = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).bfloat16()
    save_file(base.state_dict(), tmp_path / "base.safetensors")
    with lading.skeleton():
        model = made()
    given = {"adapter": tmp_path / "adapter", "device": "cpu", "progress": False}
    lading.materialize(model, tmp_path / "base.safetensors", **given)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "lora" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "lora" not in name} == {torch.bfloat16}
    model(torch.ones(1, 4, dtype=torch.bfloat16))
    assert lading.audit(model, tmp_path / "base.safetensors", adapter=tmp_path / "adapter").ok


def test_a_folder_that_has_a_model_too_is_read_as_peft_does(files):
    base, adapter, _ = files
    (adapter / "model.safetensors").write_bytes(base.read_bytes())
    assert json.loads(loaded(base, adapter).ledger)["adapters"] == [str(adapter / "adapter_model.safetensors")]


def test_a_repository_that_has_a_model_too_is_read_as_peft_does(files, tmp_path, monkeypatch):
    base, adapter, _ = files
    (adapter / "model.safetensors").write_bytes(base.read_bytes())
    repository, commit = tmp_path / "hub" / "models--me--both", "a" * 40
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    adapter.rename(repository / "snapshots" / commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (path,) = json.loads(loaded(base, "me/both").ledger)["adapters"]
    assert path.endswith(f"{commit}/adapter_model.safetensors")


def test_adapters_are_in_the_order_of_their_names(files, tmp_path):
    base, adapter, model = files
    model.add_adapter("a", peft.LoraConfig(target_modules=["layer"], r=3))
    model.save_pretrained(tmp_path / "both")
    given = {"default": tmp_path / "both", "a": tmp_path / "both" / "a"}
    ledgers = []
    for order in (given, dict(reversed(given.items()))):
        with torch.device("meta"):
            model = wrapped()
            model.add_adapter("a", peft.LoraConfig(target_modules=["layer"], r=3))
        options = {"device": "cpu", "recipes": {"*.seen": lambda *_: torch.ones(1)}, "progress": False}
        ledgers.append(json.loads(lading.materialize(model, base, adapter=order, **options).ledger)["adapters"])
    assert ledgers[0] == ledgers[1] == [str(given[name] / "adapter_model.safetensors") for name in ("a", "default")]


def test_an_adapter_for_one_of_two_peft_models_is_refused(files):
    base, adapter, _ = files
    with pytest.raises(lading.LadingError, match="several PeftModels") as raised:
        lading.materialize(nn.ModuleList([wrapped(), wrapped()]), base, device="cpu", adapter=adapter)
    assert raised.value.exit_code == 2


def test_an_adapter_that_is_no_path_is_a_wrong_argument(files):
    base, *_ = files
    for wrong in (3, {"default": 3}):
        with pytest.raises(TypeError, match="adapter is 3"):
            loaded(base, wrong)


def test_a_model_without_adapters_says_so(files):
    base, adapter, _ = files
    model = wrapped()
    model.delete_adapter("default")
    with pytest.raises(lading.LadingError, match="the model has no adapters"):
        lading.materialize(model, base, device="cpu", adapter=adapter)


def test_R39_an_adapter_in_an_older_layout_of_transformers_is_refused(tmp_path):
    """PEFT renames its keys as transformers says; lading does not, and names them all."""
    pytest.importorskip("transformers")
    import zoo

    def with_adapters(model):
        config = peft.LoraConfig(target_modules=r".*language_model.*q_proj", r=2, init_lora_weights=False)
        return peft.get_peft_model(model, config)

    zoo.make("qwen2_vl", str(tmp_path / "base"))
    with_adapters(zoo.build("qwen2_vl", "cpu")).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(file)
    older = {name.replace(".model.language_model.", ".model."): value for name, value in state.items()}
    save_file(older, file)
    theirs = peft.PeftModel.from_pretrained(zoo.build("qwen2_vl", "cpu"), tmp_path / "adapter")
    converted = peft.get_peft_model_state_dict(theirs)
    assert all(torch.equal(converted[name], value) for name, value in state.items())
    with lading.skeleton():
        model = with_adapters(zoo.build("qwen2_vl", "cpu"))
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, tmp_path / "base", device="cpu", adapter=tmp_path / "adapter")
    assert {one.rule for one in raised.value.problems} == {"R39"}
    assert older.keys() < set(raised.value.tensors) and len(raised.value.tensors) == 2 * len(older)
