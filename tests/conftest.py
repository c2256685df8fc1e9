"""What all Python tests share: the command under test, as the fixture `lading`."""

import os
from pathlib import Path

import pytest

from corrupt.runner import Runner

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository():
    return REPOSITORY


@pytest.fixture(scope="session")
def lading(tmp_path_factory):
    command = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading")).resolve()
    if not command.is_file():
        pytest.exit(f"{command} is missing: build it, or set LADING_COMMAND", returncode=2)
    with Runner(command, tmp_path_factory.mktemp("runner")) as runner:
        yield runner
