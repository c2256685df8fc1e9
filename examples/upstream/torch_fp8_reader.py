"""torch.distributed.checkpoint: QuantizedHuggingFaceStorageReader copies an FP8 payload unscaled if its scale is missing or is
called weight_scale, as in compressed-tensors.

python torch_fp8_reader.py                 # exit status 1: the bug is there
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

scale = torch.full((1, 1), 0.004)
payload = torch.ones(128, 128).to(torch.float8_e4m3fn)
found = {}
for name in ("weight_scale_inv", "weight_scale", None):
    tensors = {"linear.weight": payload} | ({f"linear.{name}": scale} if name else {})
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
        (Path(folder) / "model.safetensors.index.json").write_text(json.dumps(index))
        state = {"linear.weight": torch.zeros(128, 128)}
        dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(folder), no_dist=True)
    found[name] = state["linear.weight"][0, 0].item()
    print(f"scale {name}: 0.004 is read as {found[name]:.3g}")
sys.exit(found["weight_scale"] == 1 or found[None] == 1)
