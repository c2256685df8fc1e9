"""Writes the hand-made part of fuzz/corpus: small valid inputs for the fuzzers to start from."""

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# A policy that allows nothing; m1.weight [5, 7] in F8_E4M3 with scales [2, 3] for blocks of 4 x 3; ranks and cuts.
POLICY = bytes([1, 0, 1, 0, 1, 1, 1, 1, 1])
PAYLOAD = bytes([0, 0, 2, 1, 4, 1, 6, 1, 1, 0, 0, 1, 0, 1, 7, 1, 0, 1, 1, 1, 1, 0, 1])
PACKED = bytes([0, 0, 5, 5, 0, 1, 1, 1])  # one weight [32, 32], 4 bits in groups of 32
LAYOUT = bytes([1, 1, 0, 0, 4, 0, 0])
FP8 = b'{"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 3], "modules_to_not_convert": ["norm"]}}'

SEEDS = {
    "header/empty_map": safetensors({}),
    "header/one_f32": safetensors({"w": entry("F32", [2], 0, 8)}, bytes(8)),
    "header/metadata": safetensors({"__metadata__": {"format": "pt"}, "w": entry("BF16", [], 0, 2)}, bytes(2)),
    "header/two_and_empty": safetensors(
        {"b": entry("U8", [3], 4, 7), "e": entry("F64", [0, 3], 4, 4), "a": entry("I32", [1], 0, 4)}, bytes(7)
    ),
    "header/packed": safetensors({"q": entry("F4", [2], 0, 1), "r": entry("F6_E2M3", [4], 1, 4)}, bytes(4)),
    "header/padded": safetensors(b'  {"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}   ', bytes(2)),
    "header/duplicate": safetensors(b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\\u0077":{}}'),
    "header/too_many": safetensors({f"{i}": entry("U8", [0], 0, 0) for i in range(21)}),
    "header/huge": struct.pack("<Q", 2**63),
    "index/plain": json.dumps(
        {"metadata": {"total_size": 8}, "weight_map": {"a": "m-1.safetensors", "b": "d/m-2.safetensors"}}
    ).encode(),
    "index/escape": b'{"weight_map":{"a":"../x.safetensors"}}',
    "index/empty": b"{}",
    "directory/open": bytes([6, 2, 0, 7, 1, 2, 0, 7, 6, 2, 0, 7]),
    "directory/link": bytes([1, 1, 7, 3, 1, 2, 1, 7, 6, 1, 2, 4, 1, 1, 1, 3, 6, 1, 1]),
    "directory/absolute": bytes([5, 1, 2, 2, 0, 7, 6, 1, 2]),
    "quantized/config": POLICY + bytes([1]) + PAYLOAD + bytes([1, 1]) + LAYOUT + bytes([1, 0]) + FP8,
    "quantized/said": POLICY + bytes([1]) + PAYLOAD + bytes([1, 1]) + LAYOUT + bytes([1, 1, 0, 1, 1, 1]),
    "quantized/rule": POLICY + bytes([1]) + PAYLOAD + bytes([0, 1, 5]) + LAYOUT + bytes([0]),
    "quantized/gptq": POLICY + PACKED + bytes([0]),
    "quantized/awq": POLICY + PACKED + bytes([1]),
    "quantized/nothing": b"",
}


def main():
    for name, content in SEEDS.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
