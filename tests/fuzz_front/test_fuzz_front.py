"""The fuzzer of the front: fixed worlds, kept cases, planted mistakes that it finds. docs/how-it-works/fuzzing.md"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geometry.launch import require

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SEEDS = range(30)
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.json"))
PLANTED = sorted(path.stem for path in (HERE / "planted").glob("*.json"))
HOLDS = ("equal", "refused", "void")
DEADLINE_S = 240

require("torch", "deepspeed", exactly=False)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "result.json"
    folders = os.pathsep.join([str(REPOSITORY / "fuzz"), str(REPOSITORY / "python")])
    environment = os.environ | {"PYTHONPATH": folders, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "front.replay", str(path), "--seeds", f"{SEEDS.start}:{SEEDS.stop}"]
    command += ["--cases", str(HERE / "cases"), "--planted", str(HERE / "planted")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return json.loads(path.read_text())


def said(verdict):
    return "\n".join([f"{verdict['verdict']}: {verdict['cause']}", *verdict["details"][:3]])


@pytest.mark.parametrize("seed", SEEDS)
def test_world(result, seed):
    verdict = result["worlds"][str(seed)]
    assert verdict["verdict"] in HOLDS, said(verdict)


@pytest.mark.parametrize("name", CASES)
def test_kept_case(result, name):
    verdict = result["worlds"][name]
    assert verdict["verdict"] in HOLDS, said(verdict)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistake_is_found(result, name):
    clean, planted = result["worlds"][name], result["planted"][name]
    assert clean["verdict"] in HOLDS, said(clean)
    assert planted["verdict"] not in HOLDS, said(planted)


def test_worlds_say_something(result):
    """Most of the fixed worlds load and are compared."""
    equal = [seed for seed in SEEDS if result["worlds"][str(seed)]["verdict"] == "equal"]
    assert len(equal) > len(SEEDS) / 2
