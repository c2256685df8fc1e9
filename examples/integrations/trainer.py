"""transformers' Trainer: hand it a model that is already sharded and filled. It then shards nothing and loads nothing.

torchrun --nproc-per-node 2 examples/integrations/trainer.py
"""

import tempfile

import torch
import torch.distributed as dist
from training import BATCH, STEPS, batches, make_tiny, say, shard, shared_folder, start, this_device
from transformers import Trainer, TrainerCallback, TrainingArguments

import lading


def load(path, device):
    if dist.is_initialized():
        model = lading.from_pretrained(path, parallelize=shard, dtype=torch.float32, progress=False)
        model._is_accelerate_prepared = True  # accelerate, which Trainer asks, would wrap it once more
        return model
    return lading.from_pretrained(path, device=this_device(device), dtype=torch.float32, progress=False)


class Losses(TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, arguments, state, control, logs=None, **rest):
        if "loss" in (logs or {}):
            self.values.append(logs["loss"])


def main(load=load):
    device = start()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rows = [{"input_ids": row, "labels": row} for ids in batches() for row in ids]
    with shared_folder(make_tiny) as path, tempfile.TemporaryDirectory() as output:
        model = load(path, device)
        arguments = TrainingArguments(
            output_dir=output, max_steps=STEPS, per_device_train_batch_size=BATCH // ranks, learning_rate=1e-3,
            logging_steps=1, lr_scheduler_type="constant", weight_decay=0.01, max_grad_norm=0.0, report_to=[], save_strategy="no",
            disable_tqdm=True, use_cpu=device == "cpu", dataloader_pin_memory=False, seed=1,
        )  # fmt: skip
        losses = Losses()
        Trainer(model, arguments, train_dataset=rows, callbacks=[losses]).train()
    return say(losses.values)


if __name__ == "__main__":
    main()
