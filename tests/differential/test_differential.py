"""lading's header reader against the safetensors package: the same verdict, or a documented reason."""

import json
import os
import struct
import subprocess
from pathlib import Path

import pytest
import safetensors
from lading_differential import campaign
from lading_differential.drafts import join
from lading_differential.reading import read
from lading_differential.reasons import REASONS, explain

SEED = 20_261_115
COUNT = 30_000
INSPECTED = 50
ENTRY = b'"dtype":"F32","shape":[1],"data_offsets":[0,4]'
HEADER_CAP = 100_000_000


@pytest.fixture(scope="module")
def lading_accepts():
    return campaign.load_lading()


@pytest.fixture(scope="module")
def lading_command():
    return os.environ.get("LADING_COMMAND", str(campaign.ROOT / "build" / "dev" / "lading"))


@pytest.fixture(scope="module")
def tally(lading_accepts):
    return campaign.run_cases(SEED, 0, COUNT, lading_accepts)


def test_every_difference_has_a_reason(tally):
    assert tally.failure_count == 0, "\n".join(map(str, tally.failures))


def test_every_reason_occurs(tally):
    assert [reason for reason in REASONS if tally.reasons[reason] == 0] == []


def test_files_are_of_every_kind(tally):
    """Neither reader is tried only on rubbish, and no kind of fault hides behind others."""
    assert tally.verdicts["lading accepts, reference accepts"] > COUNT // 10
    assert tally.verdicts["lading refuses, reference refuses"] > COUNT // 10
    for fault in ("header_length", "unicode", "json", "root_type", "not_sizes", "size", "tiling", "data_size"):
        assert tally.only_faults[fault] > 0, fault


def test_a_case_is_replayed_by_its_seed():
    assert campaign.make_file(SEED, 77) == campaign.make_file(SEED, 77)
    assert campaign.make_file(SEED, 77) != campaign.make_file(SEED + 1, 77)


# Planted errors: what the harness would say if lading judged wrongly.


def planted_failures(lading_accepts, wrong_verdict):
    def verdict(file):
        planted = wrong_verdict(file)
        return lading_accepts(file) if planted is None else planted

    return campaign.run_cases(SEED, 0, 2_000, verdict)


def test_accepting_a_truncated_file_is_unexplained():
    whole = join(b'{"w":{' + ENTRY + b"}}", bytes(4))
    assert not campaign.reference_accepts(whole[:-1])
    assert explain(whole[:-1], True, False) == []


def test_accepting_truncated_files_is_found(lading_accepts):
    planted = planted_failures(lading_accepts, lambda file: True if "data_size" in read(file).faults else None)
    assert planted.failure_count > 0
    assert all("lading accepts, the reference refuses" in failure.kind for failure in planted.failures)


def test_refusing_leading_whitespace_is_found(lading_accepts):
    planted = planted_failures(lading_accepts, lambda file: False if file[8:9].isspace() else None)
    assert planted.failure_count > 0


def test_accepting_duplicates_is_found_although_the_reference_does_too(lading_accepts):
    planted = planted_failures(lading_accepts, lambda file: True if "duplicate_tensor" in read(file).faults else None)
    assert any("what the bytes say" in failure.kind for failure in planted.failures)


def test_a_reason_does_not_excuse_another_fault():
    unknown_and_truncated = join(b'{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', bytes(3))
    assert explain(unknown_and_truncated, True, False) == []
    assert explain(unknown_and_truncated + b"\0", True, False) == ["unknown_dtype"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'{"w":{' + ENTRY + b',"x":null}}', "S1"),
        (b'{"w":{"dtype":"U8","shape":[' + b"1," * 64 + b'4],"data_offsets":[0,4]}}', "S2"),
        (b'{"e":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]},"w":{' + ENTRY + b"}}", "S3"),
        (b'{"w":{' + ENTRY + b'},"\\u0077":{' + ENTRY + b"}}", "duplicate_tensor"),
        (b'{"__metadata__":{"a":"1","a":"2"},"w":{' + ENTRY + b"}}", "duplicate_metadata_key"),
        (b'{"__metadata__":null,"w":{' + ENTRY + b"}}", "metadata_null"),
        (b'{"w":["F32",[1],[0,4]]}', "entry_as_array"),
        (b'{"w":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}}', "dtype_as_object"),
        (b'{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', "unknown_dtype"),
    ],
)
def test_each_reason_alone(lading_accepts, header, reason):
    file = join(header, bytes(4))
    ours, theirs = lading_accepts(file), campaign.reference_accepts(file)
    assert ours != theirs
    assert explain(file, ours, theirs) == [reason]


@pytest.mark.parametrize("size", [HEADER_CAP, HEADER_CAP + 1])
def test_the_header_cap_is_the_same(lading_accepts, size):
    file = join(b"{}".ljust(size), b"")
    assert lading_accepts(file) == campaign.reference_accepts(file) == (size <= HEADER_CAP)


# What both accept must also mean the same.


def files_accepted_by_both(lading_accepts):
    index = COUNT
    while True:
        file = campaign.make_file(SEED, index)
        if lading_accepts(file) and campaign.reference_accepts(file):
            yield file
        index += 1


def inspected(lading_command, path):
    run = subprocess.run([lading_command, "inspect", path, "--json", "--tensors"], capture_output=True, timeout=30)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)


def assert_same_content(file, path, ours):
    found = {tensor["name"]: tensor for tensor in ours["tensors"]}
    expected = dict(safetensors.deserialize(file))
    data_begin = 8 + struct.unpack("<Q", file[:8])[0]
    written = json.loads(file[8:data_begin])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        begin, end = found[name]["bytes"]
        assert (found[name]["dtype"], found[name]["shape"]) == (tensor["dtype"], tensor["shape"])
        assert file[begin:end] == tensor["data"]
        assert [begin - data_begin, end - data_begin] == written[name]["data_offsets"]
    with safetensors.safe_open(path, framework="np") as opened:
        assert ours["shards"][0]["metadata"] == (opened.metadata() or {})


def test_both_read_the_same_content(lading_accepts, lading_command, tmp_path):
    files = files_accepted_by_both(lading_accepts)
    tensors = 0
    for number in range(INSPECTED):
        file = next(files)
        path = Path(tmp_path, f"{number}.safetensors")
        path.write_bytes(file)
        ours = inspected(lading_command, path)
        assert_same_content(file, path, ours)
        tensors += ours["tensor_count"]
    assert tensors > INSPECTED
