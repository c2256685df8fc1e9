"""Payloads of quantized weights are refused without their scales, whatever else is allowed (R48)."""

import json

import pytest
from corrupt.build import DTYPE_BITS, file_of

from lading import _engine
from lading.errors import LadingError

# What the schemes write: the payload, its scales and zero points, and what else stands beside it.
SCHEMES = {
    "fp8 blocks": (("x.weight", "F8_E4M3", [4, 4]), {"x.weight_scale_inv": ("F32", [1, 1])}, {}),
    "fp8": (("x.weight", "F8_E4M3", [4, 4]), {"x.weight_scale": ("BF16", [4, 1])}, {"x.input_scale": ("F32", [])}),
    "fp8 of ComfyUI": (("x.weight", "F8_E5M2", [4, 4]), {"x.scale_weight": ("F32", [])}, {"scaled_fp8": ("F8_E5M2", [2])}),
    "mxfp4": (("x.up_proj_blocks", "U8", [2, 2, 1, 16]), {"x.up_proj_scales": ("U8", [2, 2, 1])}, {"x.up_proj_bias": ("BF16", [2, 2])}),
    "nvfp4": (
        ("x.weight", "U8", [4, 8]),
        {"x.weight_scale": ("F8_E4M3", [4, 1]), "x.weight_scale_2": ("F32", [])},
        {"x.input_scale": ("F32", [])},
    ),
    "nvfp4 of compressed-tensors": (
        ("x.weight_packed", "U8", [4, 8]),
        {"x.weight_scale": ("F8_E4M3", [4, 1]), "x.weight_global_scale": ("F32", [1])},
        {"x.input_global_scale": ("F32", [1])},
    ),
    "compressed-tensors": (
        ("x.weight_packed", "I32", [4, 1]),
        {"x.weight_scale": ("BF16", [4, 1]), "x.weight_zero_point": ("I8", [4, 1])},
        {"x.weight_shape": ("I64", [2])},
    ),
    "gptq": (
        ("x.qweight", "I32", [1, 4]),
        {"x.scales": ("F16", [1, 4]), "x.qzeros": ("I32", [1, 1])},
        {"x.g_idx": ("I32", [8])},
    ),
    "awq": (("x.qweight", "I32", [8, 1]), {"x.scales": ("F16", [1, 8]), "x.qzeros": ("I32", [1, 1])}, {}),
    "bitsandbytes, 4 bits": (
        ("x.weight", "U8", [8, 1]),
        {
            "x.weight.absmax": ("U8", [1]),
            "x.weight.quant_map": ("F32", [16]),
            "x.weight.nested_absmax": ("F32", [1]),
            "x.weight.nested_quant_map": ("F32", [256]),
            "x.weight.quant_state.bitsandbytes__nf4": ("U8", [90]),
        },
        {},
    ),
    "bitsandbytes, 8 bits": (("x.weight", "I8", [4, 4]), {"x.SCB": ("F32", [4])}, {"x.weight_format": ("U8", [])}),
    "hqq": (("x.W_q", "U8", [8, 1]), {"x.scale": ("F16", [1, 1]), "x.zero": ("F16", [1, 1])}, {}),
    "quanto": (("x.weight._data", "I8", [4, 4]), {"x.weight._scale": ("F32", [4, 1])}, {}),
    "mlx": (("x.weight", "U32", [4, 1]), {"x.scales": ("F16", [4, 1])}, {"x.biases": ("F16", [4, 1])}),
    "aqlm": (("x.codes", "I16", [4, 1, 2]), {"x.codebooks": ("F16", [2, 4]), "x.scales": ("F16", [4, 1])}, {}),
}  # fmt: skip


def size_bytes(dtype, shape):
    elements = 1
    for dim in shape:
        elements *= dim
    return elements * DTYPE_BITS[dtype] // 8


def save(path, tensors):
    header, place = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = place + size_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
        place = end
    path.write_bytes(file_of(header, bytes(place)))


def plan(folder, model, **policy):
    tensors = [
        {"name": name, "kind": "parameter", "shape": shape, "dtype": dtype} for name, (dtype, shape) in model.items()
    ]
    return _engine.plan(
        {
            "checkpoint": folder,
            "skeleton": {"schema": "lading.skeleton/1", "tensors": tensors},
            "policy": {"schema": "lading.policy/1", **policy},
        }
    )


def refusal(folder, model, **policy):
    with pytest.raises(LadingError) as refused:
        plan(folder, model, **policy)
    return refused.value.problems


ALLOWANCES = {
    "strict": {},
    "not strict": {"unexpected": "report"},
    "allowed": {"allow_unexpected": ["*"]},
    "cast": {"allow_unexpected": ["*"], "dtype": "BF16", "cast": "exact"},
}


@pytest.mark.parametrize("allowance", ALLOWANCES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_R48_a_payload_without_its_scales_is_refused(tmp_path, scheme, allowance):
    (name, dtype, shape), scales, others = SCHEMES[scheme]
    save(tmp_path / "model.safetensors", {name: (dtype, shape), **scales, **others})
    problems = refusal(tmp_path, {name: (dtype, shape)}, **ALLOWANCES[allowance])
    (problem,) = [problem for problem in problems if problem.rule == "R48"]
    assert problem.tensor == name
    assert all(f'"{scale}"' in problem.expected for scale in scales)
    assert not any(f'"{other}"' in problem.expected for other in others)
    assert scheme.split(" of ")[0].split(",")[0] in problem.message or scheme in ("quanto", "aqlm")
    assert "quantized" in problem.remedy
    told = {problem.tensor for problem in problems if problem.rule == "R39"}
    assert told == (set(others) if allowance == "strict" else set()), "scales are told once"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_R48_a_model_that_holds_the_scales_is_loaded(tmp_path, scheme):
    (name, dtype, shape), scales, others = SCHEMES[scheme]
    everything = {name: (dtype, shape), **scales, **others}
    save(tmp_path / "model.safetensors", everything)
    assert len(plan(tmp_path, everything).destinations) == len(everything)
    assert len(plan(tmp_path, {name: (dtype, shape), **scales}, unexpected="report").destinations) == 1 + len(scales)


@pytest.mark.parametrize("scheme", [scheme for scheme, (_, scales, _) in SCHEMES.items() if len(scales) > 1])
def test_R48_every_scale_counts(tmp_path, scheme):
    (name, dtype, shape), scales, others = SCHEMES[scheme]
    save(tmp_path / "model.safetensors", {name: (dtype, shape), **scales, **others})
    missing = list(scales)[-1]
    model = {name: (dtype, shape)} | {scale: scales[scale] for scale in scales if scale != missing}
    (problem,) = refusal(tmp_path, model, unexpected="report")
    assert problem.rule == "R48" and f'"{missing}"' in problem.expected


def test_R48_tensors_of_one_kind_are_told_together(tmp_path):
    tensors = {}
    for layer in range(3):
        for expert in range(40):
            tensors[f"layers.{layer}.experts.{expert}.w.weight"] = ("F8_E4M3", [2, 2])
            tensors[f"layers.{layer}.experts.{expert}.w.weight_scale_inv"] = ("F32", [1, 1])
    tensors["head.weight"] = ("F8_E4M3", [2, 2])
    tensors["head.weight_scale_inv"] = ("F32", [1, 1])
    save(tmp_path / "model.safetensors", tensors)
    model = {name: kind for name, kind in tensors.items() if name.endswith("weight")}
    problems = refusal(tmp_path, model)
    assert [problem.rule for problem in problems] == ["R48", "R48"]
    assert any("120 quantized tensors" in p.message and "layers.*.experts.*.w.weight" in p.message for p in problems)


def test_R48_tensors_of_few_bits_that_nothing_says_are_quantized_are_loaded(tmp_path):
    tensors = {
        "x.weight": ("F8_E4M3", [4, 4]),
        "x.mask": ("U8", [4]),
        "x.scale": ("F32", [4]),  # of the model, too
        "y.index": ("I32", [4]),
        "y.logit_scale": ("F32", []),  # of another thing than an index
        "z.weight": ("F8_E5M2", [4]),
        "z.input_scale": ("F32", []),  # of activations
        "z.k_scale": ("F32", []),
    }
    save(tmp_path / "model.safetensors", tensors)
    unread = {"y.logit_scale", "z.input_scale", "z.k_scale"}
    model = {name: kind for name, kind in tensors.items() if name not in unread}
    assert len(plan(tmp_path, model, unexpected="report").destinations) == len(model)


def test_R48_scales_of_another_shard_count(tmp_path):
    save(tmp_path / "model-1.safetensors", {"x.weight": ("F8_E4M3", [4, 4])})
    save(tmp_path / "model-2.safetensors", {"x.weight_scale_inv": ("F32", [1, 1])})
    weight_map = {"x.weight": "model-1.safetensors", "x.weight_scale_inv": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (problem,) = refusal(tmp_path, {"x.weight": ("F8_E4M3", [4, 4])}, allow_unexpected=["*"])
    assert problem.rule == "R48"


CONFIGS = {
    "fp8": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    "of a tower": {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
    "compressed-tensors": {"compression_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
    "without a method": {"quantization_config": {}},
}


@pytest.mark.parametrize("config", CONFIGS)
def test_R48_the_configuration_says_that_a_payload_needs_a_scale(tmp_path, config):
    save(tmp_path / "model.safetensors", {"x.weight": ("F8_E4M3", [4, 4]), "x.norm": ("F32", [4])})
    model = {"x.weight": ("BF16", [4, 4]), "x.norm": ("F32", [4])}
    cast = {"dtype": "BF16", "cast": "exact"}
    assert plan(tmp_path, model, **cast), "nothing says that it is quantized"
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[config]))
    (problem,) = refusal(tmp_path, model, **cast)
    assert problem.rule == "R48" and problem.tensor == "x.weight" and "config.json" in problem.found
    (problem,) = refusal(tmp_path, model)
    assert problem.rule == "R48", "nor in the dtype of the file: the model computes with ordinary floats"


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"a": NaN}', '{"quantization_config": null}', "\xff", "{}" * 2])
def test_R48_a_configuration_that_is_odd_is_at_most_a_note(tmp_path, text):
    save(tmp_path / "model.safetensors", {"x.weight": ("F8_E4M3", [4, 4])})
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    made = plan(tmp_path, {"x.weight": ("F8_E4M3", [4, 4])}, dtype="BF16", cast="exact")
    assert all("config.json" in warning.file for warning in made.warnings if warning.code.startswith("json"))


def test_the_configuration_may_not_lead_elsewhere(tmp_path):
    inner = tmp_path / "checkpoint"
    inner.mkdir()
    save(inner / "model.safetensors", {"x.weight": ("F8_E4M3", [4, 4])})
    (tmp_path / "other.json").write_text(json.dumps(CONFIGS["fp8"]))
    (inner / "config.json").symlink_to("../other.json")
    made = plan(inner, {"x.weight": ("BF16", [4, 4])}, dtype="BF16", cast="exact")
    assert [warning.code for warning in made.warnings] == ["outside_root"]


def test_inspect_names_the_scheme(tmp_path, lading):
    import subprocess

    (name, dtype, shape), scales, others = SCHEMES["fp8 blocks"]
    save(tmp_path / "model.safetensors", {name: (dtype, shape), **scales, **others})
    done = subprocess.run([lading.command, "inspect", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0
    assert "fp8 blocks" in done.stdout + done.stderr
