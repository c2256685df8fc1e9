"""What a file's bytes say, judged with Python's json and nothing of lading's or the reference's.

A fault is a cause to refuse the file by the format's text or by a documented stricter rule. Reading goes on
behind a fault where the reference would, so that the faults tell whether the file has other ones too.
"""

import json
import re
import struct
from dataclasses import dataclass, field

from .drafts import DTYPE_BITS, product

MAX_HEADER_BYTES = 100_000_000
MAX_RANK = 64
FIELDS = ("dtype", "shape", "data_offsets")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotSize:
    """A JSON number that is no whole number from 0 to 2^64 - 1."""


@dataclass
class Reading:
    faults: set[str] = field(default_factory=set)
    unknown_dtype: bool = False


@dataclass
class Tensor:
    dtype: str | None = None
    shape: list[int] | None = None
    offsets: list[int] | None = None


def read_integer(text):
    digits = len(text) <= 20 and text.isdigit()
    return int(text) if digits and int(text) < 2**64 else NotSize()


def read_fraction(text):
    if float(text) in (float("inf"), float("-inf")):
        raise ValueError("out of range")
    return NotSize()


def refuse_constant(text):
    raise ValueError(text)


# Objects become tuples of pairs: duplicate keys stay visible, and arrays stay different.
DECODER = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=read_integer, parse_float=read_fraction, parse_constant=refuse_constant
)


def check_surrogates(value):
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, (list, tuple)):
        for element in value:
            check_surrogates(element)


def parse_json(text):
    value = DECODER.decode(text)
    if SURROGATE_ESCAPE.search(text):
        check_surrogates(value)
    return value


def header_and_data_size(file):
    if len(file) < 8:
        return None
    (length,) = struct.unpack("<Q", file[:8])
    if length > MAX_HEADER_BYTES or length > len(file) - 8:
        return None
    return file[8 : 8 + length], len(file) - 8 - length


def read(file):
    reading = Reading()
    parts = header_and_data_size(file)
    if parts is None:
        reading.faults.add("header_length")
        return reading
    header, data_size = parts
    try:
        root = parse_json(header.decode())
    except UnicodeError:
        reading.faults.add("unicode")
        return reading
    except (ValueError, RecursionError):
        reading.faults.add("json")
        return reading
    if isinstance(root, tuple):
        read_root(root, data_size, reading)
    else:
        reading.faults.add("root_type")
    return reading


def read_root(root, data_size, reading):
    tensors = {}
    metadata_seen = False
    for key, value in root:
        if key == "__metadata__":
            if metadata_seen:
                reading.faults.add("duplicate_metadata")
            metadata_seen = True
            read_metadata(value, reading)
            continue
        if key in tensors:
            reading.faults.add("duplicate_tensor")
        tensors[key] = read_entry(value, reading)
    # Only what the last entry of a name says is judged further: the reference sees no other.
    for tensor in tensors.values():
        check_size(tensor, reading)
    check_tiling(tensors.values(), data_size, reading)


def read_metadata(value, reading):
    if value is None:
        reading.faults.add("metadata_null")
    elif not isinstance(value, tuple) or not all(isinstance(text, str) for _, text in value):
        reading.faults.add("metadata_type")
    elif len(dict(value)) != len(value):
        reading.faults.add("duplicate_metadata_key")


def read_entry(value, reading):
    if isinstance(value, list) and len(value) == len(FIELDS):
        reading.faults.add("entry_as_array")
        value = tuple(zip(FIELDS, value))
    if not isinstance(value, tuple):
        reading.faults.add("entry_type")
        return Tensor()
    known = [(key, content) for key, content in value if key in FIELDS]
    if len(known) != len(value):
        reading.faults.add("S1")
    fields = dict(known)
    if len(fields) != len(known):
        reading.faults.add("duplicate_field")
    if len(fields) != len(FIELDS):
        reading.faults.add("missing_field")
    shape = read_sizes(fields.get("shape"), reading)
    check_shape(shape, reading)
    offsets = read_sizes(fields.get("data_offsets"), reading)
    if offsets is not None and len(offsets) != 2:
        reading.faults.add("offsets")
        offsets = None
    return Tensor(read_dtype(fields.get("dtype"), reading), shape, offsets)


def read_dtype(value, reading):
    if isinstance(value, tuple) and len(value) == 1 and value[0][1] in (None, ()):
        reading.faults.add("dtype_as_object")
        value = value[0][0]
    if not isinstance(value, str):
        reading.faults.add("dtype_type")
        return None
    if value in DTYPE_BITS:
        return value
    reading.unknown_dtype = True
    return None


def read_sizes(value, reading):
    # bool is a subclass of int, so isinstance would let true through.
    if isinstance(value, list) and all(type(number) is int for number in value):
        return value
    reading.faults.add("not_sizes")
    return None


def check_shape(shape, reading):
    if shape is None:
        return
    if len(shape) > MAX_RANK:
        reading.faults.add("S2")
    if 0 in shape and multiplies_beyond_63_bits(shape):
        reading.faults.add("S3")


def multiplies_beyond_63_bits(shape):
    return product(dim for dim in shape if dim) >= 2**63


def check_size(tensor, reading):
    if tensor.shape is None or tensor.offsets is None:
        return
    begin, end = tensor.offsets
    if begin > end:
        reading.faults.add("offsets")
    if 0 not in tensor.shape and multiplies_beyond_63_bits(tensor.shape):
        reading.faults.add("overflow")
    if tensor.dtype:
        if product(tensor.shape) * DTYPE_BITS[tensor.dtype] != 8 * (end - begin):
            reading.faults.add("size")
    # An element of an unknown dtype still has at least one bit.
    elif (product(tensor.shape) == 0) != (begin == end) or product(tensor.shape) > 8 * (end - begin):
        reading.faults.add("size")


def check_tiling(tensors, data_size, reading):
    if any(tensor.offsets is None for tensor in tensors):
        return
    reached = 0
    for begin, end in sorted(tensor.offsets for tensor in tensors):
        if begin != reached:
            reading.faults.add("tiling")
        reached = end
    if reached != data_size:
        reading.faults.add("data_size")
