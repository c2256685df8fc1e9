"""transformers: from_pretrained makes a parameter trainable that the constructor froze, and leaves a buffer that is not
persistent unwritten, in a class whose `_init_weights` does not make it again.

python transformers_unfreezes.py           # exit status 1: the bug is there
"""

import sys
import tempfile

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class Model(PreTrainedModel):
    config_class = PreTrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(6, 4)
        self.embed.weight.requires_grad_(False)
        self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
        self.post_init()

    def _init_weights(self, module):
        pass


torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty gives NaN, so that nothing is right by luck
with tempfile.TemporaryDirectory() as folder:
    Model(PreTrainedConfig()).save_pretrained(folder)
    model = Model.from_pretrained(folder)
print("requires_grad:", model.embed.weight.requires_grad, "- the constructor says False")
print("softcap:", model.softcap.item(), "- the constructor says 50")
sys.exit(model.embed.weight.requires_grad or model.softcap.item() != 50)
