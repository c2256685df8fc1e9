"""accelerate with FSDP2: `prepare` shards a model that is on meta, lading fills it on every rank.

accelerate launch --use-fsdp --fsdp-version 2 --num-processes 2 examples/integrations/accelerate_fsdp2.py

accelerate would let rank 0 load the model and send it to the others (`cpu_ram_efficient_loading`). Here nobody sends
anything: that option is off, and every rank reads its own part. Without GPUs accelerate knows no FSDP, and says nothing
about it; there its own sharding function is called by hand.
"""

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from training import make_tiny, say, shared_folder, start, train
from transformers import AutoConfig, AutoModelForCausalLM

import lading


def plugin():
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        cpu_ram_efficient_loading=False,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )


def prepare(model, device):
    if device == "cuda":
        # accelerate insists on an optimizer, and gives it the sharded parameters by their old addresses. On meta these
        # are all alike, so this one is thrown away: make yours once the model is filled.
        return Accelerator(fsdp_plugin=plugin()).prepare(model, torch.optim.SGD(model.parameters()))[0]
    from types import SimpleNamespace

    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.device_mesh import init_device_mesh

    return fsdp2_prepare_model(
        SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=plugin()),
            mixed_precision="no",
            is_main_process=dist.get_rank() == 0,
            device=torch.device("cpu"),
            torch_device_mesh={("fsdp",): init_device_mesh("cpu", (dist.get_world_size(),))},
            parallelism_config=SimpleNamespace(fsdp_dim_names=["fsdp"]),
        ),
        model,
    )


def load(path, device):
    with lading.skeleton():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32)
    model = prepare(model, device)
    lading.materialize(model, path, progress=False)
    return model


def main(load=load):
    os.environ.setdefault("FSDP_VERSION", "2")
    device = start()
    with shared_folder(make_tiny) as path:
        return say(train(load(path, device), device=device))


if __name__ == "__main__":
    main()
