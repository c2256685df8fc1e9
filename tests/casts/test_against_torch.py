"""lading's casts and PyTorch's, bit by bit. Where they differ, the difference is named here and nothing else is let through:

- NaN stays NaN on both sides, but PyTorch keeps a signalling one, or drops sign or payload, on some paths;
- F64 to formats of 16 and 8 bits: PyTorch rounds to F32 first. It is compared with lading's casts in those two steps;
  one step may differ from it only where the first of two made a tie for the second.
"""

import numpy as np
import pytest
import torch

from . import probe

SAMPLES = 1 << 22

# dtype of safetensors: (dtype of PyTorch, bytes, NaN codes by a rule on the code without sign)
FORMATS = {
    "F8_E5M2": (torch.float8_e5m2, 1, lambda code: (code & 0x7F) > 0x7C),
    "F8_E4M3": (torch.float8_e4m3fn, 1, lambda code: (code & 0x7F) == 0x7F),
    "F8_E4M3FNUZ": (torch.float8_e4m3fnuz, 1, lambda code: code == 0x80),
    "F8_E5M2FNUZ": (torch.float8_e5m2fnuz, 1, lambda code: code == 0x80),
    "F16": (torch.float16, 2, lambda code: (code & 0x7FFF) > 0x7C00),
    "BF16": (torch.bfloat16, 2, lambda code: (code & 0x7FFF) > 0x7F80),
    "F32": (torch.float32, 4, lambda code: (code & 0x7FFFFFFF) > 0x7F800000),
    "F64": (torch.float64, 8, lambda code: (code & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000),
}
SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
INTEGERS = {
    "I8": torch.int8, "U8": torch.uint8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64,
}  # fmt: skip


def width_bytes(name):
    return FORMATS[name][1]


def by_torch(codes, source, target):
    signed = codes.view(f"<i{codes.itemsize}") if codes.itemsize > 1 else codes
    values = torch.from_numpy(signed.copy()).view(FORMATS[source][0])
    result = values.to(FORMATS[target][0]).view(SIGNED[width_bytes(target)])
    return result.numpy().view(f"<u{width_bytes(target)}")


def by_lading(codes, source, target, path):
    return probe.cast(codes, source, target, width_bytes(target), path)


def some_codes(name):
    """All codes of a narrow format. Of a wide one random bits, subnormal numbers, and those about 1 and 2^-14."""
    width = width_bytes(name)
    if width <= 2:
        return np.arange(1 << 8 * width, dtype=f"<u{width}")
    random = np.random.default_rng(7)
    bits = random.integers(0, 1 << 8 * width, SAMPLES, dtype=f"<u{width}", endpoint=False)
    weights = random.normal(0, 0.02, SAMPLES // 4).astype(f"<f{width}").view(f"<u{width}")
    edges = 2.0 ** random.integers(-152, 20, SAMPLES // 4) * random.choice([1, 1.5, 1.25, 1.0625], SAMPLES // 4)
    halfway = edges.astype(f"<f{width}").view(f"<u{width}") + random.integers(-1, 2, SAMPLES // 4).astype(f"<u{width}")
    subnormal = bits[: SAMPLES // 4] >> (9 if width == 4 else 12)
    return np.concatenate([bits, weights, halfway, subnormal]).astype(f"<u{width}")


def differences(codes, ours, theirs, source, target):
    """Indices where the two differ and it is not about NaN. A number must never become NaN on one side only."""
    is_nan = FORMATS[target][2]
    ours_nan, theirs_nan = is_nan(ours), is_nan(theirs)
    assert (ours_nan == theirs_nan).all(), (source, target, codes[ours_nan != theirs_nan][:8])
    return np.flatnonzero((ours != theirs) & ~ours_nan)


PAIRS = [(a, b) for a in FORMATS for b in FORMATS if a != b]
TWICE = [(a, b) for a, b in PAIRS if a == "F64" and width_bytes(b) <= 2]


@pytest.mark.parametrize("path", probe.paths())
@pytest.mark.parametrize("source,target", [pair for pair in PAIRS if pair not in TWICE])
def test_same_bits(source, target, path):
    codes = some_codes(source)
    ours, theirs = by_lading(codes, source, target, path), by_torch(codes, source, target)
    assert len(ours) == len(codes) >= 256
    wrong = differences(codes, ours, theirs, source, target)
    assert wrong.size == 0, [tuple(map(hex, row)) for row in zip(codes[wrong][:8], ours[wrong], theirs[wrong])]


def midpoints(target):
    """The F64 codes half-way between two numbers of `target`."""
    width = width_bytes(target)
    codes = np.arange(1 << 8 * width, dtype=f"<u{width}")
    values = by_torch(codes[~FORMATS[target][2](codes)], target, "F64").view("<f8")
    values = np.unique(values[np.isfinite(values)])
    return ((values[:-1] + values[1:]) / 2).view("<u8")


@pytest.mark.parametrize("source,target", TWICE)
def test_f64_to_narrow_differs_only_by_rounding_twice(source, target):
    halfway = midpoints(target)
    codes = np.concatenate([some_codes(source), halfway - 1, halfway, halfway + 1])
    path = probe.paths()[0]
    once, theirs = by_lading(codes, source, target, path), by_torch(codes, source, target)
    between = by_lading(codes, source, "F32", path)
    twice = by_lading(between, "F32", target, path)
    wrong = differences(codes, twice, theirs, source, target)
    assert wrong.size == 0, [tuple(map(hex, row)) for row in zip(codes[wrong][:8], twice[wrong], theirs[wrong])]
    # They do differ, and only where the first rounding made a tie for the second.
    differ = np.flatnonzero((once != theirs) & ~FORMATS[source][2](codes))
    assert differ.size > 0
    assert np.isin(by_lading(between[differ], "F32", "F64", path), halfway).all()


WIDENINGS = [
    (a, b) for a in INTEGERS for b in INTEGERS
    if INTEGERS[b].itemsize > INTEGERS[a].itemsize and (a[0] == "U" or b[0] == "I")
]  # fmt: skip


@pytest.mark.parametrize("source,target", WIDENINGS)
def test_integers_widen(source, target):
    from_bytes, to_bytes = INTEGERS[source].itemsize, INTEGERS[target].itemsize
    random = np.random.default_rng(9)
    codes = random.integers(0, 1 << 8 * from_bytes, 100_000, dtype=f"<u{from_bytes}", endpoint=False)
    signed = codes.view(f"<{source[0].lower()}{from_bytes}")
    theirs = torch.from_numpy(signed).to(INTEGERS[target]).numpy().view(f"<u{to_bytes}")
    ours = probe.cast(codes, source, target, to_bytes, probe.paths()[0])
    assert (ours == theirs).all()


def test_the_comparison_sees_a_wrong_rounding():
    codes = some_codes("F32")
    truncated = (codes >> 16).astype("<u2")
    theirs = by_torch(codes, "F32", "BF16")
    keep = ~FORMATS["F32"][2](codes)
    assert differences(codes[keep], truncated[keep], theirs[keep], "F32", "BF16").size > 0
