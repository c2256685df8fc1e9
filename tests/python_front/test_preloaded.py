"""Values that somebody put into a model before the load: which survive by themselves, and which are refused."""

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

import lading  # noqa: E402


class Draft(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(6, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("scale", torch.ones(4))


@pytest.fixture
def layers(tmp_path):
    """A checkpoint of the layers alone."""
    state = {name: torch.full_like(value, 2.0) for name, value in Draft().state_dict().items() if "layers" in name}
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def skeleton():
    with lading.skeleton():
        return Draft()


def fill(model, checkpoint, **options):
    return lading.materialize(model, checkpoint, device="cpu", progress=False, **options)


def missing(model, checkpoint, **options):
    with pytest.raises(lading.LadingError) as error:
        fill(model, checkpoint, **options)
    return {problem.tensor: problem.rule for problem in error.value.problems}


@pytest.mark.parametrize("how", ["parameter", "state_dict", "module", "copy"])
def test_R14_what_was_put_in_after_the_skeleton_survives(layers, how):
    model = skeleton()
    value, scale = torch.full((6, 4), 7.0), torch.full((4,), 0.5)
    if how == "parameter":  # never written in place: its version is 0
        model.embed_tokens.weight = nn.Parameter(value.clone())
        model.scale = scale.clone()
    elif how == "state_dict":
        model.load_state_dict({"embed_tokens.weight": value, "scale": scale}, strict=False, assign=True)
    elif how == "module":
        model.embed_tokens = nn.Embedding(6, 4, _weight=value.clone())
        model.scale = scale.clone()
    else:
        model.embed_tokens.to_empty(device="cpu")
        with torch.no_grad():
            model.embed_tokens.weight.copy_(value)
        model.scale = scale.clone()
    report = fill(model, layers)
    assert torch.equal(model.embed_tokens.weight, value) and torch.equal(model.scale, scale)
    assert torch.equal(model.layers[1].bias, torch.full((4,), 2.0))
    kept = report.by_provenance()["kept"]
    assert kept == ["embed_tokens.weight", "scale"]
    assert "embed_tokens.weight" in str(report) and "scale" in str(report), "the report names each"


def test_R39_what_is_still_on_meta_is_missing(layers):
    model = skeleton()
    model.embed_tokens.weight = nn.Parameter(torch.full((6, 4), 7.0))
    assert missing(model, layers) == {"scale": "R39"}


def test_R39_a_model_that_was_built_with_values_hides_no_missing_key(layers):
    model = Draft()
    before = model.embed_tokens.weight.detach().clone()
    assert missing(model, layers) == {"embed_tokens.weight": "R39", "scale": "R39"}
    fill(model, layers, keep=["embed_tokens.*", "scale"])
    assert torch.equal(model.embed_tokens.weight, before)


def test_R39_nor_does_one_that_was_loaded_before(layers, tmp_path):
    model = skeleton()
    whole = tmp_path / "whole.safetensors"
    save_file({name: torch.ones_like(value) for name, value in Draft().state_dict().items()}, whole)
    fill(model, whole)
    assert missing(model, layers) == {"embed_tokens.weight": "R39", "scale": "R39"}


def test_R13_memory_of_to_empty_is_no_value(layers):
    model = skeleton()
    model.to_empty(device="cpu")
    assert set(missing(model, layers)) == {"embed_tokens.weight", "scale"}
    assert set(missing(model, layers, allow_missing=["embed_tokens.weight", "scale"])) == {"embed_tokens.weight", "scale"}


def test_a_key_of_the_file_wins_over_what_was_put_in(layers):
    model = skeleton()
    model.embed_tokens.weight = nn.Parameter(torch.full((6, 4), 7.0))
    model.scale = torch.ones(4)
    model.layers[0].weight = nn.Parameter(torch.full((4, 4), 9.0))
    fill(model, layers)
    assert torch.equal(model.layers[0].weight, torch.full((4, 4), 2.0))
