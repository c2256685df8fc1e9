"""Quantizes a checkpoint, as releases of quantized models are: payloads, scales beside them, and a config.

    python quantize.py SOURCE TARGET [--block 128,128 | --per tensor|channel] [--scales F32|BF16|F16|E8M0]
                                     [--payload E4M3|E5M2] [--name weight_scale_inv|weight_scale]
    python quantize.py SOURCE TARGET --scheme mxfp4|nvfp4|int4|gptq|awq|...

The first form writes 8-bit floats with scales for blocks; schemes of fewer bits are in packed.py.

SOURCE is a folder that `save_pretrained` wrote, of any architecture: keys are those of the file, so nothing here knows a
model. Weights of two and three dims are quantized, the last two dims block by block; blocks at the edges are ragged.
What only `weight` names hold is quantized, less embeddings and heads (`KEPT`), as in releases; other keys stay as they
are. Scales go into shards of their own, so that a payload and its scales are in different files.

`dequantized(TARGET, scheme, dtype)` is the oracle: the same tensors again, each product computed exactly and rounded
once, or with `arithmetic="reference"` as the scheme's own tool does. It knows nothing of lading, and its rounding is
written in numpy: torch rounds F64 to BF16 by way of F32, which is twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

PAYLOADS = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
SCALES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "E8M0": torch.float8_e8m0fnu}
# Significant bits without the leading one, and the exponent of the smallest normal number.
ROUNDED = {torch.float32: (23, -126), torch.bfloat16: (7, -126), torch.float16: (10, -14)}
KEPT = re.compile(r"(^|[._])(embed\w*|shared|wte|wpe|lm_head|output_head|position\w*|relative_attention_bias)[._]")
OF_INPUTS = (".input_scale", ".input_global_scale")  # beside weights, and no part of them
EXPERTS = re.compile(r"(^|\.)(gate_up_proj|gate_proj|up_proj|down_proj)$")  # parameters of stacked experts


@dataclasses.dataclass(frozen=True)
class Scheme:
    """`block` is of the last two dims; 0 stands for the whole extent, as in a scale for each row or each tensor."""

    block: tuple[int, int] = (128, 128)
    payload: str = "E4M3"
    scales: str = "F32"
    name: str = "weight_scale_inv"
    is_said: bool = True  # weight_block_size in the config
    method: str = "fp8"  # or "compressed-tensors"

    def blocks_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One for each dim of a payload of this shape: leading dims are apart."""
        own = tuple(size or extent for size, extent in zip(self.block, shape[-2:], strict=True))
        return (1,) * (len(shape) - 2) + own

    def config(self, kept: list[str]) -> dict[str, Any]:
        if self.method == "compressed-tensors":
            return self._compressed(kept)
        fields: dict[str, Any] = {"quant_method": "fp8", "fmt": self.payload.lower(), "activation_scheme": "dynamic"}
        if self.is_said:
            fields["weight_block_size"] = list(self.block)
        return fields | {"modules_to_not_convert": kept}

    def quantizes(self, key: str, tensor: torch.Tensor) -> bool:
        return is_quantized(key, tensor)

    def store(self, key: str, tensor: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """The payload, and what goes with it."""
        payload, stored = quantize_tensor(tensor, self)
        is_one = self.block == (0, 0) and stored.numel() == 1
        return [{key: payload}, {scale_key(key, self): stored.reshape(()) if is_one else stored}]

    def weights_in(self, keys: Mapping[str, Any]) -> dict[str, list[str]]:
        """By the names of unquantized weights, the keys that make them."""
        scales = {key: scale_key(key, self) for key in keys}
        return {key: [key, scale] for key, scale in scales.items() if scale != key and scale in keys}

    def parts_of(self, tensors: Mapping[str, torch.Tensor], keys: list[str]) -> dict[str, torch.Tensor]:
        return dict(zip(("payload", "scales"), (tensors[key] for key in keys), strict=True))

    def exact(self, parts: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        return dequantize_tensor(parts["payload"], parts["scales"], self.blocks_of(tuple(parts["payload"].shape)), dtype)

    def reference(self, parts: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """transformers multiplies in F32, compressed-tensors in the dtype of the scales."""
        product = parts["scales"].dtype if self.method == "compressed-tensors" else torch.float32
        return rounded(self.exact(parts, product).double().numpy(), dtype)

    def _compressed(self, kept: list[str]) -> dict[str, Any]:
        weights: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block"}
        if self.is_said:
            weights["block_structure"] = list(self.block)
        else:
            weights["strategy"] = "tensor" if self.block == (0, 0) else "channel"
        groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
        fields = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
        return fields | {"ignore": kept, "quantization_status": "compressed"}


PER_TENSOR = Scheme(block=(0, 0), name="weight_scale", is_said=False)
PER_CHANNEL = Scheme(block=(1, 0), name="weight_scale", is_said=False)  # of the output: of each row


# ---- quantizing


def is_quantized(key: str, tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.dim() not in (2, 3) or not tensor.numel() or KEPT.search(key):
        return False
    return key.endswith(".weight") or (tensor.dim() == 3 and EXPERTS.search(key) is not None)


def scale_key(key: str, scheme: Scheme) -> str:
    """ "x.weight_scale_inv" of "x.weight"; "x.up_proj_scale_inv" of "x.up_proj"."""
    return key + scheme.name.removeprefix("weight")


def quantize_tensor(tensor: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Payload and scales. Each block's largest element becomes about the payload's largest number."""
    blocks, dtype = scheme.blocks_of(tuple(tensor.shape)), PAYLOADS[scheme.payload]
    padded = tensor.double()
    grid = tuple(-(-extent // size) for extent, size in zip(tensor.shape, blocks, strict=True))
    largest = torch.zeros(grid, dtype=torch.float64)
    for place in numpy.ndindex(*grid):
        part = padded[tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, blocks, strict=True))]
        largest[place] = part.abs().max()
    scales = (largest / torch.finfo(dtype).max).clamp(min=2.0**-60)
    if scheme.scales == "E8M0":
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    stored = scales.float().to(SCALES[scheme.scales])
    used = spread(stored.float().double(), blocks, tuple(tensor.shape))
    limit = torch.finfo(dtype).max
    return (padded / used).clamp(-limit, limit).float().to(dtype), stored


def spread(scales: torch.Tensor, blocks: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """Each element's own scale."""
    for dim, size in enumerate(blocks):
        scales = scales.repeat_interleave(size, dim).narrow(dim, 0, shape[dim])
    return scales


def quantize(source: Path, target: Path, scheme: Any = Scheme()) -> list[str]:
    """The keys that were quantized, by the names that they had."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    payloads: dict[str, torch.Tensor] = {}
    scales: dict[str, torch.Tensor] = {}
    quantized: list[str] = []
    kept: set[str] = set()
    for key, tensor in tensors_of(source):
        if scheme.quantizes(key, tensor):
            payload, others = scheme.store(key, tensor)
            payloads |= payload
            scales |= others
            quantized.append(key)
        else:
            payloads[key] = tensor
            if key.endswith(".weight"):
                kept.add(key.removesuffix(".weight"))
    write(target, [payloads, scales] if scales else [payloads])
    config = json.loads((source / "config.json").read_text())
    if scales:
        config["quantization_config"] = scheme.config(sorted(kept))
    (target / "config.json").write_text(json.dumps(config, indent=2))
    return quantized


# ---- the oracle


def rounded(values: numpy.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """F64 to `dtype`, once, to nearest and ties to even."""
    if dtype == torch.float64:
        return torch.from_numpy(numpy.array(values))
    bits, least = ROUNDED[dtype]
    _, exponents = numpy.frexp(values)  # 0.5 <= |mantissa| < 1
    steps = numpy.maximum(exponents - 1, least) - bits
    with numpy.errstate(invalid="ignore", over="ignore"):
        found = numpy.ldexp(numpy.rint(numpy.ldexp(values, -steps)), steps)
    found = numpy.where(numpy.isfinite(values), found, values)
    too_large = numpy.abs(found) > torch.finfo(dtype).max
    found = numpy.where(too_large, numpy.copysign(numpy.inf, found), found)
    return torch.from_numpy(found).to(dtype)  # exact: each value is one of that dtype


def dequantize_tensor(
    payload: torch.Tensor, scales: torch.Tensor, blocks: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """The product is exact in F64: at most 4 + 24 significant bits."""
    shape = tuple(payload.shape)
    grid = scales.float().double().reshape(tuple(-(-n // size) for n, size in zip(shape, blocks, strict=True)))
    exact = payload.float().double() * spread(grid, blocks, shape)
    return rounded(exact.numpy(), dtype)


def dequantized(folder: Path, scheme: Any, dtype: torch.dtype, arithmetic: str = "exact") -> dict[str, torch.Tensor]:
    """All tensors of a quantized checkpoint, by the names of unquantized ones; what is not quantized as it is."""
    found = dict(tensors_of(folder))
    multiply = scheme.reference if arithmetic == "reference" else scheme.exact
    made = {}
    for weight, keys in scheme.weights_in(found).items():
        made[weight] = multiply(scheme.parts_of(found, keys), dtype)
        for key in keys:
            del found[key]
    return {key: value for key, value in found.items() if not (made and key.endswith(OF_INPUTS))} | made


def unquantize(source: Path, target: Path, scheme: Any, dtype: torch.dtype, arithmetic: str = "exact") -> None:
    """An ordinary checkpoint of what the quantized one holds, by the oracle."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    write(target, [dequantized(source, scheme, dtype, arithmetic)])
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config, indent=2))


# ---- files


def tensors_of(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors.torch import load_file

    for path in sorted(folder.glob("*.safetensors")):
        yield from load_file(path).items()


def write(folder: Path, shards: list[dict[str, torch.Tensor]]) -> None:
    from safetensors.torch import save_file

    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
        total += sum(tensor.numel() * tensor.element_size() for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--block", default="128,128")
    parser.add_argument("--per", choices=("tensor", "channel"))
    parser.add_argument("--scales", choices=SCALES, default="F32")
    parser.add_argument("--payload", choices=PAYLOADS, default="E4M3")
    parser.add_argument("--name", choices=("weight_scale_inv", "weight_scale"), default="weight_scale_inv")
    parser.add_argument("--scheme", help="one of packed.py, by its name")
    asked = parser.parse_args()
    block = {"tensor": (0, 0), "channel": (1, 0)}.get(asked.per) or tuple(map(int, asked.block.split(",")))
    scheme: Any = Scheme(block, asked.payload, asked.scales, asked.name, is_said=asked.per is None)
    if asked.scheme:
        import packed

        scheme = packed.SCHEMES[asked.scheme]
    keys = quantize(asked.source, asked.target, scheme)
    print(f"{len(keys)} of the keys were quantized")
    return 0


if __name__ == "__main__":
    sys.exit(main())
