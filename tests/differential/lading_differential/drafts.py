"""Random valid safetensors files, kept as JSON text in pieces so that mutations can reach every token."""

import json
import struct
from dataclasses import dataclass, field

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
DTYPES = list(DTYPE_BITS)
METADATA = '"__metadata__"'

# Raw JSON strings without the closing quote, so that a number can be appended to keep them unique.
NAME_STARTS = [
    '"w', '"model.layers.0.self_attn.q_proj.weight', '"', '" ', '"é', '"\\u00e9', '"漢字', '"\\u0000', '"\\n', '"\\"',
    '"\\\\', '"/', '"\\/', '"\\ud83d\\ude00', '"😀', '"\x7f', '"\u202e', '"\ufeff', '"\\u001b[31m', '"__metadata__.',
    '"<script>', '"dtype', '"shape', '"{', '"a,b:', '"\\b\\f\\r\\t', '"' + "n" * 300,
]  # fmt: skip
METADATA_VALUES = ['"pt"', '""', '"\\u0041"', '"é"', '"{\\"a\\": 1}"', '"\\ud83d\\ude00"', '"1"', '"null"']
SPACES = ["", "", "", " ", "\n", "\t", "\r\n", "   "]


@dataclass
class Member:
    """A key, as raw JSON text, and its value: raw JSON text too, or the members of an object."""

    key: str
    value: "str | list[Member]"


@dataclass
class Draft:
    members: list[Member] = field(default_factory=list)
    data: bytes = b""
    before: str = ""
    behind: str = ""
    whole_text: str | None = None  # instead of the members

    def tensors(self):
        objects = [member for member in self.members if isinstance(member.value, list)]
        return [member for member in objects if member.key != METADATA and member.value]

    def render(self, rng):
        spaces = rng.choice([[""], [""], [" "], SPACES])
        text = self.whole_text if self.whole_text is not None else render_value(self.members, rng, spaces)
        header = (self.before + text + self.behind).encode("utf-8", "surrogatepass")
        return join(header, self.data)


def join(header, data):
    return struct.pack("<Q", len(header)) + header + data


def render_value(value, rng, spaces):
    if isinstance(value, str):
        return value
    if len(spaces) == 1:
        gap = spaces[0]
        return "{" + ",".join(f"{m.key}:{gap}{render_value(m.value, rng, spaces)}" for m in value) + "}"
    gaps = [rng.choice(spaces) for _ in range(3)]
    pieces = (f"{gaps[0]}{m.key}{gaps[1]}:{gaps[2]}{render_value(m.value, rng, spaces)}{gaps[0]}" for m in value)
    return "{" + ",".join(pieces) + gaps[1] + "}"


def random_shape(rng, bits):
    shape = [rng.choice((0, 1, 1, 2, 3, 4, 7)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5)))]
    count = product(shape)
    if count * bits % 8:
        shape.append({4: 2, 6: 4}[bits])
    return shape if product(shape) * bits <= 8 * 512 else [2 * 4]


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def entry(dtype, shape, begin, end):
    return [
        Member('"dtype"', json.dumps(dtype)),
        Member('"shape"', json.dumps(shape)),
        Member('"data_offsets"', json.dumps([begin, end])),
    ]


def random_metadata(rng):
    names = [f'{rng.choice(NAME_STARTS)}{i}"' for i in range(rng.choice((0, 1, 1, 2, 4)))]
    return Member(METADATA, [Member(name, rng.choice(METADATA_VALUES)) for name in names])


def random_tensor_count(rng):
    # Rarely many: they cost as much as hundreds of ordinary files.
    return rng.randrange(50, 300) if rng.random() < 0.002 else rng.choice((0, 1, 1, 2, 2, 3, 4, 6))


def random_draft(rng):
    draft = Draft()
    reached = 0
    for i in range(random_tensor_count(rng)):
        dtype = rng.choice(DTYPES)
        shape = random_shape(rng, DTYPE_BITS[dtype])
        end = reached + product(shape) * DTYPE_BITS[dtype] // 8
        fields = entry(dtype, shape, reached, end)
        if rng.random() < 0.3:
            rng.shuffle(fields)
        draft.members.append(Member(f'{rng.choice(NAME_STARTS)}{i or ""}"', fields))
        reached = end
    draft.data = rng.randbytes(reached)
    if rng.random() < 0.4:
        draft.members.append(random_metadata(rng))
    if rng.random() < 0.5:
        rng.shuffle(draft.members)
    draft.before = rng.choice(("", "", "", "", " ", "\n\t "))
    draft.behind = rng.choice(("", "", " ", " " * 7, "\n", "\t\r\n"))
    return draft
