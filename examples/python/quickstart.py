"""The quick start: ten lines, from a checkpoint to a model that is filled. It writes model.safetensors where it is run.

python examples/python/quickstart.py
"""

import torch
from safetensors.torch import save_file

import lading

save_file(torch.nn.Linear(4, 2).state_dict(), "model.safetensors")  # a checkpoint, as any tool writes it

with lading.skeleton():  # on meta: no memory, and what constructors do is recorded
    model = torch.nn.Linear(4, 2)
report = lading.materialize(model, "model.safetensors", device="cpu")  # or "cuda:0"

print(report)  # how many tensors and bytes, how long it took
print(model.weight)  # filled in place
