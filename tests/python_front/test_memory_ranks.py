"""Host memory while 4 ranks load one model under FSDP2: all of them together take the model once, and the budget.

    python test_memory_ranks.py RESULT.json DEADLINE_S        # what the test starts: frameworks, and ranks forked from it

Counted is the most that each rank had above what it had before, by the kernel (VmHWM), added up over ranks; a peak
of one rank need not be that of another, so this is more than the truth. Beside it every rank reads the whole file,
which must be found to be too much: otherwise the test would measure nothing.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import ranks_launch

RANKS, LAYERS, WIDTH = 4, 16, 4096
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 2
BUDGET_BYTES = 64 << 20
DEADLINE_S = 120
MOST_BYTES = 1.1 * MODEL_BYTES + BUDGET_BYTES


@pytest.fixture(scope="module")
def found():
    return ranks_launch.run_script(Path(__file__), DEADLINE_S)


def test_R64_ranks_together_take_the_model_once(found):
    assert found["lading"]["problems"] == []
    assert found["lading"]["bytes"] >= 0.9 * MODEL_BYTES, "less than the model cannot be right"
    assert found["lading"]["bytes"] <= MOST_BYTES


def test_R64_a_rank_that_reads_everything_is_noticed(found):
    assert found["whole file"]["problems"] == []
    assert found["whole file"]["bytes"] > MOST_BYTES


# ---- in the process that the test starts


def make_model(layers=LAYERS, width=WIDTH):
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).to(torch.bfloat16)


def write_checkpoint(path, layers, width):
    import torch
    from safetensors.torch import save_file

    numbers = torch.Generator().manual_seed(3)
    bits = {
        f"{layer}.weight": torch.randint(-32768, 32767, (width, width), dtype=torch.int16, generator=numbers)
        for layer in range(layers)
    }
    save_file({name: tensor.view(torch.bfloat16) for name, tensor in bits.items()}, path)


def sharded(mesh, layers, width):
    import torch
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = make_model(layers, width)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def kilobytes(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


def most_above_start(load):
    """In bytes, of this process."""
    import torch.distributed as dist

    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = kilobytes("VmRSS")
    load()
    most = kilobytes("VmHWM") - before
    dist.barrier()
    return most * 1024


def by_lading(model, path):
    import lading

    lading.materialize(model, path, budget=BUDGET_BYTES, timeout=60)


def by_whole_file(model, path):
    import torch
    from safetensors.torch import load

    state = load(path.read_bytes())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter._local_tensor.copy_(own_rows(state[name]))


def own_rows(whole):
    import torch.distributed as dist

    size = whole.shape[0] // RANKS
    return whole[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def wrong(model, path):
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return [
            f"{name} differs"
            for name, parameter in model.named_parameters()
            if not torch.equal(
                parameter._local_tensor.detach().view(torch.int16), own_rows(file.get_tensor(name)).view(torch.int16)
            )
        ]


def run_rank(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (RANKS,))
    answers = {}
    for name, load in (("lading", by_lading), ("whole file", by_whole_file)):
        load(sharded(mesh, 1, 64), folder / "tiny.safetensors")  # what a process needs once is there
        model, path = sharded(mesh, LAYERS, WIDTH), folder / "model.safetensors"
        size = most_above_start(lambda load=load, model=model, path=path: load(model, path))
        answers[name] = {"bytes": size, "problems": [f"rank {rank}: {one}" for one in wrong(model, path)]}
    return answers


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    import lading  # noqa: F401
    import torch
    from geometry.launch import run_ranks

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=os.environ["LADING_SCRATCH"]) as scratch:
        folder = Path(scratch)
        write_checkpoint(folder / "tiny.safetensors", 1, 64)
        write_checkpoint(folder / "model.safetensors", LAYERS, WIDTH)
        by_rank = run_ranks(RANKS, lambda rank: run_rank(rank, folder), int(deadline_s) - 20)
    answers = {
        name: {
            "bytes": sum(found[name]["bytes"] for found in by_rank),
            "problems": [problem for found in by_rank for problem in found[name]["problems"]],
        }
        for name in by_rank[0]
    }
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
