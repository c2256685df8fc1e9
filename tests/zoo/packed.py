"""Schemes of quantize.py whose codes have few bits: MXFP4, NVFP4, MXFP8, integers of compressed-tensors, GPTQ, AWQ.

Each scheme writes the keys and the config of the tool that it is named after, and reads them again by arithmetic of its
own: a code and its zero point are whole numbers, products are exact, and what is left is rounded once. Nothing here knows
lading. `tests/python_front/test_quantized_real.py` compares it with the tools themselves.

A number is (code - zero) * scale, times or divided by a scale of the whole tensor: `Numbers`. Weights are [out, in], and
experts are stacked in front.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy
import torch
from quantize import EXPERTS, KEPT, SCALES, rounded

Array = numpy.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]

F4 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the column of the code in place i of a word
LARGEST_E4M3 = 448.0


@dataclasses.dataclass
class Numbers:
    """What a weight's elements are made of, each array of the weight's shape or of one element."""

    codes: Array  # less their zero points
    scales: Array
    factor: float = 1.0
    divisor: float = 1.0

    def exact(self, dtype: torch.dtype) -> torch.Tensor:
        """Every product is exact: codes have up to 9 bits, scales 4 or 24, and the scale of the tensor goes with
        scales of 4. A quotient is rounded to F64, which matters only next to a tie: those are corrected."""
        products = self.codes * self.scales * self.factor
        if self.divisor == 1.0:
            return rounded(products, dtype)
        return rounded(_off_ties(products, self.divisor), dtype)


def _off_ties(products: Array, divisor: float) -> Array:
    """Quotients, which lie on a tie of F32 or less only if the true quotient does."""
    quotients = products / divisor
    mantissas, _ = numpy.frexp(quotients)
    may_be_ties = numpy.ldexp(mantissas, 25) % 1 == 0  # 25 bits, so that times a divisor of F32 is exact
    left = products - quotients * divisor
    towards = numpy.where(left * numpy.sign(divisor) > 0, numpy.inf, -numpy.inf)
    return numpy.where(may_be_ties & (left != 0), numpy.nextafter(quotients, towards), quotients)


def in_dtype(values: Array, dtype: torch.dtype) -> Array:
    """Rounded to that dtype."""
    return rounded(values, dtype).double().numpy()


# ---- words


def pack(codes: Array, bits: int, word: int = 32) -> Array:
    """Along the last dim, the first code in the lowest bits; the last word is filled up with zeros."""
    each = word // bits
    padding = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)]
    own = numpy.pad(codes.astype(numpy.uint64), padding).reshape(*codes.shape[:-1], -1, each)
    shifts = numpy.arange(each, dtype=numpy.uint64) * numpy.uint64(bits)
    words = numpy.bitwise_or.reduce(own << shifts, axis=-1)
    return words.astype(numpy.uint8) if word == 8 else words.astype(numpy.uint32).view(numpy.int32)


def unpack(words: Array, bits: int, count: int) -> Array:
    """The first `count` codes of the last dim."""
    width = words.dtype.itemsize * 8
    own = words.view(f"u{words.dtype.itemsize}")[..., None].astype(numpy.int64)
    codes = (own >> numpy.arange(0, width, bits)) & (2**bits - 1)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(numpy.ascontiguousarray(array))


def _numbers(tensor: torch.Tensor) -> Array:
    """Exactly, in F64."""
    if tensor.dtype == torch.uint8:
        tensor = tensor.view(torch.float8_e8m0fnu)
    found: Array = tensor.float().double().numpy()
    return found


# ---- groups along `in`


def _groups(weight: Array, group: int) -> Iterator[tuple[int, Array]]:
    size = group or weight.shape[-1]
    for number, begin in enumerate(range(0, weight.shape[-1], size)):
        yield number, weight[..., begin : begin + size]


def _of_groups(weight: Array, group: int, function: Any) -> Array:
    return numpy.stack([function(part) for _, part in _groups(weight, group)], axis=-1)


def _spread(grid: Array, group: int, count: int) -> Array:
    """[..., groups] to [..., in]."""
    return numpy.repeat(grid, group or count, axis=-1)[..., :count]


def _largest(part: Array) -> Array:
    found: Array = numpy.abs(part).max(axis=-1)
    return found


def _nearest_f4(values: Array) -> Array:
    """Codes."""
    steps = numpy.abs(values)[..., None] - F4[:8]
    return numpy.abs(steps).argmin(axis=-1) + 8 * numpy.signbit(values)


# ---- schemes


@dataclasses.dataclass(frozen=True)
class Packed:
    """`group`: elements of a row that have one scale; 0 means the whole row."""

    group: int = 0
    method: ClassVar[str]
    ends: ClassVar[tuple[str, ...]]  # of a weight's own keys; the first one is that of the payload

    # -- which weights

    def fits(self, out: int, into: int) -> bool:
        return True

    def quantizes(self, key: str, tensor: torch.Tensor) -> bool:
        is_weight = tensor.is_floating_point() and tensor.dim() == 2 and key.endswith(".weight")
        return is_weight and not KEPT.search(key) and tensor.numel() > 0 and self.fits(*tensor.shape)

    def base(self, weight: str) -> str:
        """The weight's name, as far as its own keys have it: "x." of "x.weight"."""
        return weight.removesuffix("weight")

    def weights_in(self, keys: Mapping[str, Any]) -> dict[str, list[str]]:
        """By the names of unquantized weights, the keys that make them."""
        found = {}
        for key in keys:
            if key.endswith(self.ends[0]):
                base = key.removesuffix(self.ends[0])
                if base + self.ends[1] in keys:
                    own = [base + end for end in self.ends if base + end in keys]
                    found[self.weight_of(base)] = own
        return found

    def weight_of(self, base: str) -> str:
        return base + "weight"

    # -- writing and reading

    def split(self, weight: Array) -> Tensors:
        """By the ends of their names."""
        raise NotImplementedError

    def join(self, parts: Tensors) -> Numbers:
        raise NotImplementedError

    def turned(self, values: torch.Tensor) -> torch.Tensor:
        """As the unquantized checkpoint has it."""
        return values

    def store(self, key: str, tensor: torch.Tensor) -> list[Tensors]:
        """Payloads, and what goes with them."""
        parts = self.split(self.turned(tensor).double().numpy())
        named = {self.base(key) + end: value.contiguous() for end, value in parts.items()}
        first = next(iter(named))
        return [{first: named[first]}, {name: value for name, value in named.items() if name != first}]

    def parts_of(self, tensors: Mapping[str, torch.Tensor], keys: list[str]) -> Tensors:
        base = keys[0].removesuffix(self.ends[0])
        return {key.removeprefix(base): tensors[key] for key in keys}

    def exact(self, parts: Tensors, dtype: torch.dtype) -> torch.Tensor:
        return self.turned(self.join(parts).exact(dtype)).contiguous()

    def reference(self, parts: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """As the tool computes: products in the dtype of the scales."""
        own = self.join(parts)
        product = self.product_dtype(parts)
        return self.turned(rounded(in_dtype(own.codes * own.scales, product), dtype)).contiguous()

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        raise NotImplementedError

    # -- config.json

    def config(self, kept: list[str]) -> dict[str, Any]:
        raise NotImplementedError


def _compressed(format: str, weights: dict[str, Any], kept: list[str], inputs: Any = None) -> dict[str, Any]:
    """As llm-compressor writes it."""
    weights = {
        "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
        "observer": "minmax", "observer_kwargs": {}, "scale_dtype": None, "strategy": "channel", "symmetric": True,
        "type": "int", "zp_dtype": None,
    } | weights  # fmt: skip
    group = {"format": format, "input_activations": inputs, "output_activations": None, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": group | {"weights": weights}},
        "format": format,
        "global_compression_ratio": None,
        "ignore": kept,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.14.0",
    }


# ---- floats of 4 bits


@dataclasses.dataclass(frozen=True)
class Mxfp4(Packed):
    """gpt-oss: stacked experts, whose last two dims are swapped; one byte of scale for 32 codes."""

    group: int = 32
    method: ClassVar[str] = "mxfp4"
    ends: ClassVar[tuple[str, ...]] = ("_blocks", "_scales")

    def quantizes(self, key: str, tensor: torch.Tensor) -> bool:
        is_expert = tensor.is_floating_point() and tensor.dim() == 3 and EXPERTS.search(key) is not None
        return is_expert and tensor.shape[1] % 32 == 0

    def base(self, weight: str) -> str:
        return weight

    def weight_of(self, base: str) -> str:
        return base

    def turned(self, values: torch.Tensor) -> torch.Tensor:
        return values.transpose(-1, -2)

    def split(self, weight: Array) -> Tensors:
        exponents = _exponents(weight, 6.0)
        codes = _nearest_f4(weight / _spread(numpy.exp2(exponents), 32, weight.shape[-1]))
        blocks = pack(codes, 4, 8).reshape(*exponents.shape, 16)
        return {"_blocks": _tensor(blocks), "_scales": _tensor((exponents + 127).astype(numpy.uint8))}

    def join(self, parts: Tensors) -> Numbers:
        blocks = parts["_blocks"].numpy()
        into = blocks.shape[-2] * 32
        codes = F4[unpack(blocks.reshape(*blocks.shape[:-2], -1), 4, into)]
        return Numbers(codes, _spread(_numbers(parts["_scales"]), 32, into))

    def reference(self, parts: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """A table in BF16 and `ldexp`, in BF16: two significant bits fit."""
        own = self.join(parts)
        return self.turned(rounded(in_dtype(own.codes * own.scales, torch.bfloat16), dtype)).contiguous()

    def config(self, kept: list[str]) -> dict[str, Any]:
        names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        return {"modules_to_not_convert": names, "quant_method": "mxfp4"}


def _exponents(weight: Array, largest: float) -> Array:
    """Of the powers of two by which each group of 32 is divided."""
    found = numpy.maximum(_of_groups(weight, 32, _largest), 2.0**-100) / largest
    return numpy.clip(numpy.ceil(numpy.log2(found)), -127, 127)


@dataclasses.dataclass(frozen=True)
class Mxfp4Pack(Packed):
    """MXFP4 as compressed-tensors writes it."""

    group: int = 32
    method: ClassVar[str] = "compressed-tensors"
    ends: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale")

    def fits(self, out: int, into: int) -> bool:
        return into % 32 == 0

    def split(self, weight: Array) -> Tensors:
        exponents = _exponents(weight, 6.0)
        codes = _nearest_f4(weight / _spread(numpy.exp2(exponents), 32, weight.shape[-1]))
        return {"weight_packed": _tensor(pack(codes, 4, 8)), "weight_scale": _tensor((exponents + 127).astype(numpy.uint8))}

    def join(self, parts: Tensors) -> Numbers:
        packed = parts["weight_packed"].numpy()
        into = packed.shape[-1] * 2
        return Numbers(F4[unpack(packed, 4, into)], _spread(_numbers(parts["weight_scale"]), 32, into))

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        return torch.bfloat16

    def config(self, kept: list[str]) -> dict[str, Any]:
        weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
        return _compressed("mxfp4-pack-quantized", weights, kept)


@dataclasses.dataclass(frozen=True)
class Nvfp4(Packed):
    """compressed-tensors: scales of E4M3, divided by one F32 for the tensor."""

    group: int = 16
    has_inputs: bool = False  # scales of activations beside the weights, which are no part of them
    method: ClassVar[str] = "compressed-tensors"
    ends: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale", "weight_global_scale")

    def fits(self, out: int, into: int) -> bool:
        return into % 16 == 0

    def split(self, weight: Array) -> Tensors:
        whole = numpy.float32(LARGEST_E4M3 * 6 / max(numpy.abs(weight).max(), 2.0**-60))
        codes, scales = self._codes(weight, float(whole))
        found = {"weight_packed": _tensor(codes), "weight_scale": scales, "weight_global_scale": torch.tensor([whole])}
        return found | ({"input_global_scale": torch.tensor([31.0])} if self.has_inputs else {})

    def _codes(self, weight: Array, whole: float) -> tuple[Array, torch.Tensor]:
        """Scales are stored times `whole`."""
        largest = _of_groups(weight, 16, _largest) / 6 * whole
        scales = torch.from_numpy(numpy.clip(largest, 2.0**-9, LARGEST_E4M3)).float().to(torch.float8_e4m3fn)
        codes = _nearest_f4(weight / _spread(_numbers(scales) / whole, 16, weight.shape[-1]))
        return pack(codes, 4, 8), scales

    def _joined(self, packed: torch.Tensor, scales: torch.Tensor) -> tuple[Array, Array]:
        into = packed.shape[-1] * 2
        return F4[unpack(packed.numpy(), 4, into)], _spread(_numbers(scales), 16, into)

    def join(self, parts: Tensors) -> Numbers:
        codes, scales = self._joined(parts["weight_packed"], parts["weight_scale"])
        return Numbers(codes, scales, divisor=parts["weight_global_scale"].item())

    def reference(self, parts: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """The quotient of both scales in F32, the product in F32, and that in BF16."""
        own = self.join(parts)
        scales = rounded(_off_ties(own.scales, own.divisor), torch.float32).double().numpy()
        products = in_dtype(own.codes * scales, torch.float32)
        return rounded(in_dtype(products, torch.bfloat16), dtype)

    def config(self, kept: list[str]) -> dict[str, Any]:
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        weights |= {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}
        inputs = weights | {"dynamic": "local", "symmetric": True} if self.has_inputs else None
        return _compressed("nvfp4-pack-quantized", weights, kept, inputs)


@dataclasses.dataclass(frozen=True)
class Nvfp4Modelopt(Nvfp4):
    """modelopt: the same, with a factor for the tensor, and `weight` for the payload."""

    method: ClassVar[str] = "modelopt"
    ends: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_scale_2")

    def split(self, weight: Array) -> Tensors:
        whole = numpy.float32(max(numpy.abs(weight).max(), 2.0**-60) / (LARGEST_E4M3 * 6))
        codes, scales = self._codes(weight, 1 / float(whole))
        found = {"weight": _tensor(codes), "weight_scale": scales, "weight_scale_2": torch.tensor(whole)}
        return found | ({"input_scale": torch.tensor(0.03)} if self.has_inputs else {})

    def join(self, parts: Tensors) -> Numbers:
        codes, scales = self._joined(parts["weight"], parts["weight_scale"])
        return Numbers(codes, scales, factor=parts["weight_scale_2"].item())

    def reference(self, parts: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """The product of both scales in F32, and times the code in F32."""
        own = self.join(parts)
        products = own.codes * in_dtype(own.scales * own.factor, torch.float32)
        return rounded(in_dtype(products, torch.float32), dtype)

    def config(self, kept: list[str]) -> dict[str, Any]:
        weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
        group = {"input_activations": weights, "weights": weights, "targets": ["Linear"]}
        return {
            "config_groups": {"group_0": group},
            "ignore": kept,
            "quant_algo": "NVFP4",
            "producer": {"name": "modelopt", "version": "0.35.0"},
            "quant_method": "modelopt",
        }


# ---- floats of 8 bits


@dataclasses.dataclass(frozen=True)
class Mxfp8(Packed):
    """E4M3 with one byte of scale for 32 elements, as compressed-tensors writes it, or transformers' "mxfp8"."""

    group: int = 32
    method: str = "compressed-tensors"  # type: ignore[misc]
    name: str = "weight_scale"
    ends: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_scale_inv")

    def fits(self, out: int, into: int) -> bool:
        return into % 32 == 0

    def weights_in(self, keys: Mapping[str, Any]) -> dict[str, list[str]]:
        scales = {f"{key.removesuffix(self.name)}weight": key for key in keys if key.endswith(f".{self.name}")}
        return {weight: [weight, scale] for weight, scale in scales.items() if weight in keys}

    def split(self, weight: Array) -> Tensors:
        exponents = _exponents(weight, LARGEST_E4M3)
        payload = torch.from_numpy(weight / _spread(numpy.exp2(exponents), 32, weight.shape[-1])).float()
        return {"weight": payload.to(torch.float8_e4m3fn), self.name: _tensor((exponents + 127).astype(numpy.uint8))}

    def join(self, parts: Tensors) -> Numbers:
        into = parts["weight"].shape[-1]
        return Numbers(_numbers(parts["weight"]), _spread(_numbers(parts[self.name]), 32, into))

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        return torch.bfloat16

    def config(self, kept: list[str]) -> dict[str, Any]:
        if self.method == "mxfp8":
            fields = {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}
            return fields | {"modules_to_not_convert": kept}
        weights = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
        return _compressed("mxfp8-quantized", weights, kept, weights | {"dynamic": True})


# ---- integers


@dataclasses.dataclass(frozen=True)
class Integers(Packed):
    """What integer schemes have in common."""

    bits: int = 4
    scales: str = "BF16"
    symmetric: bool = True
    ordered: bool = False  # columns are quantized in another order than that in which they stand (activation order)

    def order(self, into: int) -> Array:
        """g_idx: the group of each column."""
        groups = numpy.arange(into, dtype=numpy.int32) // (self.group or into)
        return numpy.random.default_rng(into).permutation(groups) if self.ordered else groups

    def _quantized(self, weight: Array, least_zero: int = 0) -> tuple[Array, torch.Tensor, Array]:
        """Codes from 0 up, scales [out, groups], and zero points of the same shape."""
        order = self.order(weight.shape[-1])
        by_groups = numpy.argsort(order, kind="stable")
        codes, scales, zeros = self._quantized_in_order(weight[..., by_groups], least_zero)
        own = numpy.empty_like(codes)
        own[..., by_groups] = codes
        return own, scales, zeros

    def _quantized_in_order(self, weight: Array, least_zero: int) -> tuple[Array, torch.Tensor, Array]:
        most = 2**self.bits - 1
        if self.symmetric:
            scales = _of_groups(weight, self.group, _largest) / (most // 2)
        else:
            low = numpy.minimum(_of_groups(weight, self.group, lambda part: part.min(axis=-1)), 0)
            high = numpy.maximum(_of_groups(weight, self.group, lambda part: part.max(axis=-1)), 0)
            scales = (high - low) / most
        stored = torch.from_numpy(numpy.maximum(scales, 2.0**-20)).float().to(SCALES[self.scales])
        used = _numbers(stored)
        zeros = numpy.full(used.shape, 2 ** (self.bits - 1))
        if not self.symmetric:
            zeros = numpy.clip(numpy.rint(-low / used), least_zero, most).astype(numpy.int64)
        into = weight.shape[-1]
        codes = numpy.rint(weight / _spread(used, self.group, into)) + _spread(zeros, self.group, into)
        return numpy.clip(codes, 0, most).astype(numpy.int64), stored, zeros

    def _numbers_of(
        self, codes: Array, zeros: Array | int, scales: torch.Tensor, order: torch.Tensor | None = None
    ) -> Numbers:
        """Scales and zero points [out, groups]. `order` (g_idx) has the group of each column."""
        groups = self.order(codes.shape[-1]) if order is None else order.numpy()
        less = codes - (zeros if isinstance(zeros, int) else zeros[:, groups])
        return Numbers(less.astype(numpy.float64), _numbers(scales)[:, groups])


@dataclasses.dataclass(frozen=True)
class PackQuantized(Integers):
    """compressed-tensors "pack-quantized": unsigned codes, of which the middle stands for zero."""

    method: ClassVar[str] = "compressed-tensors"
    ends: ClassVar[tuple[str, ...]] = (
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
    )  # fmt: skip

    def fits(self, out: int, into: int) -> bool:
        return not self.group or into % self.group == 0

    def split(self, weight: Array) -> Tensors:
        codes, scales, zeros = self._quantized(weight)
        found = {"weight_packed": _tensor(pack(codes, self.bits)), "weight_scale": scales}
        if not self.symmetric:
            found["weight_zero_point"] = _tensor(pack(zeros.T, self.bits).T)
        if self.ordered:
            found["weight_g_idx"] = _tensor(self.order(weight.shape[-1]))
        return found | {"weight_shape": torch.tensor(weight.shape)}

    def join(self, parts: Tensors) -> Numbers:
        out, into = parts["weight_shape"].tolist()
        codes = unpack(parts["weight_packed"].numpy(), self.bits, into)
        zeros: Array | int = 2 ** (self.bits - 1)
        if not self.symmetric:
            zeros = unpack(numpy.ascontiguousarray(parts["weight_zero_point"].numpy().T), self.bits, out).T
        return self._numbers_of(codes, zeros, parts["weight_scale"], parts.get("weight_g_idx"))

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        return parts["weight_scale"].dtype

    def config(self, kept: list[str]) -> dict[str, Any]:
        return _compressed("pack-quantized", self._weights(), kept)

    def _weights(self) -> dict[str, Any]:
        grouped = {"strategy": "group", "group_size": self.group} if self.group else {"strategy": "channel"}
        ordered = {"actorder": "group"} if self.ordered else {}
        return {"num_bits": self.bits, "symmetric": self.symmetric, **grouped, **ordered}


@dataclasses.dataclass(frozen=True)
class IntQuantized(PackQuantized):
    """compressed-tensors "int-quantized": one signed byte for each element, and one for each zero point."""

    bits: int = 8
    ends: ClassVar[tuple[str, ...]] = ("weight", "weight_scale", "weight_zero_point")

    def split(self, weight: Array) -> Tensors:
        codes, scales, zeros = self._quantized(weight)
        found = {"weight": _tensor((codes - 128).astype(numpy.int8)), "weight_scale": scales}
        return found if self.symmetric else found | {"weight_zero_point": _tensor((zeros - 128).astype(numpy.int8))}

    def join(self, parts: Tensors) -> Numbers:
        zeros = 0 if self.symmetric else parts["weight_zero_point"].numpy().astype(numpy.int64)
        return self._numbers_of(parts["weight"].numpy().astype(numpy.int64), zeros, parts["weight_scale"])

    def config(self, kept: list[str]) -> dict[str, Any]:
        inputs = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
        return _compressed("int-quantized", self._weights(), kept, inputs)


@dataclasses.dataclass(frozen=True)
class Gptq(Integers):
    """GPTQ: packed along `in`, all of it transposed. The first version of the format stores zero points less one."""

    scales: str = "F16"
    version: str = "gptq"
    method: ClassVar[str] = "gptq"
    ends: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")

    def fits(self, out: int, into: int) -> bool:
        return into % (32 // self.bits) == 0

    @property
    def _less(self) -> int:
        return 1 if self.version == "gptq" else 0

    def split(self, weight: Array) -> Tensors:
        codes, scales, zeros = self._quantized(weight, least_zero=self._less)
        into = weight.shape[1]
        return {
            "qweight": _tensor(pack(codes, self.bits).T),
            "qzeros": _tensor(pack(zeros.T - self._less, self.bits)),
            "scales": scales.t(),
            "g_idx": _tensor(self.order(into)),
        }

    def join(self, parts: Tensors) -> Numbers:
        into, out = parts["g_idx"].shape[0], parts["scales"].shape[1]
        codes = unpack(numpy.ascontiguousarray(parts["qweight"].numpy().T), self.bits, into)
        zeros = unpack(parts["qzeros"].numpy(), self.bits, out).T + self._less
        return self._numbers_of(codes, zeros, parts["scales"].t(), parts["g_idx"])

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        return parts["scales"].dtype

    def config(self, kept: list[str]) -> dict[str, Any]:
        return {
            "bits": self.bits,
            "checkpoint_format": self.version,
            "damp_percent": 0.1,
            "desc_act": self.ordered,
            "group_size": self.group or -1,
            "lm_head": False,
            "meta": {"quantizer": ["gptqmodel:2.2.0"]},
            "pack_dtype": "int32",
            "quant_method": "gptq",
            "static_groups": False,
            "sym": self.symmetric,
            "true_sequential": True,
        }


@dataclasses.dataclass(frozen=True)
class Awq(Integers):
    """AWQ "gemm": packed along `out`, in an order of its own."""

    scales: str = "F16"
    symmetric: bool = False
    method: ClassVar[str] = "awq"
    ends: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")

    def fits(self, out: int, into: int) -> bool:
        return out % 8 == 0 and (not self.group or into % self.group == 0)

    @staticmethod
    def _packed(rows: Array) -> torch.Tensor:
        return _tensor(pack(rows.reshape(len(rows), -1, 8)[..., AWQ_ORDER].reshape(rows.shape), 4))

    @staticmethod
    def _unpacked(words: torch.Tensor) -> Array:
        stored = unpack(words.numpy(), 4, words.shape[1] * 8).reshape(len(words), -1, 8)
        found = numpy.empty_like(stored)
        found[..., AWQ_ORDER] = stored
        return found.reshape(len(words), -1)

    def split(self, weight: Array) -> Tensors:
        codes, scales, zeros = self._quantized(weight)
        return {"qweight": self._packed(codes.T), "qzeros": self._packed(zeros.T), "scales": scales.t()}

    def join(self, parts: Tensors) -> Numbers:
        zeros = self._unpacked(parts["qzeros"]).T
        return self._numbers_of(self._unpacked(parts["qweight"]).T, zeros, parts["scales"].t())

    def product_dtype(self, parts: Tensors) -> torch.dtype:
        return parts["scales"].dtype

    def config(self, kept: list[str]) -> dict[str, Any]:
        return {
            "bits": 4,
            "group_size": self.group or -1,
            "modules_to_not_convert": kept,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": not self.symmetric,
        }


# ---- all of them, by name


SCHEMES: dict[str, Packed] = {
    "mxfp4": Mxfp4(),
    "mxfp4 of compressed-tensors": Mxfp4Pack(),
    "nvfp4": Nvfp4(),
    "nvfp4 with inputs": Nvfp4(has_inputs=True),
    "nvfp4 of modelopt": Nvfp4Modelopt(),
    "nvfp4 of modelopt with inputs": Nvfp4Modelopt(has_inputs=True),
    "mxfp8": Mxfp8(),
    "mxfp8 of transformers": Mxfp8(method="mxfp8", name="weight_scale_inv"),
    "int4": PackQuantized(group=32),
    "int4 by rows": PackQuantized(),
    "int4 with zero points": PackQuantized(group=16, symmetric=False),
    "int4 with zero points by rows": PackQuantized(symmetric=False, scales="F16"),
    "int4 in f32": PackQuantized(group=8, scales="F32"),
    "int8": PackQuantized(group=16, bits=8, scales="F16"),
    "int8 with zero points": PackQuantized(group=16, bits=8, symmetric=False),
    "int4 in activation order": PackQuantized(group=32, ordered=True),
    "int8 in activation order": PackQuantized(group=16, bits=8, symmetric=False, scales="F16", ordered=True),
    "signed bytes": IntQuantized(),
    "signed bytes in groups": IntQuantized(group=16, scales="F32"),
    "signed bytes with zero points": IntQuantized(symmetric=False),
    "gptq": Gptq(group=32),
    "gptq of 2 bits": Gptq(group=16, bits=2, symmetric=False),
    "gptq of 8 bits": Gptq(group=64, bits=8),
    "gptq with zero points": Gptq(group=16, symmetric=False),
    "gptq by rows": Gptq(),
    "gptq, ragged": Gptq(group=24, symmetric=False),
    "gptq v2": Gptq(group=32, version="gptq_v2", symmetric=False, scales="BF16"),
    "gptq in activation order": Gptq(group=32, symmetric=False, ordered=True),
    "gptq v2 in activation order": Gptq(group=16, bits=8, version="gptq_v2", scales="BF16", ordered=True),
    "awq": Awq(group=16),
    "awq by rows": Awq(),
    "awq, symmetric": Awq(group=32, symmetric=True),
}
