"""transformers: an FP8 weight of 192 columns in blocks of 128 is dequantized as if its blocks were 96 wide.

python transformers_fp8_blocks.py          # exit status 1: the bug is there
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM

COLUMNS = int(sys.argv[1]) if len(sys.argv) > 1 else 192
KEY = "model.layers.0.mlp.gate_proj.weight"

sizes = {"hidden_size": COLUMNS, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4}
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    grid = -(-256 // 128), -(-COLUMNS // 128)
    scales = torch.arange(1.0, grid[0] * grid[1] + 1).reshape(grid)
    tensors[KEY] = torch.ones(256, COLUMNS).to(torch.float8_e4m3fn)
    tensors[f"{KEY}_scale_inv"] = scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    others = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    others += [f"model.layers.0.mlp.{name}_proj" for name in ("up", "down")]
    config["quantization_config"] = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", *others],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    said = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=["lm_head", *others])
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=said)
    found = model.get_parameter(KEY).detach().float()

right = scales.repeat_interleave(128, 0)[:256].repeat_interleave(128, 1)[:, :COLUMNS]
wrong = (found != right).float().mean().item()
print(f"{wrong:.0%} of the elements are wrong")
sys.exit(wrong > 0)
