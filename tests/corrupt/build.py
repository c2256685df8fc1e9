"""Builds safetensors files, right or wrong, from the text of their header."""

import json

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 64

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
PACKED_DTYPES = [dtype for dtype, bits in DTYPE_BITS.items() if bits % 8]


def length_prefix(header_bytes):
    return header_bytes.to_bytes(8, "little")


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


def file_of(header, data=b""):
    """The header is a text, taken as it is, or an object that is written as JSON."""
    text = as_bytes(header) if isinstance(header, str | bytes) else json.dumps(header).encode()
    return length_prefix(len(text)) + text + data


def entry(begin, end, dtype="U8", shape=None):
    """By default the U8 tensor that fills the span."""
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def entry_text(dtype='"U8"', shape="[2]", offsets="[0,2]"):
    """An entry whose parts are given as JSON text, so that they can be wrong."""
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def one_tensor(data=b"\1\2", **parts):
    """A file with the tensor "a", parts of its entry replaced."""
    return file_of(f'{{"a":{entry_text(**parts)}}}', data)


def one_dtype(dtype, shape, span_bytes):
    return file_of({"a": entry(0, span_bytes, dtype, shape)}, bytes(span_bytes))


def place_of(file_bytes, text, occurrence=1):
    """Where a text stands in a file; for faults whose place is known."""
    place = -1
    for _ in range(occurrence):
        place = file_bytes.index(as_bytes(text), place + 1)
    return place
