"""Entries that are no tensors: fields, numbers, shapes and metadata. Rows 8 and 9, rules S1 to S3."""

from functools import partial

from .build import MAX_RANK, entry, entry_text, file_of, one_tensor, place_of
from .cases import Problem, Registry

CASES = Registry()

# Valid JSON, and no whole number from 0 to 2^64 - 1. The value is a JSON text.
NOT_A_COUNT = {
    "minus_one": "-1",
    "minus_zero": "-0",
    "most_negative": "-9223372036854775808",
    "below_most_negative": "-9223372036854775809",
    "float": "2.0",
    "float_of_zero": "0.0",
    "fraction": "2.5",
    "exponent": "2e0",
    "exponent_in_capitals": "2E0",
    "exponent_1e3": "1e3",
    "exponent_plus": "2e+0",
    "exponent_minus": "20e-1",
    "exponent_beyond_double": "1e999",
    "exponent_below_double": "1e-999",
    "2_to_64": "18446744073709551616",
    "2_to_64_and_2": "18446744073709551618",
    "10_to_30": "1" + "0" * 30,
    "true": "true",
    "false": "false",
    "null": "null",
    "string": '"2"',
    "empty_string": '""',
    "array": "[2]",
    "empty_array": "[]",
    "object": "{}",
}

# No JSON at all.
NOT_A_NUMBER = {
    "plus_sign": "+2",
    "leading_zero": "02",
    "two_zeros": "00",
    "minus_leading_zero": "-02",
    "hexadecimal": "0x2",
    "octal": "0o2",
    "binary": "0b1",
    "no_digit_before_the_point": ".5",
    "no_digit_behind_the_point": "2.",
    "exponent_without_digits": "2e",
    "exponent_sign_without_digits": "2e+",
    "two_minus_signs": "--2",
    "minus_alone": "-",
    "minus_and_space": "- 2",
    "two_points": "1.2.3",
    "nan": "NaN",
    "infinity": "Infinity",
    "minus_infinity": "-Infinity",
    "inf": "inf",
    "suffix_u": "2u",
    "suffix_n": "2n",
    "underscore": "1_0",
    "space_inside": "1 0",
    "fullwidth_digit": "２",
    "arabic_digit": "٢",
    "single_quotes": "'2'",
}

NUMBER_PLACES = {
    "dim": (lambda number: {"shape": f"[{number}]"}, "header_shape"),
    "begin": (lambda number: {"offsets": f"[{number},2]"}, "header_offsets"),
    "end": (lambda number: {"offsets": f"[0,{number}]"}, "header_offsets"),
}


def add_numbers():
    for place, (parts, code) in NUMBER_PLACES.items():
        for name, number in NOT_A_COUNT.items():
            bad = one_tensor(**parts(number))
            at = place_of(bad, f"{number}]" if place != "begin" else f"{number},2]")
            CASES.refuse(f"{place}_is_{name}", 8, partial(bytes, bad), code, tensor="a", says=("whole number",), at=at)
        for name, number in NOT_A_NUMBER.items():
            CASES.refuse(f"{place}_is_written_with_{name}", 8, partial(one_tensor, **parts(number)), "json_syntax")
    long_number = "1." + "1" * 1_000_000
    CASES.refuse(
        "dim_of_a_million_digits", 8, partial(one_tensor, shape=f"[{long_number}]"), "header_shape", tensor="a"
    )
    CASES.refuse(
        "second_dim_is_negative", 8, partial(one_tensor, shape="[2,-1]"), "header_shape", tensor="a", says=("-1",)
    )


def add_offset_pairs():
    largest = 2**64 - 1
    pairs = {
        "empty": "[]",
        "of_one": "[0]",
        "of_three": "[0,2,2]",
        "of_a_thousand": "[" + "0," * 999 + "2]",
        "nested": "[[0,2]]",
        "null": "null",
        "number": "2",
        "string": '"0,2"',
        "object": '{"0":0,"1":2}',
        "boolean": "true",
        "end_before_begin": "[2,0]",
        "end_one_before_begin": "[1,0]",
        "end_before_begin_at_the_limit": f"[{largest},0]",
        "end_at_2_to_63": f"[0,{2**63}]",
        "end_at_the_limit": f"[0,{largest}]",
        "both_at_2_to_63": f"[{2**63},{2**63}]",
        "both_at_the_limit": f"[{largest},{largest}]",
        "end_that_overflows_with_the_header": f"[0,{2**63 - 1}]",
    }
    for name, offsets in pairs.items():
        CASES.refuse(f"offsets_{name}", 8, partial(one_tensor, offsets=offsets), "header_offsets", tensor="a")


def add_shapes():
    for name, shape in {"null": "null", "number": "2", "string": '"2"', "object": "{}", "boolean": "true"}.items():
        bad = one_tensor(shape=shape)
        CASES.refuse(f"shape_is_{name}", 8, partial(bytes, bad), "header_shape", tensor="a", says=("array",))
    too_many = {"65": MAX_RANK + 1, "100000": 100_000}
    for name, rank in too_many.items():
        for kind, dim in {"ones": 1, "zeros": 0}.items():
            bad = partial(file_of, {"a": entry(0, dim, shape=[dim] * rank)}, bytes(dim))
            CASES.refuse(f"rank_{name}_of_{kind}", 15, bad, "header_shape", tensor="a", says=("S2", "64", f"{rank:,}"))


def add_overflows():
    big = 2**32
    # The bytes of each are counted modulo 2^64, as a careless reader would.
    dims = {
        "2_to_64": [big, big],
        "2_to_63": [2**63],
        "2_to_63_as_a_product": [2**62, 2],
        "just_above_2_to_63": [3_037_000_500, 3_037_000_500],
        "2_to_64_minus_1": [2**64 - 1],
        "2_to_64_minus_1_squared": [2**64 - 1, 2**64 - 1],
        "2_to_64_and_2": [3, 6148914691236517206],
        "64_dims_of_2": [2] * 64,
        "zero_before": [0, big, big],
        "zero_between": [big, 0, big],
        "zero_behind": [big, big, 0],
        "zero_and_2_to_63": [0, 2**63],
        "zeros_around": [0, 2**64 - 1, 2**64 - 1, 0],
    }
    for name, shape in dims.items():
        count = 1
        for dim in shape:
            count *= dim
        data = bytes(count % 2**64 if count % 2**64 < 100 else 0)
        bad = partial(file_of, {"a": entry(0, len(data), shape=shape)}, data)
        CASES.refuse(f"elements_overflow_{name}", 9, bad, "header_shape", tensor="a", says=("S3", "2^63"))
    for dtype, shape in {
        "F64": [2**61],
        "F32": [2**62],
        "I16": [2**62],
        "C64": [2**60],
        "U64": [2**61 + 1],
        "BF16": [2**31, 2**31],
    }.items():
        data = bytes(8 if dtype == "U64" else 0)
        bad = partial(file_of, {"a": entry(0, len(data), dtype, shape)}, data)
        CASES.refuse(f"bytes_overflow_{dtype}", 9, bad, "header_size", tensor="a", says=("2^63",))


def add_fields():
    fields = {"dtype": '"U8"', "shape": "[2]", "data_offsets": "[0,2]"}
    for missing in fields:
        rest = ",".join(f'"{field}":{value}' for field, value in fields.items() if field != missing)
        CASES.refuse(
            f"no_{missing}",
            None,
            partial(file_of, f'{{"a":{{{rest}}}}}', b"\1\2"),
            "header_field",
            tensor="a",
            says=(missing,),
        )
    problems = [Problem("header_field", "a", (f"no {field}",)) for field in fields]
    CASES.refuse_all("entry_is_an_empty_object", None, partial(file_of, '{"a":{}}'), *problems)
    for name, value in {"null": "null", "number": "5", "string": '"U8"', "array": "[]", "boolean": "true"}.items():
        CASES.refuse(
            f"entry_is_{name}", None, partial(file_of, f'{{"a":{value}}}'), "header_field", tensor="a", says=("object",)
        )
    for name, value in {"null": "null", "number": "8", "array": '["U8"]', "object": "{}", "boolean": "true"}.items():
        CASES.refuse(
            f"dtype_is_{name}", 12, partial(one_tensor, dtype=value), "header_field", tensor="a", says=("string",)
        )


def add_unknown_fields():
    """S1: what an entry says and nobody reads is a misunderstanding that should come out."""
    for name, field in {
        "x": "x",
        "empty": "",
        "in_capitals": "DTYPE",
        "with_a_space": "dtype ",
        "with_a_nul": r"dtype\u0000",
        "of_another_format": "requires_grad",
        "that_means_metadata": "__metadata__",
    }.items():
        text = f'{{"a":{{{entry_text()[1:-1]},"{field}":1}}}}'
        CASES.refuse(
            f"unknown_field_{name}",
            None,
            partial(file_of, text, b"\1\2"),
            "header_field",
            tensor="a",
            says=("S1", "unknown"),
        )
    for name, value in {"null": "null", "object": '{"a":[1]}', "array": "[]"}.items():
        text = f'{{"a":{{{entry_text()[1:-1]},"x":{value}}}}}'
        CASES.refuse(
            f"unknown_field_that_is_{name}",
            None,
            partial(file_of, text, b"\1\2"),
            "header_field",
            tensor="a",
            says=("S1",),
        )
    typo = entry_text().replace("data_offsets", "data_offset")
    CASES.refuse_all(
        "offsets_with_a_typo",
        None,
        partial(file_of, f'{{"a":{typo}}}', b"\1\2"),
        Problem("header_field", "a", ("S1", "data_offset")),
        Problem("header_field", "a", ("no data_offsets",)),
    )


def add_roots():
    values = {
        "array": "[]",
        "array_of_tensors": f"[{entry_text()}]",
        "null": "null",
        "number": "5",
        "string": '"a"',
        "true": "true",
    }
    for name, text in values.items():
        CASES.refuse(f"header_is_{name}", None, partial(file_of, text), "header_field", says=("object",), at=8)


def add_metadata():
    for name, value in {"null": "null", "number": "1", "string": '"x"', "array": "[]", "boolean": "false"}.items():
        bad = partial(file_of, f'{{"__metadata__":{value}}}')
        CASES.refuse(
            f"metadata_is_{name}", None, bad, "header_metadata", says=("object",), at=8 + len('{"__metadata__":')
        )
    values = {
        "null": "null",
        "number": "1",
        "float": "1.5",
        "boolean": "true",
        "array": "[]",
        "object": "{}",
        "strings": '["x"]',
        "huge_number": "1e999",
    }
    for name, value in values.items():
        bad = partial(file_of, f'{{"__metadata__":{{"k":{value}}}}}')
        CASES.refuse(
            f"metadata_value_is_{name}",
            None,
            bad,
            "header_metadata",
            says=('"k"', "string"),
            at=8 + len('{"__metadata__":{"k":'),
        )
    looks_like_a_tensor = f'{{"__metadata__":{entry_text()}}}'
    wrong = Problem("header_metadata", says=("string",))
    CASES.refuse_all(
        "metadata_is_a_tensor",
        None,
        partial(file_of, looks_like_a_tensor, b"\1\2"),
        wrong,
        wrong,
        Problem("trailing_bytes"),
    )


add_numbers()
add_offset_pairs()
add_shapes()
add_overflows()
add_fields()
add_unknown_fields()
add_roots()
add_metadata()
