"""A tensor's name may hold any character, and is never taken for a pattern, an expression or a template."""

import logging
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lading
from lading import sharding
from lading.conversion import Conversion, braced, ignored_key, target_of, unbraced
from lading.patterns import Name, fields_json, list_json, matches

NAMES = (
    "w*", "wa", "*", "a?", "ab", "[a]", "a", "{x}", "{{x}}", "{0}",
    "a\\b", "\\1", "é", "名前", " ", "x" * 300, "a|b",
)  # fmt: skip


class Odd(nn.Module):
    def __init__(self, names=NAMES, shape=(2, 3)):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


def skeleton(*arguments):
    with lading.skeleton():
        return Odd(*arguments)


def values(names=NAMES, shape=(2, 3)):
    return {name: torch.full(shape, float(place + 1)) for place, name in enumerate(names)}


def saved(folder, tensors):
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


@pytest.fixture
def library(monkeypatch):
    """What a library would say about its checkpoints."""

    def says(conversion):
        module = types.ModuleType("lading.huggingface")
        module.describe = lambda model, checkpoint, entries, catalog: conversion
        monkeypatch.setitem(sys.modules, "lading.huggingface", module)

    return says


def held(model):
    return {name: tensor.detach().reshape(-1)[0].item() for name, tensor in model.named_parameters()}


def test_matching():
    assert matches("w*", "wa") and matches("w*", "w*") and not matches("a?", "ab") and not matches("[a]", "a")
    assert matches(Name("w*"), "w*") and not matches(Name("w*"), "wa")
    assert list_json("w*") == "w*" and list_json(Name("w*")) == {"name": "w*"}
    assert fields_json("w*") == {"pattern": "w*"} and fields_json(Name("w*")) == {"name": "w*"}


@pytest.mark.parametrize("name", NAMES)
def test_R68_templates_give_names_back(name):
    assert unbraced(braced(name)) == name
    assert target_of({"kind": "build", "to": braced(name)}) == name
    assert target_of({"kind": "rename", "to": name}) == name


@pytest.mark.parametrize("how", ["meta", "real"])
def test_R68_every_name_is_loaded(tmp_path, how):
    model = skeleton() if how == "meta" else Odd()
    lading.materialize(model, saved(tmp_path, values()), device="cpu", progress=False)
    assert held(model) == {name: place + 1 for place, name in enumerate(NAMES)}


def test_what_a_library_lets_be_missing_is_just_that(tmp_path, library):
    library(Conversion(not_expected=["w*"]))
    path = saved(tmp_path, {name: value for name, value in values().items() if name not in ("w*", "wa")})
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(skeleton(), path, device="cpu", progress=False)
    assert list(refusal.value.tensors) == ["wa"]


def test_R68_a_library_pins_just_the_names_that_it_says(tmp_path, library):
    library(Conversion(pins=[(Name(name), "float16_and_bfloat16") for name in ("w*", "é", "{x}")]))
    model = skeleton()
    path = saved(tmp_path, {name: value.bfloat16() for name, value in values().items()})
    lading.materialize(model, path, device="cpu", dtype="bf16", cast="exact", progress=False)
    pinned = [name for name, tensor in model.named_parameters() if tensor.dtype == torch.float32]
    assert sorted(pinned) == sorted(["w*", "é", "{x}"])


def test_dtypes_of_names(tmp_path):
    model = skeleton()
    path = saved(tmp_path, values())
    lading.materialize(model, path, device="cpu", subtree_dtypes={"w*": "bf16"}, cast="exact", progress=False)
    assert [name for name, tensor in model.named_parameters() if tensor.dtype == torch.bfloat16] == ["w*"]


def test_R68_a_library_renames_builds_and_ignores_by_name(tmp_path, library):
    """Each tensor is made of another's key, by a rule of either kind; one key is for nobody."""
    turned = dict(zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True))
    rules = []
    for place, (key, name) in enumerate(turned.items()):
        rule = {"id": f"r{place}", "kind": "rename", "from": key, "to": name}
        if place % 2:
            expression = {"transpose": {"dims": [0, 1], "of": braced(key)}}
            rule = {"id": f"r{place}", "kind": "build", "to": braced(name), "expression": expression}
        rules.append(rule)
    unread = [f"{name} " for name in NAMES]
    library(
        Conversion(
            mapping={"schema": "lading.mapping/1", "rules": rules},
            ignore=[ignored_key("unread", key) for key in unread],
        )
    )
    model = skeleton(NAMES, (2, 2))
    path = saved(tmp_path, values(NAMES, (2, 2)) | {key: torch.zeros(1) for key in unread})
    lading.materialize(model, path, device="cpu", progress=False)
    assert held(model) == {name: NAMES.index(key) + 1 for key, name in turned.items()}


def test_parts_of_a_model_leave_the_others_keys_alone(tmp_path):
    whole = skeleton()
    part = skeleton(NAMES[:3])
    lading.materialize(part, saved(tmp_path, values()), device="cpu", whole=whole, progress=False)
    assert held(part) == {name: place + 1 for place, name in enumerate(NAMES[:3])}


def test_R41_a_whole_of_another_shape_is_refused(tmp_path):
    part, whole = skeleton(NAMES[:2], (2, 3)), skeleton(NAMES, (3, 2))
    path = saved(tmp_path, values(NAMES, (2, 3)))
    told = r"`whole` has it in another shape; expected \[2, 3\], found \[3, 2\]"
    with pytest.raises(lading.LadingError, match=told) as refusal:
        lading.materialize(part, path, device="cpu", whole=whole, progress=False)
    assert sorted(refusal.value.tensors) == sorted(NAMES[:2])
    assert all(parameter.is_meta for parameter in part.parameters())


def test_R68_values_of_an_adapter_go_to_the_names_that_they_are_of(tmp_path):
    peft = pytest.importorskip("peft")

    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("q*", "qa"):
                self.add_module(name, nn.Linear(4, 4, bias=False))

        def forward(self, x):
            return self._modules["q*"](x) + self.qa(x)

    def wrapped():
        return peft.get_peft_model(Base(), peft.LoraConfig(r=2, target_modules=["qa", "q*"]))

    torch.manual_seed(3)
    original = wrapped()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.uniform_()
    original.save_pretrained(tmp_path / "adapter")
    base = {f"{name}.weight": original.base_model.model._modules[name].base_layer.weight for name in ("q*", "qa")}
    path = saved(tmp_path, {key: value.detach().clone() for key, value in base.items()})
    with lading.skeleton():
        model = wrapped()
    lading.materialize(model, path, device="cpu", adapter=tmp_path / "adapter", progress=False)
    for (name, got), want in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(got, want), name


# ---- one language


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        block = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.layers = torch.nn.ModuleList([block, torch.nn.Linear(2, 2)])
        self.tower = torch.nn.ModuleDict({"deep": torch.nn.ModuleDict({"mlp": torch.nn.Linear(2, 2)})})
        self.mlp = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("pattern", "units"),
    [
        ("layers.*", ["layers.0", "layers.1"]),
        ("layers.0", ["layers.0"]),
        ("*mlp", ["mlp", "tower.deep.mlp"]),
        ("*", ["layers", "mlp", "tower"]),
        ("*.mlp", ["tower.deep.mlp"]),
    ],
)
def test_units_have_the_patterns_of_everything_else(pattern, units, caplog):
    model = Nested()
    modules = {name: module for name, module in model.named_modules() if name}
    with caplog.at_level(logging.INFO, logger="lading"):
        assert sorted(sharding._wanted(model, modules, pattern, ())) == units
    is_deeper = any(name.count(".") > pattern.count(".") for name in units)
    assert ("* stands for dots too" in caplog.text) == is_deeper


def test_a_pattern_for_units_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="no module of that name"):
        sharding._wanted(Nested(), {"mlp": torch.nn.Linear(2, 2)}, "blocks.*", ())
