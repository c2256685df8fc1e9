"""Some of these tests call the engine through the Python package, as it lies in the repository."""

import sys
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[2] / "python")
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)
