"""A missing library is told when CMake configures: every one of them, and the line that installs them."""

import os
import subprocess

import pytest


@pytest.fixture
def configure(repository, tmp_path):
    def run(*options, **variables):
        command = ("cmake", "-S", repository, "-B", tmp_path / "build", "-DLADING_WITH_CUDA_KERNELS=OFF", *options)
        return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120)

    return run


def without(*libraries):
    return [f"-DCMAKE_DISABLE_FIND_PACKAGE_{library}=ON" for library in libraries]


def test_every_missing_library_is_told_at_once(configure, tmp_path):
    nothing = {"PKG_CONFIG_LIBDIR": str(tmp_path), "PKG_CONFIG_PATH": ""}
    done = configure(*without("fmt", "simdjson", "CLI11", "OpenSSL", "GTest"), **nothing)
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1, done.stderr
    packages = (
        "libfmt-dev libsimdjson-dev libcli11-dev libssl-dev libre2-dev libxxhash-dev libhwy-dev libgtest-dev libgmock-dev"
    )
    assert f"apt-get install {packages}\n" in done.stderr


def test_without_pkg_config_what_it_finds_is_missing_too(configure):
    done = configure("-DLADING_DEVELOPER=OFF", *without("PkgConfig"))
    assert done.returncode != 0
    assert "apt-get install pkg-config libre2-dev libxxhash-dev libhwy-dev\n" in done.stderr
    assert "libfmt-dev" not in done.stderr and "libgtest-dev" not in done.stderr
