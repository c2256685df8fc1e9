"""What an editor, a type checker and help() show of the public names: every argument, with a type that is checked."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import lading
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
USES = Path(__file__).with_name("public_names.py")
FUNCTIONS = [name for name in lading.__all__ if inspect.isfunction(getattr(lading, name))]
CLASSES = {"Computed": lading.Computed, "dcp.Reader": lading.dcp.Reader}  # which users construct themselves
WRONG = (
    'lading.materialize(model, "a", cast="exakt")',
    'lading.materialize(model, "a", compute_record="no")',
    'lading.materialize(model, "a", ties="cut")',
    'lading.materialize(model, "a", verify="some")',
    'lading.materialize(model, "a", exchange="all")',
    'lading.materialize(model, "a", quantized="no")',
    'lading.audit(model, "a", arithmetic="fast")',
    'lading.materialize(model, "a", device=1.5)',
    'lading.materialize(model, "a", dtype=16)',
    'lading.materialize(model, "a", group=True)',
    'lading.materialize(model, "a", revision=1)',
    'lading.materialize(model, "a", dtyp="bf16")',
    'lading.materialize("a", model)',
    'lading.plan(model, "a", cast="exakt")',
    'lading.plan(model, "a", progress=True)',
    'lading.plan(model, "a").bytes + ""',
    'lading.from_pretrained("a", cast="exakt")',
    'lading.from_pretrained("a", parallelize=3)',
    'lading.from_pretrained("a", device_map=["cpu"])',
    'lading.from_pretrained("a", attn_implementation=True)',
    'lading.audit(model, raise_on="never")',
    'lading.resolve_dtypes(model, ties="cut")',
    'lading.shard_by_dtype(model, "mesh")',
    'lading.skeleton_of("a", revision=True)',
    "lading.report_of(model).bytes",
    'lading.save(model, "a", exist="keep")',
    'lading.save(model, "a", unmapped="kept")',
    'lading.save("a", model)',
    'lading.save(model, "a", group=True)',
    'lading.dcp.Reader("a", quantized="no")',
    'lading.dcp.Reader("a", mapping=["a"])',
    'lading.dcp.Reader("a", True)',
    'lading.fingerprint(model, "main")',
    'lading.fingerprint(model, group=True)',
    'lading.fingerprint(model).differences("a")',
    'lading.initialize(model, seed="one")',
    'lading.initialize(model, "a")',
    "lading.help(3.5)",
)


def run_mypy(path, cache):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install -r requirements-dev.txt")
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(cache)]
    command = [sys.executable, "-m", "mypy", *options, str(path)]
    # Not from the repository, whose folder it would take for the package's.
    environment = os.environ | {"MYPYPATH": str(REPOSITORY / "python")}
    return subprocess.run(command, env=environment, cwd=cache, capture_output=True, text=True, timeout=600, check=False)


def test_a_strict_type_checker_accepts_every_public_name(tmp_path):
    text = USES.read_text()
    assert [name for name in (*lading.__all__, "__version__") if not re.search(rf"\blading\.{name}\b", text)] == []
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import lading\nfrom torch import nn\n\nmodel = nn.Linear(1, 1)\n" + "\n".join(WRONG) + "\n")
    done = run_mypy(USES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = run_mypy(wrong, tmp_path)
    lines = {int(number) for number in re.findall(r"wrong\.py:(\d+): error", found.stdout)}
    assert [line for number, line in enumerate(WRONG, 5) if number not in lines] == [], found.stdout


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_help_shows_every_argument(name):
    function = CLASSES.get(name) or getattr(lading, name)
    text = inspect.getdoc(function) or ""
    parameters = inspect.signature(function).parameters
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values())


@pytest.mark.parametrize("name", ["from_pretrained", "plan"])
def test_arguments_of_materialize_are_the_same_elsewhere(name):
    """Types and defaults: what `materialize` gets, these get too."""
    of_load = inspect.signature(lading.materialize).parameters
    own = inspect.signature(getattr(lading, name)).parameters
    left_out = {"from_pretrained": {"model", "checkpoint"}, "plan": {"verify", "exchange", "progress"}}[name]
    left_out |= {"optimizer"}  # which there is none of yet, or which is not planned
    assert {key: (one.annotation, one.default) for key, one in of_load.items() if key not in left_out} == {
        key: (one.annotation, one.default) for key, one in own.items() if key in of_load
    }


def test_every_function_that_reads_a_checkpoint_takes_a_revision():
    arguments = {name: inspect.signature(getattr(lading, name)).parameters.keys() for name in FUNCTIONS}
    arguments |= {name: inspect.signature(one).parameters.keys() for name, one in CLASSES.items()}
    readers = {name for name, own in arguments.items() if {"checkpoint", "path", "path_or_id", "base", "source"} & own}
    expected = {"materialize", "plan", "from_pretrained", "audit", "resolve_dtypes", "shard_by_dtype", "dcp.Reader"}
    assert expected | {"save", "fingerprint"} < readers
    assert {name for name in readers if "revision" not in arguments[name]} == set()
