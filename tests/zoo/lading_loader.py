"""lading as a loader of the zoo's checkers.

python zoo.py check --loader lading_loader:load --list dev40.txt
python zoo_ranks.py check --layout fsdp2,tp --loader lading_loader:load_on_ranks --list dev40.txt
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import lading


def load(model, folder):
    lading.materialize(model, folder, device="cpu", progress=False)
    return model


def load_on_ranks(model, folder, ctx):
    lading.materialize(model, folder, device="cpu", progress=False)
    return model
