"""transformers models that were built on plain meta and keep computed tensors as plain attributes."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

import lading  # noqa: E402


class Config(transformers.PretrainedConfig):
    model_type = "lading_test_tables"

    def __init__(self, width=6, steps=4, is_random=False, **fields):
        self.width, self.steps, self.is_random = width, steps, is_random
        super().__init__(**fields)


class Positions(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.arange(config.steps).float()[:, None] / torch.arange(1, config.width + 1).float()
        self.tables = [torch.ones(config.width) * config.steps, {"mask": torch.ones(3, 3, dtype=torch.bool).tril()}]
        if config.is_random:
            self.noise = torch.randn(config.width)


class OtherPositions(Positions):
    pass


class Tables(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.positions = Positions(config)
        self.project = nn.Linear(config.width, config.width)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)


@pytest.fixture
def folder(tmp_path):
    Tables(Config()).save_pretrained(tmp_path)
    return tmp_path


def on_meta(**fields):
    with torch.device("meta"):
        return Tables(Config(**fields))


def fill(model, folder):
    return lading.materialize(model, folder, device="cpu", progress=False)


def refused(model, folder):
    with pytest.raises(lading.LadingError) as error:
        fill(model, folder)
    return {problem.tensor for problem in error.value.problems}


def test_R6_plain_attributes_are_derived_as_buffers_are(folder):
    model, wanted = on_meta(), Tables(Config())
    fill(model, folder)
    assert torch.equal(model.positions.table, wanted.positions.table)
    assert torch.equal(model.positions.tables[0], wanted.positions.tables[0])
    assert torch.equal(model.positions.tables[1]["mask"], wanted.positions.tables[1]["mask"])


def test_R6_a_real_model_that_counts_its_paddings_in_tensors(tmp_path):
    """Mimi and the seven families that contain it keep them as plain attributes of convolutions."""
    config = transformers.MimiConfig(
        num_hidden_layers=1, hidden_size=32, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=8,
        num_quantizers=3, vector_quantization_hidden_dimension=8, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, upsample_groups=32,
    )  # fmt: skip
    torch.manual_seed(1)
    wanted = transformers.MimiModel(config).eval()
    wanted.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.MimiModel(config).eval()
    fill(model, tmp_path)
    sound = torch.randn(1, 1, 640)
    with torch.no_grad():
        assert torch.equal(model(sound).audio_values, wanted(sound).audio_values)


def test_R6_they_follow_the_models_own_config(folder):
    model = on_meta(steps=9)
    fill(model, folder)
    assert model.positions.table.shape == (9, 6) and model.positions.tables[0][0] == 9


def test_R6_random_ones_are_nobodys_to_guess(folder):
    assert refused(on_meta(is_random=True), folder) == {"positions.noise"}


def test_R6_those_of_another_class_than_the_config_builds_are_refused(folder):
    model = on_meta()
    with torch.device("meta"):
        model.positions = OtherPositions(model.config)
    assert "positions.table" in refused(model, folder)
