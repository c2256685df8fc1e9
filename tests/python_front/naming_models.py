"""A small decoder with names of its own, and a checkpoint of it under other names in three shards."""

import json

import torch
from safetensors.torch import save_file
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, rope):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + self.out((q * rope).sum(-1, keepdim=True) * k + v)


class Decoder(nn.Module):
    def __init__(self, width=8, vocabulary=12, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("rope", 10.0 ** -torch.arange(0, 1, 1 / width), persistent=False)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, self.rope)
        return self.head(x)


MAPPING = {
    "transformer.h.*.attn.*": "blocks.*.*",
    "transformer.h.*.ln.*": "blocks.*.norm.*",
    "transformer.wte.weight": "embed.weight",
}
KEY_MAPPING = {r"^transformer\.h\.(\d+)\.attn": r"blocks.\1", r"^transformer\.h\.(\d+)\.ln": r"blocks.\1.norm",
               r"^transformer\.wte": "embed"}  # fmt: skip
DOCUMENT = {
    "schema": "lading.mapping/1",
    "rules": [
        {"id": "attn", "kind": "rename_pattern", "from": r"transformer\.h\.(\d+)\.attn\.(.*)", "to": r"blocks.\1.\2"},
        {"id": "ln", "kind": "rename_pattern", "from": r"transformer\.h\.(\d+)\.ln\.(.*)", "to": r"blocks.\1.norm.\2"},
        {"id": "wte", "kind": "rename", "from": "transformer.wte.weight", "to": "embed.weight"},
    ],
}


WAYS = {
    "wildcards": {"mapping": MAPPING},
    "regular expressions": {"key_mapping": KEY_MAPPING},
    "document": {"mapping": DOCUMENT},
}


def original():
    torch.manual_seed(4)
    return Decoder().eval()


def renamed(name):
    if name.startswith("blocks."):
        _, number, rest = name.split(".", 2)
        return f"transformer.h.{number}." + (rest.replace("norm", "ln") if rest.startswith("norm") else f"attn.{rest}")
    return {"embed.weight": "transformer.wte.weight"}[name]


def save(folder, model=None):
    """Three shards and an index."""
    state = {renamed(name): value for name, value in (model or original()).state_dict().items() if name != "head.weight"}
    folder.mkdir(parents=True, exist_ok=True)
    places = {}
    for number in range(3):
        shard = {key: value.clone() for place, (key, value) in enumerate(sorted(state.items())) if place % 3 == number}
        save_file(shard, folder / f"model-{number + 1:05d}-of-00003.safetensors")
        places |= dict.fromkeys(shard, f"model-{number + 1:05d}-of-00003.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
