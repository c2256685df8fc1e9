"""`lading.plan`: the figures and the refusals of the load, without the load."""

import json
import struct

import lading
import pytest
import torch
from geometry.launch import run_worker
from safetensors.torch import save_file
from torch import nn

RANKS_DEADLINE_S = 450


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3))
        self.register_buffer("table", torch.arange(5.0), persistent=False)


def skeleton():
    with lading.skeleton():
        return Model()


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(1)
    state = {name: torch.randn_like(value).bfloat16() for name, value in Model().state_dict().items()}
    state.pop("head.weight")
    state.pop("norm.bias")
    save_file(state | {"surplus": torch.zeros(2)}, tmp_path / "model.safetensors")
    return tmp_path


OPTIONS = {"device": "cpu", "allow_missing": ["norm.bias"], "strict": False}


def test_the_plan_is_what_the_load_does(checkpoint):
    model = skeleton()
    plan = lading.plan(model, checkpoint, **OPTIONS)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    report = lading.materialize(model, checkpoint, progress=False, **OPTIONS)
    assert plan.plan_digest == report.plan_digest
    for field in ("bytes", "read_bytes", "rank", "ranks", "device", "warnings"):
        assert getattr(plan, field) == getattr(report, field), field
    assert set(plan.notes) <= set(report.notes)
    assert plan.by_provenance() == report.by_provenance()
    for name, tensor in plan.tensors.items():
        assert tensor == report.tensors[name][:-1], name  # all but the digest
    assert plan.by_dtype() == {
        "BF16": ["embed.weight", "head.weight", "norm.weight", "steps"], "F32": ["norm.bias", "table"],
    }  # fmt: skip
    assert (plan.missing_keys, plan.unexpected_keys) == (("norm.bias",), ("surplus",))
    assert plan.totals == (lading.planning.RankTotals(plan.bytes, plan.read_bytes, plan.staging_bytes),)


def test_its_text_and_its_json(checkpoint):
    plan = lading.plan(skeleton(), checkpoint, dtype="bf16", **OPTIONS)
    text = str(plan)
    for said in (
        "6 tensors (4 file, 1 fill, 1 host)",
        "reads ",
        "host memory beside the model",
        "not in a file: norm.bias",
        "keys that are not read: surplus",
        "the device is cpu",
        plan.plan_digest,
    ):
        assert said in text, said
    assert json.loads(plan.to_json())["tensors"]["steps"]["local_shape"] == [3]


def test_a_real_model_is_not_changed(checkpoint):
    model = Model()
    model.train()
    before = {name: (id(value), value.clone()) for name, value in (*model.named_parameters(), *model.named_buffers())}
    keys = {id(module): set(vars(module)) for module in model.modules()}
    lading.plan(model, checkpoint, cast="destination", keep=["norm.bias"], **OPTIONS | {"allow_missing": ()})
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert before.keys() == after.keys() and model.training
    for name, (identity, value) in before.items():
        assert id(after[name]) == identity and torch.equal(after[name], value), name
    assert {id(module): set(vars(module)) for module in model.modules()} == keys
    assert lading.report_of(model) is None and lading.is_incomplete(model) == ""


def test_its_refusals_are_the_loads(checkpoint):
    """Also what is found when memory is looked at: two parameters that share it."""

    def overlapping():
        model = Model()
        memory = torch.zeros(5)
        model.norm.weight, model.norm.bias = nn.Parameter(memory[:4]), nn.Parameter(memory[1:])
        return model

    for build, options in (
        (skeleton, {"device": "cpu"}),
        (skeleton, {}),
        (skeleton, OPTIONS | {"cast": "nonsense"}),
        (skeleton, OPTIONS | {"recipes": {"nothing": lambda module, name: None}}),
        (overlapping, OPTIONS | {"cast": "destination", "keep": ["norm.bias"], "allow_missing": ()}),
    ):
        with pytest.raises((lading.LadingError, ValueError)) as of_plan:
            lading.plan(build(), checkpoint, **options)
        with pytest.raises(type(of_plan.value)) as of_load:
            lading.materialize(build(), checkpoint, progress=False, **options)
        assert str(of_plan.value) == str(of_load.value)
    with pytest.raises(RuntimeError, match=r"plan was called under lading.skeleton"), lading.skeleton():
        lading.plan(Model(), checkpoint, **OPTIONS)


def test_nothing_is_allocated(tmp_path):
    """A model that no machine has memory for. The file has holes instead of data."""
    size = 1 << 42
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    with lading.skeleton():
        model = nn.Linear(1 << 20, 1 << 20, bias=False)
    plan = lading.plan(model, tmp_path, device="cpu")
    assert (plan.bytes, plan.read_bytes) == (size, size) and model.weight.is_meta
    assert [warning.code for warning in plan.warnings] == ["out_of_memory"]
    with pytest.raises(lading.LadingError, match="out_of_memory"):
        lading.materialize(model, tmp_path, device="cpu", progress=False)


@pytest.fixture(scope="module")
def on_ranks():
    pytest.importorskip("transformers")
    return run_worker("arguments_worker", RANKS_DEADLINE_S, package="python_front")


CASES = (
    "plans", "plan_alone", "plan_and_load", "revisions_differ", "fields_differ", "parallelize_fails",
    "parallelize_loads", "parallelize_fails_while_another_waits",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_on_ranks(on_ranks, case):
    assert on_ranks[case] == []
