"""A model of transformers, from a directory or a repository in the Hugging Face cache; without one, a tiny one is made.

python examples/python/transformers_model.py [PATH]
torchrun --nproc-per-node 2 examples/python/transformers_model.py [PATH]
"""

import sys

import torch
import torch.distributed as dist
from common import shared_folder, start, this_device
from torch.distributed.fsdp import fully_shard

import lading


def make_tiny(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=97, **small)).save_pretrained(folder)


def shard(model):
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)


device = this_device(start())
with shared_folder(make_tiny) as tiny:
    path = sys.argv[1] if len(sys.argv) > 1 else tiny
    if dist.is_initialized():
        model = lading.from_pretrained(path, parallelize=shard)
    else:
        model = lading.from_pretrained(path, device=device)

with torch.no_grad():
    logits = model(torch.arange(8, device=device)[None]).logits
print(f"{type(model).__name__}, logits {tuple(logits.shape)}")
