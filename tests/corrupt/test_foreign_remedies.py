"""The commands that refusals of other formats give: they are run here as a user would, on real files of torch."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = """
import os, sys, torch, torch.distributed.checkpoint as dcp
folder = sys.argv[1]
weight = torch.arange(6.0).reshape(2, 3)
state = {"a": weight, "tied": weight, "turned": weight.t(), "b": torch.ones(2, dtype=torch.bfloat16)}
os.makedirs(folder + "/bin")
torch.save(state, folder + "/new.pt")
torch.save(state, folder + "/old.pt", _use_new_zipfile_serialization=False)
torch.save({"a": weight, "tied": weight}, folder + "/bin/pytorch_model-1.bin")
torch.save({k: state[k] for k in ("turned", "b")}, folder + "/bin/pytorch_model-2.bin")
torch.save(torch.nn.Linear(1, 1), folder + "/bin/training_args.bin")
dcp.save(state, checkpoint_id=folder + "/dcp", no_dist=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remedies").resolve()
    subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, capture_output=True)
    return folder


def commands_of(remedy):
    """What stands between "convert it: " and the end of the sentence, and behind "and then OUT.pt: "."""
    return re.findall(r"(?:[Cc]onvert (?:it|them)|and then OUT\.pt): (python .*?)(?=\. If|, and then|, where|\.$)", remedy)


@pytest.mark.parametrize("path", ["new.pt", "old.pt", "bin", "dcp"])
def test_the_command_converts(lading, folder, path, tmp_path):
    (problem,) = lading.inspect(folder / path, "--json").json["problems"]
    assert problem["code"] == "not_a_checkpoint"
    commands = commands_of(problem["remedy"])
    assert len(commands) == (2 if path == "dcp" else 1), problem["remedy"]
    for command in commands:
        command = re.sub(r"\bFILES\b", " ".join(shlex.quote(str(file)) for file in folder.glob("bin/pytorch_model*")), command)
        for word in ("FILE", "DIR"):
            command = re.sub(rf"\b{word}\b", shlex.quote(str(folder / path)), command)
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    answer = lading.inspect(tmp_path / "OUT.safetensors", "--json", "--tensors").json
    assert {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in answer["tensors"]} == {
        "a": ("F32", [2, 3]),
        "tied": ("F32", [2, 3]),
        "turned": ("F32", [3, 2]),
        "b": ("BF16", [2]),
    }
