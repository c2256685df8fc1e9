"""transformers: under FSDP2 each tensor of the file is cut by the placement of the parameter that it becomes, before it is
converted. Where one fused tensor becomes several, rows get mixed: k_proj holds rows of q and v.

torchrun --nproc-per-node 2 transformers_fsdp_fused.py     # exit status 1: the bug is there
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import NomicBertConfig, NomicBertModel
from transformers.distributed.configuration_utils import DistributedConfig

dist.init_process_group("gloo")
shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(shared)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
if dist.get_rank() == 0:
    NomicBertModel(NomicBertConfig(vocab_size=32, **sizes)).save_pretrained(shared[0])
dist.barrier()
right = NomicBertModel.from_pretrained(shared[0]).state_dict()
sharded = NomicBertModel.from_pretrained(
    shared[0], distributed_config=DistributedConfig(fsdp_size=dist.get_world_size())
)
wrong = []
for name, tensor in sharded.state_dict().items():
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if not torch.equal(whole, right[name]):
        wrong.append(name)
if dist.get_rank() == 0:
    print("wrong:", wrong)
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(bool(wrong))
