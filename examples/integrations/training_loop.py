"""A training loop of one's own, as torchtitan's: build on meta, checkpoint activations, shard, load, train.

torchrun --nproc-per-node 2 examples/integrations/training_loop.py
"""

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from training import make_tiny, say, shard, shared_folder, start, train
from transformers import AutoConfig, AutoModelForCausalLM

import lading


def parallelize(model):
    """What torchtitan's parallelize functions do, in their order."""
    layers = model.model.layers
    for place, layer in enumerate(layers):
        layers[place] = checkpoint_wrapper(layer)  # its names get a prefix, which the checkpoint does not have
    return shard(model)


def load(path):
    with lading.skeleton():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
    parallelize(model)
    lading.materialize(model, path, progress=False)
    return model


def main(load=load):
    device = start()
    with shared_folder(make_tiny) as path:
        return say(train(load(path), device=device))


if __name__ == "__main__":
    main()
