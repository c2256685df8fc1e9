"""Checkpoints of packed codes in one process: every scheme, dtype and arithmetic, what is said, `quantized="keep"`, and
audits. The oracle is tests/zoo/packed.py's, loaded as an ordinary checkpoint by transformers itself."""

import json
from dataclasses import fields

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import packed  # noqa: E402
import packed_models as models  # noqa: E402
import quantize  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import lading  # noqa: E402

BF16 = torch.bfloat16
DTYPES = {"bf16": BF16, "fp16": torch.float16, "fp32": torch.float32}
LLAMAS = [name for name in models.SCHEMES if name != "mxfp4"]
OF_EXPERTS = ["int4", "int4 with zero points", "int8", "gptq", "gptq v2", "awq", "nvfp4 of modelopt", "signed bytes"]
WEIGHT = "model.layers.0.mlp.up_proj.weight"
SAID = "quantized tensors dequantized"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of each scheme and architecture, which no test changes."""
    configs = {"llama": models.llama_config, "qwen": models.qwen_config, "gpt_oss": models.gpt_oss_config}
    folders = {}

    def make(scheme, model="llama"):
        if (scheme, model) not in folders:
            folder = tmp_path_factory.mktemp("packed")
            folders[scheme, model] = models.make(folder, models.SCHEMES[scheme], configs[model]())
        return folders[scheme, model]

    return make


def load(folder, **options):
    return lading.from_pretrained(folder, device="cpu", progress=False, **options)


def audited(model, folder, **options):
    return {(one.code, one.tensor) for one in lading.audit(model, folder, **options).problems}


# ---- values


@pytest.mark.parametrize("scheme", LLAMAS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_R48_every_scheme_is_multiplied_and_rounded_once(made, scheme, dtype):
    folder = made(scheme)
    model = load(folder, dtype=dtype, cast="exact")
    assert models.wrong(model, models.ordinary(folder, models.SCHEMES[scheme], dtype)) == {}
    report = lading.report_of(model)
    assert report.missing_keys == []
    assert audited(model, folder, dtype=dtype, cast="exact") == set()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_R48_experts_of_mxfp4_have_their_dims_swapped(made, dtype):
    folder = made("mxfp4", "gpt_oss")
    model = load(folder, dtype=dtype, cast="exact")
    assert models.wrong(model, models.ordinary(folder, models.SCHEMES["mxfp4"], dtype)) == {}
    assert audited(model, folder, dtype=dtype, cast="exact") == set()


@pytest.mark.parametrize("scheme", OF_EXPERTS)
def test_R48_experts_are_dequantized_before_they_are_stacked(made, scheme):
    folder = made(scheme, "qwen")
    model = load(folder, dtype=BF16)
    assert models.wrong(model, models.ordinary(folder, models.SCHEMES[scheme])) == {}
    assert audited(model, folder, dtype=BF16) == set()


@pytest.mark.parametrize("scheme", [scheme for scheme in LLAMAS if "nvfp4" not in scheme])
def test_R48_reference_arithmetic_gives_the_bits_of_the_tool(made, scheme):
    """test_quantized_real.py compares the oracle with the tools themselves."""
    folder = made(scheme)
    for dtype in (BF16, torch.float32):
        model = load(folder, dtype=dtype, arithmetic="reference")
        wanted = models.ordinary(folder, models.SCHEMES[scheme], dtype, "reference")
        assert models.wrong(model, wanted) == {}
        assert audited(model, folder, dtype=dtype, arithmetic="reference") == set()


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4 of modelopt"])
def test_R48_reference_arithmetic_of_nvfp4_is_refused(made, scheme):
    with pytest.raises(lading.LadingError, match="NVFP4"):
        load(made(scheme), dtype=BF16, arithmetic="reference")


def test_R48_transformers_itself_makes_the_same_of_mxfp4(made):
    folder = made("mxfp4", "gpt_oss")
    said = transformers.Mxfp4Config(dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=BF16, quantization_config=said)
    assert models.wrong(load(folder, dtype=BF16), theirs.state_dict()) == {}


@pytest.mark.parametrize("scheme", ["int4", "gptq", "awq", "nvfp4", "nvfp4 of modelopt"])
def test_R48_a_model_of_our_own_is_materialized(made, scheme):
    """Without transformers' conversions: by the names that an ordinary checkpoint has."""
    folder = made(scheme)
    wanted = quantize.dequantized(folder, models.SCHEMES[scheme], BF16)

    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(models.INNER, models.HIDDEN, dtype=BF16))

    with lading.skeleton():
        model = nn.ModuleDict({"up": Up()})
    mapping = {WEIGHT: "up.weight"}
    lading.materialize(model, folder, device="cpu", mapping=mapping, dtype=BF16, strict=False, progress=False)
    assert torch.equal(model["up"].weight, wanted[WEIGHT])


# ---- what is said


@pytest.mark.parametrize("scheme", ["int4", "gptq", "awq", "nvfp4 with inputs", "nvfp4 of modelopt with inputs", "mxfp8"])
def test_R48_the_config_no_longer_says_that_the_model_is_quantized(made, tmp_path, scheme):
    model = load(made(scheme), dtype=BF16)
    assert not hasattr(model.config, "quantization_config")
    notes = lading.report_of(model).notes
    assert any(f"7 {SAID}" in note for note in notes) and any("quantization_config" in note for note in notes)
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again = type(model).from_pretrained(tmp_path / "saved", dtype="auto").state_dict()
    assert models.wrong(model, again) == {}


@pytest.mark.parametrize("scheme", ["int4 with zero points", "gptq", "awq", "nvfp4"])
def test_R48_no_part_of_a_weight_is_an_unexpected_key(made, scheme):
    report = lading.report_of(load(made(scheme), dtype=BF16))
    assert report.unexpected_keys == [] and report.missing_keys == []


def test_R48_a_plan_says_it_and_changes_nothing(made):
    folder = made("gptq")
    with lading.skeleton():
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(folder))
    plan = lading.plan(model, folder, device="cpu")
    assert any(f"7 {SAID}" in note for note in plan.notes)
    assert hasattr(model.config, "quantization_config")


def test_the_dtype_is_that_of_the_config_if_nothing_is_asked_for(made):
    assert load(made("awq")).model.layers[0].mlp.up_proj.weight.dtype == BF16


@pytest.mark.parametrize("scheme", ["gptq", "awq"])
def test_R48_a_square_weight_of_a_conv1d_is_refused(tmp_path, scheme):
    """It would be transposed, and its shape does not tell."""
    sizes = {"vocab_size": 97, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, **sizes)

    class Square(type(models.SCHEMES[scheme])):
        def quantizes(self, key, weight):
            return key.endswith("attn.c_proj.weight")

    square = Square(**{one.name: getattr(models.SCHEMES[scheme], one.name) for one in fields(Square)})
    folder = models.make(tmp_path, square, config)
    for call in (load, lambda folder: lading.plan(transformers.AutoModelForCausalLM.from_config(config), folder)):
        with pytest.raises(lading.LadingError, match="the weight of a Conv1D is packed by GPTQ or AWQ") as caught:
            call(folder)
        assert [one.tensor for one in caught.value.problems] == ["transformer.h.0.attn.c_proj.weight"]


# ---- names


@pytest.mark.parametrize("scheme", ["int4 with zero points", "gptq", "awq", "nvfp4", "nvfp4 of modelopt"])
def test_a_packed_weight_has_the_name_and_shape_of_an_ordinary_one(made, scheme):
    """For a model without tensors for its parts, whatever the model's prefixes are."""
    from lading.conversion import Catalog

    folder, ends = str(made(scheme)), models.SCHEMES[scheme].ends
    optional = ("weight", "weight_g_idx")  # compressed-tensors stores the latter in activation order only
    parts = {f"{WEIGHT.removesuffix('weight')}{end}" for end in ends if end not in optional}
    stored = Catalog.of(folder).shapes
    ordinary = Catalog.of(folder, ["layers.0.mlp.up_proj.weight"]).shapes
    assert ordinary[WEIGHT] == (models.INNER, models.HIDDEN) != stored.get(WEIGHT)
    assert parts <= stored.keys() and not parts & ordinary.keys()
    assert Catalog.of(folder, [f"layers.0.mlp.up_proj.{end}" for end in ends]).shapes == stored


# ---- quantized="keep"


@pytest.mark.parametrize("scheme", ["int4", "gptq", "awq", "nvfp4", "nvfp4 of modelopt", "mxfp8"])
def test_R48_keep_refuses_a_model_without_tensors_for_the_parts(made, scheme):
    with pytest.raises(lading.LadingError) as refused:
        load(made(scheme), quantized="keep")
    assert "R48" in {problem.rule for problem in refused.value.problems}


def test_R48_keep_refuses_an_unquantized_gpt_oss(made):
    with pytest.raises(lading.LadingError) as refused:
        load(made("mxfp4", "gpt_oss"), quantized="keep")
    assert "R48" in {problem.rule for problem in refused.value.problems}


class Parts(nn.Module):
    """As a quantized layer holds them: what the file has, and no weight."""

    def __init__(self, held):
        super().__init__()
        for name, value in held.items():
            self.register_buffer(name, torch.zeros_like(value))


@pytest.mark.parametrize("quantized", ["keep", "dequantize"])
@pytest.mark.parametrize("scheme", ["int4 with zero points", "gptq", "awq", "nvfp4"])
def test_R48_a_model_with_tensors_for_the_parts_gets_them_as_they_are(made, scheme, quantized):
    """And its config goes on saying so."""
    folder = made(scheme)
    stored = {key: value for path in sorted(folder.glob("*.safetensors")) for key, value in load_file(path).items()}
    ends = models.SCHEMES[scheme].ends

    class Quantized(transformers.LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            for name in [name for name, one in self.named_modules() if isinstance(one, nn.Linear) and name != "lm_head"]:
                owner, _, leaf = name.rpartition(".")
                held = {end: stored[f"{name}.{end}"] for end in ends if f"{name}.{end}" in stored}
                setattr(self.get_submodule(owner), leaf, Parts(held))

    model = load(folder, cls=Quantized, quantized=quantized)
    state = model.state_dict()
    assert all(torch.equal(state[key].view(torch.uint8), value.view(torch.uint8)) for key, value in stored.items() if value.dim())
    assert model.config.quantization_config is not None


def test_R48_quantization_config_is_refused_with_what_to_do(made):
    with pytest.raises(lading.LadingError) as refused:
        load(made("gptq"), quantization_config=transformers.GPTQConfig(bits=4))
    assert "quantization_config" in str(refused.value) and "Omit" in str(refused.value)


# ---- audits


@pytest.mark.parametrize("scheme", ["int4 with zero points", "gptq", "awq", "nvfp4"])
def test_R48_an_audit_finds_one_wrong_element(made, scheme):
    folder = made(scheme)
    model = load(folder, dtype=BF16)
    with torch.no_grad():
        model.get_parameter(WEIGHT).view(torch.int16)[-1, -1] ^= 1
    assert audited(model, folder, dtype=BF16) == {("value", WEIGHT)}


def a_group_on(parts):
    """Scales of the group beside."""
    end = "scales" if "scales" in parts else "weight_scale"
    along = 0 if end == "scales" else 1
    turned = parts[end].view(torch.uint8).reshape(*parts[end].shape, -1).roll(1, along)
    return {end: turned.flatten(-2).view(parts[end].dtype)}


def codes_of(words):
    return packed.unpack(words.numpy(), 4, words.shape[1] * 8)


def zero_points_less_one(parts):
    return {end: torch.from_numpy(packed.pack((codes_of(parts[end]) - 1) % 16, 4)) for end in parts if end == "qzeros"}


def halves_of_bytes_swapped(parts):
    held = {end: value for end, value in parts.items() if end in ("qweight", "weight_packed")}
    return {end: (value.view(torch.uint8) >> 4 | value.view(torch.uint8) << 4).view(value.dtype) for end, value in held.items()}


WRONG = [a_group_on, zero_points_less_one, halves_of_bytes_swapped]  # by other readers


@pytest.mark.parametrize("scheme", ["int4 with zero points", "gptq", "awq", "nvfp4"])
@pytest.mark.parametrize("mistake", WRONG)
def test_R48_an_audit_finds_what_another_reader_gets_wrong(made, scheme, mistake):
    folder, own = made(scheme), models.SCHEMES[scheme]
    stored = {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}
    parts = own.parts_of(stored, own.weights_in(stored)[WEIGHT])
    changed = mistake(parts)
    if not changed:
        pytest.skip(f"{scheme} has no such part")
    model = load(folder, dtype=BF16)
    with torch.no_grad():
        model.get_parameter(WEIGHT).copy_(own.exact(parts | changed, BF16))
    assert audited(model, folder, dtype=BF16) == {("value", WEIGHT)}


# ---- what cannot be right


def spoilt(folder, tmp_path, change):
    """A copy, of whose tensors `change` gets each shard's, and of whose config what says how it is quantized."""
    target = tmp_path / "spoilt"
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        change(tensors, config["quantization_config"])
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    held = {key: path.name for path in sorted(target.glob("*.safetensors")) for key in load_file(path)}
    (target / "model.safetensors.index.json").write_text(json.dumps(index | {"weight_map": held}))
    (target / "config.json").write_text(json.dumps(config))
    return target


def of_up(end):
    return WEIGHT.removesuffix("weight") + end


def group_of(number):
    def change(tensors, _):
        for end in ("g_idx", "weight_g_idx"):
            if of_up(end) in tensors:
                tensors[of_up(end)][5] = number

    return change


def without_order(tensors, config):
    config["desc_act"] = True
    for key in [key for key in tensors if key.endswith(".g_idx")]:
        del tensors[key]


def said(**fields):
    def change(_, config):
        groups = config.get("config_groups", {})
        (groups["group_0"]["weights"] if groups else config).update(fields)

    return change


def nan_scale(tensors, _):
    for end in ("scales", "weight_scale"):
        if of_up(end) in tensors and tensors[of_up(end)].dtype == torch.uint8:
            tensors[of_up(end)][-1, -1] = 255
        elif of_up(end) in tensors:
            tensors[of_up(end)].view(-1)[-1:] = float("nan")


SPOILT = {
    "a group too many": ("gptq", group_of(99)),
    "a negative group": ("gptq in activation order", group_of(-1)),
    "a group too many of int4": ("int4 in activation order", group_of(2**31 - 1)),
    "desc_act without g_idx": ("gptq", without_order),
    "3 bits": ("gptq", said(bits=3)),
    "8 bits of 4": ("gptq", said(bits=8)),
    "other groups": ("gptq", said(group_size=64)),
    "other groups of awq": ("awq", said(group_size=32)),
    "gemv": ("awq", said(version="gemv")),
    "other groups of int4": ("int4", said(group_size=64)),
    "8 bits of int4": ("int4", said(num_bits=8)),
    "nan": ("int4", nan_scale),
    "nan of gptq": ("gptq", nan_scale),
    "nan of nvfp4": ("nvfp4", nan_scale),
    "nan of mxfp8": ("mxfp8", nan_scale),
}


@pytest.mark.parametrize("case", SPOILT)
def test_R48_what_cannot_be_right_is_refused_before_anything_is_written(made, tmp_path, case):
    scheme, change = SPOILT[case]
    folder = spoilt(made(scheme), tmp_path, change)
    with lading.skeleton():
        model = transformers.LlamaForCausalLM(models.llama_config())
    with pytest.raises(lading.LadingError) as refused:
        lading.materialize(model, folder, device="cpu", dtype=BF16, progress=False)
    problems = refused.value.problems
    assert {problem.rule for problem in problems} & {"R48"} or {problem.code for problem in problems} == {"scale"}
    assert all(parameter.is_meta for parameter in model.parameters())
