"""A ledger comes from anywhere: what it claims decides nothing about how long `verify` works. Measured in CPU time."""

import json
import resource
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

MOST_CPU_S = 5
ROWS = 2**40


@pytest.fixture(scope="module")
def folder(lading, tmp_path_factory):
    """A padded tensor, one that is a constant, and the ledger of their load."""
    place = tmp_path_factory.mktemp("bounds")
    save_file({"w": np.ones((4, 4), np.float32)}, place / "model.safetensors")
    skeleton = {
        "schema": "lading.skeleton/1",
        "tensors": [
            {"name": "c", "kind": "parameter", "shape": [8, 4], "dtype": "F32", "init": {"kind": "fill", "value": 1}},
            {"name": "w", "kind": "parameter", "shape": [8, 4], "dtype": "F32"},
        ],
    }
    build = {"id": "pad", "kind": "build", "to": "w", "expression": {"pad": {"dim": 0, "end": 8, "of": "w"}}}
    policy = {"schema": "lading.policy/1", "allow_missing": ["c"]}
    mapping = {"schema": "lading.mapping/1", "rules": [build]}
    argv = [lading.command, "load", place / "model.safetensors", "--ledger", place / "ledger.json"]
    for name, document in (("skeleton", skeleton), ("mapping", mapping), ("policy", policy)):
        (place / f"{name}.json").write_text(json.dumps(document))
        argv += [f"--{name}", place / f"{name}.json"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


def enlarge(ledger, name, rows, recorded_rows):
    """Says that the tensor has so many rows, and that its record holds so many of them."""
    (tensor,) = (tensor for tensor in ledger["tensors"] if tensor["name"] == name)
    (record,) = (record for record in ledger["records"] if record["tensor"] == name)
    tensor["shape"][0] = rows
    if "expression" in tensor:
        tensor["expression"]["pad"]["end"] = rows
    record["region"]["runs"][0] = [[0, recorded_rows]]
    record["owned_elems"] = recorded_rows * 4
    for member in ("bytes", "written_bytes", "expected_bytes"):
        record[member] = recorded_rows * 16
    return record


@pytest.fixture
def verified(lading, folder):
    def verify(ledger):
        (folder / "hostile.json").write_text(json.dumps(ledger))
        limit = (MOST_CPU_S, MOST_CPU_S)
        done = subprocess.run(
            [lading.command, "verify", folder / "model.safetensors", folder / "hostile.json", "--json"],
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit),
        )
        return done.returncode, json.loads(done.stdout or "{}")

    return verify


@pytest.fixture
def ledger(folder):
    return json.loads((folder / "ledger.json").read_text())


def names(answer):
    return [tensor["name"] for tensor in answer["not_verified"]]


def test_the_ledger_itself_is_right(verified, ledger):
    code, answer = verified(ledger)
    assert code == 0 and answer["tensors_verified"] == 2, answer


@pytest.mark.parametrize("name", ["c", "w"])
def test_values_that_no_file_holds_are_not_made_without_end(verified, ledger, name):
    enlarge(ledger, name, ROWS, ROWS)
    code, answer = verified(ledger)
    assert code == 6
    assert [problem["code"] for problem in answer["problems"]] == ["unverified"]
    assert answer["problems"][0]["found"] == "17.59 TB"
    assert names(answer) == [name] and answer["tensors_verified"] == 1


@pytest.mark.parametrize("name", ["c", "w"])
def test_records_that_do_not_fit_the_placement_end_it(verified, ledger, name):
    enlarge(ledger, name, ROWS, ROWS - 1)
    code, answer = verified(ledger)
    assert code == 6
    assert [problem["code"] for problem in answer["problems"]] == ["incomplete"]
    assert names(answer) == [name] and answer["tensors_verified"] == 1


def test_records_that_expect_fewer_bytes_than_they_hold_end_it(verified, ledger):
    record = enlarge(ledger, "w", 2**31, 2**31)
    record["written_bytes"] = record["expected_bytes"] = 128
    code, answer = verified(ledger)
    assert code == 6
    assert [problem["code"] for problem in answer["problems"]] == ["incomplete"]
    assert names(answer) == ["w"]
