import os
from pathlib import Path

import pytest

from conversions.probe import Probe


@pytest.fixture(scope="session")
def probe(repository):
    beside = Path(os.environ.get("LADING_COMMAND", repository / "build" / "dev" / "lading")).resolve().parent
    command = Path(os.environ.get("LADING_MAPPING_PROBE", beside / "tests" / "conversions" / "mapping_probe"))
    if not command.is_file():
        pytest.fail(f"{command} is missing: build it, or set LADING_MAPPING_PROBE")
    with Probe(command) as running:
        yield running
