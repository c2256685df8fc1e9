"""Exhibits 46 to 50 of docs/how-it-works/museum.md: loaders of quantized checkpoints that are wrong without an error, beside
lading on the same files. An oracle that knows nothing of either says what is right (tests/zoo/quantize.py)."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import packed_models  # noqa: E402
import quantize  # noqa: E402
import quantized_models as models  # noqa: E402
from geometry.launch import run_worker, wrong_in  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import lading  # noqa: E402

DEADLINE_S = 200
MLP = "model.layers.0.mlp."
THEIRS = {  # the share of wrong elements, of each tensor that has any
    "transformers_fsdp on 2": {f"{MLP}gate_proj.weight": 0.25, f"{MLP}up_proj.weight": 0.25},
    "transformers_tp on 2": dict.fromkeys((f"{MLP}{one}_proj.weight" for one in ("gate", "up", "down")), 0.25),
    "transformers_fsdp on 4": {f"{MLP}gate_proj.weight": 0.64, f"{MLP}up_proj.weight": 0.64},
}
OURS = ["lading_fsdp2 on 2", "lading_tp on 2", "lading_fsdp2 on 4"]


def load(folder, **options):
    return lading.from_pretrained(folder, device="cpu", dtype=torch.bfloat16, progress=False, **options)


@pytest.fixture(scope="module")
def on_ranks():
    return run_worker("quantized_worker", DEADLINE_S, package="python_front", cases=[*THEIRS, *OURS])


@wrong_in("torch", "transformers")
@pytest.mark.parametrize("case", THEIRS)
def test_museum_46_R48_transformers_cuts_scales_like_weights(on_ranks, case):
    """384 rows on 2 ranks, 1,792 on 4: a rank's rows are not whole blocks. The audit names these tensors and no other."""
    for answer in on_ranks[case]:
        assert "failed" not in answer, answer["failed"]
        assert answer["wrong"] == pytest.approx(THEIRS[case], abs=0.02), "mended there: say so in the museum"
        assert set(answer["audit"]) == set(THEIRS[case])


@pytest.mark.parametrize("case", OURS)
def test_museum_46_R48_each_rank_reads_the_scales_that_it_needs(on_ranks, case):
    assert on_ranks[case] == [{"wrong": {}, "audit": []}] * int(case[-1])


@pytest.fixture(scope="module")
def of_192(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("of_192"), 192, 256)


@pytest.fixture(scope="module")
def of_576(tmp_path_factory):
    return models.make(tmp_path_factory.mktemp("of_576"), 128, 576)


@wrong_in("transformers")
def test_museum_47_R48_transformers_takes_ragged_blocks_for_smaller_ones(of_192):
    """192 columns in blocks of 128: two scales, so it takes blocks of 96. In one process."""
    theirs = models.by_transformers(of_192)
    wrong = models.wrong(theirs, models.oracle(of_192))
    assert len(wrong) == 7 and all(0.1 < share < 0.4 for share in wrong.values()), "mended there: say so in the museum"
    assert {problem.tensor for problem in lading.audit(theirs, of_192, dtype=torch.bfloat16).problems} == set(wrong)


@wrong_in("transformers")
def test_museum_47_R48_transformers_cannot_read_576_rows(of_576):
    """The shape of DeepSeek-V3's kv_a_proj_with_mqa: five scales."""
    with pytest.raises(RuntimeError, match="automatic conversion"):
        models.by_transformers(of_576)


@pytest.mark.parametrize("shape", ["of_192", "of_576"])
def test_museum_47_R48_the_block_is_what_the_config_says(request, shape):
    folder = request.getfixturevalue(shape)
    model = load(folder)
    assert models.wrong(model, models.oracle(folder)) == {}
    assert lading.audit(model, folder, dtype=torch.bfloat16).ok


@wrong_in("transformers")
def test_museum_48_R48_transformers_saves_fp8_that_it_reads_raw(tmp_path):
    """What `dequantize=True` loaded, `save_pretrained` writes as FP8 with scales, and a config that does not say so."""
    folder = models.make(tmp_path, 128, 256)
    right = models.by_transformers(folder)
    right.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
    raw = type(right).from_pretrained(tmp_path / "again", dtype=torch.bfloat16)
    weight = f"{MLP}gate_proj.weight"
    ratio = raw.state_dict()[weight].abs().max() / right.state_dict()[weight].abs().max()
    assert ratio > 1000, "mended there: say so in the museum"
    with pytest.raises(lading.LadingError) as refused:
        load(tmp_path / "again")
    assert {problem.rule for problem in refused.value.problems} == {"R48"}
    assert not lading.audit(raw, tmp_path / "again", dtype=torch.bfloat16).ok


def test_museum_48_R48_what_lading_loaded_is_saved_as_it_is_in_memory(tmp_path):
    folder = models.make(tmp_path, 128, 256)
    ours = load(folder)
    ours.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
    again = type(ours).from_pretrained(tmp_path / "again", dtype=torch.bfloat16)
    assert models.wrong(again, models.oracle(folder)) == {}


def without_scales(folder):
    """All but the first shard, in which the payloads are."""
    for path in sorted(folder.glob("*.safetensors")):
        kept = {key: value for key, value in load_file(path).items() if not key.startswith(f"{MLP}gate_proj.weight_")}
        save_file(kept, path)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    del document["weight_map"][f"{MLP}gate_proj.weight_scale_inv"]
    index.write_text(json.dumps(document))


def by_torch(folder, wanted):
    """torch's reader into memory of F32, and the largest ratio to what is right."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

    state = {key: torch.zeros(value.shape) for key, value in wanted.items() if key.endswith("_proj.weight")}
    dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(str(folder)), no_dist=True)
    ratios = {key: (value.abs().max() / wanted[key].float().abs().max()).item() for key, value in state.items()}
    return {key for key, ratio in ratios.items() if ratio > 100}


@wrong_in("torch")
def test_museum_49_R48_torch_copies_a_payload_raw_where_the_scale_has_another_name(tmp_path):
    scheme = dataclasses.replace(models.BLOCKS, name="weight_scale")
    folder = models.make(tmp_path, 128, 256, scheme)
    wanted = models.oracle(folder, scheme)
    assert len(by_torch(folder, wanted)) == 7, "mended there: say so in the museum"
    assert models.wrong(load(folder), wanted) == {}


@wrong_in("torch")
def test_museum_49_R48_torch_copies_a_payload_raw_where_the_scale_is_missing(tmp_path):
    folder = models.make(tmp_path, 128, 256)
    wanted = models.oracle(folder)
    without_scales(folder)
    assert by_torch(folder, wanted) == {f"{MLP}gate_proj.weight"}, "mended there: say so in the museum"
    with pytest.raises(lading.LadingError) as refused:
        load(folder)
    assert {problem.tensor for problem in refused.value.problems} == {f"{MLP}gate_proj.weight"}
    assert {problem.rule for problem in refused.value.problems} <= {"R48", "R23"}


@pytest.fixture(scope="module")
def of_gpt_oss(tmp_path_factory):
    return packed_models.make(
        tmp_path_factory.mktemp("gpt_oss"), packed_models.SCHEMES["mxfp4"], packed_models.gpt_oss_config()
    )


EXPERTS = {f"model.layers.0.mlp.experts.{one}_proj" for one in ("gate_up", "down")}


@wrong_in("transformers")
def test_museum_50_R48_transformers_saves_experts_that_it_cannot_read(of_gpt_oss, tmp_path):
    """BF16 values under the names of MXFP4 blocks. A reader that does not find the experts must not go on."""
    said = transformers.Mxfp4Config(dequantize=True)
    right = transformers.AutoModelForCausalLM.from_pretrained(of_gpt_oss, dtype=torch.bfloat16, quantization_config=said)
    wanted = packed_models.ordinary(of_gpt_oss, packed_models.SCHEMES["mxfp4"])
    assert packed_models.wrong(right, wanted) == {}
    right.save_pretrained(tmp_path)
    again = type(right).from_pretrained(tmp_path, dtype=torch.bfloat16)
    wrong = packed_models.wrong(again, wanted)
    assert set(wrong) == EXPERTS and min(wrong.values()) > 0.9, "mended there: say so in the museum"
    with pytest.raises(lading.LadingError) as refused:
        load(tmp_path)
    assert EXPERTS <= {problem.tensor for problem in refused.value.problems}
    assert EXPERTS <= {problem.tensor for problem in lading.audit(again, tmp_path, dtype=torch.bfloat16).problems}


def test_museum_50_R48_what_lading_loaded_of_mxfp4_is_saved_as_it_is_in_memory(of_gpt_oss, tmp_path):
    ours = load(of_gpt_oss)
    ours.save_pretrained(tmp_path)
    again = type(ours).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert packed_models.wrong(again, packed_models.ordinary(of_gpt_oss, packed_models.SCHEMES["mxfp4"])) == {}


def test_the_oracle_rounds_once():
    """Ties and what is just above them: by way of F32 they would go the other way. Fractions are exact."""
    import numpy

    above, below = 1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40
    values = numpy.array([1 + 2.0**-8, above, below, -(2.0**-134), 3.39e38, 3.4e38])
    once = [1.0, 1 + 2.0**-7, 1 + 2.0**-7, -0.0, 3.3895313892515355e38, float("inf")]
    assert quantize.rounded(values, torch.bfloat16).double().tolist() == once
    assert torch.from_numpy(values[1:2]).float().to(torch.bfloat16).item() == 1.0  # twice
    subnormal = numpy.array([2.0**-133 * 2.5, 2.0**-133 * 3.5, 2.0**-24 * 0.5])
    assert quantize.rounded(subnormal, torch.bfloat16).double().tolist()[:2] == [2.0**-132, 2.0**-131]
    assert quantize.rounded(subnormal, torch.float16).double().tolist()[2] == 0.0
    assert quantize.rounded(numpy.array([1e39]), torch.float32).item() == float("inf")
    random = numpy.random.default_rng(1)
    drawn = random.standard_normal(100_000) * 2.0 ** random.integers(-60, 12, 100_000)
    assert torch.equal(quantize.rounded(drawn, torch.float32), torch.from_numpy(drawn.astype(numpy.float32)))
    assert torch.equal(quantize.rounded(drawn, torch.float16), torch.from_numpy(drawn.astype(numpy.float16)))
