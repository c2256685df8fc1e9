"""One peer of the host bench, in a process of its own: prints seconds and whether the bytes are right.

    peer.py safetensors-load-file|safetensors-get-tensor|safetensors-load-bytes CKPT

Peers that answer with views into a mapped file get a clone inside the timed region: owned memory is what is asked for.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file


def load_all(what: str, files: list[Path]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        if what == "safetensors-load-file":
            tensors |= {name: tensor.clone() for name, tensor in load_file(file).items()}
        elif what == "safetensors-load-bytes":
            tensors |= load(file.read_bytes())
        else:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():
                    tensors[name] = handle.get_tensor(name).clone()
    return tensors


def is_right(tensors: dict[str, torch.Tensor], files: list[Path]) -> bool:
    for file in files:
        raw = np.fromfile(file, dtype=np.uint8)
        header_bytes = int(raw[:8].view(np.uint64)[0])
        header = json.loads(raw[8 : 8 + header_bytes].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            loaded = tensors[name].contiguous().flatten().view(torch.uint8).numpy()
            if not np.array_equal(loaded, raw[begin:end]):
                return False
    return True


def main() -> int:
    what, checkpoint = sys.argv[1], Path(sys.argv[2])
    files = sorted(checkpoint.glob("*.safetensors"))
    begin = time.perf_counter()
    tensors = load_all(what, files)
    seconds = time.perf_counter() - begin
    right = is_right(tensors, files)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(json.dumps({"seconds": seconds, "bytes": size, "right": right}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
