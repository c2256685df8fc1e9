"""What FSDP2 and DTensor do to a model before the load, on a group of one rank."""

import lading
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return self.head(x) * self.table


@pytest.fixture
def path(tmp_path):
    save_file({"head.weight": torch.full((4, 4), 2.0), "head.bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    return tmp_path


def test_R6_memory_without_values_is_not_kept_after_it_was_sharded(mesh, path):
    with lading.skeleton():
        model = Model()
    model.to_empty(device="cpu")
    model.table = distribute_tensor(model.table.fill_(77), mesh, [Shard(0)])
    with pytest.raises(lading.LadingError, match="table"):
        lading.materialize(model, path, device="cpu", progress=False)
    lading.materialize(model, path, device="cpu", progress=False, keep=["table"])
    assert model.table.to_local().tolist() == [77.0] * 4


def test_R37_parameters_that_a_failed_forward_pass_left_gathered_are_loaded(mesh, path):
    model = Model()
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 5))
    assert not isinstance(model.head.weight, DTensor)
    lading.materialize(model, path, device="cpu", progress=False)
    assert isinstance(model.head.weight, DTensor)
    assert model(torch.ones(1, 4)).tolist() == [[0.0, 8.0, 16.0, 24.0]]
