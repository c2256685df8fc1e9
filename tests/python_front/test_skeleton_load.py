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
    documents = ["--skeleton", skeleton]
    documents += ["--mapping", tmp_path / "model.mapping.json", "--policy", tmp_path / "model.policy.json"]
    run("plan", checkpoint, *documents)
    run("load", checkpoint, *documents, "--ledger", ledger)
    run("verify", checkpoint, ledger)
    found = {record["tensor"]: record["digest"] for record in json.loads(ledger.read_text())["records"]}

    with lading.skeleton():
        model = cls(config)
    right = lading.materialize(model, checkpoint, device="cpu", progress=False)
    wanted = {name: tensor.digest for name, tensor in right.tensors.items()}
    assert found == wanted


def test_a_skeleton_without_its_values_says_how_to_get_them(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    zoo.make("llama", str(checkpoint))
    skeleton = tmp_path / "model.json"
    lading.write_skeleton(checkpoint, skeleton)
    (tmp_path / "model.values.safetensors").unlink()
    done = subprocess.run([PROGRAM, "load", checkpoint, "--skeleton", skeleton], capture_output=True, text=True)
    assert done.returncode != 0 and "inv_freq" in done.stderr and "lading skeleton -o" in done.stderr


def test_R6_values_of_another_shape_are_refused(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    zoo.make("llama", str(checkpoint))
    skeleton, values = tmp_path / "model.json", tmp_path / "model.values.safetensors"
    lading.write_skeleton(checkpoint, skeleton)
    save_file({name: value[None] for name, value in load_file(values).items()}, values)
    done = subprocess.run([PROGRAM, "load", checkpoint, "--skeleton", skeleton], capture_output=True, text=True)
    assert done.returncode != 0 and "another shape" in done.stderr


def test_only_plain_files_are_replaced(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    zoo.make("llama", str(checkpoint))
    other = tmp_path / "other.json"
    other.write_text("mine")
    (tmp_path / "model.json").symlink_to(other)
    with pytest.raises(FileExistsError, match="no plain file"):
        lading.write_skeleton(checkpoint, tmp_path / "model.json")
    assert other.read_text() == "mine" and sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        "model.json",
        "other.json",
    ]


def test_the_program_says_where_skeleton_is():
    done = subprocess.run([PROGRAM, "skeleton", "org/name", "-o", "x.json"], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install" in done.stderr
