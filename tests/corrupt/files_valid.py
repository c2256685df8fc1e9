"""Files that must be accepted: faults 14 and 16 of docs/how-it-works/faults.md, and valid files that peers refuse."""

import json
from functools import partial
from itertools import permutations

from .build import DTYPE_BITS, MAX_RANK, entry, entry_text, file_of, one_dtype, one_tensor
from .cases import Problem, Registry
from .files_tiling import ODD_NAMES

CASES = Registry()


def add_white_space():
    text = f'{{"a":{entry_text()}}}'
    for name, blank in {
        "spaces": "   ",
        "newlines": "\n\n",
        "tabs": "\t",
        "carriage_returns": "\r\n",
        "a_page": " " * 4096,
    }.items():
        CASES.accept(f"{name}_before_the_header", 14, partial(file_of, blank + text, b"\1\2"))
        CASES.accept(f"{name}_behind_the_header", 14, partial(file_of, text + blank, b"\1\2"))
    spread = "".join(f" \t\r\n{character}\n" if character in "{}[]:," else character for character in text)
    CASES.accept("white_space_between_all_tokens", 14, partial(file_of, spread, b"\1\2"))
    indented = json.dumps({"a": entry(0, 2)}, indent=4)
    CASES.accept("indented_header", 14, partial(file_of, indented, b"\1\2"))


def add_empty_ones():
    CASES.accept("no_tensors", None, partial(file_of, "{}"))
    CASES.accept("no_tensors_padded_to_8", None, partial(file_of, "{}      "))
    CASES.accept("only_metadata", None, partial(file_of, '{"__metadata__":{"format":"pt"}}'))
    CASES.accept("empty_metadata", None, partial(file_of, '{"__metadata__":{}}'))
    CASES.accept("zero_size_tensor_alone", 14, partial(one_dtype, "F32", [0], 0))
    CASES.accept("zero_size_tensor_of_rank_3", 14, partial(one_dtype, "BF16", [4, 0, 2], 0))
    CASES.accept("zero_size_tensor_with_a_large_dim", 14, partial(one_dtype, "U8", [0, 2**62], 0))
    CASES.accept("zero_size_tensor_of_2_to_63_minus_1", 14, partial(one_dtype, "U8", [2**63 - 1, 0], 0))
    CASES.accept("zero_size_tensor_packed", 14, partial(one_dtype, "F4", [0, 3], 0))


def add_zero_size_orders():
    tensors = {
        "a": entry(0, 2),
        "b": entry(2, 2, "F32", [0]),
        "c": entry(2, 4),
        "first": entry(0, 0),
        "last": entry(4, 4),
    }
    for order in permutations(tensors):
        if order[0] in "ac" and order[1] in ("first", "last", "c"):
            header = {name: tensors[name] for name in order}
            CASES.accept("zero_size_order_" + "_".join(order), 14, partial(file_of, header, bytes(4)))
    crowd = {f"z{i}": entry(2, 2, "F32", [0, i]) for i in range(9)}
    CASES.accept(
        "zero_size_tensors_at_one_place", 14, partial(file_of, {"a": entry(0, 2), **crowd, "b": entry(2, 4)}, bytes(4))
    )
    CASES.accept("header_order_is_not_data_order", 14, partial(file_of, {"a": entry(2, 4), "b": entry(0, 2)}, bytes(4)))


def add_dtypes():
    for dtype, bits in DTYPE_BITS.items():
        CASES.accept(f"dtype_{dtype}", None, partial(one_dtype, dtype, [8], bits))
        CASES.accept(f"dtype_{dtype}_of_rank_2", None, partial(one_dtype, dtype, [2, 4], bits))
        if bits % 8 == 0:
            CASES.accept(f"dtype_{dtype}_of_rank_0", 14, partial(one_dtype, dtype, [], bits // 8))
    CASES.accept("F6_of_4_elements", 11, partial(one_dtype, "F6_E2M3", [4], 3))
    CASES.accept("F4_of_2_elements", 11, partial(one_dtype, "F4", [2], 1))
    CASES.accept(f"rank_{MAX_RANK}", None, partial(one_dtype, "U8", [1] * MAX_RANK, 1))
    CASES.accept(f"rank_{MAX_RANK}_of_zeros", None, partial(one_dtype, "U8", [0] * MAX_RANK, 0))


def add_misaligned():
    header = json.dumps({"a": entry(0, 8, "F64", [1])})
    for pad in range(8):
        CASES.accept(f"data_begins_{pad}_bytes_later", 14, partial(file_of, header + " " * pad, bytes(8)))
    mixed = {"byte": entry(0, 1), "wide": entry(1, 9, "F64", [1]), "half": entry(9, 11, "BF16", [1])}
    CASES.accept("wide_tensor_at_an_odd_place", 14, partial(file_of, mixed, bytes(11)))


def add_spellings():
    fields = {"dtype": '"U8"', "shape": "[2]", "data_offsets": "[0,2]"}
    for order in permutations(fields):
        text = ",".join(f'"{field}":{fields[field]}' for field in order)
        CASES.accept("fields_in_order_" + "_".join(order), None, partial(file_of, f'{{"a":{{{text}}}}}', b"\1\2"))
    escaped = r'{"\u0061":{"\u0064type":"\u00558","sh\u0061pe":[2],"data\u005foffsets":[0,2]}}'
    CASES.accept("escapes_in_all_strings", None, partial(file_of, escaped, b"\1\2"))
    CASES.accept("metadata_key_with_an_escape", None, partial(file_of, r'{"__metadata\u005f_":{"k":"v"}}'))
    CASES.accept(
        "all_escapes",
        None,
        partial(file_of, r'{"\"\\\/\b\f\n\r\t\u0000\ud83d\ude00\uFFFF":' + entry_text() + "}", b"\1\2"),
    )
    values = {
        "unicode": "é😀\u202e",
        "control": "\x1b[31m\0\n",
        "empty": "",
        "": "empty key",
        "1_mb": "v" * 1_000_000,
        "json": '{"a":1}',
    }
    CASES.accept("metadata_of_all_kinds", None, partial(file_of, {"__metadata__": values}))
    many = {str(i): "v" for i in range(1000)}
    CASES.accept("metadata_of_1000_pairs", None, partial(file_of, {"__metadata__": many, "a": entry(0, 0)}))
    alike = {
        name: entry(0, 0)
        for name in ("__METADATA__", "__metadata", "_metadata__", "__metadata__ ", "metadata", "dtype", "shape")
    }
    CASES.accept("names_like_those_of_the_format", None, partial(file_of, alike))
    forms = {name: entry(0, 0) for name in ("\u00e9", "e\u0301", "A", "a", " a", "a ")}
    CASES.accept("names_that_only_look_alike", None, partial(file_of, forms))


def add_names():
    for name, tensor in ODD_NAMES.items():
        CASES.accept(f"tensor_named_{name}", 16, partial(file_of, {tensor: entry(0, 2)}, bytes(2)))
    together = {tensor: entry(0, 0) for tensor in ODD_NAMES.values()}
    CASES.accept("all_odd_names_together", 16, partial(file_of, together))


def add_unknown_dtypes():
    for name, dtype in {
        "of_the_future": "F128",
        "in_small_letters": "f32",
        "empty": "",
        "with_a_space": "F32 ",
        "of_torch": "torch.float32",
        "with_a_nul": "F32\0",
        "with_ansi": "\x1b[31mF32",
        "1_mb": "F" * 1_000_000,
    }.items():
        warning = Problem("unknown_dtype", "a")
        make = partial(file_of, {"a": entry(0, 3, dtype, [2])}, bytes(3))
        CASES.accept(f"unknown_dtype_{name}", 12, make, warning, reference_refuses=True)
    two = {"a": entry(0, 3, "F128", [2]), "b": entry(3, 4), "c": entry(4, 5, "Q4_K", [])}
    warnings = (Problem("unknown_dtype", "a", ("F128",)), Problem("unknown_dtype", "c", ("Q4_K",)))
    CASES.accept(
        "unknown_dtypes_among_known_ones", 12, partial(file_of, two, bytes(5)), *warnings, reference_refuses=True
    )


def add_allowed_trailing_bytes():
    flag = ("--allow-trailing-bytes",)
    CASES.accept("trailing_bytes_allowed", 13, lambda: one_tensor() + b"extra", options=flag, reference_refuses=True)
    CASES.accept(
        "trailing_bytes_allowed_behind_nothing",
        13,
        lambda: file_of("{}", b"extra"),
        options=flag,
        reference_refuses=True,
    )
    CASES.accept("trailing_bytes_allowed_and_absent", 13, one_tensor, options=flag)


add_white_space()
add_empty_ones()
add_zero_size_orders()
add_dtypes()
add_misaligned()
add_spellings()
add_names()
add_unknown_dtypes()
add_allowed_trailing_bytes()
