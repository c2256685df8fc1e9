"""Checkpoints that come with code, and repositories in the cache: transformers' own classes are the measure, and no
process asks for a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
import lading
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

REPOSITORY = Path(__file__).resolve().parents[2]

CODE = """
import torch
from transformers import LlamaForCausalLM as Base
from .parts import THREE

class LlamaForCausalLM(Base):
    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("mine", torch.full((THREE,), 5.0), persistent=False)

class Own(LlamaForCausalLM):
    pass
"""
GENERATE = "def generate(model, *arguments, **options):\n    return 'custom'\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A small Llama as it is saved."""
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=32, max_length=77,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def with_code(plain, folder, architecture, **fields):
    """The same with code of its own, whose class has this name."""
    shutil.copytree(plain, folder, dirs_exist_ok=True)
    (folder / "modeling_mine.py").write_text(CODE)
    (folder / "parts.py").write_text("THREE = 3\n")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [architecture]
    config["auto_map"] = {"AutoModelForCausalLM": f"modeling_mine.{architecture}"} | fields.pop("auto_map", {})
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


@pytest.fixture(autouse=True)
def own_modules(tmp_path, monkeypatch):
    """transformers copies code that it runs to a folder."""
    modules = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        del sys.modules[name]


def load(folder, **options):
    return lading.from_pretrained(folder, device="cpu", progress=False, **options)


def same_state(got, want):
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Own"])
def test_the_checkpoints_own_class_is_built(plain, tmp_path, architecture):
    folder = with_code(plain, tmp_path / "own", architecture)
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model = load(folder, trust_remote_code=True)
    assert type(model).__name__ == architecture and type(model).__module__ == type(theirs).__module__
    assert model.mine.tolist() == [5.0, 5.0, 5.0]  # which transformers leaves as it finds the memory
    same_state(model.state_dict(), theirs.state_dict())
    document = json.loads(lading.skeleton_of(folder, trust_remote_code=True))
    assert "mine" in {tensor["name"] for tensor in document["tensors"]}


def test_without_trust_the_class_of_transformers_is_built_if_it_has_one(plain, tmp_path):
    folder = with_code(plain, tmp_path / "own", "LlamaForCausalLM")
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    model = load(folder)
    assert type(model) is type(theirs) is LlamaForCausalLM
    assert not hasattr(model, "mine")


def test_code_without_trust_is_refused(plain, tmp_path):
    folder = with_code(plain, tmp_path / "own", "Own")
    (folder / "modeling_mine.py").write_text("raise SystemExit('it ran')")
    for build in (load, lading.skeleton_of):
        with pytest.raises(lading.LadingError, match=r"Own.*modeling_mine\.Own.*trust_remote_code=True"):
            build(folder)
    with_code(plain, folder, "Own", model_type="mine", auto_map={"AutoConfig": "modeling_mine.OwnConfig"})
    with pytest.raises(lading.LadingError, match="Read the code, and pass trust_remote_code=True"):
        load(folder)


def test_other_classes_of_the_map_are_not_taken(plain, tmp_path):
    """A classifier in the map says nothing about the architecture, which transformers has."""
    folder = with_code(plain, tmp_path / "own", "LlamaForCausalLM")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "modeling_mine.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    assert type(load(folder, trust_remote_code=True)) is LlamaForCausalLM
    config["auto_map"] = {"AutoModel": "modeling_mine.LlamaForCausalLM", "AutoModelForCausalLM": "modeling_mine.Own"}
    config["architectures"] = ["Unknown"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(lading.LadingError, match=r"several classes.*cls="):
        load(folder, trust_remote_code=True)


def test_code_that_is_missing_or_broken_is_said(plain, tmp_path):
    folder = with_code(plain, tmp_path / "own", "Own")
    (folder / "parts.py").unlink()
    with pytest.raises(lading.LadingError, match=r"modeling_mine\.Own could not be created"):
        load(folder, trust_remote_code=True)
    folder = with_code(plain, tmp_path / "other", "Own")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "nobody/has-this--modeling_mine.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(lading.LadingError, match=r"has-this--modeling_mine\.Own could not be created"):
        load(folder, trust_remote_code=True)


def test_a_registered_class_wins(plain, tmp_path, monkeypatch):
    folder = with_code(plain, tmp_path / "own", "Own")

    class Registered(LlamaForCausalLM):
        pass

    monkeypatch.setitem(AutoModelForCausalLM._model_mapping._extra_content, LlamaConfig, Registered)
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(theirs) is type(load(folder, trust_remote_code=True)) is Registered


def test_generation_config_of_a_checkpoint_without_one(plain, tmp_path):
    """As transformers makes it, from the config; also where the checkpoint is named by its file."""
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
    for has_file in (True, False):
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
        for where in (tmp_path, tmp_path / "model.safetensors"):
            assert load(where).generation_config.to_dict() == theirs.generation_config.to_dict()
        if has_file:
            (tmp_path / "generation_config.json").unlink()


# ---------------------------------------------------------------- no network


def cached(hub, name, folder):
    """A repository in a cache of the hub, as a download leaves it."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir()
    for file in folder.rglob("*"):
        if file.is_file():
            link = repository / "snapshots" / commit / file.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            blob = repository / "blobs" / str(len(list((repository / "blobs").iterdir())))
            shutil.copy(file, blob)
            link.symlink_to(os.path.relpath(blob, link.parent))


def test_cached_repositories_need_no_network(plain, tmp_path):
    """The worker counts what Python asks for, and strace, where it can run, what anybody else does."""
    hub = tmp_path / "home" / "hub"
    cached(hub, "org/plain", plain)
    bare = shutil.copytree(plain, tmp_path / "bare")
    (bare / "generation_config.json").unlink()
    cached(hub, "org/bare", bare)
    code = with_code(bare, tmp_path / "code", "Own")
    (code / "custom_generate").mkdir()
    (code / "custom_generate" / "generate.py").write_text(GENERATE)
    cached(hub, "org/code", code)
    cached(hub, "org/same", with_code(plain, tmp_path / "same", "LlamaForCausalLM"))
    auto_map = {"AutoModelForCausalLM": "org/code--modeling_mine.Own"}
    upstream = with_code(plain, tmp_path / "upstream", "Own", auto_map=auto_map)
    cached(hub, "org/upstream", upstream)
    names = ["org/plain", "org/bare", "org/code!", "org/same!", "org/upstream!", "org/same", "org/code", "org/absent"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(REPOSITORY / "python")}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("remote_worker.py")), *names]
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace)]
    if shutil.which("strace") and subprocess.run([*strace, "true"], capture_output=True, check=False).returncode == 0:
        command = [*strace, *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert {name: answer["attempts"] for name, answer in answers.items()} == {name: [] for name in names}
    if trace.exists():
        assert re.findall(r".*AF_INET.*", trace.read_text()) == []
    for name in names[:6]:
        assert answers[name]["ours"] == answers[name]["theirs"], name
    classes = {name: answers[name]["ours"]["class"] for name in names[2:5]}
    assert classes == {
        "org/code!": "transformers_modules.Own",
        "org/same!": "transformers_modules.LlamaForCausalLM",
        "org/upstream!": "transformers_modules.Own",
    }
    assert answers["org/code!"]["ours"]["generates"] == "custom"
    assert "trust_remote_code=True" in answers["org/code"]["refused"]
    assert "lading does not download" in answers["org/absent"]["refused"]
