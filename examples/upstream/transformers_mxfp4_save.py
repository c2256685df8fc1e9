"""transformers: a gpt-oss model that was loaded with `dequantize=True` is saved with BF16 experts under the names of MXFP4
blocks, without scales. `from_pretrained` then finds no experts and initialises them at random.

python transformers_mxfp4_save.py            # exit status 1: the bug is there
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM, Mxfp4Config

KEY = "model.layers.0.mlp.experts.down_proj"
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16}
sizes |= {"num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 32, "layer_types": ["full_attention"]}
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    GptOssForCausalLM(GptOssConfig(**sizes)).to(torch.bfloat16).save_pretrained(folder / "mxfp4")
    tensors = load_file(folder / "mxfp4" / "model.safetensors")
    for key in [key for key in tensors if key.endswith("_proj") and ".experts." in key]:
        experts, into, out = tensors.pop(key).shape
        tensors[f"{key}_blocks"] = torch.randint(0, 256, (experts, out, into // 32, 16), dtype=torch.uint8)
        tensors[f"{key}_scales"] = torch.full((experts, out, into // 32), 122, dtype=torch.uint8)
    save_file(tensors, folder / "mxfp4" / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "mxfp4" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "mxfp4" / "config.json").write_text(json.dumps(config))

    said = Mxfp4Config(dequantize=True)
    first = GptOssForCausalLM.from_pretrained(folder / "mxfp4", dtype=torch.bfloat16, quantization_config=said)
    first.save_pretrained(folder / "saved")
    again = GptOssForCausalLM.from_pretrained(folder / "saved", dtype=torch.bfloat16)
    for key, tensor in load_file(folder / "saved" / "model.safetensors").items():
        if key.startswith(KEY) and not key.endswith("bias"):
            print("saved as", key.rpartition(".")[2], tensor.dtype)

differ = (again.get_parameter(KEY) != first.get_parameter(KEY)).float().mean().item()
print(f"{differ:.0%} of the experts' weights differ from those that were saved")
sys.exit(differ > 0.5)
