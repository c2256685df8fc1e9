"""The first audit of docs/start/first-audit.md: a usual way to load by hand, and what it gets wrong.

python examples/python/first_audit.py
"""

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(4.0), persistent=False)

    def forward(self, ids):
        return self.head(self.embed(ids)) * self.scale


save_file({"embed.weight": torch.randn(100, 16)}, "model.safetensors")

with torch.device("meta"):
    model = Model()
model.to_empty(device="cpu")
model.load_state_dict(load_file("model.safetensors"), strict=False)  # no error, and a wrong model

with lading.skeleton():
    like = Model()  # what the constructor makes
report = lading.audit(model, "model.safetensors", like=like)
print(report)
print(report.ok, sorted(report.tensors))
