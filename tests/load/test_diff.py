"""`lading diff`: two loads of one checkpoint in different layouts, and of another checkpoint, by the real command."""

import json
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

DEADLINE_S = 30


@pytest.fixture(scope="module")
def run(lading):
    def call(*arguments):
        done = subprocess.run(
            [lading.command, *map(str, arguments)], env=lading.environment(), capture_output=True, text=True, timeout=DEADLINE_S
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture(scope="module")
def ledgers(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("diff")
    tensors = {"w": np.arange(40, dtype=np.float32).reshape(10, 4), "v": np.ones(3, np.float32)}
    other = {**tensors, "w": tensors["w"] + (np.arange(10) == 9)[:, None]}
    for name, state in (("same", tensors), ("other", other)):
        (folder / name).mkdir()
        save_file(state, folder / name / "model.safetensors")
    for name, checkpoint, layout in (
        ("one", "same", ("--mesh", "dp=1", "--strategy", "single")),
        ("fsdp", "same", ("--mesh", "dp=4", "--strategy", "fsdp2")),
        ("changed", "other", ("--mesh", "dp=5", "--strategy", "fsdp2")),
    ):
        code, _, err = run("load", folder / checkpoint, *layout, "--ledger", folder / f"{name}.json")
        assert code == 0, err
    return folder


def test_R62_equal_in_different_layouts(run, ledgers):
    code, out, _ = run("diff", ledgers / "one.json", ledgers / "fsdp.json")
    assert code == 0 and "equal: 2 tensors" in out


def test_R62_a_difference_has_rows_and_ranks(run, ledgers):
    code, out, err = run("diff", ledgers / "fsdp.json", ledgers / "changed.json", "--json")
    answer = json.loads(out)
    assert code == 6 and not answer["ok"] and answer["tensors_equal"] == 1
    (problem,) = answer["problems"]
    assert problem["tensor"] == "w" and problem["code"] == "values_differ"
    assert "rows" in problem["message"] and "rank" in problem["message"] and problem["message"] in err


def test_what_is_no_ledger(run, ledgers, tmp_path):
    (tmp_path / "no.json").write_text("{}")
    assert run("diff", tmp_path / "no.json", ledgers / "one.json")[0] == 4
    assert run("diff", tmp_path / "nowhere.json", ledgers / "one.json")[0] == 4
    (tmp_path / "empty").mkdir()
    code, _, err = run("diff", tmp_path / "empty", ledgers / "one.json")
    assert code == 4 and "no ledger" in err
