"""A checkpoint whose keys have other names than the model's tensors.

python examples/python/other_names.py
"""

import tempfile
from pathlib import Path

import torch
from common import Model, compare, start, this_device
from safetensors.torch import save_file

import lading

device = this_device(start())
trained = Model().to(device)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    state = {key: value for key, value in trained.state_dict().items() if key != "head.weight"}
    renamed = {key.replace("blocks.", "transformer.h.").replace("embed", "wte"): value for key, value in state.items()}
    save_file(renamed | {"transformer.h.0.mask": torch.ones(2)}, path)

    with lading.skeleton():
        model = Model()
    report = lading.materialize(model, path, device=device, mapping={
        "transformer.h.*": "blocks.*",  # a key of the checkpoint: a tensor of the model
        "wte.weight": "embed.weight",
        "*.mask": None,  # nothing reads these keys, and that is right
    })  # fmt: skip
    print(report)
    compare(model, trained)
