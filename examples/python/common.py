"""What the examples share, and not what they are about: a small model, a checkpoint of it, and how ranks begin.

A checkpoint is written and removed again by each run, so that every example can be tried as it stands.
"""

import atexit
import contextlib
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(101, 32)  # 101 rows: not every rank has as many as the others
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(32, 101, bias=False)
        self.head.weight = self.embed.weight  # a tie: one memory, before and after
        self.register_buffer("softcap", torch.tensor(30.0), persistent=False)  # in no file: the constructor knows it

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.head(x) / self.softcap) * self.softcap


def start():
    """The kind of device. Under torchrun also the process group."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:
        if kind == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")
            atexit.register(dist.destroy_process_group)
    return kind


def this_device(kind):
    """Of one process: with its number, since a bare "cuda" says nothing about which one (R34)."""
    return kind if kind == "cpu" else f"cuda:{torch.cuda.current_device()}"


@contextlib.contextmanager
def shared_folder(write):
    """A temporary folder that all ranks see. The first rank calls `write(folder)` before anybody goes on."""
    with tempfile.TemporaryDirectory() as own:
        shared = [own]
        if dist.is_initialized():
            dist.broadcast_object_list(shared)
        if shared[0] == own:
            write(own)
        wait_for_all()
        yield shared[0]
        wait_for_all()


@contextlib.contextmanager
def sample(kind="cpu"):
    """A folder with a checkpoint, and the model that was saved in it."""
    torch.manual_seed(0)
    trained = Model()
    tensors = {name: tensor for name, tensor in trained.state_dict().items() if name != "head.weight"}
    with shared_folder(lambda folder: save_file(tensors, Path(folder) / "model.safetensors")) as folder:
        yield folder, trained.to(kind)


def wait_for_all():
    if dist.is_initialized():
        dist.barrier()


def compare(model, trained):
    """The model computes what the one that was saved computes. Sums over ranks are rounded in another order."""
    ids = torch.arange(16, device=trained.softcap.device)
    with torch.no_grad():
        difference = (model(ids) - trained(ids)).abs().max().item()
    assert difference < 1e-4, difference
    print(f"the output differs by {difference:.1e} from that of the model that was saved")
