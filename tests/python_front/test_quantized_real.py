"""The oracle of packed codes (tests/zoo/packed.py) beside the tools that write and read such files. Without them, it would
only agree with itself. compressed-tensors, AutoGPTQ and AutoAWQ are no requirements of lading: their tests run where they
can be imported, as with `pip install --no-deps --target DIR compressed-tensors==0.18.0 loguru` and DIR in PYTHONPATH.
Later versions of compressed-tensors have no activation order."""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy  # noqa: E402
import packed  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SCHEMES = packed.SCHEMES
OF_COMPRESSED_TENSORS = [name for name, scheme in SCHEMES.items() if scheme.method == "compressed-tensors"]
OF_GPTQ = [name for name, scheme in SCHEMES.items() if scheme.method == "gptq"]
OF_AWQ = [name for name, scheme in SCHEMES.items() if scheme.method == "awq"]


def stored(scheme, out=40, into=192, seed=0):
    """A weight's parts, by the ends of their names."""
    weight = torch.randn(out, into, generator=torch.Generator().manual_seed(seed)) / 20
    if isinstance(scheme, packed.Mxfp4):
        key, weight = "x.gate_up_proj", torch.stack([weight.t(), 3 * weight.t()])
    else:
        key = "x.weight"
    assert scheme.quantizes(key, weight)
    payload, others = scheme.store(key, weight)
    (keys,) = scheme.weights_in(payload | others).values()
    return scheme.parts_of(payload | others, keys)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


# ---- transformers


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bf16", "fp16", "fp32"])
def test_mxfp4_is_what_transformers_makes_of_it(dtype):
    """All codes, and all scales that are numbers. It computes in BF16."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).repeat(255, 1, 1)[:, :, None]
    scales = torch.arange(255, dtype=torch.uint8)[:, None, None].repeat(1, 16, 1)
    for parts in (stored(SCHEMES["mxfp4"]), {"_blocks": every, "_scales": scales}):
        theirs = convert_moe_packed_tensors(parts["_blocks"], parts["_scales"]).to(dtype)
        assert same(SCHEMES["mxfp4"].reference(parts, dtype), theirs)
        exact = SCHEMES["mxfp4"].exact(parts, dtype)
        assert same(exact[exact.isfinite()], theirs[exact.isfinite()])  # 6 * 2**126 is no BF16


def test_mxfp8_is_what_transformers_makes_of_it():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    parts = stored(SCHEMES["mxfp8 of transformers"])
    theirs = Fp8Dequantize._dequantize_one(object.__new__(Fp8Dequantize), parts["weight"], parts["weight_scale_inv"])
    assert same(SCHEMES["mxfp8 of transformers"].exact(parts, theirs.dtype), theirs)


# ---- compressed-tensors


def scheme_of_theirs(scheme):
    """Its own object, out of the config that the oracle writes."""
    from compressed_tensors.quantization import QuantizationConfig

    config = scheme.config(["lm_head"])
    try:
        read = QuantizationConfig.model_validate(config)
    except ValueError as error:
        if "actorder='group' has been removed" in str(error):
            pytest.skip("this version of compressed-tensors has no activation order")
        raise
    assert read.format == config["format"]
    (group,) = read.config_groups.values()
    return config["format"], group


@pytest.mark.parametrize("name", OF_COMPRESSED_TENSORS)
def test_codes_are_what_compressed_tensors_makes_of_them(name):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor

    scheme, parts = SCHEMES[name], stored(SCHEMES[name])
    form, group = scheme_of_theirs(scheme)
    theirs = BaseCompressor.get_value_from_registry(form).decompress(dict(parts), group)["weight"]
    for dtype in (BF16, F16, F32):
        assert same(scheme.reference(parts, dtype), theirs.to(dtype))
    assert same(scheme.exact(parts, F32).to(theirs.dtype), theirs) or name.startswith("nvfp4")


@pytest.mark.parametrize("name", OF_COMPRESSED_TENSORS)
def test_compressed_tensors_packs_as_the_oracle_does(name):
    """Its compression of the exact values gives the same bytes."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor

    scheme, parts = SCHEMES[name], stored(SCHEMES[name])
    form, group = scheme_of_theirs(scheme)
    given = {"weight": scheme.exact(parts, F32)}
    given |= {end: value for end, value in parts.items() if "scale" in end or end == "weight_g_idx"}
    scales = given["weight_scale"]
    given["weight_scale"] = (scales.view(torch.float8_e8m0fnu) if scales.dtype == torch.uint8 else scales).float()
    if "weight_zero_point" in parts:
        given["weight_zero_point"] = zero_points(scheme, parts)
    theirs = BaseCompressor.get_value_from_registry(form).compress(given, group)
    assert theirs.keys() >= parts.keys()
    for end, value in parts.items():
        held = theirs[end]
        if value.dtype.is_floating_point:
            assert same(held.float(), value.float()), end
        elif value.dtype == torch.uint8 and end == "weight_packed":
            assert torch.equal(without_minus_zero(held), without_minus_zero(value))
        else:
            assert torch.equal(held.to(value.dtype), value), end


def without_minus_zero(pairs):
    """It rounds what is nearly nothing to zero, whatever its sign."""
    codes = torch.stack([pairs & 15, pairs >> 4])
    return torch.where(codes == 8, 0, codes)


def zero_points(scheme, parts):
    """Signed, as compressed-tensors holds them before it packs them."""
    stored_points = parts["weight_zero_point"]
    if stored_points.dtype == torch.int8:
        return stored_points
    out = parts["weight_shape"][0].item()
    codes = packed.unpack(numpy.ascontiguousarray(stored_points.numpy().T), scheme.bits, out).T
    return torch.from_numpy(codes - 2 ** (scheme.bits - 1)).to(torch.int8)


# ---- GPTQ


@pytest.mark.parametrize("name", OF_GPTQ)
def test_codes_are_what_autogptq_makes_of_them(name):
    """Its layer in plain torch multiplies the identity matrix. It reads the first version of the format only."""
    cuda = pytest.importorskip("auto_gptq.nn_modules.qlinear.qlinear_cuda")
    scheme = SCHEMES[name]
    parts = stored(scheme, out=64)
    layer = cuda.QuantLinear(scheme.bits, scheme.group or 192, 192, 64, bias=False, weight_dtype=parts["scales"].dtype)
    zeros = packed.unpack(parts["qzeros"].numpy(), scheme.bits, 64) - (scheme.version == "gptq_v2")
    layer.qzeros = torch.from_numpy(packed.pack(zeros, scheme.bits))
    layer.qweight, layer.scales, layer.g_idx = parts["qweight"], parts["scales"], parts["g_idx"]
    identity = torch.eye(192, dtype=parts["scales"].dtype)
    theirs = layer(identity).t()
    for dtype in (BF16, F16, F32):
        assert same(scheme.reference(parts, dtype), theirs.to(dtype))


# ---- AWQ


@pytest.mark.parametrize("name", OF_AWQ)
def test_codes_are_what_autoawq_makes_of_them(name):
    packing = pytest.importorskip("awq.utils.packing_utils")
    scheme, parts = SCHEMES[name], stored(SCHEMES[name])
    theirs = packing.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4, scheme.group or 192).t()
    for dtype in (BF16, F16, F32):
        assert same(scheme.reference(parts, dtype), theirs.to(dtype))


# ---- the oracle's own arithmetic


@pytest.mark.parametrize("name", SCHEMES)
def test_the_oracle_rounds_each_value_once(name):
    """Against fractions, of which every third is looked at; the neighbours of the result are no nearer."""
    from fractions import Fraction

    parts = stored(SCHEMES[name], seed=1)
    own = SCHEMES[name].join(parts)
    held = SCHEMES[name].turned(SCHEMES[name].exact(parts, F32)).contiguous().flatten().numpy()
    codes, scales = own.codes.ravel(), numpy.broadcast_to(own.scales, own.codes.shape).ravel()
    tensor = Fraction(own.factor) / Fraction(own.divisor)
    up, down = numpy.nextafter(held, numpy.float32("inf")), numpy.nextafter(held, -numpy.float32("inf"))
    for place in range(0, len(codes), 31):
        true = Fraction(codes[place]) * Fraction(scales[place]) * tensor
        missed = abs(true - Fraction(held[place].item()))
        assert missed <= abs(true - Fraction(up[place].item())) and missed <= abs(true - Fraction(down[place].item()))


def test_a_quotient_beside_a_tie_is_rounded_to_the_right_side():
    """Which F64 cannot tell from the tie: 1 + 2**-24 of F32, and a little."""
    divisor = numpy.float32(1 + 2.0**-23).item()
    tie = 1 + 2.0**-24
    products = numpy.array([tie * divisor, numpy.nextafter(tie * divisor, 2), numpy.nextafter(tie * divisor, 0)])
    assert packed._off_ties(products, divisor)[0] == tie
    above, below = packed._off_ties(products, divisor)[1:]
    assert above >= tie >= below
    whole = packed.Numbers(products, numpy.ones(1), divisor=divisor).exact(F32).double().tolist()
    assert whole == [1.0, 1 + 2.0**-23, 1.0]


def test_words_have_the_first_code_in_the_lowest_bits():
    assert packed.pack(numpy.arange(1, 9), 4).tolist() == [int.from_bytes(bytes.fromhex("21436587"), "little") - 2**32]
    assert packed.pack(numpy.array([1, 2, 3]), 4).tolist() == [0x321]
    assert packed.pack(numpy.array([1, 2]), 4, 8).tolist() == [0x21]
    assert packed.unpack(numpy.array([-1], numpy.int32), 2, 16).tolist() == [3] * 16
    assert sys.byteorder == "little"
