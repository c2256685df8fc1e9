"""`lading.audit` on ranks: sharded parts are compared with the checkpoint, replicas with each other, and all ranks
raise if one found something."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))  # ranks are spawned, and import this file
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "zoo"))

import lading
from common import run_ranks

DEADLINE_S = 90


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 5)
        self.register_buffer("scale", torch.tensor([2.0]))
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)


def save(folder):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(Model().state_dict(), folder / "model.safetensors")


def on_rank(rank, world, folder):
    """{case: [(code, tensor, rank that it is about), …]}"""
    from torch.distributed.fsdp import fully_shard

    found = {}

    def case(name, change, shard=True):
        with lading.skeleton():
            model = Model()
        if shard:
            fully_shard(model)
        lading.materialize(model, folder, device="cpu", progress=False)
        with torch.no_grad():
            change(model)
        report = lading.audit(model, folder if shard else None)
        found[name] = sorted((one.code, one.tensor, one.rank) for one in report.problems)
        try:
            lading.audit(model, folder if shard else None, raise_on="error")
            found[f"{name} raised"] = False
        except lading.LadingError:
            found[f"{name} raised"] = True

    def one_row(model):
        if rank == 1:
            model.lin.weight._local_tensor[1, 2] += 1

    def one_buffer(model):
        if rank == 1:
            model.scale += 1

    case("right", lambda model: None)
    case("a row of one rank", one_row)
    case("a copy that differs", one_buffer, shard=False)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    with torch.random.fork_rng():
        save(folder)
    answers = run_ranks(on_rank, 2, folder, timeout=DEADLINE_S)
    assert [answer[0] for answer in answers] == ["ok", "ok"], answers
    return [answer[1] for answer in answers]


def test_right_on_every_rank(results):
    assert [found["right"] for found in results] == [[], []]
    assert not any(found["right raised"] for found in results)


def test_a_sharded_part_is_found_on_its_rank(results):
    assert results[0]["a row of one rank"] == []
    assert results[1]["a row of one rank"] == [("value", "lin.weight", 1)]


def test_replicas_are_compared(results):
    """R17; without a checkpoint nothing says which of them is right."""
    for found in results:
        assert found["a copy that differs"] == [("replicas", "scale", None)]


def test_all_ranks_raise(results):
    assert all(found["a row of one rank raised"] and found["a copy that differs raised"] for found in results)
