"""Adapter files are read by the engine, as checkpoints are: never through a mapping, and not if somebody cut them."""

from pathlib import Path

import lading
import pytest
import torch
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
    assert report.memory.handed_in == 2 * (2 * 4 * 4) + 4, "both matrices in F32, and the value of the recipe"


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
