"""transformers: a model that was loaded with `dequantize=True` is saved as FP8 with scales, but the saved config has no
`quantization_config`. `from_pretrained` then loads the payloads without their scales.

python transformers_fp8_save.py            # exit status 1: the bug is there
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM

KEY = "model.layers.0.mlp.gate_proj.weight"
sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).to(torch.bfloat16).save_pretrained(folder / "fp8")
    tensors = load_file(folder / "fp8" / "model.safetensors")
    for key in [key for key in tensors if key.endswith("_proj.weight")]:
        scale = tensors[key].float().abs().max() / 448
        tensors[f"{key}_scale_inv"] = scale.reshape(1, 1)
        tensors[key] = (tensors[key].float() / scale).to(torch.float8_e4m3fn)
    save_file(tensors, folder / "fp8" / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "fp8" / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    (folder / "fp8" / "config.json").write_text(json.dumps(config))

    said = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=["lm_head"])
    first = LlamaForCausalLM.from_pretrained(folder / "fp8", dtype=torch.bfloat16, quantization_config=said)
    first.save_pretrained(folder / "saved")
    again = LlamaForCausalLM.from_pretrained(folder / "saved", dtype=torch.bfloat16)
    print("saved as", load_file(folder / "saved" / "model.safetensors")[KEY].dtype)
    print("its config:", json.loads((folder / "saved" / "config.json").read_text()).get("quantization_config"))

ratio = (again.get_parameter(KEY).abs().max() / first.get_parameter(KEY).abs().max()).item()
print(f"the largest weight is {ratio:.0f} times what it was")
sys.exit(ratio > 2)
