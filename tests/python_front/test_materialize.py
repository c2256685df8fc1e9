"""`lading.materialize` in one process: what it fills, what it leaves alone, what it refuses, and that it says all at
once."""

import json
import re
import sys
import types
import weakref

import pytest
import ranks_models as models
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading
from lading.conversion import Conversion
from lading.devices import rank_device
from lading.inventory import take_inventory
from lading.placements import read_placements


@pytest.fixture(autouse=True)
def process_random_numbers_are_untouched():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    with torch.random.fork_rng():
        for name in models.MODELS:
            models.save(models.original(name), folder / name)
    return folder


@pytest.fixture
def small(checkpoints):
    return checkpoints / "small"


def original(name="small"):
    with torch.random.fork_rng():
        return models.original(name)


def skeleton(make=models.MODELS["small"]):
    with lading.skeleton():
        return make()


def real(make=models.MODELS["small"]):
    with torch.random.fork_rng():
        return make()


def edited(folder, small, change):
    """A checkpoint like the small model's, changed."""
    state = load_file(small / "model.safetensors")
    change(state)
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    return folder


def assert_same(model, want):
    found, expected = models.tensors(model), models.tensors(want)
    assert set(found) == set(expected)
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name
        assert tensor.requires_grad == expected[name].requires_grad, name


# ---- what comes out


@pytest.mark.parametrize("name", list(models.MODELS))
def test_a_skeleton_is_filled(checkpoints, name):
    model = skeleton(models.MODELS[name])
    report = lading.materialize(model, checkpoints / name, device="cpu")
    assert_same(model, original(name))
    assert set(report.tensors) == set(models.tensors(model))
    assert report.device == "cpu" and report.ranks == 1
    json.loads(report.to_json()), json.loads(report.ledger)
    assert "tensors" in str(report)


@pytest.mark.parametrize("name", ["llama", "llama_tied"])
def test_transformers_on_meta_gives_the_same_logits_and_stays_initialised(checkpoints, name):
    with torch.device("meta"):
        model = models.MODELS[name]().eval()
    report = lading.materialize(model, checkpoints / name, device="cpu")
    want = original(name).eval()
    assert_same(model, want)
    assert report.tensors["model.rotary_emb.inv_freq"].provenance == "host"
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids).logits, want(ids).logits)
    before = {key: tensor.clone() for key, tensor in models.tensors(model).items()}
    with torch.random.fork_rng():
        model.initialize_weights()
    for key, tensor in models.tensors(model).items():
        assert torch.equal(tensor, before[key]), key


def test_R61_objects_stay_what_they_are(small):
    model = skeleton()
    tensors = models.tensors(model)
    weak = {name: weakref.ref(tensor) for name, tensor in tensors.items()}
    up = model.blocks[0].up.weight
    up.note = "mine"
    calls = []
    handle = up.register_hook(lambda gradient: calls.append("hook"))
    up.register_post_accumulate_grad_hook(lambda tensor: calls.append("accumulated"))
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1.0)
    lading.materialize(model, small, device="cpu")
    for name, tensor in models.tensors(model).items():
        assert tensor is tensors[name] and weak[name]() is tensor
    assert up.note == "mine"
    model(torch.arange(5)).sum().backward()
    assert calls == ["hook", "accumulated"]
    before = up.detach().clone()
    optimizer.step()
    assert not torch.equal(model.blocks[0].up.weight, before)
    handle.remove()
    model(torch.arange(5)).sum().backward()
    assert calls == ["hook", "accumulated", "accumulated"]


def test_R49_ties_are_one_memory(small):
    model = skeleton()
    lading.materialize(model, small, device="cpu")
    assert model.head.weight is model.embed.weight
    with torch.no_grad():
        model.embed.weight[3, 3] = 9.0
    assert model.head.weight[3, 3] == 9.0


def test_an_lstm_which_holds_weak_references_and_its_parameters_twice(tmp_path):
    want = real(lambda: nn.LSTM(4, 3))
    save_file(want.state_dict(), tmp_path / "model.safetensors")
    model = skeleton(lambda: nn.LSTM(4, 3))
    lading.materialize(model, tmp_path, device="cpu")
    x = torch.ones(2, 4)
    assert torch.equal(model(x)[0], want(x)[0])
    assert all(weight is parameter for weight, parameter in zip(model._flat_weights, model.parameters(), strict=True))


def test_views_of_other_tensors_come_with_them(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
            self.turned = self.weight.detach().t()
            self.register_buffer("row", self.weight.detach()[1], persistent=False)

    save_file({"weight": torch.arange(12.0).reshape(3, 4) * 2}, tmp_path / "model.safetensors")
    model = skeleton(Model)
    lading.materialize(model, tmp_path, device="cpu")
    assert torch.equal(model.turned, model.weight.t()) and torch.equal(model.row, model.weight[1])
    with torch.no_grad():
        model.weight[1, 2] = -1.0
    assert model.turned[2, 1] == -1.0 and model.row[2] == -1.0


def test_memory_formats_are_kept(tmp_path):
    make = lambda: nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # noqa: E731
    want = real(make)
    save_file({name: tensor.contiguous() for name, tensor in want.state_dict().items()}, tmp_path / "model.safetensors")
    for model in (skeleton(make), real(make)):
        strides = model.weight.stride()
        lading.materialize(model, tmp_path, device="cpu")
        assert torch.equal(model.weight, want.weight)
        assert model.weight.stride() == strides and not model.weight.is_contiguous()


def test_a_model_in_parts(small):
    model = skeleton(models.small(is_tied=False))
    embed, rest = nn.Module(), nn.Module()
    embed.embed = model.embed
    rest.blocks, rest.head, rest.softcap = model.blocks, model.head, None
    state = load_file(small / "model.safetensors")
    path = small.parent / "in_parts"
    path.mkdir(exist_ok=True)
    save_file(state | {"head.weight": state["embed.weight"] * 2}, path / "model.safetensors")
    lading.materialize([embed, rest], path, device="cpu")
    assert torch.equal(model.embed.weight, state["embed.weight"])
    assert torch.equal(model.head.weight, state["embed.weight"] * 2)
    assert torch.equal(model.blocks[1].up.bias, state["blocks.1.up.bias"])


# ---- what is real already


def test_real_memory_is_written_in_place(small):
    model = real()
    addresses = {name: tensor.data_ptr() for name, tensor in models.tensors(model).items()}
    lading.materialize(model, small)
    assert_same(model, original())
    assert {name: tensor.data_ptr() for name, tensor in models.tensors(model).items()} == addresses
    assert not lading.is_incomplete(model)


def test_R7_real_buffers_are_left_alone(small):
    """A value that is there and in no file stays, whatever it is."""
    model = skeleton()
    model.softcap = torch.tensor(41.0)
    lading.materialize(model, small, device="cpu")
    assert model.softcap == 41.0


def test_R14_what_is_to_be_kept_is_kept(small):
    model = skeleton()
    with torch.no_grad():
        kept = nn.Parameter(torch.full((12,), 7.0))
    model.blocks[0].norm.weight = kept
    lading.materialize(model, small, device="cpu", keep=["blocks.0.norm.weight"])
    assert model.blocks[0].norm.weight is kept and bool((kept == 7.0).all())


def test_narrow_memory_is_refused_and_destination_takes_it(small):
    model = real().to(torch.bfloat16)
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(model, small)
    assert "blocks.0.up.weight" in refusal.value.tensors and not refusal.value.begun
    lading.materialize(model, small, cast="destination")
    assert torch.equal(model.blocks[0].up.weight, original().blocks[0].up.weight.to(torch.bfloat16))


def test_memory_that_is_not_contiguous(small):
    model = real()
    model.blocks[0].up.weight = nn.Parameter(torch.zeros(12, 20).t())
    lading.materialize(model, small)
    assert not model.blocks[0].up.weight.is_contiguous()
    assert_same(model, original())


# ---- dtypes


def test_R22_auto_is_what_the_file_has(tmp_path, small):
    def narrow(state):
        state["blocks.0.up.weight"] = state["blocks.0.up.weight"].to(torch.bfloat16)

    model = skeleton()
    lading.materialize(model, edited(tmp_path / "c", small, narrow), device="cpu")
    assert model.blocks[0].up.weight.dtype == torch.bfloat16 and model.blocks[1].up.weight.dtype == torch.float32


def test_R23_a_request_never_narrows_unless_it_is_exact(small):
    model = skeleton()
    lading.materialize(model, small, device="cpu", dtype="bfloat16")
    assert model.blocks[0].up.weight.dtype == torch.float32
    model = skeleton()
    lading.materialize(model, small, device="cpu", dtype="bf16", cast="exact")
    assert model.blocks[0].up.weight.dtype == torch.bfloat16
    assert torch.equal(model.blocks[0].up.weight, original().blocks[0].up.weight.to(torch.bfloat16))
    assert model.softcap.dtype == torch.float32 and model.blocks[0].steps.dtype == torch.int64


# ---- what no file has


def test_R6_a_buffer_that_nobody_knows_is_refused_by_name(small):
    with torch.device("meta"):
        model = models.MODELS["small"]()
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(model, small, device="cpu")
    assert set(refusal.value.tensors) == {"softcap", "blocks.0.table", "blocks.1.table"}
    assert all(tensor.is_meta for tensor in models.tensors(model).values())


def test_R15_one_buffer_without_a_value_leaves_the_weights_alone(small):
    """Others then empty the whole model, and lose what was loaded."""
    model = real()
    model.softcap = torch.empty((), device="meta")
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in models.tensors(model).items()}
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(model, small, device="cpu")
    assert list(refusal.value.tensors) == ["softcap"] and not lading.is_incomplete(model)
    for name, tensor in models.tensors(model).items():
        pointer, value = before[name]
        assert tensor.data_ptr() == pointer and (tensor.is_meta or torch.equal(tensor, value)), name


def test_R60_in_whatever_order_modules_are_filled(tmp_path, small):
    """What is loaded, derived and initialised: parts in any order give the digests of the whole."""
    path = edited(tmp_path, small, lambda state: state.pop("blocks.1.up.weight"))
    found = []
    for order in ((), (0, 1, 2), (2, 0, 1), (1, 2, 0)):
        model = skeleton(models.small(is_tied=False))
        rest, blocks, embed = nn.Module(), nn.Module(), nn.Module()
        rest.softcap = nn.Buffer(model.softcap, persistent=False)
        rest.head, blocks.blocks, embed.embed = model.head, model.blocks, model.embed
        parts = [(rest, blocks, embed)[place] for place in order] or model
        missing = ["blocks.1.up.weight", "head.weight"]
        report = lading.materialize(parts, path, device="cpu", allow_missing=missing)
        found.append({name: tensor.digest for name, tensor in report.tensors.items()})
    assert len(found[0]) > 15 and all(found[0].values())
    assert all(digests == found[0] for digests in found)


def test_recipes_of_the_user(small):
    with torch.device("meta"):
        model = models.MODELS["small"]()
    seen = []

    def table(module, attribute):
        seen.append((type(module).__name__, attribute))
        return torch.cos(torch.arange(12) * 0.1)

    lading.materialize(model, small, device="cpu", recipes={"*.table": table, "softcap": lambda *_: torch.tensor(50.0)})
    assert_same(model, original())
    assert seen == [("Block", "table")] * 2


def test_initialisers_of_the_model_touch_nothing_else(tmp_path):
    """`reset_parameters` fills a buffer and, as its author meant it, the weight too: only the buffer is taken."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(3))
            self.register_buffer("other", torch.empty(2), persistent=False)
            self.register_buffer("table", torch.empty(4), persistent=False)
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.normal_(self.weight)
            torch.rand(3)
            self.table.copy_(torch.arange(4.0))

    save_file({"weight": torch.full((3,), 0.5)}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Model()
    with pytest.raises(lading.LadingError) as refusal:  # nothing writes the other one
        lading.materialize(model, tmp_path, device="cpu")
    assert refusal.value.tensors == ("other",)
    lading.materialize(model, tmp_path, device="cpu", recipes={"other": lambda *_: torch.ones(2)})
    assert torch.equal(model.table, torch.arange(4.0)) and torch.equal(model.weight, torch.full((3,), 0.5))


def test_missing_parameters_are_made_as_their_author_wrote_them(tmp_path, small):
    path = edited(tmp_path / "c", small, lambda state: state.pop("blocks.1.up.weight"))
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(skeleton(), path, device="cpu")
    assert refusal.value.tensors == ("blocks.1.up.weight",)
    values = []
    for seed in (0, 0, 1):
        model = skeleton()
        report = lading.materialize(model, path, device="cpu", allow_missing="blocks.1.up.*", seed=seed)
        assert report.tensors["blocks.1.up.weight"].provenance == "random"
        values.append(model.blocks[1].up.weight.detach())
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    assert values[0].abs().max() <= 12**-0.5 and values[0].std() > 0.1


def test_external_values_win(small):
    other = real()
    model = skeleton()
    lading.materialize(model, small, device="cpu", external={"blocks.0.*.weight": other, "softcap": torch.tensor(3.0)})
    assert torch.equal(model.blocks[0].up.weight, other.blocks[0].up.weight)
    assert torch.equal(model.blocks[1].up.weight, original().blocks[1].up.weight)
    assert model.softcap == 3.0


# ---- ties


def test_R50_members_of_a_tie_that_differ(tmp_path, small):
    def both(state):
        state["head.weight"] = state["embed.weight"] + 1

    path = edited(tmp_path / "c", small, both)
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(skeleton(), path, device="cpu")
    assert "head.weight" in str(refusal.value)
    model = skeleton()
    embed = model.embed.weight
    lading.materialize(model, path, device="cpu", ties="untie")
    assert model.embed.weight is embed or model.head.weight is embed
    assert torch.equal(model.head.weight, model.embed.weight + 1)
    assert isinstance(model.head.weight, nn.Parameter) and model.head.weight.requires_grad


# ---- refusals


def test_R39_all_keys_in_one_message_and_nothing_written(tmp_path, small):
    def spoil(state):
        del state["blocks.0.down.bias"]
        state["blocks.1.down.bias"] = torch.zeros(13)
        state["surplus.weight"] = torch.zeros(2)

    path = edited(tmp_path / "c", small, spoil)
    for model in (skeleton(), real()):
        before = {
            name: None if tensor.is_meta else tensor.detach().clone() for name, tensor in models.tensors(model).items()
        }
        with pytest.raises(lading.LadingError) as refusal:
            lading.materialize(model, path, device="cpu")
        assert {"blocks.0.down.bias", "blocks.1.down.bias", "surplus.weight"} <= set(refusal.value.tensors)
        assert not refusal.value.begun and not lading.is_incomplete(model)
        for name, tensor in models.tensors(model).items():
            assert tensor.is_meta if before[name] is None else torch.equal(tensor, before[name]), name
    model = skeleton()
    lading.materialize(
        model,
        path,
        device="cpu",
        strict=False,
        allow_missing=["blocks.0.down.bias"],
        allow_mismatch=["blocks.1.down.bias"],
    )
    assert not any(tensor.is_meta for tensor in models.tensors(model).values())


def test_a_load_that_fails_before_anything_is_written(small):

    def broken(*_):
        raise ArithmeticError("no such table")

    model = skeleton()
    with pytest.raises(lading.LadingError, match="no such table"):
        lading.materialize(model, small, device="cpu", recipes={"*.table": broken})
    assert all(tensor.is_meta for tensor in models.tensors(model).values())
    assert not lading.is_incomplete(model)
    lading.materialize(model, small, device="cpu")
    assert_same(model, original())


def test_a_load_that_fails_in_the_middle(tmp_path, small):
    """A model on meta is as it was, and the error says so; real memory is marked, until a load succeeds."""
    path = edited(tmp_path / "c", small, lambda state: None)
    whole = (path / "model.safetensors").read_bytes()

    def truncates(module, attribute):
        (path / "model.safetensors").write_bytes(whole[:-40])
        return torch.tensor(50.0)

    model = skeleton()
    with pytest.raises(lading.LadingError) as failure:
        lading.materialize(model, path, device="cpu", recipes={"softcap": truncates})
    assert all(tensor.is_meta for tensor in models.tensors(model).values())
    assert not failure.value.begun and not lading.is_incomplete(model)

    (path / "model.safetensors").write_bytes(whole)
    model = real()
    model.softcap = torch.empty((), device="meta")
    with pytest.raises(lading.LadingError) as failure:
        lading.materialize(model, path, recipes={"softcap": truncates})
    assert failure.value.begun and "incomplete" in str(failure.value) and lading.is_incomplete(model)

    (path / "model.safetensors").write_bytes(whole)
    lading.materialize(model, path, recipes={"softcap": lambda *_: torch.tensor(50.0)})
    assert not lading.is_incomplete(model)
    assert_same(model, original())


def test_R34_devices():
    model = skeleton()
    entries = take_inventory(model)
    placements = read_placements(entries)

    def refused(device, entries=entries):
        with pytest.raises(lading.LadingError) as refusal:
            rank_device(device, placements, entries)
        assert refusal.value.rule == "R34" and refusal.value.code == "no_device"
        return str(refusal.value)

    assert "on meta and not sharded" in refused(None)
    assert "has no index" in refused("cuda")
    assert "meta" in refused("meta")
    assert rank_device("cuda:3", placements, entries)[0] == torch.device("cuda", 3)
    assert rank_device(2, placements, entries)[0] == torch.device("cuda", 2)
    built = take_inventory(real())
    assert rank_device(None, placements, built)[0] == torch.device("cpu")


class OnlyBuffers(nn.Module):
    """Nothing to train, and nothing in files."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.arange(4.0), persistent=False)


def test_R34_a_real_model_without_parameters_stays_where_it_is(small):
    model = OnlyBuffers()
    report = lading.materialize(model, small, strict=False, verify="full")  # and there is nothing to read again
    assert "where the model's tensors are" in " ".join(report.notes) and model.steps.tolist() == [0, 1, 2, 3]
    with torch.device("meta"):
        empty = OnlyBuffers()
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(empty, small, strict=False)
    assert refusal.value.code == "no_device"
    lading.materialize(nn.Identity(), small, strict=False)


def test_R34_local_rank_fixes_the_index(monkeypatch):
    entries = take_inventory(skeleton())
    monkeypatch.setenv("LOCAL_RANK", "5")
    device, note = rank_device("cuda", read_placements(entries), entries)
    assert device == torch.device("cuda", 5) and "LOCAL_RANK" in note


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there(small):
    model = skeleton()
    with pytest.raises(lading.LadingError) as refusal:
        lading.materialize(model, small, device="cuda:0")
    assert refusal.value.code == "no_device" and all(tensor.is_meta for tensor in models.tensors(model).values())


def test_words_that_are_none(small):
    for options in ({"cast": "fast"}, {"ties": "cut"}, {"verify": 3}, {"dtype": "bfloat17"}):
        with pytest.raises(ValueError):
            lading.materialize(skeleton(), small, device="cpu", **options)
    with pytest.raises(TypeError):
        lading.materialize([], small, device="cpu")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": -1}, "seed: not a whole number; expected a whole number from 0 to 2.64 - 1, found -1"),
        ({"seed": 2**64}, "seed: not a whole number"),
        ({"budget": 1}, "budget: the memory budget is too small"),
        ({"budget": 0}, "budget: the memory budget is too small"),
        ({"budget": -5}, "budget: not a whole number"),
        ({"dtype": torch.int32}, "dtype: not a dtype that can be requested; expected a floating .*, found I32"),
        ({"compute_dtype": "int8"}, "compute_dtype: not a dtype to compute in"),
        ({"compute_dtype": "auto"}, "compute_dtype: not a dtype"),
        ({"subtree_dtypes": {"head": torch.int8}}, "subtree_dtypes.head: not a dtype that can be requested"),
        ({"subtree_dtypes": {"nowhere": "bf16"}}, 'subtree_dtypes: "nowhere" matches nothing'),
        ({"keep": ["a", ""]}, r"keep\[1\]: "),
    ],
)
def test_a_value_that_the_policy_refuses_is_told_as_the_argument(small, options, said):
    with pytest.raises(lading.LadingError, match=f"^{said}") as refusal:
        lading.materialize(skeleton(), small, device="cpu", **options)
    text = str(refusal.value).splitlines()[0]
    assert not any(word in text for word in ("$", "policy (text)", "byte ", "budget_bytes", "docs/schema")), text


@pytest.mark.parametrize("name", ["seed", "budget"])
def test_numbers_of_other_types(small, name):
    numpy = pytest.importorskip("numpy")
    lading.materialize(skeleton(), small, device="cpu", **{name: numpy.int64(1 << 25)})
    for wrong in (1.5, True, "1GB", [1]):
        with pytest.raises(TypeError, match=f"{name} should be a whole number, but is {re.escape(repr(wrong))}"):
            lading.materialize(skeleton(), small, device="cpu", **{name: wrong})


def test_not_under_skeleton(small):
    with lading.skeleton():
        model = models.MODELS["small"]()
        with pytest.raises(RuntimeError, match="skeleton"):
            lading.materialize(model, small, device="cpu")


def test_what_is_no_plain_memory(small):
    """In no file and real: left alone. In a file: refused by name."""
    model = real()
    model.sparse = torch.eye(3).to_sparse()
    lading.materialize(model, small)
    assert_same(model, original())
    model.register_buffer("table", torch.eye(3).to_sparse())
    with pytest.raises(lading.LadingError, match="not plain memory") as refusal:
        lading.materialize(model, small)
    assert refusal.value.tensors == ("table",)


def test_extra_state_that_is_no_tensor_is_noted(tmp_path):
    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"steps": 3}

        def set_extra_state(self, state):
            raise AssertionError("nothing was loaded for it")

    with lading.skeleton():
        model = nn.Sequential(Counting(2, 2), nn.Linear(2, 2))
    layers = {"0": torch.ones(2), "1": torch.zeros(2)}
    values = {f"{name}.bias": value for name, value in layers.items()}
    values |= {f"{name}.weight": torch.stack([value, value]) for name, value in layers.items()}
    save_file(values, tmp_path / "model.safetensors")
    report = lading.materialize(model, tmp_path, device="cpu", progress=False)
    assert "extra state that is not a tensor stays as it is: 0._extra_state" in report.notes


def test_verification_reads_the_files_again(small):
    model = skeleton()
    report = lading.materialize(model, small, device="cpu", verify="full")
    assert report.verification["ok"]
    assert all(tensor.digest for tensor in report.tensors.values() if tensor.provenance == "file")
    report = lading.materialize(skeleton(), small, device="cpu", verify=False)
    assert not any(tensor.digest for tensor in report.tensors.values())


def test_from_pretrained(checkpoints):
    seen = []

    def parallelize(model):
        seen.append(all(parameter.is_meta for parameter in model.parameters()))
        model.model.embed_tokens.weight.requires_grad_(False)

    model = lading.from_pretrained(checkpoints / "llama", parallelize=parallelize, device="cpu")
    assert seen == [True] and not model.training and not model.model.embed_tokens.weight.requires_grad
    want = original("llama")
    want.model.embed_tokens.weight.requires_grad_(False)
    assert_same(model, want)


def test_what_a_library_knows_about_its_checkpoints(tmp_path, small, monkeypatch):
    """The seam: renamed and ignored keys, pins, declared ties and notes come from the library's own front."""

    def rename(state):
        state["old.norm.weight"] = state.pop("blocks.0.norm.weight").to(torch.bfloat16)
        state["legacy.inv_freq"] = torch.zeros(2)

    renames = [{"id": "norm", "kind": "rename", "from": "old.norm.weight", "to": "blocks.0.norm.weight"}]
    known = Conversion(
        mapping={"schema": "lading.mapping/1", "rules": renames},
        ignore=[{"id": "legacy", "kind": "ignore", "from": "legacy\\..*"}],
        pins=[("norm", "float16_and_bfloat16")],
        notes=["the library says hello"],
    )
    seen = []
    library = types.ModuleType("lading.huggingface")
    library.describe = lambda model, checkpoint, entries, catalog: seen.append((model, checkpoint)) or known
    monkeypatch.setitem(sys.modules, "lading.huggingface", library)
    path = edited(tmp_path / "c", small, rename)
    model = skeleton()
    report = lading.materialize(model, path, device="cpu")
    assert seen == [(model, str(path))] and "the library says hello" in report.notes
    want = original().blocks[0].norm.weight.to(torch.bfloat16).to(torch.float32)
    assert torch.equal(model.blocks[0].norm.weight, want)
