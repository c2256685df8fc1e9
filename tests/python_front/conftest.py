"""The front from the source tree, and the zoo, for these tests."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent

for folder in (REPOSITORY / "python", REPOSITORY / "tests" / "zoo"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
