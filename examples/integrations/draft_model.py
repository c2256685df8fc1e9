"""A draft model for speculative decoding, as speculators trains them: embeddings and head come from the verifier and stay
frozen, the head is cut down to the draft's vocabulary by a map, the layers are new.

torchrun --nproc-per-node 2 examples/integrations/draft_model.py
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from training import WORDS, make_tiny, say, shared_folder, start, train
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

import lading

KNOWN = 48  # words of the verifier's that the draft knows


class Draft(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, config.hidden_size)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.norm = LlamaRMSNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, KNOWN, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config)  # a table in no file
        self.register_buffer("t2d", torch.zeros(WORDS, dtype=torch.bool))
        for frozen in (self.embed_tokens, self.lm_head):
            frozen.weight.requires_grad_(False)

    def forward(self, input_ids, labels):
        x = self.embed_tokens(input_ids)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        for layer in self.layers:
            x = layer(x, position_embeddings=self.rotary_emb(x, positions))
        place = self.t2d.cumsum(0) - 1  # of each known word in the draft's vocabulary
        wanted = torch.where(self.t2d[labels], place[labels], -100)
        logits = self.lm_head(self.norm(x))
        self.loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())
        return self


def make_checkpoints(folder):
    """The verifier, and all that a draft begins with: its vocabulary map."""
    make_tiny(f"{folder}/verifier")
    known = torch.zeros(WORDS, dtype=torch.bool)
    known[::2][:KNOWN] = True
    Path(f"{folder}/draft").mkdir()
    save_file({"t2d": known}, f"{folder}/draft/model.safetensors")


def load(folder):
    verifier = load_file(f"{folder}/verifier/model.safetensors")
    config = AutoConfig.from_pretrained(f"{folder}/verifier")
    config._attn_implementation = "sdpa"
    with lading.skeleton():
        model = Draft(config)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    lading.materialize(
        model,
        f"{folder}/draft",
        external={"embed_tokens.weight": verifier["model.embed_tokens.weight"]},
        recipes={"lm_head.weight": lading.Computed(lambda known: verifier["lm_head.weight"][known.cpu()], "t2d")},
        allow_missing=["layers.*", "norm.*", "lm_head.*"],  # new: as their constructors make them
        progress=False,
    )
    return model


def main(load=load):
    device = start()
    with shared_folder(make_checkpoints) as folder:
        return say(train(load(folder), device=device))


if __name__ == "__main__":
    main()
