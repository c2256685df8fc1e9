"""torch.distributed.checkpoint: set_model_state_dict(strict=True, full_state_dict=True) says that all keys matched although
one is missing, and leaves its parameter unwritten.

python torch_dcp_strict.py                 # exit status 1: the bug is there
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
dist.init_process_group("gloo")
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
fully_shard(model)
state = {"0.weight": torch.ones(4, 4)}  # and no 1.weight
try:
    options = StateDictOptions(full_state_dict=True, strict=True, broadcast_from_rank0=False)
    said = set_model_state_dict(model, state, options=options)
except (RuntimeError, KeyError) as error:
    print("refused:", error)
    sys.exit(0)
print(said, {name: str(parameter.device) for name, parameter in model.named_parameters()})
sys.stdout.flush()
os._exit(model[1].weight.is_meta)
