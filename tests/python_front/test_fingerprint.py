"""`lading.fingerprint`: equal for equal tensors in every layout and in files, and different after any change."""

import pytest
import torch
from geometry.launch import run_worker
from safetensors.torch import save_file
from torch import nn

import lading

LAYOUTS = ("ddp", "fsdp2", "fsdp2x3", "fsdp2x4", "hsdp", "tp", "fsdp2tp")
MODELS = ("small", "small_untied", "llama", "llama_tied")


@pytest.fixture(scope="module")
def results():
    return run_worker("fingerprint_worker", 240, package="python_front", layouts=LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_has_the_fingerprint_of_the_files(results, layout, model):
    assert results[layout][model] == []


def test_a_gathered_model(results):
    assert results["fsdp2"]["gathered"] == []


def test_R17_replicas_must_be_equal(results):
    assert results["refused"]["replicas"] == []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(40, 30)
        self.narrow = nn.Parameter(torch.randn(7, 5).bfloat16())
        self.turned = nn.Parameter(torch.randn(6, 9).T)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("passing", torch.ones(2), persistent=False)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def save(model, path):
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


def test_a_model_and_its_file(model, tmp_path):
    found = lading.fingerprint(model)
    assert found == lading.fingerprint([model])
    assert found.differences(lading.fingerprint(save(model, tmp_path / "model.safetensors"))) == {}
    assert sorted(found.tensors) == ["count", "linear.bias", "linear.weight", "narrow", "turned"]
    assert found.tensors["narrow"][:2] == ("BF16", (7, 5))


def test_every_flipped_bit_is_found(model):
    before = lading.fingerprint(model)
    generator = torch.Generator().manual_seed(1)
    weight = model.linear.weight.detach().view(-1).view(torch.int32)
    for _ in range(100):
        at, bit = (int(torch.randint(high, (), generator=generator)) for high in (weight.numel(), 31))
        weight[at] ^= 1 << bit
        assert lading.fingerprint(model).differences(before) == {"linear.weight": "values"}
        weight[at] ^= 1 << bit
    assert lading.fingerprint(model) == before


def test_names_dtypes_and_shapes(model):
    before = lading.fingerprint(model)
    model.linear.bias = None
    model.narrow = nn.Parameter(model.narrow.detach().float())
    model.turned = nn.Parameter(model.turned.detach().T)
    model.more = nn.Parameter(torch.ones(1))
    after = lading.fingerprint(model)
    differ = {"narrow": "dtype", "turned": "shape"}
    assert before.differences(after) == differ | {"linear.bias": "missing", "more": "unexpected"}
    assert after.differences(before) == differ | {"linear.bias": "unexpected", "more": "missing"}


def test_a_quantized_file_counts_as_it_is_stored(tmp_path):
    tensors = {"w": torch.ones(4, 4).to(torch.float8_e4m3fn), "w_scale": torch.ones(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert lading.fingerprint(tmp_path).tensors["w"].dtype == "F8_E4M3"


def test_nothing_is_left_behind(model):
    held = dict(vars(model)), lading.report_of(model)
    lading.fingerprint(model)
    assert (dict(vars(model)), lading.report_of(model)) == held


def test_what_has_no_value_is_refused():
    with torch.device("meta"):
        model = Model()
    with pytest.raises(lading.LadingError) as failure:
        lading.fingerprint(model)
    assert "linear.bias" in failure.value.tensors and "meta" in str(failure.value)
