"""The corpus of quantized checkpoints: what is wrong with payloads, scales and the config that tells of them (R48).

Each case is a directory and a model of BF16 tensors that is to be loaded from it, through `lading load`.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .build import DTYPE_BITS, file_of

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 3]}}
PAYLOAD, SCALES = "x.weight", "x.weight_scale_inv"


@dataclass(frozen=True)
class Told:
    """One problem that must be told, among others or alone."""

    says: tuple[str, ...]  # all of them in the message, `expected`, `found` or `remedy`
    tensor: str | None = None
    code: str | None = None
    rule: str | None = "R48"


@dataclass(frozen=True)
class Case:
    name: str
    tensors: Mapping[str, tuple]  # key to dtype and shape, or these and bytes
    problems: tuple[Told, ...] = ()  # none: it is loaded
    config: object = None  # of config.json; None: there is no such file
    model: Mapping[str, list[int]] = field(default_factory=lambda: {PAYLOAD: [5, 7]})
    mapping: Mapping | None = None  # of tensors of the model to their expressions
    exit_code: int = 4
    notes: tuple[str, ...] = ()  # that a load has
    note_only: bool = False  # where keys that are not read are only reported
    alone: bool = True  # nothing else is told, but of keys and names


def size_bytes(dtype, shape):
    elements = 1
    for dim in shape:
        elements *= dim
    return elements * DTYPE_BITS[dtype] // 8


def shard(tensors):
    header, data = {}, b""
    for key, (dtype, shape, *content) in tensors.items():
        size = size_bytes(dtype, shape)
        begin, data = len(data), data + (content[0] if content else bytes([0x38]) * size)
        assert len(data) == begin + size, key
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    return file_of(header, data)


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def fp8(scales=("F32", [2, 3]), payload=("F8_E4M3", [5, 7]), key=SCALES):
    return {PAYLOAD: payload, key: scales}


CASES: dict[str, Case] = {}


def add(name, tensors, *problems, **settings):
    assert name not in CASES, name
    CASES[name] = Case(name, tensors, problems, **settings)


def refuse(name, tensors, *says, tensor=PAYLOAD, rule="R48", config=FP8, **settings):
    add(name, tensors, Told(says, tensor, rule=rule), config=config, **settings)


def load(name, tensors, *notes, config=FP8, **settings):
    add(name, tensors, config=config, exit_code=0, notes=notes, **settings)


def dequantize(block, of=PAYLOAD, scales=SCALES):
    return {PAYLOAD: {"dequantize": {"of": of, "scales": scales, "block": block}}}


# --- What is right, so that the rest is refused for its one mistake.
load("blocks", fp8())
load("scale_for_the_tensor", fp8(("F32", [])), config=None)
load("scale_of_a_vector", fp8(("F32", [1])), config=None)
load("scale_for_each_row", fp8(("BF16", [5, 1])), config=None)
load("scale_for_each_row_in_one_dim", fp8(("F16", [5])), config=None)
load("e8m0", fp8(("F8_E8M0", [2, 3])))
load("e8m0_in_u8", fp8(("U8", [2, 3])))
load("mapping_alone", fp8(), config=None, mapping=dequantize([4, 3]))
load("mapping_of_scales_of_another_name", fp8(key="x.w_scale"), mapping=dequantize([4, 3], scales="x.w_scale"))
load("mapping_of_scales_of_another_name_and_no_config", fp8(key="x.w_scale"), config=None, mapping=dequantize([4, 3], scales="x.w_scale"))

# --- Payloads without scales, and scales without a payload.
refuse("payload_without_scales", {PAYLOAD: ("F8_E4M3", [5, 7])}, "config.json")
refuse("payload_without_scales_beside_another", {**fp8(), "y.weight": ("F8_E4M3", [5, 7])}, "config.json",
       tensor="y.weight", model={PAYLOAD: [5, 7], "y.weight": [5, 7]})  # fmt: skip
refuse("scales_of_another_name", fp8(key="x.other_scale_inv"), "config.json")
refuse("scales_beside_an_ordinary_weight", fp8(payload=("BF16", [5, 7])), "no key is", tensor=None, note_only=True)
refuse("scales_without_a_payload", {**fp8(), "y.weight_scale_inv": ("F32", [2, 3])}, "no quantized tensor",
       tensor="y.weight_scale_inv", note_only=True)  # fmt: skip
refuse("scales_beside_an_ordinary_weight_among_others",
       {**fp8(), "y.weight": ("BF16", [5, 7]), "y.weight_scale_inv": ("F32", [2, 3])}, "no quantized tensor",
       tensor="y.weight_scale_inv", model={PAYLOAD: [5, 7], "y.weight": [5, 7]}, note_only=True)  # fmt: skip

# --- Grids that are not ceil(shape / block).
refuse("grid_of_whole_blocks_only", fp8(("F32", [1, 2])), "[2, 3]", "[1, 2]")
refuse("grid_too_large", fp8(("F32", [3, 3])), "[2, 3]", "[3, 3]")
refuse("grid_turned", fp8(("F32", [3, 2])), "[2, 3]", "[3, 2]")
refuse("grid_in_one_dim", fp8(("F32", [6])), "[2, 3]", "[6]")
refuse("grid_with_another_dim", fp8(("F32", [2, 3, 2])), "[2, 3]", "[2, 3, 2]")
refuse("grid_of_one_for_many_blocks", fp8(("F32", [1])), "[2, 3]", "[1]")
refuse("grid_empty", fp8(("F32", [0])), "[0]")
refuse("grid_without_a_block_size", fp8(), "weight_block_size", config=None)
refuse("grid_without_a_block_size_in_the_config", fp8(), "weight_block_size",
       config={"quantization_config": {"quant_method": "fp8"}})  # fmt: skip

# --- A config and a file that disagree.
refuse("config_of_other_blocks", fp8(), "[128, 128]",
       config={"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})  # fmt: skip
refuse("config_of_fp8_without_any_payload", {PAYLOAD: ("BF16", [5, 7])}, "config.json", tensor=None, note_only=True)
refuse("config_that_converts_nothing_of_that_name", fp8(), "modules_to_not_convert", "no.such.module", tensor=None, note_only=True,
       config={"quantization_config": {**FP8["quantization_config"], "modules_to_not_convert": ["no.such.module"]}})  # fmt: skip
refuse("config_that_does_not_convert_a_quantized_module", fp8(), "modules_to_not_convert", note_only=True,
       config={"quantization_config": {**FP8["quantization_config"], "modules_to_not_convert": ["x"]}})  # fmt: skip
load("config_that_leaves_a_module_alone", {**fp8(), "y.weight": ("BF16", [5, 7])},
     model={PAYLOAD: [5, 7], "y.weight": [5, 7]},
     config={"quantization_config": {**FP8["quantization_config"], "modules_to_not_convert": ["y"]}})  # fmt: skip

# --- Blocks.
def blocks(*block):
    return {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}


refuse("block_of_zeros", fp8(), "weight_block_size", config=blocks(0, 3))
refuse("block_of_one_dim", fp8(), config=blocks(3))
refuse("block_of_three_dims", fp8(), "[1, 4, 3]", config=blocks(1, 4, 3))
refuse("block_of_negative_numbers", fp8(), "weight_block_size", config=blocks(-4, 3))
refuse("block_of_fractions", fp8(), "weight_block_size", config=blocks(4.5, 3))
refuse("block_of_words", fp8(), "weight_block_size", config=blocks("4", "3"))
refuse("block_of_2_to_the_64", fp8(), "weight_block_size", config=blocks(2**64, 3))
refuse("block_of_2_to_the_63", fp8(("F32", [1, 1])), "too large", config=blocks(2**63, 2**63))
load("block_of_2_to_the_31", fp8(("F32", [1, 1])), config=blocks(2**31, 2**31))
load("block_larger_than_the_tensor", fp8(("F32", [1, 1])), config=blocks(128, 128))
refuse("mapping_of_a_block_of_zeros", fp8(), "[5, 7]", "[0, 3]", rule="R47", mapping=dequantize([0, 3]))
refuse("mapping_of_a_block_of_one_dim", fp8(), "[5, 7]", "[4]", rule="R47", mapping=dequantize([4]))
refuse("mapping_of_a_block_of_three_dims", fp8(), "[5, 7]", "[4, 3, 1]", rule="R47", mapping=dequantize([4, 3, 1]))
refuse("mapping_of_other_blocks", fp8(), "[2, 3]", "[3, 4]", mapping=dequantize([3, 4]))
refuse("mapping_of_a_block_that_is_no_shape", fp8(), "not a shape", rule=None, tensor=None, mapping=dequantize([2**63, 2**63]))
refuse("mapping_of_missing_scales", {PAYLOAD: ("F8_E4M3", [5, 7])}, SCALES, rule="R47", mapping=dequantize([4, 3]))
refuse("mapping_of_an_ordinary_weight", fp8(payload=("BF16", [5, 7])), "8-bit floats", config=None, mapping=dequantize([4, 3]))
refuse("mapping_of_integers", fp8(payload=("I8", [5, 7])), "8-bit floats", config=None, mapping=dequantize([4, 3]))

# --- Dtypes of scales, and more than one of them.
for dtype in ("I32", "F64", "F8_E4M3", "I8"):
    refuse(f"scales_of_{dtype}", fp8((dtype, [2, 3])), "dtype")
refuse("two_scales", {**fp8(key="x.weight_scale"), "x.weight_scale_2": ("F32", [])}, "several scales")
refuse("two_scales_of_one_shape", {**fp8(key="x.weight_scale"), SCALES: ("F32", [2, 3])}, "several scales")
refuse("scales_and_zero_points", {**fp8(key="x.weight_scale"), "x.weight_zero_point": ("F32", [2, 3])}, "several scales")

# --- Values of scales. They are read before anything is written.
def values(name, content, *says, dtype="F32"):
    add(name, fp8((dtype, [2, 3], content)), Told(says, SCALES, "scale"), config=FP8, exit_code=5)


values("scale_is_nan", f32(1, 1, 1, 1, float("nan"), 1), "nan", "element 4")
values("scale_is_infinite", f32(1, 1, 1, float("inf"), 1, 1), "inf", "element 3")
values("scale_is_minus_infinity", f32(float("-inf"), 1, 1, 1, 1, 1), "-inf", "element 0")
values("scale_is_the_nan_of_bf16", struct.pack("<6H", *[0x3F80] * 5, 0xFFC0), "nan", "element 5", dtype="BF16")
values("scale_is_the_infinity_of_f16", struct.pack("<6H", 0x3C00, 0x7C00, *[0x3C00] * 4), "inf", "element 1", dtype="F16")
values("scale_is_the_last_code_of_e8m0", bytes([127, 127, 0xFF, 127, 127, 127]), "nan", "element 2", dtype="F8_E8M0")
load("scale_is_zero", fp8(("F32", [2, 3], f32(1, 1, 0, 1, 1, 1))), "zero or negative")
load("scale_is_minus_zero", fp8(("F32", [2, 3], f32(1, 1, -0.0, 1, 1, 1))), "zero or negative")
load("scale_is_negative", fp8(("F32", [2, 3], f32(1, 1, 1, 1, 1, -2))), "zero or negative")
load("scale_is_a_subnormal_number", fp8(("F32", [2, 3], f32(1, 1, 1, 1, 1, 1e-42))))
load("scale_is_the_first_code_of_e8m0", fp8(("F8_E8M0", [2, 3], bytes(6))))

# --- Packed codes: what is right.
def i32(*values):
    return struct.pack(f"<{len(values)}i", *values)


def i64(*values):
    return struct.pack(f"<{len(values)}q", *values)


def mxfp4(blocks=("U8", [2, 6, 3, 16]), scales=("U8", [2, 6, 3])):
    return {"x.up_proj_blocks": blocks, "x.up_proj_scales": scales}


def nvfp4(packed=("U8", [6, 16]), scales=("F8_E4M3", [6, 2]), whole=("F32", [1])):
    return {"x.weight_packed": packed, "x.weight_scale": scales, "x.weight_global_scale": whole}


def modelopt(packed=("U8", [6, 16]), scales=("F8_E4M3", [6, 2]), whole=("F32", [])):
    return {PAYLOAD: packed, "x.weight_scale": scales, "x.weight_scale_2": whole}


def int4(packed=("I32", [6, 4]), scales=("BF16", [6, 2]), shape=(6, 32)):
    return {"x.weight_packed": packed, "x.weight_scale": scales, "x.weight_shape": ("I64", [2], i64(*shape))}


def with_zeros(zeros=("I32", [1, 2])):
    return {**int4(), "x.weight_zero_point": zeros}


def gptq(codes=("I32", [4, 8]), zeros=("I32", [2, 1]), scales=("F16", [2, 8]), order=None):
    order = [place // 16 for place in range(32)] if order is None else order
    return {"x.qweight": codes, "x.qzeros": zeros, "x.scales": scales, "x.g_idx": ("I32", [len(order)], i32(*order))}


def awq(codes=("I32", [32, 1]), zeros=("I32", [2, 1]), scales=("F16", [2, 8])):
    return {"x.qweight": codes, "x.qzeros": zeros, "x.scales": scales}


def mxfp8(payload=("F8_E4M3", [6, 96]), scales=("U8", [6, 3])):
    return {PAYLOAD: payload, "x.weight_scale_inv": scales}


TURNED = [1 - place // 16 for place in range(32)]  # groups in another order


def in_order(order):
    return {**int4(), "x.weight_g_idx": ("I32", [len(order)], i32(*order))}


def without(tensors, *keys):
    return {key: value for key, value in tensors.items() if key not in keys}


def compressed(form, **weights):
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **weights}}
    return quantized("compressed-tensors", format=form, config_groups={"group_0": group})


def quantized(method, **fields):
    return {"quantization_config": {"quant_method": method, **fields}}


OF_INT4 = compressed("pack-quantized", strategy="group", group_size=16, symmetric=True)
OF_NVFP4 = compressed("nvfp4-pack-quantized", type="float", strategy="tensor_group", group_size=16)
OF_MODELOPT = quantized("modelopt", quant_algo="NVFP4")
OF_GPTQ = {"bits": 4, "group_size": 16, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}
OF_AWQ = {"bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
EXPERTS, ROWS, COLUMNS = {"x.up_proj": [2, 96, 6]}, {PAYLOAD: [6, 32]}, {PAYLOAD: [8, 32]}
KINDS = {  # what is right, the config that says so, and a model of ordinary weights
    "mxfp4": (mxfp4, quantized("mxfp4"), EXPERTS),
    "nvfp4": (nvfp4, OF_NVFP4, ROWS),
    "modelopt": (modelopt, OF_MODELOPT, ROWS),
    "int4": (int4, OF_INT4, ROWS),
    "int4_with_zeros": (with_zeros, OF_INT4, ROWS),
    "gptq": (gptq, quantized("gptq", **OF_GPTQ), COLUMNS),
    "awq": (awq, quantized("awq", **OF_AWQ), COLUMNS),
    "mxfp8": (mxfp8, quantized("mxfp8", weight_block_size=[1, 32]), {PAYLOAD: [6, 96]}),
}  # fmt: skip
for kind, (tensors, config, model) in KINDS.items():
    load(f"{kind}", tensors(), config=config, model=model)
load("mxfp4_without_a_config", mxfp4(), config=None, model=EXPERTS)
load("nvfp4_without_a_config", nvfp4(), config=None, model=ROWS)
load("int4_for_each_row", int4(scales=("BF16", [6, 1])), model=ROWS,
     config=compressed("pack-quantized", strategy="channel", group_size=None))  # fmt: skip
load("int4_that_ends_within_an_element", int4(scales=("BF16", [6, 1]), shape=(6, 29)), model={PAYLOAD: [6, 29]},
     config=compressed("pack-quantized", strategy="channel", group_size=None))  # fmt: skip
load("int8_in_signed_bytes", {PAYLOAD: ("I8", [6, 32]), "x.weight_scale": ("F32", [6, 1])}, model=ROWS,
     config=compressed("int-quantized", num_bits=8, strategy="channel"))  # fmt: skip
load("gptq_of_2_bits", gptq(("I32", [2, 16]), scales=("F16", [2, 16])), model={PAYLOAD: [16, 32]},
     config=quantized("gptq", **OF_GPTQ | {"bits": 2}))  # fmt: skip
load("gptq_with_a_last_group_cut_short", gptq(("I32", [5, 8]), ("I32", [3, 1]), ("F16", [3, 8]), [i // 16 for i in range(40)]),
     model={PAYLOAD: [8, 40]}, config=quantized("gptq", **OF_GPTQ))  # fmt: skip
load("gptq_of_one_group", gptq(zeros=("I32", [1, 1]), scales=("F16", [1, 8]), order=[0] * 32), model=COLUMNS,
     config=quantized("gptq", **OF_GPTQ | {"group_size": -1}))  # fmt: skip
load("gptq_in_another_order", gptq(order=TURNED), model=COLUMNS, config=quantized("gptq", **OF_GPTQ | {"desc_act": True}))
load("gptq_in_another_order_that_desc_act_denies", gptq(order=[*range(2)] * 16), model=COLUMNS, config=quantized("gptq", **OF_GPTQ))
load("int4_in_another_order", in_order(TURNED), config=OF_INT4, model=ROWS)
load("int4_whose_order_was_not_set", in_order([-1] * 32), config=OF_INT4, model=ROWS)
load("gptq_whose_order_is_none", gptq(), model=COLUMNS, config=quantized("gptq", **OF_GPTQ | {"desc_act": True}))
load("scales_of_caches_and_outputs", {
    **{key.replace("x.", "x.k_proj."): value for key, value in fp8().items()},
    "x.k_scale": ("F32", []), "x.v_scale": ("F32", [1]), "x.k_proj.k_scale": ("F32", []), "x.k_proj.output_scale": ("F32", [])},
    model={"x.k_proj.weight": [5, 7]})  # fmt: skip
load("scales_of_inputs_beside_weights", {**nvfp4(), "x.input_global_scale": ("F32", [1])}, config=OF_NVFP4, model=ROWS)


# --- Packed codes without a part, and parts without codes.
def spoil(name, kind, tensors, *says, config=None, **settings):
    """A case of a kind, refused under R48 for its one mistake."""
    _, own, model = KINDS[kind]
    settings = {"tensor": None, "model": model, "alone": False} | settings
    refuse(name, tensors, *says, config=own if config is None else config, **settings)


spoil("mxfp4_without_scales", "mxfp4", without(mxfp4(), "x.up_proj_scales"), "no key is", note_only=True)
spoil("mxfp4_without_blocks", "mxfp4", without(mxfp4(), "x.up_proj_blocks"), "no key is", note_only=True)
spoil("nvfp4_without_scales", "nvfp4", without(nvfp4(), "x.weight_scale"), "x.weight_packed")
spoil("nvfp4_without_codes", "nvfp4", without(nvfp4(), "x.weight_packed"), "no quantized tensor", note_only=True)
spoil("nvfp4_without_the_scale_of_the_tensor", "nvfp4", without(nvfp4(), "x.weight_global_scale"), "x.weight_global_scale")
spoil("modelopt_without_the_scale_of_the_tensor", "modelopt", without(modelopt(), "x.weight_scale_2"))
spoil("int4_without_scales", "int4", without(int4(), "x.weight_scale"), "no key is", note_only=True)
spoil("int4_without_codes", "int4", without(int4(), "x.weight_packed"), "no key is", note_only=True)
spoil("gptq_without_scales", "gptq", without(gptq(), "x.scales"), "x.qweight")
spoil("gptq_without_zero_points", "gptq", without(gptq(), "x.qzeros"), "x.qzeros")
spoil("gptq_without_codes", "gptq", without(gptq(), "x.qweight"), note_only=True)
spoil("awq_without_scales", "awq", without(awq(), "x.scales"), "x.qweight")
spoil("awq_without_zero_points", "awq", without(awq(), "x.qzeros"), "x.qzeros")
spoil("mxfp8_without_scales", "mxfp8", without(mxfp8(), SCALES), "config.json")

# --- Grids, shapes and dtypes of packed codes.
spoil("mxfp4_grid_of_fewer_blocks", "mxfp4", mxfp4(scales=("U8", [2, 6, 2])), "[2, 6, 3, 1, 1]")
spoil("mxfp4_grid_of_other_rows", "mxfp4", mxfp4(scales=("U8", [2, 3, 6])), "[2, 6, 3, 1, 1]")
spoil("mxfp4_blocks_of_8_bytes", "mxfp4", mxfp4(("U8", [2, 6, 6, 8]), ("U8", [2, 6, 6])), "16 bytes")
spoil("mxfp4_scales_of_bf16", "mxfp4", mxfp4(scales=("BF16", [2, 6, 3])), "x.up_proj_scales")
spoil("nvfp4_grid_of_groups_of_32", "nvfp4", nvfp4(scales=("F8_E4M3", [6, 1])), "[6, 2, 1]")
spoil("nvfp4_grid_of_another_row", "nvfp4", nvfp4(scales=("F8_E4M3", [7, 2])), "[6, 2, 1]")
spoil("nvfp4_scales_of_f32", "nvfp4", nvfp4(scales=("F32", [6, 2])), "F8_E4M3")
spoil("nvfp4_scale_of_the_tensor_in_bf16", "nvfp4", nvfp4(whole=("BF16", [1])), "F32")
spoil("nvfp4_two_scales_of_the_tensor", "nvfp4", nvfp4(whole=("F32", [2])))
spoil("int4_grid_of_other_groups", "int4", int4(scales=("BF16", [6, 4])), "[6, 2, 1]")
spoil("int4_grid_turned", "int4", int4(scales=("BF16", [2, 6])), "[6, 2, 1]")
spoil("int4_scales_of_integers", "int4", int4(scales=("I32", [6, 2])), "dtype")
spoil("int4_of_another_shape", "int4", int4(shape=(6, 64)), "weight_shape")
spoil("int4_of_a_negative_shape", "int4", int4(shape=(6, -32)), "weight_shape")
spoil("int4_zero_points_of_another_row", "int4_with_zeros", with_zeros(("I32", [2, 2])), "zero points", "[1, 2]")
spoil("int4_zero_points_along_groups", "int4_with_zeros", with_zeros(("I32", [6, 1])), "zero points", "[1, 2]")
spoil("int4_zero_points_of_bytes", "int4_with_zeros", with_zeros(("I8", [6, 2])), "zero points", "[1, 2]")
spoil("int4_with_groups_of_another_row", "int4", in_order(range(31)), "groups", "[32]", "[31]")
spoil("int4_with_groups_of_i64", "int4", {**int4(), "x.weight_g_idx": ("I64", [32])}, "x.weight_g_idx", "I64")
spoil("int4_of_u16", "int4", int4(("U16", [6, 8])))
spoil("gptq_grid_of_other_groups", "gptq", gptq(scales=("F16", [4, 8]), zeros=("I32", [4, 1])), "[2, 8, 1]")
spoil("gptq_of_other_columns", "gptq", gptq(scales=("F16", [2, 16])), "8 columns")
spoil("gptq_zero_points_for_each_column", "gptq", gptq(zeros=("I32", [2, 8])), "zero points", "[2, 1]")
spoil("gptq_zero_points_of_one_group", "gptq", gptq(zeros=("I32", [1, 1])), "zero points", "[2, 1]")
spoil("gptq_zero_points_of_floats", "gptq", gptq(zeros=("F32", [2, 1])), "x.qzeros")
spoil("gptq_with_groups_of_another_column", "gptq", gptq(order=[*TURNED, 0]), "[33]", "32 rows")
spoil("awq_grid_of_other_groups", "awq", awq(scales=("F16", [1, 8]), zeros=("I32", [1, 1])), "16")
spoil("awq_of_other_columns", "awq", awq(scales=("F16", [2, 16])))
spoil("awq_zero_points_of_one_group", "awq", awq(zeros=("I32", [1, 1])))
spoil("mxfp8_grid_of_fewer_groups", "mxfp8", mxfp8(scales=("U8", [6, 2])), "[6, 3]", tensor=PAYLOAD)

# --- A config and packed codes that disagree.
spoil("config_of_8_bits_of_4", "int4", int4(), config=compressed("pack-quantized", num_bits=8, strategy="group", group_size=16))
spoil("config_of_3_bits", "int4", int4(), "3 bits", config=compressed("pack-quantized", num_bits=3, strategy="group", group_size=16))
spoil("config_of_no_bits", "int4", int4(), "num_bits", config=compressed("pack-quantized", num_bits=None, strategy="group", group_size=16))
spoil("config_of_two_kinds_of_groups", "int4", int4(), config=quantized("compressed-tensors", config_groups={
    "group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 16}},
    "group_1": {"weights": {"num_bits": 8, "strategy": "channel"}}}))  # fmt: skip
spoil("config_of_other_groups", "int4", int4(), "[6, 1, 1]", config=compressed("pack-quantized", strategy="group", group_size=32))
spoil("config_of_groups_of_12", "int4", int4(), "12", config=compressed("pack-quantized", strategy="group", group_size=12))
spoil("gptq_config_of_other_groups", "gptq", gptq(order=[place // 8 for place in range(32)]), "[4, 8, 1]",
      config=quantized("gptq", **OF_GPTQ | {"group_size": 8}))  # fmt: skip
spoil("gptq_config_of_8_bits", "gptq", gptq(), config=quantized("gptq", **OF_GPTQ | {"bits": 8}))
spoil("gptq_config_of_3_bits", "gptq", gptq(), "3 bits", config=quantized("gptq", **OF_GPTQ | {"bits": 3}))
spoil("gptq_config_without_bits", "gptq", gptq(), "bits", config=quantized("gptq", group_size=16, desc_act=False))
spoil("gptq_config_without_groups", "gptq", without(gptq(), "x.g_idx"), "group_size",
      config=quantized("gptq", bits=4, desc_act=False))  # fmt: skip
spoil("gptq_of_desc_act_without_g_idx", "gptq", without(gptq(), "x.g_idx"), "desc_act",
      config=quantized("gptq", **OF_GPTQ | {"desc_act": True}))  # fmt: skip
spoil("gptq_that_marlin_has_repacked", "gptq", gptq(), "marlin", config=quantized("gptq", **OF_GPTQ | {"checkpoint_format": "marlin"}))
spoil("gptq_of_a_format_that_nobody_knows", "gptq", gptq(), "gptq_v9", config=quantized("gptq", **OF_GPTQ | {"checkpoint_format": "gptq_v9"}))
spoil("gptq_without_a_config", "gptq", gptq(), "quant_method", config={"model_type": "llama"})
spoil("awq_of_version_gemv", "awq", awq(), "gemv", config=quantized("awq", **OF_AWQ | {"version": "gemv"}))
spoil("awq_of_version_marlin", "awq", awq(), "marlin", config=quantized("awq", **OF_AWQ | {"version": "marlin"}))
spoil("awq_of_8_bits", "awq", awq(), "8 bits", config=quantized("awq", **OF_AWQ | {"bits": 8}))
spoil("awq_said_to_be_gptq", "awq", awq(), config=quantized("gptq", **OF_GPTQ))
spoil("gptq_said_to_be_awq", "gptq", gptq(), config=quantized("awq", **OF_AWQ))
spoil("codes_of_a_method_that_nobody_knows", "int4", gptq(), "quant_method", config=quantized("vptq"), model=COLUMNS)


# --- What config.json, or a key beside the codes, says of them changes what they mean.
OF_ZEROS = compressed("pack-quantized", strategy="group", group_size=16, symmetric=False)
OF_BYTES = compressed("int-quantized", num_bits=8, strategy="group", group_size=16)
OF_FLOATS = compressed("float-quantized", num_bits=8, type="float", strategy="group", group_size=16)
BYTES = {PAYLOAD: ("I8", [6, 32]), "x.weight_scale": ("BF16", [6, 2])}
FLOATS = {PAYLOAD: ("F8_E4M3", [6, 32]), "x.weight_scale": ("BF16", [6, 2])}
ORDER = ("I32", [32], i32(*[1 - place // 16 for place in range(32)]))


def transforms(*locations):
    apply = [{"targets": ["Linear"], "location": location, "inverse": False, "ignore": []} for location in locations]
    said = {"config_groups": {"R4": {"type": "hadamard", "apply": apply}}}
    return {"quantization_config": OF_INT4["quantization_config"] | {"transform_config": said}}


def twice(tensors):
    """Beside another module that has the same."""
    return tensors | {key.replace("x.", "y."): value for key, value in tensors.items()}


TWO_COLUMNS = COLUMNS | {"y.weight": [8, 32]}
OF_DESC_ACT = quantized("gptq", **OF_GPTQ | {"desc_act": True})
load("int4_with_zeros_that_the_config_says", with_zeros(), config=OF_ZEROS, model=ROWS)
load("int8_in_groups", BYTES, config=OF_BYTES, model=ROWS)
load("fp8_in_groups", FLOATS, config=OF_FLOATS, model=ROWS)
load("transforms_of_weights", int4(), config=transforms("weight_input", "weight_output"), model=ROWS)
load("transforms_that_undo_each_other", int4(), config=transforms("q_attn", "k_cache"), model=ROWS)
load("gptq_of_desc_act_whose_orders_are_none", twice(gptq()), config=OF_DESC_ACT, model=TWO_COLUMNS)
spoil("int4_whose_zero_points_are_lost", "int4", int4(), "zero points", config=OF_ZEROS)
spoil("int8_whose_zero_points_are_lost", "int4", BYTES, "zero points",
      config=compressed("int-quantized", num_bits=8, strategy="group", group_size=16, symmetric=False))  # fmt: skip
load("int8_with_an_order", BYTES | {"x.weight_g_idx": ORDER}, config=OF_BYTES, model=ROWS)
spoil("fp8_with_an_order", "int4", FLOATS | {"x.weight_g_idx": ORDER}, "g_idx", config=OF_FLOATS)
spoil("nvfp4_with_an_order", "nvfp4", nvfp4() | {"x.weight_g_idx": ORDER}, "g_idx")
spoil("awq_with_an_order", "awq", awq() | {"x.g_idx": ORDER}, "g_idx")
spoil("modelopt_with_a_factor_of_inputs", "modelopt", modelopt() | {"x.pre_quant_scale": ("BF16", [32])}, "pre_quant_scale")
spoil("fp8_with_a_factor_of_inputs", "int4", FLOATS | {"x.pre_quant_scale": ("BF16", [32])}, "pre_quant_scale", config=OF_FLOATS)
spoil("transforms_of_inputs", "int4", int4(), "transform_config", config=transforms("weight_input", "input"))
spoil("transforms_of_outputs", "int4", int4(), "transform_config", config=transforms("output"))
spoil("transforms_of_a_kind_that_nobody_knows", "int4", int4(), "transform_config", config=transforms("somewhere"))
spoil("gptq_of_desc_act_without_one_g_idx", "gptq", without(twice(gptq()), "y.g_idx"), "desc_act", config=OF_DESC_ACT, model=TWO_COLUMNS)
spoil("gptq_whose_order_has_two_dims", "gptq", gptq() | {"x.g_idx": ("I32", [1, 32], i32(*[0] * 32))}, "[1, 32]")
spoil("gptq_with_another_order_of_rows", "gptq", gptq() | {"x.perm": ("I32", [32], i32(*range(32)))}, "perm")
spoil("gptq_whose_order_is_too_short", "gptq", gptq(order=[0] * 16), "[16]")

# --- Scales by names that nobody knows, where no config says that there are scales.
for key in ("x.w_scale", "x.wscale", "x.descale", "x.weights_scaling_factor", "x_weight_scale"):
    refuse(f"scale_of_the_name_{key}", fp8(key=key), "no scales", key, config=None)
refuse("payload_without_scales_beside_another_and_no_config", {**fp8(("F32", [])), "y.weight": ("F8_E4M3", [5, 7])}, "no scales",
       tensor="y.weight", config=None, model={PAYLOAD: [5, 7], "y.weight": [5, 7]})  # fmt: skip
refuse("scale_of_the_name_of_a_module_within", {"x.up_proj": ("F8_E4M3", [5, 7]), "x.up_proj_weight_scale": ("F32", [])}, "no scales",
       tensor="x.up_proj", config=None, model={"x.up_proj": [5, 7]})  # fmt: skip

# --- Several groups of modules, each with its own weights.
def groups(*weights):
    named = {f"group_{i}": {"targets": ["Linear"], "weights": one} for i, one in enumerate(weights)}
    return quantized("compressed-tensors", format="mixed-precision", config_groups=named)


MIXED = FLOATS | {key.replace("x.", "y."): value for key, value in int4(scales=("BF16", [6, 4])).items()}
GROUPS_OF_FLOATS = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 16}
GROUPS_OF_INTEGERS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8}
TWO_ROWS = ROWS | {"y.weight": [6, 32]}
load("floats_and_integers", MIXED, config=groups(GROUPS_OF_FLOATS, GROUPS_OF_INTEGERS), model=TWO_ROWS)
load("integers_and_floats", MIXED, config=groups(GROUPS_OF_INTEGERS, GROUPS_OF_FLOATS), model=TWO_ROWS)
spoil("int8_in_blocks", "int4", {PAYLOAD: ("I8", [1, 96]), "x.weight_scale": ("F32", [1, 2])}, "size of the 2 groups",
      config=compressed("int-quantized", num_bits=8, strategy="block", block_structure=[8, 64]), model={PAYLOAD: [1, 96]})  # fmt: skip
spoil("int4_in_groups_of_no_size", "int4", int4(), "size of the 2 groups", config=compressed("pack-quantized", strategy="group"))
load("block_in_the_older_spelling", {PAYLOAD: ("F8_E4M3", [5, 7]), "x.weight_scale": ("F32", [2, 3])},
     config=compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure="4x3"))  # fmt: skip
for text in ("4x", "x3", "4x3x2", "0x3", "-4x3", "4 x 3", "99999999999999999999x3"):
    refuse(f"block_of_{text}", {PAYLOAD: ("F8_E4M3", [5, 7]), "x.weight_scale": ("F32", [2, 3])}, "block size",
           config=compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure=text))  # fmt: skip


# --- Models of several towers, and numbers that only Python's JSON has.
def towers(*configs):
    return {f"{name}_config": config for name, config in zip(("text", "vision"), configs, strict=True)}


OF_V2 = quantized("gptq", **OF_GPTQ | {"checkpoint_format": "gptq_v2"})
load("towers_that_say_the_same", twice(gptq()), config=towers(quantized("gptq", **OF_GPTQ), quantized("gptq", **OF_GPTQ)), model=TWO_COLUMNS)
load("one_tower_of_two", gptq(), config=towers({"hidden_size": 8}, quantized("gptq", **OF_GPTQ)), model=COLUMNS)
spoil("towers_of_two_versions", "gptq", twice(gptq()), "quant_method", config=towers(quantized("gptq", **OF_GPTQ), OF_V2), model=TWO_COLUMNS)
spoil("towers_of_two_blocks", "int4", {**fp8(), "y.weight": ("F8_E4M3", [5, 7]), "y.weight_scale_inv": ("F32", [2, 3])}, "several",
      config=towers(FP8, blocks(5, 3)), model={PAYLOAD: [5, 7], "y.weight": [5, 7]})  # fmt: skip
LIMITS = {"time_step_limit": [0.0, float("inf")], "least": float("-inf"), "none": float("nan"), "a \\\" NaN": "-Infinity"}
load("numbers_of_python", gptq(), config=LIMITS | quantized("gptq", **OF_GPTQ), model=COLUMNS)


# --- Values of scales of packed codes. They are read before anything is written.
def packed_values(name, kind, key, dtype_and_shape, content, *says, **parts):
    make, config, model = KINDS[kind]
    tensors = make() | parts | {key: (*dtype_and_shape, content)}
    add(name, tensors, Told(says, key, "scale"), config=config, model=model, exit_code=5)


packed_values("gptq_whose_groups_count_from_1", "gptq", "x.g_idx", ("I32", [32]), i32(*[place // 16 + 1 for place in range(32)]), "2 at element 16", "0 to 1")
packed_values("gptq_of_negative_groups", "gptq", "x.g_idx", ("I32", [32]), i32(*[-1] * 32), "-1 at element 0", "0 to 1")
packed_values("int4_of_a_great_group", "int4", "x.weight_g_idx", ("I32", [32]), i32(*[0] * 31, 2**31 - 1), "2147483647 at element 31", "0 to 1")
packed_values("mxfp4_scale_is_nan", "mxfp4", "x.up_proj_scales", ("U8", [2, 6, 3]), bytes([127] * 35 + [255]), "nan", "element 35")
packed_values("mxfp8_scale_is_nan", "mxfp8", SCALES, ("U8", [6, 3]), bytes([127] * 17 + [255]), "nan", "element 17")
packed_values("nvfp4_scale_is_nan", "nvfp4", "x.weight_scale", ("F8_E4M3", [6, 2]), bytes([0x38] * 11 + [0x7F]), "nan", "element 11")
packed_values("nvfp4_scale_is_minus_nan", "modelopt", "x.weight_scale", ("F8_E4M3", [6, 2]), bytes([0xFF] + [0x38] * 11), "nan", "element 0")
packed_values("int4_scale_is_nan", "int4", "x.weight_scale", ("BF16", [6, 2]), struct.pack("<12H", *[0x3F80] * 11, 0x7FC0), "nan")
packed_values("gptq_scale_is_infinite", "gptq", "x.scales", ("F16", [2, 8]), struct.pack("<16H", 0x7C00, *[0x3C00] * 15), "inf")
packed_values("awq_scale_is_nan", "awq", "x.scales", ("F16", [2, 8]), struct.pack("<16H", *[0x3C00] * 13, 0x7E00, 0x3C00, 0x3C00), "nan", "element 13")
WHOLE = "x.weight_global_scale"
packed_values("nvfp4_divisor_is_zero", "nvfp4", WHOLE, ("F32", [1]), f32(0.0), "is zero")
packed_values("modelopt_factor_is_zero", "modelopt", "x.weight_scale_2", ("F32", []), f32(0.0), "is zero")
packed_values("nvfp4_divisor_is_nan", "nvfp4", WHOLE, ("F32", [1]), f32(float("nan")), "nan")
packed_values("nvfp4_divisor_is_infinite", "nvfp4", WHOLE, ("F32", [1]), f32(float("inf")), "inf")
packed_values("modelopt_factor_is_nan", "modelopt", "x.weight_scale_2", ("F32", []), f32(float("nan")), "nan")
packed_values("modelopt_factor_is_infinite", "modelopt", "x.weight_scale_2", ("F32", []), f32(float("-inf")), "inf")

# --- Schemes that lading does not dequantize, by their names.
def scheme(name, said, tensors, config=None, **settings):
    add(name, tensors, Told((said,), None), config=config, alone=False, **settings)


scheme("scheme_four_bits_in_f4", "mxfp4", {PAYLOAD: ("F4", [5, 32]), "x.weight_scale": ("F8_E8M0", [5, 1])})
scheme("scheme_bitsandbytes_4_bits", "bitsandbytes",
       {PAYLOAD: ("U8", [18, 1]), "x.weight.absmax": ("F32", [1]), "x.weight.quant_map": ("F32", [16]),
        "x.weight.quant_state.bitsandbytes__nf4": ("U8", [90])})  # fmt: skip
scheme("scheme_bitsandbytes_8_bits", "bitsandbytes", {PAYLOAD: ("I8", [5, 7]), "x.SCB": ("F32", [5]), "x.weight_format": ("U8", [])})
scheme("scheme_gguf", "gguf", {"x.qweight": ("U8", [5, 8]), "x.qweight_type": ("I32", [])},
       {"quantization_config": {"quant_method": "gguf"}}, note_only=True)  # fmt: skip
scheme("scheme_integers", "integers", {PAYLOAD: ("I8", [5, 7]), "x.weight_scale": ("F32", [5, 1])})
scheme("scheme_hqq", "hqq", {"x.W_q": ("U8", [18, 1]), "x.scale": ("F16", [1, 1]), "x.zero": ("F16", [1, 1])})
scheme("scheme_aqlm", "aqlm",
       {"x.codes": ("I16", [5, 1, 2]), "x.codebooks": ("F16", [2, 4]), "x.scales": ("F16", [5, 1])},
       {"quantization_config": {"quant_method": "aqlm"}})  # fmt: skip
scheme("scheme_mlx", "mlx", {PAYLOAD: ("U32", [5, 1]), "x.scales": ("F16", [5, 1]), "x.biases": ("F16", [5, 1])})
scheme("scheme_torchao", "torchao", {PAYLOAD: ("I8", [5, 7]), "x.weight_scale": ("F32", [5, 1])},
       {"quantization_config": {"quant_method": "torchao"}})  # fmt: skip

# --- Everything is told at once.
add("three_mistakes_at_once",
    {**fp8(("F32", [3, 3])), "y.weight": ("F8_E4M3", [5, 7]), "z.weight": ("F8_E5M2", [5, 7]), "z.weight_scale_inv": ("I32", [2, 3])},
    Told(("[3, 3]",), PAYLOAD), Told(("config.json",), "y.weight"), Told(("dtype",), "z.weight"),
    config=FP8, model={PAYLOAD: [5, 7], "y.weight": [5, 7], "z.weight": [5, 7]})  # fmt: skip

REFUSED = [case for case in CASES.values() if case.problems]
LOADED = [case for case in CASES.values() if not case.problems]


def documents(case: Case) -> dict[str, Callable | dict]:
    """The files of a case beside its shard, as objects."""
    parameter = {"kind": "parameter", "dtype": "BF16"}
    skeleton = {
        "schema": "lading.skeleton/1",
        "tensors": [{"name": name, "shape": shape, **parameter} for name, shape in case.model.items()],
    }
    made = {"model.json": skeleton}
    if case.config is not None:
        made["ckpt/config.json"] = case.config
    if case.mapping is not None:
        rules = [{"id": f"build {name}", "kind": "build", "to": name, "expression": e} for name, e in case.mapping.items()]
        made["model.mapping.json"] = {"schema": "lading.mapping/1", "rules": rules}
    return made


def write(case, folder):
    """Gives the checkpoint."""
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / "model.safetensors").write_bytes(shard(case.tensors))
    for name, content in documents(case).items():
        (folder / name).write_text(json.dumps(content))
    return folder / "ckpt"
