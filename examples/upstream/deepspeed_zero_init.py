"""DeepSpeed: zero.Init in bf16 makes float buffers bf16 that the constructor means in F32, such as RoPE's frequencies.

torchrun --nproc-per-node 1 deepspeed_zero_init.py    # exit status 1: the bug is there
"""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
from transformers import LlamaConfig, LlamaForCausalLM, initialization

deepspeed.init_distributed(dist_backend="gloo")
fields = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 1, "bf16": {"enabled": True}}
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
with (
    initialization.no_init_weights(),
    deepspeed.zero.Init(config_dict_or_path=fields | {"zero_optimization": {"stage": 3}}),
):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
found = model.model.rotary_emb.inv_freq
print("inv_freq:", found.dtype, "- the constructor says torch.float32")
sys.stdout.flush()
os._exit(str(found.dtype) == "torch.bfloat16")
