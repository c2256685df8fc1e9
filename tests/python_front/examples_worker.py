"""The examples, in one process and on ranks that are forked from it: frameworks are imported once."""

import contextlib
import io
import runpy
import sys
from pathlib import Path

from geometry.launch import run_ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
RANKS_DEADLINE_S = 60


def main(alone, ranks):
    """What each example printed: those of `alone`, then by rank those of `ranks`, which says how many each wants."""
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401

    import lading.loading  # noqa: F401

    sys.path.insert(0, str(EXAMPLES))  # as for a script that is there
    by_rank = {name: run_ranks(count, run_example, RANKS_DEADLINE_S, name) for name, count in ranks.items()}
    return {name: run_example(0, name) for name in alone}, by_rank  # these last: what forks has no threads yet


def run_example(_rank, name):
    sys.argv = [name]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()
