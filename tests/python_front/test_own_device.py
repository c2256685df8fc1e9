"""The device of a rank where nothing but the process says which: with its index, and of an accelerator that is there.

CI has no accelerator: torch.accelerator is played here, and memory comes from the CPU instead.
"""

import lading
import pytest
import torch
from lading.devices import own_device
from torch import nn


@pytest.fixture
def accelerator(monkeypatch):
    """play(current, count): torch sees `count` GPUs, and `current` is the current one."""

    def play(current=0, count=4, *, is_there=True, local_rank=None):
        def current_accelerator(check_available=False):
            return torch.device("cuda") if is_there or not check_available else None

        monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local_rank is not None:
            monkeypatch.setenv("LOCAL_RANK", local_rank)

    return play


@pytest.mark.parametrize(
    ("current", "count", "local_rank", "index"),
    [
        (2, 4, None, 2),  # set_device
        (2, 4, "3", 2),  # set_device, whatever the launcher says
        (0, 4, None, 0),
        (0, 4, "3", 3),  # nobody has called set_device
        (0, 1, "3", 0),  # each process sees one GPU only
        (0, 4, "three", 0),
    ],
)
def test_R34_the_device_has_this_ranks_index(accelerator, current, count, local_rank, index):
    accelerator(current, count, local_rank=local_rank)
    assert own_device() == torch.device("cuda", index)


def test_R34_an_accelerator_that_torch_was_built_for_and_is_not_there_is_none(accelerator):
    accelerator(is_there=False, local_rank="1")
    assert own_device() == torch.device("cpu")


def test_R34_empty_parameters_takes_this_ranks_device(accelerator, monkeypatch):
    asked = []
    make = torch.empty_strided

    def empty_strided(*size, device, **options):
        asked.append(device)
        return make(*size, device="cpu", **options)

    with torch.device("meta"):
        module = nn.Linear(2, 2)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    accelerator(0, 4, local_rank="1")
    lading.empty_parameters(module)
    assert asked == [torch.device("cuda", 1)] * 2


def test_R34_empty_parameters_takes_the_cpu_where_there_is_no_accelerator(accelerator):
    accelerator(is_there=False)
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    lading.empty_parameters(module)
    assert module.weight.device == module.bias.device == torch.device("cpu")
