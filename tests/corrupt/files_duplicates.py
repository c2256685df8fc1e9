"""A key that appears twice in one object: rows 5 and 6. Peers let the last one win."""

from functools import partial

from .build import entry_text, file_of, place_of
from .cases import Problem, Registry

CASES = Registry()

FIRST = entry_text(shape="[2]", offsets="[0,2]")
SECOND = entry_text(shape="[2]", offsets="[2,4]")
DATA = b"\1\2\3\4"

# The same name, written in two ways.
SAME_NAME = {
    "written_alike": ("a", "a", "a"),
    "with_an_escape": ("a", r"\u0061", "a"),
    "with_two_escapes": (r"\u0061", r"\u0061", "a"),
    "with_hex_in_both_cases": (r"\u006a", r"\u006A", "j"),
    "with_an_escaped_slash": ("a/b", r"a\/b", "a/b"),
    "with_an_escaped_newline": (r"\n", r"\u000a", "\n"),
    "with_an_escaped_nul": (r"\u0000", r"\u0000", "\0"),
    "with_an_escaped_quote": (r"\"", r"\u0022", '"'),
    "with_an_escaped_backslash": (r"\\", r"\u005c", "\\"),
    "beyond_ascii": ("é", r"\u00e9", "é"),
    "beyond_ascii_in_capitals": ("é", r"\u00E9", "é"),
    "as_a_surrogate_pair": ("😀", r"\ud83d\ude00", "😀"),
    "as_a_surrogate_pair_in_capitals": (r"\uD83D\uDE00", r"\ud83d\ude00", "😀"),
    "of_a_real_model": ("lm_head.weight", r"lm\u005fhead.weight", "lm_head.weight"),
    "empty": ("", "", ""),
}


def add_tensors():
    for name, (first, second, tensor) in SAME_NAME.items():
        text = f'{{"{first}":{FIRST},"{second}":{SECOND}}}'
        bad = file_of(text, DATA)
        at = place_of(bad, f'"{second}":{SECOND}')
        CASES.refuse(
            f"duplicate_tensor_{name}",
            5,
            partial(bytes, bad),
            "json_duplicate_key",
            tensor=tensor,
            says=("twice",),
            at=at,
        )
    add = partial(CASES.refuse, row=5, code="json_duplicate_key", tensor="a")
    add("duplicate_tensor_word_for_word", make=partial(file_of, f'{{"a":{FIRST},"a":{FIRST}}}', b"\1\2"))
    other_dtype = entry_text(dtype='"BF16"', shape="[1]")
    add("duplicate_tensor_of_another_dtype", make=partial(file_of, f'{{"a":{FIRST},"a":{other_dtype}}}', b"\1\2"))
    empty = entry_text(shape="[0]", offsets="[0,0]")
    add("duplicate_tensor_of_zero_size", make=partial(file_of, f'{{"a":{empty},"a":{empty}}}'))
    add(
        "duplicate_tensor_with_others_between", make=partial(file_of, f'{{"a":{FIRST},"b":{empty},"a":{SECOND}}}', DATA)
    )
    add("duplicate_tensor_that_is_null_at_first", make=partial(file_of, f'{{"a":null,"a":{FIRST}}}', b"\1\2"))
    again = Problem("json_duplicate_key", tensor="a")
    CASES.refuse_all(
        "duplicate_tensor_three_times",
        5,
        partial(file_of, f'{{"a":{FIRST},"a":{FIRST},"a":{FIRST}}}', DATA),
        again,
        again,
    )
    CASES.refuse_all(
        "duplicate_tensors_two_of_them",
        5,
        partial(file_of, f'{{"a":{FIRST},"b":{SECOND},"a":{FIRST},"b":{SECOND}}}', DATA),
        again,
        Problem("json_duplicate_key", tensor="b"),
    )


def add_metadata():
    add = partial(CASES.refuse, row=5, code="json_duplicate_key", says=("twice",))
    add("duplicate_metadata", make=partial(file_of, '{"__metadata__":{"k":"1"},"__metadata__":{"k":"1"}}'))
    add("duplicate_metadata_with_an_escape", make=partial(file_of, r'{"__metadata__":{},"\u005f_metadata__":{}}'))
    add(
        "duplicate_metadata_around_a_tensor",
        make=partial(file_of, f'{{"__metadata__":{{}},"a":{FIRST},"__metadata__":{{}}}}', b"\1\2"),
    )
    add("duplicate_metadata_key", make=partial(file_of, '{"__metadata__":{"format":"pt","format":"pt"}}'))
    add(
        "duplicate_metadata_key_of_another_value",
        make=partial(file_of, '{"__metadata__":{"format":"pt","format":"tf"}}'),
    )
    add(
        "duplicate_metadata_key_with_an_escape",
        make=partial(file_of, r'{"__metadata__":{"format":"pt","form\u0061t":"tf"}}'),
    )
    add("duplicate_metadata_key_that_is_empty", make=partial(file_of, '{"__metadata__":{"":"1","":"2"}}'))


def add_fields():
    values = {"dtype": ('"U8"', '"I8"'), "shape": ("[2]", "[1,2]"), "data_offsets": ("[0,2]", "[0,1]")}
    for field, (value, other) in values.items():
        escaped = f"\\u{ord(field[0]):04x}{field[1:]}"
        for name, extra in {
            "equal": f'"{field}":{value}',
            "different": f'"{field}":{other}',
            "with_an_escape": f'"{escaped}":{other}',
        }.items():
            bad = file_of(f'{{"a":{{{entry_text()[1:-1]},{extra}}}}}', b"\1\2")
            CASES.refuse(
                f"duplicate_{field}_{name}",
                6,
                partial(bytes, bad),
                "json_duplicate_key",
                tensor="a",
                says=("twice", field),
                at=place_of(bad, extra, occurrence=bad.count(extra.encode())),
            )
    unknown = f'{{"a":{{{entry_text()[1:-1]},"x":1,"x":1}}}}'
    CASES.refuse("duplicate_unknown_field", 6, partial(file_of, unknown, b"\1\2"), "json_duplicate_key", tensor="a")
    second_entry = f'{{"a":{FIRST},"b":{{"dtype":"U8",{SECOND[1:]}}}'
    CASES.refuse(
        "duplicate_dtype_in_the_second_tensor",
        6,
        partial(file_of, second_entry, DATA),
        "json_duplicate_key",
        tensor="b",
    )


add_tensors()
add_metadata()
add_fields()
