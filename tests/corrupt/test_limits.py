"""Large inputs and hostile amounts: time and memory stay in bounds. Rows 2 and 15."""

import json
import os

import pytest

from .build import MAX_HEADER_BYTES, entry, file_of, length_prefix
from .build_directories import INDEX, index_of
from .checks import MAX_CPU_S, MEBIBYTE, REFUSED, assert_modest

MAX_LISTED = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("limits").resolve()


@pytest.fixture
def written(folder):
    paths = []

    def write(content, name="x.safetensors"):
        path = folder / name
        path.write_bytes(content)
        paths.append(path)
        return path

    yield write
    for path in paths:
        path.unlink()


@pytest.fixture
def sparse(folder):
    """A file that is large on paper only."""
    path = folder / "sparse.safetensors"

    def write(beginning, size_bytes):
        path.write_bytes(beginning)
        os.truncate(path, size_bytes)
        return path

    yield write
    path.unlink()


@pytest.mark.parametrize("length", [2**63, 2**63 - 1, 2**64 - 1, 2**40, MAX_HEADER_BYTES + 1])
def test_claimed_header_is_not_allocated(lading, written, length):
    path = written(length_prefix(length) + b"{}")
    for prefix in ((), ("prlimit", f"--as={64 * MEBIBYTE}")):
        finished = lading.inspect(path, "--json", prefix=prefix)
        assert_modest(finished)
        assert finished.exit_code == REFUSED
        assert finished.peak_bytes <= 32 * MEBIBYTE
        assert [problem["code"] for problem in finished.json["problems"]] == ["header_too_large"]


def test_header_above_the_cap_in_a_file_that_large(lading, sparse):
    finished = lading.inspect(sparse(length_prefix(MAX_HEADER_BYTES + 1) + b"{}", MAX_HEADER_BYTES + 100), "--json")
    assert_modest(finished)
    assert [problem["code"] for problem in finished.json["problems"]] == ["header_too_large"]


def test_header_of_nul_bytes_up_to_the_cap(lading, sparse):
    finished = lading.inspect(sparse(length_prefix(MAX_HEADER_BYTES), MAX_HEADER_BYTES + 8), "--json")
    assert finished.exit_code == REFUSED
    assert [problem["code"] for problem in finished.json["problems"]] == ["json_syntax"]
    assert finished.peak_bytes <= 1024 * MEBIBYTE


def test_header_of_the_largest_size_is_accepted(lading, written):
    header = json.dumps({"a": entry(0, 2)}).encode().ljust(MAX_HEADER_BYTES)
    finished = lading.inspect(written(file_of(header, b"\1\2")), "--json")
    assert finished.exit_code == 0
    assert finished.json["tensor_count"] == 1
    assert finished.peak_bytes <= 1024 * MEBIBYTE


def test_index_above_the_cap(lading, sparse):
    path = sparse(b"{}", MAX_HEADER_BYTES + 1)
    index = path.rename(path.with_name(INDEX))
    finished = lading.inspect(index, "--json")
    index.rename(path)
    assert_modest(finished)
    (problem,) = finished.json["problems"]
    assert problem["code"] == "index_invalid"
    assert str(MAX_HEADER_BYTES) in problem["expected"]
    assert str(MAX_HEADER_BYTES + 1) in problem["found"]


def test_hundred_thousand_tensors(lading, written):
    header = {f"model.layers.{i}.weight": entry(i, i + 1) for i in range(100_000)}
    path = written(file_of(header, bytes(100_000)))
    for options in (("--json",), (), ("--tensors",), ("--json", "--tensors")):
        finished = lading.inspect(path, *options)
        assert finished.exit_code == 0
        assert finished.peak_bytes <= 200_000_000
    assert len(finished.json["tensors"]) == 100_000


def test_hundred_thousand_faults_are_counted(lading, written):
    count = 100_000
    header = {f"t{i}": entry(2 * i + 1, 2 * i + 2) for i in range(count)}
    finished = lading.inspect(written(file_of(header, bytes(2 * count))), "--json")
    assert finished.exit_code == REFUSED
    assert finished.peak_bytes <= 200_000_000
    answer = finished.json
    assert len(answer["problems"]) == MAX_LISTED
    assert answer["problems_not_listed"] == count - MAX_LISTED
    assert f"{count - MAX_LISTED:,} more" in finished.err_text


def test_many_faults_of_one_long_name(lading, written):
    """Each fault names its tensor; a name of 1 MB must not be kept a thousand times."""
    tensor = {**entry(0, 2), **{f"unknown{i}": 0 for i in range(MAX_LISTED)}}
    finished = lading.inspect(written(file_of({"n" * 1_000_000: tensor}, bytes(2))), "--json")
    assert finished.exit_code == REFUSED
    assert_modest(finished)


def test_many_duplicates(lading, written):
    text = "{" + ",".join(f'"a":{json.dumps(entry(0, 2))}' for _ in range(10_000)) + "}"
    finished = lading.inspect(written(file_of(text, bytes(2))), "--json")
    assert_modest(finished)
    assert finished.json["problems_not_listed"] == 10_000 - 1 - MAX_LISTED


def test_names_that_share_a_long_beginning(lading, written):
    """Sorting names by comparing them must not be what makes a header slow."""
    header = {"n" * 2000 + f"{i:04}": entry(0, 0) for i in range(2000)}
    finished = lading.inspect(written(file_of(header)), "--json")
    assert finished.exit_code == 0
    assert_modest(finished)


def test_many_missing_shards(lading, folder):
    count = 50_000
    index = folder / INDEX
    index.write_text(index_of({f"t{i}": f"shard-{i}.safetensors" for i in range(count)}))
    finished = lading.inspect(index, "--json")
    index.unlink()
    assert finished.exit_code == REFUSED
    assert finished.json["problems_not_listed"] == count - MAX_LISTED
    assert finished.cpu_s <= MAX_CPU_S
    assert finished.peak_bytes <= 200_000_000


# A process that has read nothing, and what a small header may take beside its size.
BASE_BYTES = 100_000_000
LONG_S = 60


def repeated(begin, item, count, end):
    return begin + (item + b",") * (count - 1) + item + end


ENTRY = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
HOSTILE = {
    "tensors without elements": lambda: b"{" + b",".join(ENTRY % i for i in range(1_600_000)) + b"}",
    "metadata": lambda: b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(6_000_000)) + b"}}",
    "dims": lambda: repeated(b'{"a":{"dtype":"F32","shape":[', b"1", 30_000_000, b'],"data_offsets":[0,0]}}'),
    "offsets": lambda: repeated(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[', b"0", 30_000_000, b"]}}"),
    "fields": lambda: repeated(b'{"a":{', b'"":0', 18_000_000, b"}}"),
    "arrays": lambda: repeated(b"{", repeated(b'"":[', b"[[],[],[]]", 999_999, b"]"), 4, b"}"),
    "depth": lambda: b"[" * 90_000_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_amounts_are_refused_before_they_are_read(lading, written, what):
    header = HOSTILE[what]()
    path = written(file_of(header))
    for command in ("inspect", "plan", "load") if what == "tensors without elements" else ("inspect",):
        finished = lading.run(command, path, "--json")
        assert finished.exit_code == REFUSED
        (problem,) = finished.json["problems"]
        assert problem["code"] == "header_too_large"
        assert "report it" in problem["remedy"]
        assert finished.peak_bytes <= len(header) + BASE_BYTES / 2


def test_hostile_index(lading, folder):
    index = folder / INDEX
    index.write_bytes(repeated(b'{"weight_map":{', b'"":"a.safetensors"', 4_000_000, b"}}"))
    finished = lading.inspect(index, "--json")
    size = index.stat().st_size
    index.unlink()
    assert finished.exit_code == REFUSED
    assert [problem["code"] for problem in finished.json["problems"]] == ["index_invalid"]
    assert finished.peak_bytes <= size + BASE_BYTES / 2


def test_an_index_of_too_many_files(lading, folder):
    index = folder / INDEX
    index.write_text(index_of({f"t{i}": f"{i}.safetensors" for i in range(100_001)}))
    finished = lading.inspect(index, "--json")
    index.unlink()
    assert [problem["code"] for problem in finished.json["problems"]] == ["index_invalid"]
    assert "100,000" in finished.json["problems"][0]["expected"]


def test_tensors_of_all_shards_are_counted_together(lading, folder):
    place = folder / "shards"
    place.mkdir()
    names = [f"{i}.safetensors" for i in range(3)]
    for shard, name in enumerate(names):
        entries = b",".join(ENTRY % i for i in range(shard * 400_000, (shard + 1) * 400_000))
        (place / name).write_bytes(file_of(b"{" + entries + b"}"))
    (place / INDEX).write_text(index_of({str(i * 400_000): name for i, name in enumerate(names)}))
    finished = lading.inspect(place, "--json")
    assert finished.exit_code == REFUSED
    codes = {problem["code"]: problem for problem in finished.json["problems"]}
    assert codes["header_too_large"]["found"] == "400,000 here, and 800,000 in other files"
    size = sum(path.stat().st_size for path in place.iterdir())
    assert finished.peak_bytes <= 4 * size + BASE_BYTES


def test_as_many_tensors_as_are_accepted(lading, written):
    count = 1_000_000
    text = ",".join(f'"{i}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{i + 1}]}}' for i in range(count))
    path = written(file_of(f"{{{text}}}", bytes(count)))
    finished = lading.inspect(path, "--json", deadline_s=LONG_S)
    assert finished.exit_code == 0
    assert finished.json["tensor_count"] == count
    assert finished.peak_bytes <= 4 * path.stat().st_size + BASE_BYTES
    finished = lading.run("plan", path, "--json", deadline_s=LONG_S)
    assert finished.exit_code == 4
    assert "2.00 GB" in finished.json["problems"][0]["expected"]
    assert finished.peak_bytes <= 8 * path.stat().st_size + BASE_BYTES


def test_names_of_many_components_stay_in_bounds(lading, written):
    """The tree of modules that `inspect` prints has a node for each."""
    rest = b".a" * 23
    entries = b",".join(b'"%dx%s":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % (i, rest) for i in range(300_000))
    path = written(file_of(b"{" + entries + b"}"))
    finished = lading.inspect(path, deadline_s=LONG_S)
    assert finished.exit_code == 0
    assert finished.peak_bytes <= 4 * path.stat().st_size + BASE_BYTES


def test_dense_headers_stay_in_bounds(lading, written):
    """Real dims in such a number that their shapes are most of the header."""
    shape = ",".join(["1"] * 64)
    for count, expected in ((40_000, 0), (200_000, REFUSED)):
        text = ",".join(f'"{i}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{i},{i + 1}]}}' for i in range(count))
        path = written(file_of(f"{{{text}}}", bytes(count)), f"{count}.safetensors")
        finished = lading.inspect(path, "--json", deadline_s=LONG_S)
        assert finished.exit_code == expected
        assert finished.peak_bytes <= 4 * path.stat().st_size + BASE_BYTES
