"""Repositories in a Hugging Face cache: every function reads the revision that it is given, asks no network, refuses
what is not there with the command that downloads it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lading
import pytest
import torch

pytest.importorskip("transformers")
from lading.locating import Location, located, pinned
from transformers import LlamaConfig, LlamaForCausalLM

REPOSITORY = Path(__file__).resolve().parents[2]
ONES, ZEROS = "1" * 40, "0123456789abcdef0123456789abcdef01234567"
FUNCTIONS = ("materialize", "from_pretrained", "audit", "plan", "dtypes", "skeleton_of", "fingerprint")


def save(folder, value, dtype, **fields):
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, vocab_size=32,
        num_hidden_layers=1, **fields,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    model.generation_config.max_length = 70 + int(value)
    model.save_pretrained(folder)
    return folder


def cached(repository, commit, folder, *refs):
    """A revision of a repository in a cache, as a download leaves it."""
    for ref in refs:
        place = repository / "refs" / ref
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(commit)
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        blob = repository / "blobs" / f"{commit[:4]}{file.name}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of `main` zeros in BF16, of `v1` ones in F32."""
    scratch = tmp_path_factory.mktemp("cache")
    hub = scratch / "home" / "hub"
    zeros = save(scratch / "zeros", 0.0, torch.bfloat16)
    ones = save(scratch / "ones", 1.0, torch.float32)
    cached(hub / "models--org--name", ZEROS, zeros, "main")
    cached(hub / "models--org--name", ONES, ones, "v1")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(scratch / "home"), "PYTHONPATH": str(REPOSITORY / "python")}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("cached_worker.py")), str(ones), ONES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_no_function_asks_the_network(answers):
    assert answers["attempts"] == []


def test_every_function_reads_the_revision_that_it_is_given(answers):
    read = {name: [answers[name][which] for which in ("main", "tag", "commit")] for name in FUNCTIONS}
    assert read == {
        "materialize": [0.0, 1.0, 1.0],
        "from_pretrained": [[0.0, "torch.bfloat16", 70], *[[1.0, "torch.float32", 71]] * 2],
        "audit": [["dtype"], [], []],
        "plan": ["BF16", "F32", "F32"],
        "dtypes": ["torch.bfloat16", "torch.float32", "torch.float32"],
        "skeleton_of": ["BF16", "F32", "F32"],
        "fingerprint": ["BF16", "F32", "F32"],
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_cached_is_refused_with_the_command_that_downloads_it(answers, name):
    found = answers[name]
    assert found["absent"].startswith("LadingError: ") and "`hf download org/absent`" in found["absent"]
    assert "`hf download org/absent --revision v1`" in found["absent, revision"]
    assert "`hf download org/name --revision v9`" in found["absent revision"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_has_no_revision(answers, name):
    assert answers[name]["path"].startswith("LadingError: ") and "Omit revision" in answers[name]["path"]


def test_a_revision_without_a_checkpoint_is_refused():
    for call in (lading.audit, lading.resolve_dtypes):
        with pytest.raises(ValueError, match="pass checkpoint too"):
            call(torch.nn.Linear(1, 1), revision="v1")
    with pytest.raises(ValueError, match="a model has none"):
        lading.fingerprint(torch.nn.Linear(1, 1), revision="v1")
    with pytest.raises(TypeError, match="revision is 3"):
        located("org/name", 3)


def test_a_branch_that_moves_meanwhile_changes_nothing(tmp_path):
    """`parallelize` runs between the config and the weights; meanwhile a download moves `main`."""
    repository = tmp_path / "models--org--name"
    cached(repository, ONES, save(tmp_path / "ones", 1.0, torch.float32), "main")
    cached(repository, ZEROS, save(tmp_path / "zeros", 0.0, torch.float32))

    def moves(model):
        (repository / "refs" / "main").write_text(ZEROS)

    model = lading.from_pretrained(repository, device="cpu", parallelize=moves, progress=False)
    assert all((parameter == 1).all() for parameter in model.parameters())
    assert model.generation_config.max_length == 71
    model = lading.from_pretrained(repository, revision="main", device="cpu", progress=False)
    assert all((parameter == 0).all() for parameter in model.parameters())


def test_a_folder_of_a_snapshot_is_a_path():
    location = Location("org/name", "v1")
    assert pinned(location, None) is location
    assert pinned(location, Path("cache/models--org--name/snapshots/abc")).revision == "abc"
    assert pinned(Location("."), Path(".")).revision is None
