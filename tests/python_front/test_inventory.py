"""The inventory of a model, and the skeleton document that the engine reads."""

import json
import os
import pickle
import subprocess
from pathlib import Path

import lading
import pytest
import torch
from torch import nn

REPOSITORY = Path(__file__).resolve().parent.parent.parent
COMMAND = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading"))


@pytest.fixture(autouse=True)
def process_random_numbers_are_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


def by_name(model):
    return {entry.name: entry for entry in lading.take_inventory(model)}


class Everything(nn.Module):
    """One tensor of each kind, ties and views."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=0)
        self.rnn = nn.LSTM(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.twice = self.norm
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
        self.register_buffer("absent", None)
        self.pads = [torch.zeros(2), {"left": (torch.ones(1), 3)}]
        self.turned = self.embed.weight.detach().t()
        self.frozen = nn.Parameter(torch.full((2,), 0.5, dtype=torch.bfloat16), requires_grad=False)

    def get_extra_state(self):
        return torch.tensor([7, 8], dtype=torch.uint8)

    def set_extra_state(self, state):
        pass


def built():
    with lading.skeleton():
        return Everything()


def test_every_kind_is_found():
    entries = by_name(built())
    kinds = {name: entry.kind for name, entry in entries.items()}
    assert kinds["embed.weight"] == kinds["head.weight"] == kinds["rnn.weight_ih_l0"] == kinds["frozen"] == "parameter"
    assert kinds["norm.running_mean"] == kinds["norm.num_batches_tracked"] == kinds["twice.running_var"] == "buffer"
    assert kinds["table"] == kinds["softcap"] == "non_persistent_buffer"
    assert (
        kinds["pads[0]"]
        == kinds["pads[1]['left'][0]"]
        == kinds["rnn._flat_weights[0]"]
        == kinds["turned"]
        == "attribute"
    )
    assert kinds["_extra_state"] == "extra_state"
    assert "absent" not in kinds and list(entries) == sorted(entries)
    assert all(
        entry.is_meta and entry.presence == "meta" and not entry.is_real
        for entry in entries.values()
        if entry.kind != "extra_state"
    )
    frozen = entries["frozen"]
    assert (frozen.shape, frozen.dtype, frozen.requires_grad) == ((2,), torch.bfloat16, False)
    assert entries["embed.weight"].requires_grad and frozen.device.type == "meta"
    assert entries["softcap"].shape == ()


def classes(entries):
    found = {}
    for entry in entries.values():
        if entry.tie_class is not None:
            found.setdefault(entry.tie_class, set()).add(entry.name)
    return {frozenset(names) for names in found.values()}


@pytest.mark.parametrize("make", [built, Everything], ids=["skeleton", "real"])
def test_ties_and_views(make):
    with torch.random.fork_rng(devices=[]):
        entries = by_name(make())
    found = classes(entries)
    assert {"embed.weight", "head.weight"} in found
    assert {"rnn.bias_hh_l0", "rnn._flat_weights[3]"} in found
    assert {"norm.weight", "twice.weight"} in found and {
        "norm.num_batches_tracked",
        "twice.num_batches_tracked",
    } in found
    assert not any("turned" in names or "table" in names for names in found)
    assert entries["turned"].view_of == "embed.weight" and entries["embed.weight"].view_of is None
    assert entries["table"].view_of is None


def test_equal_views_of_one_storage_are_tied():
    model = nn.Module()
    whole = torch.zeros(4, 3)
    model.a, model.b, model.c = nn.Parameter(whole[:2]), nn.Parameter(whole[:2]), nn.Parameter(whole[2:])
    entries = by_name(model)
    assert classes(entries) == {frozenset({"a", "b"})} and entries["c"].view_of is None  # other elements


def test_empty_tensors_are_not_tied():
    model = nn.Module()
    model.a, model.b = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(0))
    assert classes(by_name(model)) == set()


def test_names_of_wrappers_are_left_out():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    class DistributedDataParallel(nn.Module):  # as torch's, which wants a process group
        def __init__(self, module):
            super().__init__()
            self.module = module
            self._module_parameters = list(module.parameters())

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2, device="meta")  # a name of its author's

    inner = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2, device="meta")), Own())
    want = {"0.weight", "0.bias", "1.module.weight", "1.module.bias"}
    assert set(by_name(inner)) == want
    assert set(by_name(DistributedDataParallel(torch.compile(inner)))) == want


def test_parts_of_a_model():
    first, second = (
        nn.ModuleDict({"a": nn.Linear(2, 2, device="meta")}),
        nn.ModuleDict({"b": nn.Linear(2, 2, device="meta")}),
    )
    second["b"].weight = first["a"].weight
    entries = by_name([first, second])
    assert set(entries) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert classes(entries) == {frozenset({"a.weight", "b.weight"})}
    with pytest.raises(lading.SkeletonError, match=r"a\.(weight|bias).*duplicate_name"):
        by_name([first, nn.ModuleDict({"a": nn.Linear(2, 2, device="meta")})])


def test_modules_in_a_circle_end():
    model = nn.Linear(2, 2, device="meta")
    model.child = nn.Module()
    model.child._modules["parent"] = model
    assert set(by_name(model)) == {"weight", "bias"}


def test_what_has_no_shape_yet_is_refused():
    with lading.skeleton():
        model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(lading.SkeletonError, match=r"0\.(weight|bias).*lazy"):
        lading.take_inventory(model)


def test_inference_tensors_are_listed():
    with lading.skeleton(), torch.inference_mode():
        model = nn.LayerNorm(3)
    assert by_name(model)["weight"].recipe() == lading.Initializer("fill", value=1.0)


def test_partitions_are_empty():
    model = nn.Linear(2, 2, device="meta")
    model.bias = nn.Parameter(torch.zeros(0))
    model.bias.ds_shape = torch.Size([])
    entry = by_name(model)["bias"]
    assert (entry.shape, entry.presence, entry.is_real) == ((), "empty", False)


def test_real_values_are_real():
    with lading.skeleton():
        model = nn.Linear(2, 2)
    model.register_buffer("real", torch.ones(2))
    entries = by_name(model)
    assert entries["real"].is_real and entries["real"].recipe() is None and not entries["weight"].is_real


# ---------------------------------------------------------------- values


def test_derivation_by_entry():
    entries = by_name(built())
    assert entries["table"].derive().tolist() == [0, 1, 2, 3] and not entries["table"].is_random()
    assert entries["embed.weight"].is_random()
    assert torch.equal(entries["embed.weight"].derive(3), entries["head.weight"].derive(3))
    assert not torch.equal(entries["embed.weight"].derive(3), entries["embed.weight"].derive(4))
    assert entries["pads[1]['left'][0]"].derive().tolist() == [1]
    other = by_name(nn.Linear(2, 2, device="meta"))["weight"]
    with pytest.raises(lading.SkeletonError, match=r"weight.*unrecorded"):
        other.derive()
    assert other.recipe() is None


def test_random_values_that_tensors_share():
    with lading.skeleton():
        model = nn.Module()
        model.normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
        model.query, model.key = nn.Linear(3, 3), nn.Linear(3, 3)
        model.key.load_state_dict(model.query.state_dict())
        model.alone = nn.Linear(3, 3)
    entries = by_name(model)
    direction, length = (entries[f"normed.parametrizations.weight.original{n}"] for n in (1, 0))
    assert torch.allclose(direction.derive().norm(dim=1, keepdim=True), length.derive())
    assert torch.equal(entries["query.weight"].derive(), entries["key.weight"].derive())
    host = lading.Initializer("host")
    assert (
        direction.recipe()
        == length.recipe()
        == entries["query.weight"].recipe()
        == entries["key.weight"].recipe()
        == host
    )
    assert entries["alone.weight"].recipe().kind == "uniform"


def test_a_write_after_the_recording_is_noticed():
    with lading.skeleton():
        model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(3)
    entries = by_name(model)
    with pytest.raises(lading.SkeletonError, match=r"weight.*written_later"):
        entries["weight"].derive()
    assert entries["weight"].recipe() is None and entries["bias"].recipe() is not None
    with lading.skeleton(), torch.no_grad():
        model.weight.fill_(4)
    assert by_name(model)["weight"].derive().unique().tolist() == [4]


def test_errors_travel_between_processes():
    with pytest.raises(lading.SkeletonError) as caught:
        by_name(nn.Linear(2, 2, device="meta"))["weight"].derive()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, lading.LadingError) and str(copy) == str(caught.value)
    assert (copy.code, copy.tensors, copy.exit_code) == ("unrecorded", ("weight",), 4)


def test_records_outlive_sharding(tmp_path):
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with lading.skeleton():
        model = nn.Module()
        model.embed, model.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        model.head.weight = model.embed.weight
        model.norm = nn.LayerNorm(4)
        model.register_buffer("table", torch.arange(3.0), persistent=False)
    before = by_name(model)
    values = {name: entry.derive(1) for name, entry in before.items()}
    init_process_group("gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        after = by_name(model)
        assert hasattr(after["embed.weight"].value, "device_mesh") and after["embed.weight"].shape == (5, 4)
        assert after.keys() == before.keys() and classes(after) == classes(before)
        for name, entry in after.items():
            assert torch.equal(entry.derive(1), values[name]) and entry.recipe() == before[name].recipe()
    finally:
        destroy_process_group()


# ---------------------------------------------------------------- the document


def plan(folder, text, *options):
    (folder / "skeleton.json").write_text(text)
    command = [
        str(COMMAND),
        "plan",
        str(folder),
        "--skeleton",
        str(folder / "skeleton.json"),
        "--strategy",
        "single",
        "--device",
        "cpu",
    ]
    return subprocess.run([*command, "--tensors", *options], capture_output=True, text=True, timeout=30)


def save(folder, state):
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, folder / "model.safetensors")


def test_the_document():
    model = built()
    model.register_buffer("real", torch.ones(2))
    with lading.skeleton():
        model.register_buffer("noise", torch.randn(3), persistent=False)
    document = json.loads(
        lading.skeleton_json(model, pins=[("norm", "float16")], is_adapter=lambda name: name == "frozen")
    )
    tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert document["schema"] == "lading.skeleton/1" and document["pins"] == [
        {"pattern": "norm", "strength": "float16"}
    ]
    assert ["embed.weight", "head.weight"] in document["ties"]
    assert tensors["embed.weight"] == {
        "name": "embed.weight",
        "kind": "parameter",
        "shape": [6, 4],
        "dtype": "F32",
        "requires_grad": True,
        "init": {"kind": "normal", "mean": 0, "std": 1, "zero_row": 0},
    }
    assert tensors["softcap"]["derivation"] == {"kind": "fill", "value": 50} and tensors["table"]["derivation"] == {
        "kind": "host"
    }
    assert (
        tensors["frozen"]["dtype"] == "BF16"
        and tensors["frozen"]["adapter"]
        and "requires_grad" not in tensors["frozen"]
    )
    assert tensors["norm.num_batches_tracked"]["init"] == {"kind": "fill", "value": 0}
    assert tensors["noise"]["init"]["kind"] == "normal" and "derivation" not in tensors["noise"]
    assert tensors["turned"]["derivation"] == {"kind": "call", "inputs": ["embed.weight"]}
    assert (tensors["real"]["presence"], tensors["real"]["device"]) == ("real", "cpu") and "init" not in tensors["real"]


@pytest.mark.skipif(not COMMAND.is_file(), reason="the command is not built")
def test_the_engine_plans_with_it(tmp_path):
    model = built()
    with torch.random.fork_rng(devices=[]):
        state = Everything().state_dict()
    state.pop("head.weight")
    save(tmp_path, state)
    good = plan(tmp_path, lading.skeleton_json(model))
    assert good.returncode == 0, good.stderr
    for name in ("softcap", "table", "pads[0]", "turned", "rnn._flat_weights[0]"):
        assert name in good.stdout
    for name in ("norm.weight", "twice.weight", "frozen"):
        state.pop(name)
    save(tmp_path, state)
    refused = plan(tmp_path, lading.skeleton_json(model))
    assert refused.returncode == 4 and "norm.weight" in refused.stderr and "frozen" in refused.stderr
    policy = tmp_path / "policy.json"
    policy.write_text(
        json.dumps({"schema": "lading.policy/1", "allow_missing": ["norm.weight", "twice.weight", "frozen"]})
    )
    initialised = plan(tmp_path, lading.skeleton_json(model), "--policy", str(policy))
    assert initialised.returncode == 0, initialised.stderr


@pytest.mark.skipif(not COMMAND.is_file(), reason="the command is not built")
@pytest.mark.parametrize("model_type", ["llama", "encodec", "gemma4", "zamba"])
def test_the_engine_plans_models_of_transformers(model_type, tmp_path):
    import zoo

    with torch.random.fork_rng(devices=[]):
        real = zoo.build(model_type)
    config, name = zoo.build_config(model_type)
    with lading.skeleton():
        model = zoo.model_class(name, config)(config)
    save(tmp_path, real.state_dict())
    done = plan(tmp_path, lading.skeleton_json(model))
    assert done.returncode == 0, done.stderr[-2000:]
    assert {frozenset(names) for names in zoo.tie_groups(real)} <= {
        frozenset(n for n in names if n in zoo.tensors(real))
        for names in json.loads(lading.skeleton_json(model))["ties"]
    }
