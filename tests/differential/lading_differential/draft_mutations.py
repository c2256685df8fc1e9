"""Mutations that know the structure: JSON tokens, keys, types, fields, offsets. Each edits a draft in place."""

import json
import re

from .drafts import DTYPES, METADATA, Member, entry, product

ODD_NUMBERS = [
    "-1", "0", "1", "2", "1.0", "1e0", "1e3", "1E+2", "-0", "00", "01", "+1", "18446744073709551615",
    "18446744073709551616", "9223372036854775807", "9223372036854775808", "99999999999999999999999999", "true", "false",
    "null", '"1"', "[1]", "{}", "1e999", "-1e999", "NaN", "Infinity", "0x10", "1.", ".5", "1e", "", "1 2", "-", "0.0",
    "1_0", "1e-400", "4294967296",
]  # fmt: skip
ODD_VALUES = [
    "null", "true", "false", "0", "-1", "1.5", "1e999", '""', '"F32"', '"x"', "[]", "{}", "[null]", '{"a":1}', "[[]]",
    '{"a":1,"a":2}', '"\\ud800"', "nul", "True", "'a'", "//", "[1,]", '{"a":1,}', "{,}", "undefined", '"\x01"', "[0,0]",
    '["F32",[0],[0,0]]', '{"dtype":"F32"}',
]  # fmt: skip
ODD_STRINGS = [
    '"\\ud800"', '"\\udc00"', '"\\udc00\\ud800"', '"\\ud800x"', '"\\ud800\\u0041"', '"\\ud83d\\ude00"', '"\\x41"',
    '"\\u12"', '"\\u12G4"', '"\\u"', '"\\', '"\\U0041"', '"\\a"', '"\t"', '"\x00"', '"\x1f"', '"\x7f"', '"unclosed',
    "'single'", "bare", '"a""b"', '"\ufffe"', '"\\uFFFF"', '"\ud800"', '"\\ud800\\ud800\\udc00"',
]  # fmt: skip
ODD_DTYPES = ['"F99"', '"f32"', '"F32 "', '""', '"F8_E4M3FN"', '"\\u004632"', '"I4"', '"F\\u0000"', '"float32"']
ODD_FIELDS = ['"x"', '"Dtype"', '"dtype "', '"data_offset"', '""', '"strides"', '"__metadata__"', '"sh\\u0061pe"']
WHOLE_TEXTS = [
    "", " ", "{", "}", "[]", "[{}]", "null", "true", "0", '"a"', "{}", " {} ", "{}{}", "{} x", "{},", "{}\0", "{}\f",
    "{}\v", "\ufeff{}", "{}\ufeff", "{}\u00a0", "\u00a0{}", "{}/**/", "{}//", "{}]", "[}", '{"a"}', '{"a":}', "{:}",
    "{}#", '{"__metadata__":null}', '{"__metadata__":{}}', "{}\x1a", "{a:1}", '{"__metadata__":{"a":"b"}} ', "\0",
]  # fmt: skip
HUGE_DIMS = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 3 * 2**61, 2**21]


def pick_tensor(rng, draft):
    """A tensor's entry; a draft without one gets one, so that no mutation is spent on nothing."""
    if not draft.tensors():
        draft.members.append(Member('"added"', entry("F32", [0], 0, 0)))
    return rng.choice(draft.tensors())


def find_field(tensor, key):
    return next((member for member in tensor.value if member.key == f'"{key}"'), None) or tensor.value[-1]


def pick_object(rng, draft):
    objects = [draft.members] + [member.value for member in draft.members if isinstance(member.value, list)]
    return rng.choice([members for members in objects if members] or [draft.members])


def pick_member(rng, draft):
    pick_tensor(rng, draft)
    return rng.choice(pick_object(rng, draft))


def set_text(member, change):
    if isinstance(member.value, str):
        member.value = change(member.value)


def replace_number(rng, draft):
    target = find_field(pick_tensor(rng, draft), rng.choice(("shape", "data_offsets")))
    numbers = list(re.finditer(r"\d+", target.value)) if isinstance(target.value, str) else []
    if not numbers:
        return
    number = rng.choice(numbers)
    old = int(number.group()[:30])
    near = (old + 1, max(old - 1, 0), old * 2, old * 8)
    new = rng.choice(ODD_NUMBERS) if rng.random() < 0.7 else str(rng.choice(near))
    target.value = target.value[: number.start()] + new + target.value[number.end() :]


def change_list_length(rng, draft):
    target = find_field(pick_tensor(rng, draft), rng.choice(("shape", "data_offsets")))
    edits = [
        lambda text: text.replace("]", ",0]"), lambda text: text.replace("]", ", 1]"), lambda text: "[]",
        lambda text: text.replace("]", ",]"), lambda text: text.replace("[", "[,"),
        lambda text: text.split(",")[0] + "]",
        lambda text: text.replace(",", ""), lambda text: text.replace(",", ",,"),
        lambda text: text[1:], lambda text: text[:-1],
        lambda text: text.replace("[", "[[").replace("]", "]]"), lambda text: text.replace("[", "{").replace("]", "}"),
    ]  # fmt: skip
    set_text(target, rng.choice(edits))


def space_in_list(rng, draft):
    target = find_field(pick_tensor(rng, draft), rng.choice(("shape", "data_offsets")))
    space = rng.choice((" ", "\n", "\t", "\r", "  \n", "\f", "\v", "\0", "\u00a0", "/**/"))
    set_text(target, lambda text: text.replace(*rng.choice((("[", "[" + space), (", ", space + ","), ("]", space + "]")))))


def escaped(key):
    """The same key, its first plain character as a \\u escape."""
    if len(key) > 2 and key[1] not in "\\\"" and ord(key[1]) < 0x10000:
        return f'"\\u{ord(key[1]):04x}{key[2:]}'
    return key


def duplicate_member(rng, draft):
    pick_tensor(rng, draft)
    members = pick_object(rng, draft)
    original = rng.choice(members)
    copy = Member(escaped(original.key) if rng.random() < 0.4 else original.key, original.value)
    if rng.random() < 0.3:
        copy.value = rng.choice(members).value
    members.insert(rng.randrange(len(members) + 1), copy)


def duplicate_tensor_elsewhere(rng, draft):
    """The first of two entries with one name says something else; the reference never looks at it."""
    tensor = pick_tensor(rng, draft)
    shadowed = Member(tensor.key, entry(rng.choice(DTYPES), [rng.randrange(4)], rng.randrange(9), rng.randrange(9)))
    draft.members.insert(draft.members.index(tensor), shadowed)


def escape_key(rng, draft):
    member = pick_member(rng, draft)
    member.key = escaped(member.key)


def odd_string(rng, draft):
    member = pick_member(rng, draft)
    if rng.random() < 0.5 and isinstance(member.value, str):
        member.value = rng.choice(ODD_STRINGS)
    else:
        member.key = rng.choice(ODD_STRINGS)


def random_escapes(rng, draft):
    """Around the surrogates, where JSON readers go wrong: halves, pairs, wrong order, broken digits."""
    escapes = [f"\\u{rng.randrange(0xD7FE, 0xE002):04x}" for _ in range(3)]
    pieces = escapes + ["\\ud83d", "\\uDE00", "\\uD83D\\uDE00", "x", "\\\\", '\\"', "\\n", "u", "\\u00", "é"]
    text = '"' + "".join(rng.choices(pieces, k=rng.randrange(1, 5))) + '"'
    member = pick_member(rng, draft)
    if rng.random() < 0.3 and isinstance(member.value, str):
        member.value = text
    else:
        member.key = text


def odd_value(rng, draft):
    pick_member(rng, draft).value = rng.choice(ODD_VALUES)


def unknown_field(rng, draft):
    members = pick_tensor(rng, draft).value
    depth = rng.choice((0, 0, 0, 1, 61, 62, 63, 64, 120, 126, 127, 200))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    value = opening * depth + rng.choice(("null", "1", '"x"', "[]", rng.choice(ODD_VALUES))) + closing * depth
    members.insert(rng.randrange(len(members) + 1), Member(rng.choice(ODD_FIELDS), value))


def remove_member(rng, draft):
    members = pick_object(rng, draft)
    if members:
        del members[rng.randrange(len(members))]


def rename_key(rng, draft):
    pick_member(rng, draft).key = rng.choice(ODD_FIELDS + ODD_STRINGS + ['"dtype"', '"shape"', METADATA])


def odd_metadata(rng, draft):
    odd = ["null", "[]", '""', "{}", '{"a":null}', '{"a":1}', '{"a":{}}', '{"a":["b"]}', '{"a":"b","a":"c"}', "true"]
    odd += ['{"a":"b","\\u0061":"c"}', '{"":""}', '{"a":"\\ud800"}', "0"]
    draft.members = [member for member in draft.members if member.key != METADATA or rng.random() < 0.1]
    draft.members.insert(rng.randrange(len(draft.members) + 1), Member(METADATA, rng.choice(odd)))


def unknown_dtype(rng, draft):
    find_field(pick_tensor(rng, draft), "dtype").value = rng.choice(ODD_DTYPES)


def other_dtype(rng, draft):
    find_field(pick_tensor(rng, draft), "dtype").value = json.dumps(rng.choice(DTYPES))


def entry_as_array(rng, draft):
    tensor = pick_tensor(rng, draft)
    order = ["dtype", "shape", "data_offsets"]
    if rng.random() < 0.2:
        rng.shuffle(order)
    parts = [find_field(tensor, key).value for key in order] + rng.choice(([], [], [], ["0"]))
    if all(isinstance(part, str) for part in parts):
        tensor.value = "[" + ",".join(parts) + "]"


def dtype_as_object(rng, draft):
    target = find_field(pick_tensor(rng, draft), "dtype")
    inside = rng.choice(("null", "null", "{}", "[]", "1", '""', '{"a":1}', "null,0", 'null,"a":null', "false"))
    set_text(target, lambda text: f"{{{text}:{inside}}}")


def raise_rank(rng, draft):
    """Ones do not change the size, so the rank alone decides."""
    target = find_field(pick_tensor(rng, draft), "shape")
    ones = ",".join(["1"] * rng.choice((58, 60, 62, 63, 64, 65, 66, 70, 300)))
    set_text(target, lambda text: text.replace("]", ("," if text != "[]" else "") + ones + "]"))


def overflow_shape(rng, draft):
    tensor = pick_tensor(rng, draft)
    shape = [rng.choice(HUGE_DIMS + [1, 2, 3]) for _ in range(rng.choice((1, 2, 2, 3)))]
    if rng.random() < 0.8:
        shape.insert(rng.choice((0, 0, len(shape))), 0)
    find_field(tensor, "shape").value = json.dumps(shape)
    if rng.random() < 0.3:
        dtype, size = rng.choice(DTYPES), product(shape) % 2**64
        tensor.value = entry(dtype, shape, 0, size)


def add_overflowing_empty_tensor(rng, draft):
    shape = [0, rng.choice(HUGE_DIMS), rng.choice(HUGE_DIMS + [1])]
    if rng.random() < 0.3:
        shape.reverse()
    draft.members.append(Member('"empty and huge"', entry(rng.choice(DTYPES), shape, len(draft.data), len(draft.data))))


def move_offsets(rng, draft):
    target = find_field(pick_tensor(rng, draft), "data_offsets")
    pair = re.fullmatch(r"\[(\d{1,18}), (\d{1,18})\]", target.value) if isinstance(target.value, str) else None
    if not pair:
        return
    begin, end = map(int, pair.groups())
    step = rng.choice((1, 4, 8, len(draft.data), 2**32, 2**63))
    choices = [(end, begin), (begin + step, end + step), (begin, end + step), (max(begin - step, 0), end)]
    target.value = json.dumps(rng.choice(choices + [(begin, begin), (2**64 - 1, 2**64 - 1), (0, end), (-begin, end)]))


def swap_offsets(rng, draft):
    one, two = (find_field(pick_tensor(rng, draft), "data_offsets") for _ in range(2))
    one.value, two.value = two.value, one.value


def add_empty_tensor(rng, draft):
    place = rng.choice((0, len(draft.data), len(draft.data) // 2, len(draft.data) + 1, 2**63))
    fields = entry(rng.choice(DTYPES), rng.choice(([0], [0, 3], [4, 0, 2])), place, place)
    draft.members.insert(rng.randrange(len(draft.members) + 1), Member('"empty"', fields))


def change_data(rng, draft):
    change = rng.choice((1, 1, 4, 8, 100))
    draft.data = draft.data + bytes(change) if rng.random() < 0.5 else draft.data[:-change]


def replace_whole_text(rng, draft):
    draft.whole_text = rng.choice(WHOLE_TEXTS)


def odd_surroundings(rng, draft):
    odd = [" ", "\n", "\ufeff", "\0", "\f", "\x0b", "\u00a0", " " * 70, ",", "{}", "#", "\x1e", "\u2028", "\x85"]
    if rng.random() < 0.5:
        draft.before = rng.choice(odd)
    else:
        draft.behind = rng.choice(odd)


DRAFT_MUTATIONS = [
    replace_number, replace_number, change_list_length, space_in_list, duplicate_member, duplicate_tensor_elsewhere,
    escape_key, odd_string, random_escapes, odd_value, unknown_field, remove_member, rename_key, odd_metadata,
    unknown_dtype, other_dtype, entry_as_array, dtype_as_object, raise_rank, overflow_shape,
    add_overflowing_empty_tensor, move_offsets, swap_offsets, add_empty_tensor, change_data,
    replace_whole_text, odd_surroundings,
]  # fmt: skip
