"""One process: build on meta, fill from a checkpoint.

python examples/python/single.py
"""

import tempfile

import torch
from torch import nn

import lading


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight  # a tie: one memory, before and after
        self.register_buffer(
            "softcap", torch.tensor(30.0), persistent=False
        )  # in no file: only the constructor knows it

    def forward(self, ids):
        return torch.tanh(self.head(self.embed(ids)) / self.softcap) * self.softcap


with tempfile.TemporaryDirectory() as folder:
    from safetensors.torch import save_file

    trained = Model()
    save_file({"embed.weight": trained.embed.weight.detach()}, f"{folder}/model.safetensors")

    with lading.skeleton():  # no memory, and what the constructor does is recorded
        model = Model()
    report = lading.materialize(model, folder, device="cpu")  # "cuda:0" on a GPU
    print(report)

assert model.head.weight is model.embed.weight
ids = torch.arange(8)
assert torch.equal(model(ids), trained(ids))
print("the same output, bit for bit")
