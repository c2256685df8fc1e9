"""Indexes that are wrong, or do not match their shards: rows 17 and 19 to 22, rules S4 and S5."""

import json
from functools import partial

from .build import entry, file_of
from .build_directories import INDEX, SHARDS, SINGLE, Call, checkpoint, index_of, shard_of, weight_map_of, write
from .cases import Problem, Registry

CASES = Registry()

ONE_FILE = "ckpt/one.safetensors"
TWO_FILE = "ckpt/two.safetensors"
INDEX_FILE = f"ckpt/{INDEX}"
GOOD_MAP = weight_map_of(SHARDS)
GOOD_MAP_TEXT = json.dumps(GOOD_MAP)
RIGHT_TOTAL = 6

BAD_SHARD_NAMES = {
    "parent": "../one.safetensors",
    "parent_of_parent": "../../one.safetensors",
    "parent_inside": "sub/../one.safetensors",
    "parent_behind": "sub/..",
    "parent_alone": "..",
    "dot_before": "./one.safetensors",
    "dot_inside": "sub/./one.safetensors",
    "dot_alone": ".",
    "absolute": "/one.safetensors",
    "absolute_device": "/dev/zero",
    "absolute_twice": "//one.safetensors",
    "slash_alone": "/",
    "slash_twice": "sub//one.safetensors",
    "slash_behind": "one.safetensors/",
    "backslash": "sub\\one.safetensors",
    "backslash_parent": "..\\one.safetensors",
    "drive": "C:\\one.safetensors",
    "url": "https://example.org/one.safetensors",
    "empty": "",
    "space": " ",
    "bin": "one.bin",
    "pickle": "pytorch_model.bin",
    "bin_behind": "one.safetensors.bin",
    "no_ending": "one",
    "ending_in_capitals": "one.SAFETENSORS",
    "space_behind": "one.safetensors ",
    "newline_behind": "one.safetensors\n",
    "nul_behind": "one.safetensors\0",
    "nul_inside": "one\0.safetensors",
    "too_long": "sub/" * 1100 + "one.safetensors",
}


def with_map(folder, weight_map):
    return Call(checkpoint(folder, weight_map=weight_map))


def with_index(folder, index):
    return Call(checkpoint(folder, index=index))


def with_shards(folder, shards, weight_map=None):
    return Call(checkpoint(folder, shards=shards, weight_map=weight_map))


def add_shard_names():
    for name, shard in BAD_SHARD_NAMES.items():

        def make(folder, shard=shard):
            # What a careless reader would find there is a good shard.
            write(folder / "one.safetensors", shard_of("ab"))
            (folder / "ckpt" / "sub").mkdir(parents=True)
            return with_map(folder, {"a": shard, "b": shard, "c": "two.safetensors"})

        CASES.refuse(
            f"shard_name_{name}",
            17,
            make,
            "index_shard_name",
            tensor="a",
            file=INDEX_FILE,
            says=("S4", ".safetensors", "2 tensor"),
        )
    names = ("../x.safetensors", "/x.safetensors", "x.bin")
    CASES.refuse_all(
        "shard_names_all_wrong",
        17,
        partial(with_map, weight_map=dict(zip("abc", names, strict=True))),
        *(Problem("index_shard_name", tensor, (name,), INDEX_FILE) for tensor, name in zip("abc", names, strict=True)),
    )


def add_index_forms():
    for name, text in {
        "object": "{}",
        "array": "[]",
        "null": "null",
        "number": "1",
        "string": '"x"',
        "true": "true",
    }.items():
        CASES.refuse(
            f"index_is_{name}",
            19,
            partial(with_index, index=text),
            "index_invalid",
            file=INDEX_FILE,
            says=("weight_map",),
        )
    for name, text in {
        "null": "null",
        "array": "[]",
        "string": '"x"',
        "number": "1",
        "true": "true",
        "empty": "{}",
    }.items():
        bad = partial(with_index, index=f'{{"weight_map":{text}}}')
        CASES.refuse(f"weight_map_is_{name}", 19, bad, "index_invalid", file=INDEX_FILE, says=("weight_map",))
    for name, text in {
        "null": "null",
        "number": "1",
        "array": '["one.safetensors"]',
        "object": "{}",
        "true": "true",
    }.items():
        bad = partial(with_index, index=f'{{"weight_map":{{"a":{text}}}}}')
        CASES.refuse(
            f"weight_map_value_is_{name}", 19, bad, "index_invalid", tensor="a", file=INDEX_FILE, says=("file name",)
        )
    CASES.refuse(
        "weight_map_in_capitals",
        19,
        partial(with_index, index=f'{{"WEIGHT_MAP":{GOOD_MAP_TEXT}}}'),
        "index_invalid",
        file=INDEX_FILE,
    )
    for name, text, code in [
        ("empty_file", "", "json_syntax"),
        ("only_spaces", "  \n", "json_syntax"),
        ("cut", f'{{"weight_map":{GOOD_MAP_TEXT}', "json_syntax"),
        ("twice", f'{{"weight_map":{GOOD_MAP_TEXT}}}' * 2, "json_syntax"),
        ("html", "<!DOCTYPE html>", "not_a_checkpoint"),
        ("with_bom", f'\ufeff{{"weight_map":{GOOD_MAP_TEXT}}}', "json_syntax"),
        ("with_a_comma_too_many", f'{{"weight_map":{GOOD_MAP_TEXT},}}', "json_syntax"),
        ("latin_1", b'{"weight_map":{"\xe9":"one.safetensors"}}', "json_utf8"),
        ("lone_surrogate", r'{"weight_map":{"\ud800":"one.safetensors"}}', "json_utf8"),
        ("nested", "[" * 100_000, "json_depth"),
        ("nested_in_metadata", '{"metadata":' + '{"a":' * 100_000, "json_depth"),
    ]:
        CASES.refuse(f"index_{name}", 19, partial(with_index, index=text), code, file=INDEX_FILE)


def add_index_duplicates():
    pair = '"a":"one.safetensors"'
    for name, text, tensor in [
        ("tensor", f'{{"weight_map":{{{pair},{pair}}}}}', "a"),
        ("tensor_in_another_shard", f'{{"weight_map":{{{pair},"a":"two.safetensors"}}}}', "a"),
        ("tensor_with_an_escape", f'{{"weight_map":{{{pair},"\\u0061":"two.safetensors"}}}}', "a"),
        ("weight_map", f'{{"weight_map":{{}},"weight_map":{GOOD_MAP_TEXT}}}', None),
        ("weight_map_with_an_escape", f'{{"weight\\u005fmap":{{}},"weight_map":{GOOD_MAP_TEXT}}}', None),
        ("metadata", f'{{"metadata":{{}},"metadata":{{}},"weight_map":{GOOD_MAP_TEXT}}}', None),
        ("total_size", f'{{"metadata":{{"total_size":6,"total_size":6}},"weight_map":{GOOD_MAP_TEXT}}}', None),
    ]:
        bad = partial(with_index, index=text)
        CASES.refuse(
            f"index_duplicate_{name}", 5, bad, "json_duplicate_key", tensor=tensor, file=INDEX_FILE, says=("twice",)
        )


def missing_shard(tensor, shard, tensors):
    return Problem("index_missing_shard", tensor, ("S5", shard, f"{tensors} tensor"), INDEX_FILE)


def missing_tensor(tensor, *says):
    return Problem("index_missing_tensor", tensor, ("S5", *says), INDEX_FILE)


def add_mismatches():
    two_only = {"two.safetensors": "c"}
    CASES.refuse_all(
        "shard_missing",
        19,
        partial(with_shards, shards=two_only, weight_map=GOOD_MAP),
        missing_shard("a", "one.safetensors", 2),
    )
    both = (missing_shard("a", "one.safetensors", 2), missing_shard("c", "two.safetensors", 1))
    CASES.refuse_all("shards_missing_all", 19, partial(with_map_alone, weight_map=GOOD_MAP), *both)
    many = {f"t{i}": f"shard-{i}.safetensors" for i in range(20)}
    CASES.refuse_all(
        "shards_missing_20",
        19,
        partial(with_map, weight_map=many),
        *(missing_shard(t, shard, 1) for t, shard in many.items()),
    )
    tilde = {**GOOD_MAP, "c": "~/two.safetensors"}
    CASES.refuse_all(
        "shard_missing_in_a_folder_called_tilde",
        19,
        partial(with_map, weight_map=tilde),
        missing_shard("c", "~/two.safetensors", 1),
    )
    through_a_file = {**GOOD_MAP, "c": "two.safetensors/two.safetensors"}
    CASES.refuse_all(
        "shard_beneath_a_file",
        19,
        partial(with_map, weight_map=through_a_file),
        missing_shard("c", "two.safetensors/two.safetensors", 1),
    )

    extra = {**GOOD_MAP, "d": "one.safetensors", "e": "two.safetensors"}
    CASES.refuse_all(
        "tensors_in_no_shard",
        19,
        partial(with_map, weight_map=extra),
        missing_tensor("d", "no shard"),
        missing_tensor("e", "no shard"),
    )
    swapped = {"a": "two.safetensors", "b": "two.safetensors", "c": "one.safetensors"}
    CASES.refuse_all(
        "shards_swapped",
        19,
        partial(with_map, weight_map=swapped),
        missing_tensor("a", ONE_FILE),
        missing_tensor("b", ONE_FILE),
        missing_tensor("c", TWO_FILE),
    )
    one_wrong = {**GOOD_MAP, "b": "two.safetensors"}
    CASES.refuse_all(
        "tensor_in_the_other_shard",
        19,
        partial(with_map, weight_map=one_wrong),
        missing_tensor("b", "two.safetensors", ONE_FILE),
    )
    other_case = {"A": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    unlisted_a = Problem("index_unlisted_tensor", "a", ("S5",), ONE_FILE)
    CASES.refuse_all(
        "tensor_in_another_case", 19, partial(with_map, weight_map=other_case), missing_tensor("A"), unlisted_a
    )
    unlisted = {"a": "one.safetensors", "c": "two.safetensors"}
    CASES.refuse_all(
        "tensor_unlisted",
        19,
        partial(with_map, weight_map=unlisted),
        Problem("index_unlisted_tensor", "b", ("S5",), ONE_FILE),
    )


def with_map_alone(folder, weight_map):
    return Call(checkpoint(folder, shards={}, weight_map=weight_map))


def in_two_shards(folder, second, listed=True):
    shards = {"one.safetensors": shard_of("ab"), "two.safetensors": shard_of(("a", "c"), fill=second)}
    return Call(checkpoint(folder, shards, GOOD_MAP if listed else {"b": "one.safetensors", "c": "two.safetensors"}))


def add_tensors_in_two_shards():
    twice = Problem("index_duplicate_tensor", "a", (ONE_FILE, TWO_FILE), ".safetensors")
    for listed in (True, False):
        word = "listed" if listed else "unlisted"
        CASES.refuse_all(
            f"tensor_in_two_shards_different_{word}", 20, partial(in_two_shards, second=2, listed=listed), twice
        )
        CASES.refuse_all(
            f"tensor_in_two_shards_equal_{word}", 20, partial(in_two_shards, second=1, listed=listed), twice
        )
    three = {f"{n}.safetensors": ("a", n) for n in "xyz"}
    says = tuple(f"ckpt/{n}.safetensors" for n in "xyz")
    weight_map = {"a": "x.safetensors", "x": "x.safetensors", "y": "y.safetensors", "z": "z.safetensors"}
    problem = Problem("index_duplicate_tensor", "a", says, ".safetensors")
    CASES.refuse_all("tensor_in_three_shards", 20, partial(with_shards, shards=three, weight_map=weight_map), problem)


def add_broken_shards():
    """Everything wrong in every shard comes out at once."""
    shards = {
        "cut.safetensors": b"\1\2\3",
        "good.safetensors": shard_of("g"),
        "hole.safetensors": file_of({"h": entry(1, 2)}, bytes(2)),
        "syntax.safetensors": file_of("{"),
        "two-faults.safetensors": file_of({"t": entry(0, 1, "F32", [1]), "u": {}}, bytes(1)),
    }
    weight_map = {
        "c": "cut.safetensors",
        "g": "good.safetensors",
        "h": "hole.safetensors",
        "s": "syntax.safetensors",
        "t": "two-faults.safetensors",
        "u": "two-faults.safetensors",
        "m": "missing.safetensors",
    }
    in_shards = (
        Problem("header_truncated", file="ckpt/cut.safetensors"),
        Problem("header_hole", "h", file="ckpt/hole.safetensors"),
        Problem("json_syntax", file="ckpt/syntax.safetensors"),
        Problem("header_size", "t", file="ckpt/two-faults.safetensors"),
        *[
            Problem("header_field", "u", (f"no {field}",), "ckpt/two-faults.safetensors")
            for field in ("dtype", "shape", "data_offsets")
        ],
        missing_shard("m", "missing.safetensors", 1),
    )
    CASES.refuse_all(
        "shards_broken_in_many_ways", 19, partial(with_shards, shards=shards, weight_map=weight_map), *in_shards
    )

    beside = {**GOOD_MAP, "m": "missing.safetensors", "d": "one.safetensors"}
    CASES.refuse_all(
        "shard_missing_and_tensor_missing_in_another",
        19,
        partial(with_map, weight_map=beside),
        missing_shard("m", "missing.safetensors", 1),
        missing_tensor("d"),
    )
    cut_and_unlisted = {"one.safetensors": shard_of("abx"), "two.safetensors": b""}
    CASES.refuse_all(
        "shard_broken_and_tensor_unlisted_in_another",
        19,
        partial(with_shards, shards=cut_and_unlisted, weight_map=GOOD_MAP),
        Problem("header_truncated", file=TWO_FILE),
        Problem("index_unlisted_tensor", "x", ("S5",), ONE_FILE),
    )
    trailing = {"one.safetensors": shard_of("ab") + b"x", "two.safetensors": shard_of("c")}
    with_trailing = partial(with_shards, shards=trailing, weight_map=GOOD_MAP)
    CASES.refuse("shard_with_trailing_bytes", 13, with_trailing, "trailing_bytes", file=ONE_FILE)
    CASES.accept("shard_with_trailing_bytes_allowed", 13, with_trailing, options=("--allow-trailing-bytes",))


def add_total_sizes():
    wrong = Problem("index_total_size", file=INDEX_FILE, placed=False, says=("total_size",))
    for name, total in {
        "one_too_small": RIGHT_TOTAL - 1,
        "one_too_large": RIGHT_TOTAL + 1,
        "zero": 0,
        "2_to_64_minus_1": 2**64 - 1,
        "2_to_64": 2**64,
        "10_to_30": 10**30,
        "negative": -RIGHT_TOTAL,
        "fraction": 6.5,
        "string": "6",
        "null": None,
        "true": True,
        "array": [6],
        "object": {},
    }.items():
        CASES.accept(f"total_size_{name}", 22, partial(with_index, index=index_of(GOOD_MAP, total_size=total)), wrong)
    beyond_double = index_of(GOOD_MAP, total_size=0).replace(": 0}", ": 1e999}")
    CASES.accept("total_size_beyond_double", 22, partial(with_index, index=beyond_double), wrong)
    CASES.accept("total_size_right", 22, partial(with_index, index=index_of(GOOD_MAP, total_size=RIGHT_TOTAL)))
    CASES.accept("total_size_absent", 22, partial(with_index, index=index_of(GOOD_MAP)))
    CASES.accept("index_without_metadata", 22, partial(with_index, index=f'{{"weight_map":{GOOD_MAP_TEXT}}}'))
    CASES.accept(
        "index_with_other_members", 22, partial(with_index, index=f'{{"weight_map":{GOOD_MAP_TEXT},"x":[1.5,null]}}')
    )
    CASES.accept("index_with_white_space", 22, partial(with_index, index=f'\n {{"weight_map" : {GOOD_MAP_TEXT} }}\n\n'))
    escaped = GOOD_MAP_TEXT.replace("one.", r"\u006fne\u002E").replace('"a"', r'"\u0061"')
    CASES.accept("index_with_escapes", 22, partial(with_index, index=f'{{"weight_map":{escaped}}}'))


def beside_the_index(folder, name, content=b"anything"):
    place = checkpoint(folder)
    write(place / name, content)
    return Call(place)


def add_strays():
    def note(name):
        return Problem("stray_shard", file=f"ckpt/{name}", placed=False)

    for name in ("stray.safetensors", SINGLE, ".safetensors"):
        CASES.accept(f"stray_{name}", 21, partial(beside_the_index, name=name), note(name))
    CASES.accept(
        "stray_of_the_same_tensors",
        21,
        partial(beside_the_index, name="copy.safetensors", content=shard_of("abc")),
        note("copy.safetensors"),
    )
    for name in ("pytorch_model.bin", "adapter.SAFETENSORS"):
        CASES.accept(f"beside_the_index_{name}", 21, partial(beside_the_index, name=name))
    # It is read for what it says of quantization only.
    for content in (b"{}", b'{"quantization_config": null}'):
        make = partial(beside_the_index, name="config.json", content=content)
        CASES.accept(f"beside_the_index_config_of_{len(content)}_bytes", 21, make)
    odd = Problem("json_syntax", file="ckpt/config.json")
    CASES.accept("beside_the_index_config.json", 21, partial(beside_the_index, name="config.json"), odd)
    CASES.accept("beside_the_index_in_a_sub_folder", 21, partial(beside_the_index, name="sub/other.safetensors"))


add_shard_names()
add_index_forms()
add_index_duplicates()
add_mismatches()
add_tensors_in_two_shards()
add_broken_shards()
add_total_sizes()
add_strays()
