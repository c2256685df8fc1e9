"""accelerate: load_checkpoint_in_model after to_empty leaves buffers that no file holds unwritten, and the tie of head and
embedding broken.

python accelerate_to_empty.py              # exit status 1: the bug is there
"""

import sys
import tempfile
from pathlib import Path

import torch
from accelerate import load_checkpoint_in_model
from safetensors.torch import save_file
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)


torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty gives NaN, so that nothing is right by luck
with tempfile.TemporaryDirectory() as folder:
    save_file({"embed.weight": torch.ones(6, 4)}, Path(folder) / "model.safetensors", {"format": "pt"})
    with torch.device("meta"):
        model = Model()
    model.to_empty(device="cpu")
    load_checkpoint_in_model(model, folder)
print("softcap:", model.softcap.item(), "- the constructor says 50")
print("tied:", model.head.weight is model.embed.weight)
sys.exit(model.softcap.item() != 50 or model.head.weight is not model.embed.weight)
