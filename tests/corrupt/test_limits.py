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


def test_as_many_tensors_as_a_header_can_hold(lading, written):
    count = 1_400_000
    text = ",".join(f'"{i}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{i + 1}]}}' for i in range(count))
    finished = lading.inspect(written(file_of(f"{{{text}}}", bytes(count))), "--json")
    assert finished.exit_code == 0
    assert finished.json["tensor_count"] == count
    assert finished.peak_bytes <= 1024 * MEBIBYTE
