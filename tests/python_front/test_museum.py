"""Exhibits of docs/how-it-works/museum.md that need real modules, beside the seeds. Where a framework still has the
bug, both are shown: theirs wrong, ours right."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from geometry.launch import wrong_in  # noqa: E402
from torch import nn  # noqa: E402

import lading  # noqa: E402


class Frozen(transformers.PreTrainedModel):
    config_class = transformers.PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6)
        self.embed.weight.requires_grad_(False)
        self.post_init()


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(2)
    model = Frozen(transformers.PretrainedConfig())
    model.save_pretrained(tmp_path)
    return model, tmp_path


@wrong_in("transformers")
def test_museum_40_R61_loading_does_not_unfreeze(saved):
    _, folder = saved
    theirs = Frozen.from_pretrained(folder)
    ours = lading.from_pretrained(folder, cls=Frozen, device="cpu", progress=False)
    assert theirs.embed.weight.requires_grad, "mended there: say so in docs/how-it-works/museum.md"
    assert not ours.embed.weight.requires_grad and ours.head.weight.requires_grad


def test_museum_44_R63_variables_of_launchers_decide_nothing(saved, monkeypatch):
    """The group is not up, though a launcher set everything: this is one process, and it gets its weights."""
    original, folder = saved
    for name, value in {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "ACCELERATE_USE_DEEPSPEED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with lading.skeleton():
        model = Frozen(transformers.PretrainedConfig())
    report = lading.materialize(model, folder, device="cpu", progress=False)
    assert report.ranks == 1
    for name, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_museum_20_R12_nothing_is_initialised_after_it_was_loaded(saved):
    """transformers#46620: the framework's own initialiser runs over a model that was filled, and changes no bit."""
    original, folder = saved
    with torch.device("meta"):
        model = Frozen(transformers.PretrainedConfig())
    lading.materialize(model, folder, device="cpu", progress=False)
    model.initialize_weights()
    for name, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
