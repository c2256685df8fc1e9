"""DeepSpeed ZeRO-3: build on meta, give the parameters to ZeRO-3, and every rank fills its own partitions.

torchrun --nproc-per-node 2 examples/integrations/deepspeed_zero3.py

A model that was built under deepspeed.zero.Init, or by transformers under HfDeepSpeedConfig, is filled as well, before
or after deepspeed.initialize: call `materialize` on it, or on the engine.
"""

import deepspeed
import torch
import torch.distributed as dist
from training import BATCH, make_tiny, say, shared_folder, start, train
from transformers import AutoConfig, AutoModelForCausalLM

import lading


def settings():
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "train_batch_size": BATCH * dist.get_world_size(),
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
    }


def load(path):
    with lading.skeleton():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
    lading.zero3_init(model, settings())
    lading.materialize(model, path, progress=False)
    return model


def main(load=load):
    device = start()
    deepspeed.init_distributed(dist_backend="nccl" if device == "cuda" else "gloo", verbose=False)
    with shared_folder(make_tiny) as path:
        model = load(path)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings())
        return say(train(engine, engine, device, engine.backward))


if __name__ == "__main__":
    main()
