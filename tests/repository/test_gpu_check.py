"""`tools/gpu_check` counts the front's tests by the device that they record, and fails if none was a GPU."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gpu_check"
TESTS = """
import pytest

@pytest.mark.parametrize("device", ["cuda:0", "cuda:0", "cpu"])
def test_one(record_property, device):
    record_property("device", device)

def test_that_fails(record_property):
    record_property("device", "cuda:0")
    assert False

def test_that_is_skipped(record_property):
    record_property("device", "cuda:0")
    pytest.skip("needs two of them")
"""


@pytest.fixture(scope="module")
def tool():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


def test_only_tests_that_passed_on_a_gpu_count(tool, tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([sys.executable, "-m", "pytest", *options, "test_some.py"], cwd=tmp_path, check=False, timeout=60)
    counts = tool.counted(report)
    assert {name: counts[name] for name in ("passed", "failed", "skipped", "on_a_gpu")} == {
        "passed": 3, "failed": 1, "skipped": 1, "on_a_gpu": 2,
    }  # fmt: skip
    assert "needs two of them" in counts["skips"][0]


def test_a_run_without_a_gpu_is_a_failure(tool):
    engine = {"exit_code": 0, "passed": 5}
    assert not tool.tests_failed({"engine": engine, "the front": {"exit_code": 0, "passed": 9, "on_a_gpu": 9}})
    assert tool.tests_failed({"engine": engine, "the front": {"exit_code": 0, "passed": 9, "on_a_gpu": 0}})
    assert tool.tests_failed({"engine": engine, "the front": {"exit_code": 1, "passed": 9, "on_a_gpu": 9}})
