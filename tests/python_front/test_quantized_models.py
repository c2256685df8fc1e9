"""FP8 checkpoints of transformers' architectures in one process: every scheme, what `from_pretrained` leaves in the config,
`quantized=`, parameters that other libraries have quantized, and audits. The oracle is tests/zoo/quantize.py's, loaded as
an ordinary checkpoint by transformers itself."""

import dataclasses
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy  # noqa: E402
import quantize  # noqa: E402
import quantized_models as fp8  # noqa: E402
import zoo  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

import lading  # noqa: E402

BF16 = torch.bfloat16
SCHEMES = {
    "f32": quantize.Scheme((12, 20)),
    "bf16": quantize.Scheme((20, 12), scales="BF16"),
    "f16": quantize.Scheme((7, 5), scales="F16"),
    "e8m0": quantize.Scheme((16, 16), scales="E8M0"),
    "e5m2": quantize.Scheme((7, 48), payload="E5M2"),
    "blocks of 128": quantize.Scheme(),
    "channel": quantize.PER_CHANNEL,
    "channel in bf16": dataclasses.replace(quantize.PER_CHANNEL, scales="BF16"),
    "tensor": quantize.PER_TENSOR,
    "compressed-tensors": dataclasses.replace(quantize.PER_CHANNEL, scales="BF16", method="compressed-tensors"),
    "its blocks": quantize.Scheme((16, 12), scales="BF16", name="weight_scale", method="compressed-tensors"),
}
# Dense; experts merged from one key each; stacked and transposed experts; latent attention; pins; another tower.
MODELS = ["qwen3", "mixtral", "qwen3_moe", "gpt_oss", "qwen3_vl_moe", "deepseek_v3", "ernie4_5_vl_moe", "gemma3"]
WEIGHT = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder of each architecture, as `save_pretrained` writes it."""
    root, made = tmp_path_factory.mktemp("plain"), set()

    def make(model_type):
        if model_type not in made:
            zoo.make(model_type, root / model_type)
            made.add(model_type)
        return root / model_type

    return make


@pytest.fixture
def llama(plain, tmp_path):
    quantize.quantize(plain("llama"), tmp_path / "fp8", SCHEMES["f32"])
    return tmp_path / "fp8"


def load(folder, **options):
    return lading.from_pretrained(folder, device="cpu", progress=False, **options)


def by_transformers(cls, folder, tmp_path, scheme, dtype):
    """An ordinary checkpoint of the oracle's values; a tensor that the model keeps in F32 is rounded to that alone."""
    values = {}
    for own in {dtype, torch.float32}:
        target = tmp_path / f"oracle.{own}"
        quantize.unquantize(folder, target, scheme, own)
        values[own] = cls.from_pretrained(target, dtype=dtype).state_dict()
    return {name: values[value.dtype][name] for name, value in values[dtype].items()}


def is_right(model, folder, tmp_path, scheme, dtype):
    wanted = by_transformers(type(model), folder, tmp_path, scheme, dtype)
    held = model.state_dict()
    assert set(held) == set(wanted)
    return [name for name, value in wanted.items() if not zoo.same_bits(value, held[name])] == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
def test_R48_every_scheme_is_multiplied_and_rounded_once(plain, tmp_path, scheme, dtype):
    keys = quantize.quantize(plain("llama"), tmp_path / "fp8", SCHEMES[scheme])
    model = load(tmp_path / "fp8", dtype=dtype, cast="exact")
    assert len(keys) == 14
    assert is_right(model, tmp_path / "fp8", tmp_path, SCHEMES[scheme], dtype)
    assert lading.audit(model, tmp_path / "fp8", dtype=dtype, cast="exact").ok


@pytest.mark.parametrize("model_type", MODELS)
def test_R48_payloads_are_dequantized_before_they_are_merged(plain, tmp_path, model_type):
    scheme = list(SCHEMES.values())[MODELS.index(model_type)]
    assert quantize.quantize(plain(model_type), tmp_path / "fp8", scheme)
    model = load(tmp_path / "fp8", dtype=BF16, cast="exact")
    assert is_right(model, tmp_path / "fp8", tmp_path, scheme, BF16)
    report = lading.report_of(model)
    assert report.unexpected_keys == [] and report.missing_keys == []
    assert lading.audit(model, tmp_path / "fp8", dtype=BF16, cast="exact").ok


def test_R48_reference_arithmetic_gives_the_bits_of_transformers(tmp_path):
    """In whole blocks, in one process, where transformers is right. It rounds to F32 first."""
    folder = fp8.make(tmp_path, 256, 384)
    path = folder / "model-00002-of-00002.safetensors"
    scales = load_file(path)
    # 1.125 times this is just above a tie of BF16, and a tie once it is rounded to F32.
    scales[f"{WEIGHT}_scale_inv"].fill_(float(numpy.float32((1 + 2.0**-8) / 1.125)) + 2.0**-24)
    save_file(scales, path)
    theirs = fp8.by_transformers(folder).state_dict()
    reference = load(folder, dtype=BF16, arithmetic="reference")
    assert [name for name, value in theirs.items() if not zoo.same_bits(value, reference.state_dict()[name])] == []
    exact = load(folder, dtype=BF16)
    assert fp8.wrong(exact, fp8.oracle(folder)) == {}
    twice = fp8.wrong(reference, fp8.oracle(folder))
    assert set(twice) == {WEIGHT} and 0.05 < twice[WEIGHT] < 0.2
    assert lading.audit(reference, folder, dtype=BF16, arithmetic="reference").ok
    assert {one.tensor for one in lading.audit(reference, folder, dtype=BF16).problems} == set(twice)


# ---- what is said


def test_R48_the_config_no_longer_says_that_the_model_is_quantized(llama, tmp_path):
    model = load(llama, dtype=BF16)
    assert not hasattr(model.config, "quantization_config")
    report = lading.report_of(model)
    assert any("14 quantized tensors dequantized" in note for note in report.notes)
    assert any("quantization_config" in note for note in report.notes)
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    again = type(model).from_pretrained(tmp_path / "saved", dtype="auto").state_dict()
    assert all(torch.equal(value.to(again[name].dtype), again[name]) for name, value in model.state_dict().items())


def test_R48_nor_does_the_config_of_one_tower(plain, tmp_path):
    quantize.quantize(plain("gemma3"), tmp_path / "fp8", SCHEMES["f32"])
    path = tmp_path / "fp8" / "config.json"
    fields = json.loads(path.read_text())
    fields["text_config"]["quantization_config"] = fields.pop("quantization_config")
    path.write_text(json.dumps(fields))
    model = load(tmp_path / "fp8", dtype=BF16)
    assert "quantization_config" not in json.dumps(model.config.to_dict(), default=str)


def test_R48_a_plan_says_it_and_changes_nothing(llama):
    with lading.skeleton():
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(llama))
    plan = lading.plan(model, llama, device="cpu")
    assert any("14 quantized tensors dequantized" in note for note in plan.notes)
    assert hasattr(model.config, "quantization_config")


def test_the_dtype_is_that_of_the_config_if_nothing_is_asked_for(llama):
    path = llama / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16"}))
    assert load(llama).model.layers[0].mlp.up_proj.weight.dtype == BF16


# ---- quantized="keep"


def test_R48_keep_refuses_a_model_without_the_scales(llama):
    with pytest.raises(lading.LadingError) as refused:
        load(llama, quantized="keep")
    assert {problem.rule for problem in refused.value.problems} == {"R48"}
    assert WEIGHT.replace(".0.", ".*.") in str(refused.value)


@pytest.mark.parametrize("quantized", ["keep", "dequantize"])
def test_R48_a_model_with_tensors_for_both_gets_them_as_they_are(llama, quantized):
    """And its config goes on saying so."""

    class Scaled(transformers.LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            shards = [load_file(path) for path in sorted(llama.glob("*.safetensors"))]
            self.held = {key: value for shard in shards for key, value in shard.items()}
            for key, value in self.held.items():
                owner, _, name = key.rpartition(".")
                if value.dtype == torch.float8_e4m3fn:
                    linear = self.get_submodule(owner)
                    setattr(linear, name, nn.Parameter(torch.zeros_like(value), requires_grad=False))
                    scale = torch.zeros_like(self.held[f"{key}_scale_inv"])
                    setattr(linear, f"{name}_scale_inv", nn.Parameter(scale))

    model = load(llama, cls=Scaled, quantized=quantized)
    state = model.state_dict()
    assert all(zoo.same_bits(state[key], value) for key, value in model.held.items())
    assert model.config.quantization_config is not None


# ---- parameters of other libraries


class Params4bit(nn.Parameter):
    """A stand-in for bitsandbytes' class of this name, which is not installed: it quantizes when it moves."""

    def cuda(self, *args, **kwargs):
        raise NotImplementedError

    def to(self, *args, **kwargs):
        raise NotImplementedError


class Packed(torch.Tensor):
    """As torchao's: a tensor whose values are in two others."""

    @staticmethod
    def __new__(cls, packed, scale):
        return torch.Tensor._make_wrapper_subclass(cls, (8, 8), dtype=torch.float32, device="cpu")

    def __init__(self, packed, scale):
        self.packed, self.scale = packed, scale

    def __tensor_flatten__(self):
        return ["packed", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].packed, args[0].scale)
        raise NotImplementedError(func)


class Marked(nn.Parameter):
    """Harmless: a name for a parameter."""

    role = "gate"


def two_layers(wrap):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    for linear in model:
        linear.weight = wrap(linear.weight.detach())
    return model


@pytest.fixture
def eights(tmp_path):
    save_file({f"{place}.weight": torch.ones(8, 8) for place in (0, 1)}, tmp_path / "model.safetensors")
    return tmp_path


WRAPPED = {
    "Params4bit": lambda value: Params4bit(value, requires_grad=False),
    "Packed": lambda value: nn.Parameter(Packed(value.char(), torch.ones(())), requires_grad=False),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_R48_parameters_of_other_libraries_are_refused_by_name(eights, kind):
    model = two_layers(WRAPPED[kind])
    with pytest.raises(lading.LadingError) as refused:
        lading.materialize(model, eights, device="cpu", progress=False)
    assert [(one.tensor, one.rule) for one in refused.value.problems] == [("0.weight", "R48"), ("1.weight", "R48")]
    assert kind in str(refused.value) and "Load the model first" in str(refused.value)
    report = lading.audit(model, eights)
    assert {(one.tensor, one.code) for one in report.problems} == {("0.weight", "skeleton"), ("1.weight", "skeleton")}


def test_R48_what_is_kept_may_be_anything(eights):
    model = two_layers(WRAPPED["Params4bit"])
    model[1].weight = nn.Parameter(torch.zeros(8, 8))
    lading.materialize(model, eights, device="cpu", keep=["0.weight"], allow_unexpected=["0.weight"], progress=False)
    assert torch.equal(model[1].weight, torch.ones(8, 8)) and type(model[0].weight) is Params4bit


def test_R23_a_request_for_float8_is_refused_by_the_engine(plain):
    with pytest.raises(lading.LadingError, match="float8 does not promote"):
        load(plain("llama"), dtype=torch.float8_e4m3fn)


def test_a_parameter_that_only_has_a_name_of_its_own_is_filled(eights):
    model = two_layers(Marked)
    lading.materialize(model, eights, device="cpu", progress=False)
    assert torch.equal(model[0].weight, torch.ones(8, 8)) and type(model[0].weight) is Marked


# ---- audits


def found(model, folder):
    return {(one.code, one.tensor) for one in lading.audit(model, folder, dtype=BF16, cast="exact").problems}


def test_R48_an_audit_finds_one_wrong_element(llama):
    model = load(llama, dtype=BF16, cast="exact")
    assert found(model, llama) == set()
    with torch.no_grad():
        weight = model.get_parameter(WEIGHT)
        weight.view(torch.int16)[-1, -1] ^= 1
    assert found(model, llama) == {("value", WEIGHT)}


def test_R48_an_audit_finds_a_payload_without_its_scale(llama):
    model = load(llama, dtype=BF16, cast="exact")
    payloads = {key: value for path in llama.glob("*.safetensors") for key, value in load_file(path).items()}
    with torch.no_grad():
        model.get_parameter(WEIGHT).copy_(payloads[WEIGHT].to(BF16))
    assert found(model, llama) == {("value", WEIGHT)}


def test_R48_an_audit_finds_a_scale_of_the_block_beside(llama):
    model = load(llama, dtype=BF16, cast="exact")
    payloads = {key: value for path in llama.glob("*.safetensors") for key, value in load_file(path).items()}
    scales = payloads[f"{WEIGHT}_scale_inv"]
    blocks = SCHEMES["f32"].blocks_of(tuple(payloads[WEIGHT].shape))
    with torch.no_grad():
        wrong = quantize.dequantize_tensor(payloads[WEIGHT], scales.roll(1, 0), blocks, BF16)
        model.get_parameter(WEIGHT).copy_(wrong)
    assert found(model, llama) == {("value", WEIGHT)}
