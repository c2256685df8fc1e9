"""Headers that are not JSON, or not text: rows 3 and 4."""

from functools import partial

from .build import as_bytes, entry_text, file_of, length_prefix, place_of
from .cases import Registry

CASES = Registry()

A = f'"a":{entry_text()}'
DATA = b"\1\2"

BAD_UTF8 = {
    "continuation_alone": b"\x80",
    "last_continuation_alone": b"\xbf",
    "overlong_nul": b"\xc0\x80",
    "overlong_slash": b"\xc0\xaf",
    "overlong_2_bytes": b"\xc1\xbf",
    "overlong_3_bytes": b"\xe0\x80\x80",
    "largest_overlong_3_bytes": b"\xe0\x9f\xbf",
    "overlong_4_bytes": b"\xf0\x80\x80\x80",
    "largest_overlong_4_bytes": b"\xf0\x8f\xbf\xbf",
    "first_surrogate": b"\xed\xa0\x80",
    "last_surrogate": b"\xed\xbf\xbf",
    "surrogate_pair_as_cesu_8": b"\xed\xa0\xbd\xed\xb8\x80",
    "above_10ffff": b"\xf4\x90\x80\x80",
    "lead_f5": b"\xf5\x80\x80\x80",
    "five_bytes": b"\xf8\x88\x80\x80\x80",
    "six_bytes": b"\xfc\x84\x80\x80\x80\x80",
    "fe": b"\xfe",
    "ff": b"\xff",
    "cut_after_1_of_2": b"\xc3",
    "cut_after_2_of_3": b"\xe2\x82",
    "cut_after_3_of_4": b"\xf0\x9f\x98",
    "latin_1": "é".encode("latin-1"),
}

# %s is where the string's content goes.
STRING_PLACES = {
    "tensor_name": f'{{"%s":{entry_text()}}}',
    "metadata_key": f'{{"__metadata__":{{"%s":"v"}},{A}}}',
    "metadata_value": f'{{"__metadata__":{{"k":"%s"}},{A}}}',
    "dtype": '{"a":' + entry_text(dtype='"%s"') + "}",
    "field_name": '{"a":{"%s":1,' + entry_text()[1:] + "}",
}

# What is wrong with each: \u escapes that stand for no character.
BAD_SURROGATES = {
    "lone_high": r"\ud800",
    "lone_high_in_capitals": r"\uD800",
    "last_high": r"\udbff",
    "high_before_letters": r"\ud83dxyz",
    "high_before_another_escape": r"\ud83d\n",
    "high_before_a_plain_escape": r"\ud83d\u0041",
    "two_highs": r"\ud83d\ud83d",
    "high_before_what_is_no_escape": r"\ud83dude00",
    "lone_low": r"\udc00",
    "lone_low_in_capitals": r"\uDFFF",
    "low_before_a_letter": r"\ude00a",
    "reversed_pair": r"\ude00\ud83d",
    "pair_and_one_more_low": r"\ud83d\ude00\ude00",
    "pair_and_one_more_high": r"\ud83d\ude00\ud83d",
}

BAD_ESCAPES = {
    "x": r"\x41",
    "capital_u": r"\U0041",
    "octal": r"\101",
    "nul": r"\0",
    "quote": r"\'",
    "a": r"\a",
    "space": r"\ ",
    "u_without_digits": r"\u",
    "u_with_3_digits": r"\u004",
    "u_with_a_letter_g": r"\u00g1",
    "u_with_a_sign": r"\u+041",
    "u_with_spaces": r"\u  41",
    "u_in_braces": r"\u{41}",
}


def in_string(place, content):
    return file_of(as_bytes(STRING_PLACES[place]).replace(b"%s", as_bytes(content)), DATA)


def add_bad_utf8():
    for place in ("tensor_name", "metadata_value"):
        for name, content in BAD_UTF8.items():
            bad = in_string(place, content)
            CASES.refuse(
                f"utf8_{name}_in_{place}",
                3,
                partial(bytes, bad),
                "json_utf8",
                says=("UTF-8",),
                at=place_of(bad, content),
            )
    for place in ("metadata_key", "dtype", "field_name"):
        bad = in_string(place, b"\xff")
        CASES.refuse(
            f"utf8_ff_in_{place}", 3, partial(bytes, bad), "json_utf8", says=("UTF-8",), at=place_of(bad, b"\xff")
        )
    CASES.refuse("utf8_ff_before_the_header", 3, partial(file_of, b"\xff{}"), "json_utf8", at=8)
    CASES.refuse("utf8_ff_behind_the_header", 3, partial(file_of, b"{}\xff"), "json_utf8", at=10)
    CASES.refuse("utf8_ff_between_tokens", 3, partial(file_of, b'{"a"\xff:1}'), "json_utf8", at=12)
    CASES.refuse("utf16_with_bom", 3, partial(file_of, "{}".encode("utf-16")), "json_utf8", at=8)
    CASES.refuse("utf16_without_bom", 4, partial(file_of, f"{{{A}}}".encode("utf-16-le"), DATA), "json_syntax")
    CASES.refuse("utf32_without_bom", 4, partial(file_of, f"{{{A}}}".encode("utf-32-le"), DATA), "json_syntax")


def add_bad_escapes():
    for name, content in BAD_SURROGATES.items():
        for place in ("tensor_name", "metadata_value"):
            CASES.refuse(
                f"surrogate_{name}_in_{place}", 3, partial(in_string, place, content), "json_utf8", says=("surrogate",)
            )
    for place in ("metadata_key", "dtype", "field_name"):
        CASES.refuse(
            f"surrogate_lone_high_in_{place}", 3, partial(in_string, place, r"\ud800"), "json_utf8", says=("surrogate",)
        )
    for name, content in BAD_ESCAPES.items():
        CASES.refuse(f"escape_{name}", 4, partial(in_string, "tensor_name", content), "json_utf8", says=("escape",))


def add_control_characters():
    for code in range(0x20):
        bad = in_string("tensor_name", chr(code))
        CASES.refuse(
            f"control_character_{code:02x}_in_name", 4, partial(bytes, bad), "json_syntax", says=("control character",)
        )
    CASES.refuse("control_character_0a_in_metadata", 4, partial(in_string, "metadata_value", "x\ny"), "json_syntax")


GRAMMAR = {
    "nothing_but_spaces": "    ",
    "object_not_closed": f"{{{A}",
    "object_closed_twice": f"{{{A}}}}}",
    "object_closed_by_bracket": f"{{{A}]",
    "object_not_opened": f"{A}}}",
    "array_closed_by_brace": '{"a":{"dtype":"U8","shape":[2},"data_offsets":[0,2]}}',
    "comma_behind_last_member": f"{{{A},}}",
    "comma_before_first_member": f"{{,{A}}}",
    "comma_alone": "{,}",
    "two_commas": f'{{"__metadata__":{{}},,{A}}}',
    "comma_missing": f'{{"__metadata__":{{}} {A}}}',
    "semicolon_for_comma": f'{{"__metadata__":{{}};{A}}}',
    "comma_behind_last_element": "{" + f'"a":{entry_text(shape="[2,]")}' + "}",
    "comma_before_first_element": "{" + f'"a":{entry_text(shape="[,2]")}' + "}",
    "comma_missing_in_array": "{" + f'"a":{entry_text(offsets="[0 2]")}' + "}",
    "two_commas_in_array": "{" + f'"a":{entry_text(offsets="[0,,2]")}' + "}",
    "colon_in_array": "{" + f'"a":{entry_text(offsets="[0:2]")}' + "}",
    "colon_missing": f'{{"a"{entry_text()}}}',
    "colon_twice": f'{{"a"::{entry_text()}}}',
    "equals_for_colon": f'{{"a"={entry_text()}}}',
    "value_missing": '{"a":}',
    "key_without_value": '{"a"}',
    "key_missing": f"{{:{entry_text()}}}",
    "key_without_quotes": f"{{a:{entry_text()}}}",
    "key_in_single_quotes": f"{{'a':{entry_text()}}}",
    "key_is_number": f"{{1:{entry_text()}}}",
    "key_is_null": f"{{null:{entry_text()}}}",
    "key_is_array": f"{{[]:{entry_text()}}}",
    "key_is_object": f"{{{{}}:{entry_text()}}}",
    "two_keys": f'{{"a" "b":{entry_text()}}}',
    "string_not_closed": '{"a',
    "string_in_single_quotes": "{" + f'"a":{entry_text(dtype=chr(39) + "U8" + chr(39))}' + "}",
    "string_without_quotes": "{" + f'"a":{entry_text(dtype="U8")}' + "}",
    "two_strings": "{" + f'"a":{entry_text(dtype=chr(34) + "U" + chr(34) + chr(34) + "8" + chr(34))}' + "}",
    "backslash_at_the_end": '{"a\\',
    "line_comment": f"{{{A}}}// hello",
    "line_comment_inside": f"{{// hello\n{A}}}",
    "block_comment": f"{{/* hello */{A}}}",
    "hash_comment": f"{{# hello\n{A}}}",
    "true_with_a_tail": '{"__metadata__":truex}',
    "true_in_capitals": '{"__metadata__":TRUE}',
    "true_as_python": '{"__metadata__":True}',
    "true_cut": '{"__metadata__":tru}',
    "false_cut": '{"__metadata__":fals}',
    "false_with_a_tail": '{"__metadata__":false1}',
    "null_cut": '{"__metadata__":nul}',
    "null_with_a_tail": '{"__metadata__":nulll}',
    "none_as_python": '{"__metadata__":None}',
    "undefined": '{"__metadata__":undefined}',
    "word": '{"__metadata__":hello}',
    "literal_with_space_inside": '{"__metadata__":nu ll}',
    "two_values": '{"__metadata__":{} {}}',
    "two_documents": f"{{{A}}}{{{A}}}",
    "two_documents_on_two_lines": f"{{{A}}}\n{{{A}}}",
    "word_behind": f"{{{A}}} x",
    "comma_behind": f"{{{A}}},",
    "quote_behind": f'{{{A}}}"',
    "string_behind": f'{{{A}}}"x"',
    "brace_before": f"}}{{{A}}}",
    "word_before": f"x{{{A}}}",
    "bom_before": f"\ufeff{{{A}}}",
    "nul_before": f"\0{{{A}}}",
    "nul_behind": f"{{{A}}}\0",
    "nul_padding_behind": f"{{{A}}}" + "\0" * 64,
    "nul_between_tokens": f"{{\0{A}}}",
    "form_feed_as_space": f"{{\f{A}}}",
    "vertical_tab_as_space": f"{{\v{A}}}",
    "delete_as_space": f"{{\x7f{A}}}",
    "no_break_space_as_space": f"{{\u00a0{A}}}",
    "line_separator_as_space": f"{{\u2028{A}}}",
    "record_separator_before": f"\x1e{{{A}}}",
    "jsonp": f"callback({{{A}}})",
}


def add_grammar():
    for name, text in GRAMMAR.items():
        CASES.refuse(f"json_{name}", 4, partial(file_of, text, DATA), "json_syntax")


def add_truncated_headers():
    """Every beginning of an object is no JSON. The length says that the header ends there."""
    text = f'{{"__metadata__":{{"k":"\\u00e9"}},{A}}}'.encode()
    for size in range(1, len(text)):
        CASES.refuse(f"json_cut_to_{size}_bytes", 4, partial(file_of, text[:size]), "json_syntax")


def nested(opening, closing, levels, before="", behind=""):
    text = before + opening * levels + closing * levels + behind
    return length_prefix(len(text)) + text.encode()


def add_nesting():
    million = 1_000_000
    deep = partial(CASES.refuse, row=4, code="json_depth", says=("64",))
    deep("nesting_a_million_arrays", make=partial(nested, "[", "]", million))
    deep("nesting_a_million_arrays_not_closed", make=partial(nested, "[", "", million))
    deep("nesting_a_million_objects", make=partial(nested, '{"a":', "}", million))
    deep("nesting_a_million_objects_not_closed", make=partial(nested, '{"a":', "", million))
    deep("nesting_a_million_of_both", make=partial(nested, '[{"a":', "}]", million // 2))
    deep("nesting_in_metadata", make=partial(nested, "[", "]", million, '{"__metadata__":{"k":', "}}"))
    deep("nesting_in_shape", make=partial(nested, "[", "]", million, '{"a":{"shape":', "}}"))
    deep("nesting_in_unknown_field", make=partial(nested, "[", "]", million, '{"a":{"x":', "}}"))
    deep("nesting_one_too_deep", make=partial(nested, "[", "]", 65))
    CASES.refuse("nesting_a_million_closings", 4, partial(nested, "", "]", million), "json_syntax")


add_bad_utf8()
add_bad_escapes()
add_control_characters()
add_grammar()
add_truncated_headers()
add_nesting()
