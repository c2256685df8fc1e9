"""transformers: save_pretrained(distributed_checkpoint=True) does not undo the conversions of a mixture of experts: keys of
the format are missing, and keys that it does not know are written.

torchrun --nproc-per-node 2 transformers_distributed_save.py    # exit status 1: the bug is there
"""

import os
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist
from safetensors import safe_open
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig


def keys_of(folder):
    found = set()
    for path in Path(folder).rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found


dist.init_process_group("gloo")
shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(shared)
plain, saved = Path(shared[0]) / "plain", Path(shared[0]) / "saved"
config = Qwen3MoeConfig(
    vocab_size=32, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
)  # fmt: skip
if dist.get_rank() == 0:
    Qwen3MoeForCausalLM(config).save_pretrained(plain)
dist.barrier()
model = Qwen3MoeForCausalLM.from_pretrained(plain, distributed_config=DistributedConfig(fsdp_size=2))
model.save_pretrained(saved, distributed_checkpoint=True)
dist.barrier()
missing, unknown = keys_of(plain) - keys_of(saved), keys_of(saved) - keys_of(plain)
if dist.get_rank() == 0:
    print(f"{len(missing)} of {len(keys_of(plain))} keys are missing; not of the format: {sorted(unknown)}")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(bool(missing))
