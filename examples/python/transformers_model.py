"""A model of transformers, from a directory or a repository in the Hugging Face cache; without one, a tiny one is made.

python examples/python/transformers_model.py [PATH] [DEVICE]
"""

import sys
import tempfile

import torch

import lading


def make_tiny(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


with tempfile.TemporaryDirectory() as folder:
    path = sys.argv[1] if len(sys.argv) > 1 else make_tiny(folder)
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    model = lading.from_pretrained(path, device=device)

with torch.no_grad():
    logits = model(torch.arange(8, device=device)[None]).logits
print(
    f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()):,} parameters, logits {tuple(logits.shape)}"
)
