"""The front from the source tree, and the models of its tests."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

for folder in (TESTS.parent / "python", TESTS / "python_front", TESTS / "zoo"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Checkpoints that transformers has written."""
    import save_models
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return save_models.make_checkpoints(tmp_path_factory.mktemp("saved"))
