"""Files whose length, or header length, is wrong: rows 1, 2 and 13, and truncated data."""

from functools import partial

from .build import MAX_HEADER_BYTES, entry, file_of, length_prefix, one_tensor
from .cases import Registry

CASES = Registry()

GOOD = one_tensor()
GOOD_HEADER_BYTES = len(GOOD) - 8 - 2


def with_length(length, rest=GOOD[8:]):
    return length_prefix(length) + rest


def add_short_files():
    for size in range(8):
        expected = {"says": ("8 bytes", f"{size} bytes"), "at": 0}
        CASES.refuse(f"file_of_{size}_zero_bytes", 1, partial(bytes, size), "header_truncated", **expected)
        CASES.refuse(
            f"file_cut_to_{size}_bytes", 1, partial(GOOD.__getitem__, slice(size)), "header_truncated", **expected
        )


def add_lengths_beyond_the_file():
    present = len(GOOD) - 8
    for name, length in {
        "by_one": present + 1,
        "by_a_page": present + 4096,
        "up_to_the_cap": MAX_HEADER_BYTES,
    }.items():
        CASES.refuse(
            f"header_longer_than_file_{name}",
            2,
            partial(with_length, length),
            "header_truncated",
            says=(str(length), f"{present} bytes"),
            at=0,
        )
    CASES.refuse(
        "header_length_and_no_header", 2, partial(length_prefix, 10), "header_truncated", says=("10", "0 bytes"), at=0
    )


def add_lengths_beyond_the_cap():
    for name, length in {
        "cap_plus_one": MAX_HEADER_BYTES + 1,
        "2_to_31": 2**31,
        "2_to_32": 2**32,
        "2_to_32_and_the_right_length": 2**32 + GOOD_HEADER_BYTES,
        "2_to_63_minus_1": 2**63 - 1,
        "2_to_63": 2**63,
        "2_to_64_minus_8": 2**64 - 8,
        "2_to_64_minus_1": 2**64 - 1,
        "big_endian": int.from_bytes(GOOD[:8], "big"),
    }.items():
        expected = {"says": (str(MAX_HEADER_BYTES), str(length)), "at": 0}
        CASES.refuse(f"header_length_{name}", 2, partial(with_length, length), "header_too_large", **expected)


def add_unknown_bytes():
    """What nobody can name: eight letters read as a length are a huge number."""
    for name, content in {
        "json_without_length": b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        "only_0xff": b"\xff" * 64,
    }.items():
        CASES.refuse(
            f"not_safetensors_{name}", 2, partial(bytes, content), "header_too_large", says=("a safetensors file",), at=0
        )


def add_lengths_that_cut_wrongly():
    CASES.refuse("header_length_zero", 4, partial(with_length, 0), "json_syntax")
    CASES.refuse("header_length_zero_and_nothing_more", 4, partial(bytes, 8), "json_syntax")
    CASES.refuse("header_length_one_short", 4, partial(with_length, GOOD_HEADER_BYTES - 1), "json_syntax")
    text = file_of("{}")[8:]
    CASES.refuse(
        "header_length_takes_data_in", 4, partial(with_length, 4, text + b"xy"), "json_syntax", says=("after the end",)
    )
    CASES.refuse(
        "header_length_takes_in_data_that_is_a_space",
        13,
        partial(with_length, GOOD_HEADER_BYTES + 1, GOOD[8:-2] + b"  "),
        "data_truncated",
        tensor="a",
        says=(f"{len(GOOD) + 1} bytes", f"{len(GOOD)} bytes"),
    )


def add_trailing_bytes():
    good = file_of({"a": entry(0, 2), "b": entry(2, 2), "c": entry(2, 6)}, bytes(6))
    for name, extra in {
        "one_nul": b"\0",
        "newline": b"\n",
        "page_of_zeros": bytes(4096),
        "zip_archive": b"PK\x05\x06" + bytes(18),
        "second_safetensors_file": good,
    }.items():
        whole = good + extra
        expected = {"says": (f"{len(good)} bytes", f"{len(whole)} bytes", "--allow-trailing-bytes"), "at": len(good)}
        CASES.refuse(f"trailing_{name}", 13, partial(bytes, whole), "trailing_bytes", **expected)
    for name, header in {
        "behind_an_empty_map": {},
        "behind_metadata_only": {"__metadata__": {"format": "pt"}},
        "behind_zero_size_tensors": {"a": entry(0, 0), "b": entry(0, 0, "F64", [3, 0])},
    }.items():
        CASES.refuse(f"trailing_bytes_{name}", 13, partial(file_of, header, b"\1\2\3"), "trailing_bytes")


def add_truncated_data():
    """The other way round: the file ends before its data does."""
    header = {"a": entry(0, 8), "b": entry(8, 16), "c": entry(16, 24)}
    whole = file_of(header, bytes(24))
    for present, first_lost, lost in [
        (23, "c", 1),
        (17, "c", 1),
        (16, "c", 1),
        (15, "b", 2),
        (8, "b", 2),
        (7, "a", 3),
        (0, "a", 3),
    ]:
        cut = whole[: len(whole) - 24 + present]
        CASES.refuse(
            f"data_cut_to_{present}_of_24_bytes",
            13,
            partial(bytes, cut),
            "data_truncated",
            tensor=first_lost,
            says=(f"{len(whole)} bytes", f"{len(cut)} bytes", f"{lost} tensor", "incomplete"),
            at=len(whole) - 24 + 8 * "abc".index(first_lost),
        )
    huge = file_of({"a": entry(0, 2**62)}, bytes(8))
    CASES.refuse(
        "data_of_2_to_62_bytes_claimed",
        13,
        partial(bytes, huge),
        "data_truncated",
        tensor="a",
        says=(str(2**62 + len(huge) - 8),),
    )


add_short_files()
add_lengths_beyond_the_file()
add_lengths_beyond_the_cap()
add_unknown_bytes()
add_lengths_that_cut_wrongly()
add_trailing_bytes()
add_truncated_data()
