"""The quick start of the README: from a checkpoint to a filled model. It writes model.safetensors where it is run.

python examples/python/quickstart.py
"""

import torch
from safetensors.torch import save_file

import lading

save_file(torch.nn.Linear(4, 2).state_dict(), "model.safetensors")  # any safetensors checkpoint will do

with lading.skeleton():  # tensors take no memory; lading records what the constructor computes
    model = torch.nn.Linear(4, 2)
report = lading.materialize(model, "model.safetensors", device="cpu")  # or "cuda:0"

print(report)  # how many tensors and bytes, how long it took
print(model.weight)  # filled in place
