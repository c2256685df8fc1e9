"""Every file of the corpus, through the real command."""

import pytest
from safetensors import deserialize

from .checks import assert_accepted, assert_refused, tensors_in
from .files import REFUSED, VALID


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files").resolve()


@pytest.fixture
def written(folder):
    """Writes a file and takes it away again: the corpus is large."""
    paths = []

    def write(case):
        path = folder / f"{case.name}.safetensors"
        path.write_bytes(case.make())
        paths.append(path)
        return path

    yield write
    for path in paths:
        path.unlink()


def by_name(case):
    return case.name


@pytest.mark.parametrize("case", REFUSED, ids=by_name)
def test_refused(lading, written, case):
    path = written(case)
    assert_refused(lambda *options: lading.inspect(path, *case.options, *options), case.problems, path)


@pytest.mark.parametrize("case", VALID, ids=by_name)
def test_accepted(lading, written, case):
    path = written(case)
    answer = assert_accepted(lambda *options: lading.inspect(path, *case.options, *options), case.warnings, path)
    tensors, metadata = tensors_in(path.read_bytes())
    told = {tensor["name"]: (tensor["dtype"], tensor["shape"], tensor["bytes"]) for tensor in answer["tensors"]}
    assert told == tensors
    assert answer["tensor_count"] == len(tensors)
    assert answer["tensor_bytes"] == sum(end - begin for _, _, (begin, end) in tensors.values())
    (shard,) = answer["shards"]
    assert shard["metadata"] == metadata
    assert shard["path"] == str(path)


def accepted_by_the_reference(case):
    try:
        deserialize(case.make())
    except Exception:
        return False
    return True


def is_stricter_than_the_reference(case):
    """Duplicate keys, which the format forbids and the reference overlooks; S1 to S3; and null for a map."""
    return (
        all(problem.code == "json_duplicate_key" or {"S1", "S2", "S3"} & set(problem.says) for problem in case.problems)
        or case.name == "metadata_is_null"
    )


def test_reference_refuses_what_we_refuse():
    surprises = [
        case.name for case in REFUSED if accepted_by_the_reference(case) and not is_stricter_than_the_reference(case)
    ]
    assert surprises == []


def test_reference_accepts_what_we_accept():
    surprises = [case.name for case in VALID if accepted_by_the_reference(case) == case.reference_refuses]
    assert surprises == []
