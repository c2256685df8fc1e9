"""transformers: under FSDP2 with ignore_mismatched_sizes=True, a tensor of another size is loaded on the ranks
whose part has the same size as in the file, and random on the others.

torchrun --nproc-per-node 4 transformers_fsdp_mismatch.py    # exit status 1: the bug is there
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

dist.init_process_group("gloo")
shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(shared)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
torch.manual_seed(0)
original = LlamaForCausalLM(LlamaConfig(vocab_size=13, **sizes))
if dist.get_rank() == 0:
    original.save_pretrained(shared[0])
dist.barrier()
model = LlamaForCausalLM.from_pretrained(
    shared[0],
    config=LlamaConfig(vocab_size=14, **sizes),
    ignore_mismatched_sizes=True,
    distributed_config=DistributedConfig(fsdp_size=dist.get_world_size()),
)
whole = model.lm_head.weight.detach().full_tensor()[:13]
rows = (whole == original.lm_head.weight).all(1).sum().item()
if dist.get_rank() == 0:
    print(f"{rows} of 13 rows are the file's; either all or none should be")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0 < rows < 13)
