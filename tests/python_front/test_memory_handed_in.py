"""Host memory while 4 ranks load tensors of half a gigabyte that are handed in: as the report's plan says, measured.

    python test_memory_handed_in.py RESULT.json DEADLINE_S    # what the test starts: frameworks, and ranks forked from it

Counted is the most that a rank had above what it had before (VmHWM), the user's own tensors aside. Plain memory of the
user's is read where it is; anything else is copied once, and one value is in memory at a time.
"""

import gc
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import ranks_launch
from test_memory_ranks import most_above_start

RANKS, WIDTH = 4, 16384
VALUE_BYTES = WIDTH * WIDTH * 2
BUDGET_BYTES = 32 << 20
SLACK_BYTES = 32 << 20  # Python, torch and the allocator
DEADLINE_S = 200
# By case: what lading must hold at once beside the user's own. torch gathers into a second copy.
HELD = {"plain": 0, "transposed": VALUE_BYTES, "recipes": VALUE_BYTES // 2, "sharded": 2 * VALUE_BYTES}


@pytest.fixture(scope="module")
def found():
    return ranks_launch.run_script(Path(__file__), DEADLINE_S)


@pytest.mark.parametrize("case", HELD)
def test_R64_values_that_are_handed_in_take_what_the_plan_says(found, case):
    for rank in found[case]:
        assert rank["wrong"] == []
        assert rank["handed_in"] == HELD[case]
        assert rank["staging"] <= BUDGET_BYTES
        before_the_load = case == "sharded"  # when the model has no memory yet
        least = rank["handed_in"] + (0 if before_the_load else rank["model"]) - SLACK_BYTES
        assert rank["most"] > least, "less than that cannot be right"
        assert rank["most"] <= rank["model"] + rank["staging"] + rank["handed_in"] + SLACK_BYTES


# ---- in the process that the test starts


def bits(rows, columns, seed):
    import torch

    begin = seed * rows * columns
    return torch.arange(begin, begin + rows * columns // 2, dtype=torch.int32).view(torch.bfloat16).view(rows, columns)


def plain(mesh):
    whole = bits(WIDTH, WIDTH, 1)
    return {"external": {"0.weight": whole}}, {"0.weight": whole}


def transposed(mesh):
    whole = bits(WIDTH, WIDTH, 1).t()
    return {"external": {"0.weight": whole}}, {"0.weight": whole}


def recipes(mesh):
    """Two values that are made, each half as large."""
    kept = {name: bits(WIDTH // 2, WIDTH, seed) for seed, name in enumerate(("0.weight", "1.weight"))}
    functions = {name: lambda module, _, value=value: value.clone() for name, value in kept.items()}
    return {"recipes": functions, "allow_missing": list(functions)}, kept


def sharded(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = bits(WIDTH, WIDTH, 1)
    cut = distribute_tensor(whole, mesh, [Shard(1)], src_data_rank=None)
    return {"external": {"0.weight": cut}}, {"0.weight": whole}


def make_model(expected, mesh):
    import torch
    from torch.distributed.fsdp import fully_shard

    shapes = [*(tuple(one.shape) for one in expected.values()), (64, 64)]
    with torch.device("meta"):
        layers = [torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16) for rows, columns in shapes]
    return fully_shard(torch.nn.Sequential(*layers), mesh=mesh)


def run_case(case, mesh, folder):
    import lading
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file

    options, expected = globals()[case](mesh)
    model = make_model(expected, mesh)
    path = folder / f"{case}.safetensors"
    if dist.get_rank() == 0:
        save_file({f"{len(expected)}.weight": bits(64, 64, 9)}, path)
    dist.barrier()
    gc.collect()  # what a case before left must not be freed while this one is measured
    reports = []
    most = most_above_start(
        lambda: reports.append(lading.materialize(model, path, budget=BUDGET_BYTES, timeout=60, **options))
    )
    size = next(iter(expected.values())).shape[0] // RANKS
    rows = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
    return {
        "most": most,
        "model": sum(tensor.numel() * 2 // RANKS for tensor in expected.values()),
        "handed_in": reports[0].memory.handed_in,
        "staging": reports[0].memory.staging,
        "wrong": [
            name
            for name, value in expected.items()
            if not torch.equal(
                model.get_parameter(name)._local_tensor.detach().view(torch.int16),
                value[rows].contiguous().view(torch.int16),
            )
        ],
    }


def run_rank(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (RANKS,))
    global WIDTH
    width, WIDTH = WIDTH, 64
    for case in HELD:  # what a process needs once is there
        run_case(case, mesh, folder)
    WIDTH = width
    return {case: run_case(case, mesh, folder) for case in HELD}


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    import lading  # noqa: F401
    import torch
    from geometry.launch import run_ranks

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.environ["LADING_SCRATCH"]) as scratch:
        by_rank = run_ranks(RANKS, lambda rank: run_rank(rank, Path(scratch)), int(deadline_s) - 20)
    Path(result).write_text(json.dumps({case: [rank[case] for rank in by_rank] for case in HELD}))


if __name__ == "__main__":
    main()
