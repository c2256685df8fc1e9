"""Mutations of finished files: bits, bytes, lengths. Each takes a file and gives another."""

import struct

from .drafts import join

BAD_UTF8 = [
    b"\xff", b"\xfe", b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80",
    b"\xed\xbf\xbf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\xf0\x9f\x98",
]  # fmt: skip
TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"\0", b"0", b"-", b".", b"e1", b"null", b"true",
    b"\\u0041", b"\\", b"/", b"\t", b"\x01", b"\x7f", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"9", b"\xef\xbb\xbf",
    b"\x0c", b"\xc2\xa0",
]  # fmt: skip
LENGTHS = [0, 1, 7, 8, 100_000_000, 100_000_001, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


def split(file):
    length = struct.unpack("<Q", file[:8])[0] if len(file) >= 8 else 0
    return file[8 : 8 + length], file[8 + length :]


def in_header(edit):
    """The edit sees the JSON text alone, and the length is put right again."""

    def mutation(rng, file):
        header, data = split(file)
        return join(edit(rng, header), data)

    return mutation


def flip_bit(rng, text):
    if not text:
        return text
    place = rng.randrange(len(text))
    return text[:place] + bytes([text[place] ^ 1 << rng.randrange(8)]) + text[place + 1 :]


def set_byte(rng, text):
    if not text:
        return text
    place = rng.randrange(len(text))
    return text[:place] + bytes([rng.randrange(256)]) + text[place + 1 :]


def cut_slice(rng, text):
    begin = rng.randrange(len(text) + 1)
    return text[:begin] + text[begin + rng.choice((1, 1, 2, 5, 20)) :]


def repeat_slice(rng, text):
    begin = rng.randrange(len(text) + 1)
    end = begin + rng.choice((1, 2, 8, 40))
    return text[:end] + text[begin:end] + text[end:]


def insert_token(rng, text):
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(TOKENS) + text[place:]


def replace_with_token(rng, text):
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(TOKENS) + text[place + 1 :]


def damage_utf8(rng, text):
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(BAD_UTF8) + text[place + rng.randrange(2) :]


def truncate(rng, file):
    return file[: rng.choice((rng.randrange(len(file) + 1), rng.randrange(10), max(len(file) - 1, 0)))]


def append(rng, file):
    return file + rng.choice((b"\0", b" ", b"\0" * 8, b"PK\x03\x04", file[:20]))


def claim_length(rng, file):
    real = len(split(file)[0])
    near = [real + 1, real - 1, real + 8, len(file), len(file) - 8, len(file) - 7]
    return struct.pack("<Q", max(rng.choice(LENGTHS + near), 0)) + file[8:]


def pad_header(rng, file):
    header, data = split(file)
    pad = rng.choice((b" ", b"\n", b"\t", b"\0", b"\x20" * 64, b"\x0c", b"\r")) * rng.choice((1, 3, 8))
    return join(header + pad if rng.random() < 0.7 else pad + header, data)


BYTE_MUTATIONS = [
    in_header(flip_bit), in_header(set_byte), in_header(cut_slice), in_header(repeat_slice), in_header(insert_token),
    in_header(replace_with_token), in_header(damage_utf8), flip_bit, set_byte, cut_slice, insert_token, truncate,
    append, claim_length, pad_header,
]  # fmt: skip
