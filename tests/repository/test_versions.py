"""No test module vanishes because a patch version differs; a test that shows a peer's bug is skipped alone."""

from importlib import metadata

import pytest
from geometry import launch


CLAIMED, OTHERS = ("2.11.0", "2.12.1", "2.13.0+cpu", "2.13.7"), ("2.10.1", "2.14.0")


@pytest.mark.parametrize("version,runs", [*((one, True) for one in CLAIMED), *((one, False) for one in OTHERS)])
def test_a_module_runs_on_every_version_that_is_claimed(monkeypatch, version, runs):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(metadata, "version", lambda _: version)
    if runs:
        launch.require("torch")
    else:
        with pytest.raises(pytest.skip.Exception, match=f"torch is {version}; these tests want torch>=2.11,<2.14"):
            launch.require("torch")


@pytest.mark.parametrize("version,skips", [("5.22.2", False), ("5.22.3", True)])
def test_a_peer_is_wrong_in_one_version_only(monkeypatch, version, skips):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(metadata, "version", lambda _: version)
    mark = launch.wrong_in("transformers").mark
    assert mark.args == (skips,)
    assert not skips or f"here: transformers {version}" in mark.kwargs["reason"]


def test_peers_are_the_versions_that_every_test_run_has(repository):
    lines = "".join(path.read_text() for path in repository.glob("requirements-*.txt")).split()
    assert all(f"{peer}=={version}" in lines for peer, version in launch.PEERS.items())
    for package, (first, end) in launch.CLAIMED.items():
        version = launch.numbers(launch.PEERS[package])
        assert launch.numbers(first) <= version < launch.numbers(end)
