"""Models for the tests of `materialize`: a small one that has everything, and a tiny Llama. Both are made anew by a
function."""

import torch
from torch import nn


class Block(nn.Module):
    """Parameters that do not divide evenly, a frozen one, and buffers of every kind."""

    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Parameter(torch.full((5,), 0.25), requires_grad=False)
        self.register_buffer("scale", torch.tensor(1.0))  # 0-dim
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("table", torch.cos(torch.arange(width) * 0.1), persistent=False)

    def forward(self, x):
        hidden = self.down(torch.relu(self.up(self.norm(x) * self.table)))
        return x + self.scale * hidden * self.gate.sum()


class Small(nn.Module):
    def __init__(self, vocabulary=25, width=12, inner=20, depth=2, is_tied=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.head(x) / self.softcap) * self.softcap


def small(**options):
    return lambda: Small(**options)


def llama(is_tied):
    def make():
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=44,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=is_tied,
        )
        return LlamaForCausalLM(config)

    return make


def fill(model, seed=7):
    """Values that no initialiser gives, so that nothing is right by luck."""
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    with torch.no_grad():
        for name in sorted(state):
            tensor = state[name]
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
            else:
                tensor.copy_(torch.randint(0, 100, tensor.shape, generator=generator))
    return model


MODELS = {
    "small": small(),
    "small_untied": small(is_tied=False),
    "llama": llama(is_tied=False),
    "llama_tied": llama(is_tied=True),
}


def original(name):
    """The model that the checkpoint was saved from."""
    torch.manual_seed(0)
    return fill(MODELS[name]())


def save(model, folder):
    """As its users would: transformers its own way, others with safetensors, a tie once."""
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        return
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    kept, seen = {}, set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            kept[name] = tensor.contiguous()
            seen.add(tensor.data_ptr())
    save_file(kept, folder / "model.safetensors")


def tensors(model):
    """Every parameter and buffer, under every name."""
    found = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found
