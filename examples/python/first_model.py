"""The program of docs/start/first-model.md: a tie, and a buffer that no file holds. It writes model.safetensors.

python examples/python/first_model.py
"""

import torch
from safetensors.torch import save_file
from torch import nn

import lading


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight  # a tie
        self.register_buffer("inv_freq", 1.0 / 10_000 ** (torch.arange(0, 64, 2) / 64), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


trained = Model()
tensors = {name: tensor for name, tensor in trained.state_dict().items() if name != "head.weight"}
save_file(tensors, "model.safetensors")

with lading.skeleton():
    model = Model()
report = lading.materialize(model, "model.safetensors", device="cpu")
print(report)

ids = torch.arange(16)
assert torch.equal(model(ids), trained(ids))
assert model.head.weight is model.embed.weight  # the tie is kept
assert torch.equal(model.inv_freq, trained.inv_freq)  # the constructor's value, though no file holds it
print(report.tensors["inv_freq"].provenance)
