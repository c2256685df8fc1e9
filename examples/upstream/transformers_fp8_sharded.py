"""transformers: under FSDP2 or tensor parallelism the scales of an FP8 weight are cut as if they were the weight, so a rank
whose rows are not whole blocks multiplies by the wrong scales.

torchrun --nproc-per-node 2 transformers_fp8_sharded.py fsdp_size     # or tp_size; exit status 1: the bug is there
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

ROWS = 384  # 192 on each of two ranks, 3 blocks of 128
KEY = "model.layers.0.mlp.gate_proj.weight"
OTHERS = ["lm_head", *(f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"), "up_proj", "down_proj"]

dist.init_process_group("gloo")
layout = sys.argv[1] if len(sys.argv) > 1 else "fsdp_size"
shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(shared)
folder = Path(shared[0])
scales = torch.tensor([[1.0], [2.0], [3.0]])
if dist.get_rank() == 0:
    sizes = {"hidden_size": 128, "intermediate_size": ROWS, "num_hidden_layers": 1, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[KEY] = torch.ones(ROWS, 128).to(torch.float8_e4m3fn)
    tensors[f"{KEY}_scale_inv"] = scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": OTHERS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
dist.barrier()
model = LlamaForCausalLM.from_pretrained(
    folder,
    dtype=torch.bfloat16,
    quantization_config=FineGrainedFP8Config(dequantize=True, modules_to_not_convert=OTHERS),
    distributed_config=DistributedConfig(**{layout: dist.get_world_size()}),
)
found = model.get_parameter(KEY).detach().full_tensor().float()
wrong = (found != scales.repeat_interleave(128, 0)).float().mean().item()
if dist.get_rank() == 0:
    print(f"{wrong:.0%} of the elements are wrong")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(wrong > 0)
