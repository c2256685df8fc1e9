"""Tensors that do not fill their data exactly: rows 7, 10 and 11; several faults at once; odd names (16)."""

from functools import partial

from .build import DTYPE_BITS, PACKED_DTYPES, entry, file_of, one_dtype
from .cases import Problem, Registry

CASES = Registry()

ODD_NAMES = {
    "nul": "a\0b",
    "newline": "a\nb",
    "carriage_return": "harmless\rrefused: no, accepted",
    "tab": "a\tb",
    "ansi_colour": "\x1b[31mred\x1b[0m",
    "ansi_title": "\x1b]0;owned\x07",
    "ansi_clear_screen": "\x1b[2J\x1b[H",
    "c1_control": "a\x9b31mb",
    "delete": "a\x7fb",
    "backspace": "a\bb",
    "script": "<script>alert(1)</script>",
    "emoji": "layer.😀.weight",
    "right_to_left": "gpj.\u202eexe",
    "zero_width": "a\u200bb",
    "bom": "\ufeffa",
    "line_separator": "a\u2028b",
    "tag_character": "a\U000e0041",
    "noncharacter": "\uffff\U0010ffff",
    "quotes": "a\"b'c`d",
    "backslash": "a\\b",
    "percent": "%s%n{}{0}",
    "path": "../../etc/passwd",
    "spaces": "   ",
    "empty": "",
    "dots": "..",
    "many_dots": "." * 5000,
    "1_mb": "n" * 1_000_000,
    "1_mb_of_escapes": "\x1b" * 200_000,
}


def add_tilings():
    def add(name, code, tensor, data_bytes, header, **expected):
        CASES.refuse(name, 7, partial(file_of, header, bytes(data_bytes)), code, tensor=tensor, **expected)

    add("hole_at_the_beginning", "header_hole", "a", 3, {"a": entry(1, 3)}, says=("begin at 0", "[1, 3]"))
    add("hole_at_the_beginning_of_two", "header_hole", "a", 4, {"b": entry(3, 4), "a": entry(1, 3)}, says=("[1, 3]",))
    add(
        "hole_of_one_byte",
        "header_hole",
        "b",
        5,
        {"a": entry(0, 2), "b": entry(3, 5)},
        says=('"a"', "begin at 2", "[3, 5]"),
    )
    add("hole_of_a_page", "header_hole", "b", 4100, {"a": entry(0, 2), "b": entry(4098, 4100)}, says=("begin at 2",))
    add(
        "hole_that_aligns_to_8",
        "header_hole",
        "b",
        16,
        {"a": entry(0, 3), "b": entry(8, 16, "F64", [1])},
        says=("begin at 3",),
    )
    add("hole_before_a_zero_size_tensor", "header_hole", "b", 4, {"a": entry(0, 2), "b": entry(4, 4)})
    add("hole_before_the_only_zero_size_tensor", "header_hole", "a", 1, {"a": entry(1, 1)})
    add("hole_hidden_by_an_unknown_dtype", "header_hole", "b", 5, {"a": entry(0, 2, "F128", [1]), "b": entry(3, 5)})
    add(
        "overlap_of_one_byte",
        "header_overlap",
        "b",
        3,
        {"a": entry(0, 2), "b": entry(1, 3)},
        says=('"a"', "begin at 2", "[1, 3]"),
    )
    add("overlap_of_equal_ranges", "header_overlap", "b", 2, {"a": entry(0, 2), "b": entry(0, 2)})
    add(
        "overlap_of_equal_ranges_and_dtypes",
        "header_overlap",
        "b",
        4,
        {"a": entry(0, 4, "F32", [1]), "b": entry(0, 4, "I32", [1])},
    )
    add("overlap_of_a_contained_tensor", "header_overlap", "b", 8, {"a": entry(0, 8), "b": entry(2, 4)})
    add("overlap_with_the_same_end", "header_overlap", "b", 8, {"a": entry(0, 8), "b": entry(4, 8)})
    add("overlap_in_the_other_header_order", "header_overlap", "a", 3, {"a": entry(1, 3), "b": entry(0, 2)})
    add(
        "overlap_behind_a_contained_tensor",
        "header_overlap",
        "b",
        10,
        {"a": entry(0, 8), "b": entry(2, 4), "c": entry(8, 10)},
    )
    add(
        "zero_size_tensor_inside_another",
        "header_overlap",
        "b",
        8,
        {"a": entry(0, 8), "b": entry(4, 4)},
        says=("begin at 8", "[4, 4]"),
    )
    add("zero_size_tensor_one_byte_inside", "header_overlap", "b", 8, {"a": entry(0, 8), "b": entry(1, 1)})
    add(
        "zero_size_tensor_one_byte_from_the_end",
        "header_overlap",
        "b",
        8,
        {"b": entry(7, 7, "F16", [0, 5]), "a": entry(0, 8)},
    )
    beyond = {"a": entry(0, 2), "b": entry(5, 5)}
    CASES.refuse_all(
        "zero_size_tensor_beyond_the_end",
        7,
        partial(file_of, beyond, bytes(2)),
        Problem("header_hole", "b"),
        Problem("data_truncated", "b"),
    )
    holes = {"a": entry(1, 2), "b": entry(3, 4), "c": entry(5, 6)}
    CASES.refuse_all(
        "three_holes", 7, partial(file_of, holes, bytes(6)), *(Problem("header_hole", name) for name in "abc")
    )
    swapped = {"a": entry(4, 8), "b": entry(2, 6), "c": entry(0, 4)}
    CASES.refuse_all(
        "two_overlaps",
        7,
        partial(file_of, swapped, bytes(8)),
        Problem("header_overlap", "b"),
        Problem("header_overlap", "a"),
    )


def add_sizes():
    for dtype, bits in DTYPE_BITS.items():
        # Eight elements fill as many whole bytes as one has bits.
        for name, span in {"small": bits - 1, "large": bits + 1}.items():
            bad = partial(one_dtype, dtype, [8], span)
            CASES.refuse(
                f"span_one_too_{name}_for_{dtype}",
                10,
                bad,
                "header_size",
                tensor="a",
                says=(f"{bits} bytes", f"{span} bytes"),
            )
    for name, dtype, shape, span in [
        ("scalar_without_bytes", "F32", [], 0),
        ("scalar_of_two_elements", "F32", [], 8),
        ("no_elements_with_bytes", "F32", [0], 4),
        ("no_elements_in_the_middle_with_bytes", "F32", [2, 0, 2], 16),
        ("elements_without_bytes", "F32", [4], 0),
        ("half_the_width", "BF16", [2, 2], 16),
        ("twice_the_width", "F32", [2, 2], 8),
        ("f8_as_f16", "F8_E4M3", [4], 8),
        ("f4_with_one_byte_each", "F4", [8], 8),
        ("product_wraps_at_32_bits", "U8", [2**16, 2**16], 0),
    ]:
        CASES.refuse(
            f"span_{name}",
            10,
            partial(one_dtype, dtype, shape, span),
            "header_size",
            tensor="a",
            says=(f"{span} bytes",),
        )


def add_packed():
    for dtype in PACKED_DTYPES:
        for count in range(1, 9):
            size_bits = count * DTYPE_BITS[dtype]
            if size_bits % 8 == 0:
                continue
            for rounding, span in {"down": size_bits // 8, "up": size_bits // 8 + 1}.items():
                bad = partial(one_dtype, dtype, [count], span)
                CASES.refuse(
                    f"{dtype}_of_{count}_rounded_{rounding}", 11, bad, "header_size", tensor="a", says=("whole",)
                )
    CASES.refuse(
        "F4_of_3_by_1", 11, partial(one_dtype, "F4", [3, 1], 2), "header_size", tensor="a", says=("whole", "[3, 1]")
    )
    for name, shape, size in (("empty_with_bytes", [0], 4), ("elements_without_bytes", [2], 0), ("too_many", [100], 1)):
        unknown = partial(file_of, {"a": entry(0, size, "F99", shape)}, bytes(size))
        CASES.refuse(f"unknown_dtype_{name}", 12, unknown, "header_size", tensor="a", says=("no dtype",))
    CASES.refuse("F4_scalar", 11, partial(one_dtype, "F4", [], 1), "header_size", tensor="a", says=("whole",))


def add_odd_names():
    for name, tensor in ODD_NAMES.items():
        CASES.refuse(
            f"fault_in_tensor_named_{name}",
            16,
            partial(file_of, {tensor: entry(1, 2)}, bytes(2)),
            "header_hole",
            tensor=tensor,
        )


def add_several():
    everything = {
        "__metadata__": {"k": 1},
        "negative_dim": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]},
        "no_dtype": {"shape": [1], "data_offsets": [1, 2]},
        "unknown_field": {**entry(2, 3), "x": 1},
        "wrong_size": entry(3, 4, "F32", [1]),
        "behind_a_hole": entry(5, 6),
        "overlapping": entry(5, 7),
    }
    CASES.refuse_all(
        "several_faults_in_one_file",
        None,
        partial(file_of, everything, bytes(8)),
        Problem("header_metadata", says=('"k"',)),
        Problem("header_shape", "negative_dim"),
        Problem("header_field", "no_dtype"),
        Problem("header_field", "unknown_field", ("S1",)),
        Problem("header_size", "wrong_size"),
        Problem("header_hole", "behind_a_hole"),
        Problem("header_overlap", "overlapping"),
        Problem("trailing_bytes"),
    )
    in_one_entry = {"a": {"dtype": 5, "shape": {}, "data_offsets": [], "x": 1}}
    CASES.refuse_all(
        "several_faults_in_one_entry",
        None,
        partial(file_of, in_one_entry),
        Problem("header_field", "a", ("S1",)),
        Problem("header_field", "a", ("dtype",)),
        Problem("header_shape", "a"),
        Problem("header_offsets", "a"),
    )
    many = {f"t{i}": entry(i, i + 1) for i in range(10_000)} | {"last": entry(10_001, 10_002)}
    CASES.refuse(
        "one_hole_among_10000_tensors", 15, partial(file_of, many, bytes(10_002)), "header_hole", tensor="last"
    )


add_tilings()
add_sizes()
add_packed()
add_odd_names()
add_several()
