"""The front from the source tree, and the models of its tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

for folder in (TESTS.parent / "python", TESTS / "python_front", TESTS / "zoo"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
