"""`lading skeleton`, `plan --skeleton`, `load --skeleton` and `verify`: every model of the zoo has the digests that the
front has."""

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("transformers")
import zoo
from safetensors.torch import load_file, save_file

import lading

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "dev" / "lading"
MODELS = (Path(zoo.HERE) / "dev40.txt").read_text().split()


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("model_type", MODELS)
def test_R6_the_command_line_loads_what_the_front_loads(model_type, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    zoo.make(model_type, str(checkpoint))
    skeleton, ledger = tmp_path / "model.json", tmp_path / "ledger.json"
    config, name = zoo.build_config(model_type)
    cls = zoo.model_class(name, config)
    lading.write_skeleton(checkpoint, skeleton, cls=cls)
    run("plan", checkpoint, "--skeleton", skeleton)
    run("load", checkpoint, "--skeleton", skeleton, "--ledger", ledger)
    run("verify", checkpoint, ledger)
    found = {record["tensor"]: record["digest"] for record in json.loads(ledger.read_text())["records"]}

    with lading.skeleton():
        model = cls(config)
    right = lading.materialize(model, checkpoint, device="cpu", progress=False)
    wanted = {name: tensor.digest for name, tensor in right.tensors.items()}
    assert found == wanted


def described(tmp_path, *, small_bytes=4096):
    """A checkpoint and its skeleton, with values above `small_bytes` in a file beside it."""
    checkpoint, skeleton = tmp_path / "checkpoint", tmp_path / "model.json"
    zoo.make("llama", str(checkpoint))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lading.skeleton_files._SMALL_BYTES", small_bytes)
        lading.write_skeleton(checkpoint, skeleton)
    return checkpoint, skeleton


def digests(tmp_path, checkpoint, skeleton):
    run("load", checkpoint, "--skeleton", skeleton, "--ledger", tmp_path / "ledger.json")
    return {record["tensor"]: record["digest"] for record in json.loads((tmp_path / "ledger.json").read_text())["records"]}


def refused(checkpoint, skeleton):
    done = subprocess.run([PROGRAM, "load", checkpoint, "--skeleton", skeleton], capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


def test_R6_small_values_are_in_the_document_and_large_ones_beside_it(tmp_path):
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    for folder in (inside, beside):
        folder.mkdir()
    small = digests(inside, *described(inside))
    assert not (inside / "model.values.safetensors").exists()
    large = digests(beside, *described(beside, small_bytes=0))
    assert "inv_freq" in str(list(load_file(beside / "model.values.safetensors"))) and small == large
    assert any("inv_freq" in name for name in small)


def test_a_skeleton_without_its_values_says_how_to_get_them(tmp_path):
    checkpoint, skeleton = described(tmp_path, small_bytes=0)
    (tmp_path / "model.values.safetensors").unlink()
    error = refused(checkpoint, skeleton)
    assert "inv_freq" in error and "lading skeleton -o" in error


def test_R6_values_of_another_shape_are_refused(tmp_path):
    checkpoint, skeleton = described(tmp_path, small_bytes=0)
    values = tmp_path / "model.values.safetensors"
    save_file({name: value[None] for name, value in load_file(values).items()}, values)
    assert "another shape" in refused(checkpoint, skeleton)


@pytest.mark.parametrize("data, wanted", [("AAAA", "the wrong size"), ("A", "not base64"), (7, "not base64")])
def test_R6_data_of_a_document_is_checked(tmp_path, data, wanted):
    checkpoint, skeleton = described(tmp_path)
    document = json.loads(skeleton.read_text())
    (tensor,) = [tensor for tensor in document["tensors"] if "data" in tensor][:1]
    tensor["data"] = data
    skeleton.write_text(json.dumps(document))
    error = refused(checkpoint, skeleton)
    assert wanted in error and ("inv_freq" in error or "$.tensors" in error)


def test_documents_beside_the_skeleton_are_told(tmp_path):
    checkpoint, skeleton = described(tmp_path)
    (tmp_path / "model.policy.json").write_text('{"schema": "lading.policy/1", "allow_unexpected": [{"name": "nothing"}]}')
    done = subprocess.run([PROGRAM, "plan", checkpoint, "--skeleton", skeleton], capture_output=True, text=True)
    assert "model.policy.json" in done.stderr and "beside the skeleton" in done.stderr


def test_only_plain_files_are_replaced(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    zoo.make("llama", str(checkpoint))
    other = tmp_path / "other.json"
    other.write_text("mine")
    (tmp_path / "model.json").symlink_to(other)
    with pytest.raises(FileExistsError, match="not a regular file"):
        lading.write_skeleton(checkpoint, tmp_path / "model.json")
    assert other.read_text() == "mine" and sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        "model.json",
        "other.json",
    ]


def test_the_program_says_where_skeleton_is():
    done = subprocess.run([PROGRAM, "skeleton", "org/name", "-o", "x.json"], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install" in done.stderr
