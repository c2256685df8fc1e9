"""What the integrations share, and not what they are about: a tiny Llama to begin from, batches, and twenty steps."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from common import shared_folder, start, this_device  # noqa: E402, F401

STEPS, BATCH, LENGTH, WORDS = 20, 4, 12, 97


def make_tiny(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **small)).save_pretrained(folder)


def batches(device="cpu"):
    """The same on every rank: then the loss of many ranks is that of one."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        yield torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator).to(device)


def shard(model):
    """FSDP2, a unit per layer."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def train(model, optimizer=None, device="cpu", backward=torch.Tensor.backward):
    """The losses. `backward` and `optimizer` are for frameworks that have their own."""
    model.train()
    optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for ids in batches(device):
        loss = model(input_ids=ids, labels=ids).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def say(losses):
    print(f"{len(losses)} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    return losses
