"""PEFT: LoRA on a base that is on meta. The base's weights come from the checkpoint, under the names that PEFT gave them;
the adapters from their own initialisers, the same on any number of ranks.

python examples/integrations/peft_lora.py
torchrun --nproc-per-node 2 examples/integrations/peft_lora.py
"""

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from training import make_tiny, say, shared_folder, start, this_device, train
from transformers import AutoConfig, AutoModelForCausalLM

import lading

LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])


def with_adapters(model):
    return get_peft_model(model, LORA)


def load(path, device):
    with lading.skeleton():
        model = with_adapters(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32))
    device = this_device(device)
    if dist.is_initialized():
        for layer in model.get_base_model().model.layers:
            fully_shard(layer)
        fully_shard(model)
        device = None  # the mesh's
    lading.materialize(model, path, device=device, progress=False)
    return model


def main(load=load):
    device = start()
    with shared_folder(make_tiny) as path:
        return say(train(load(path, device), device=device))


if __name__ == "__main__":
    main()
