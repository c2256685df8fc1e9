"""torch.distributed.checkpoint: `dcp.load` fills the state dict of an FSDP2 model through lading.

torchrun --nproc-per-node 2 examples/python/dcp_fsdp2.py
"""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import Model, compare, sample, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

kind = start()
with sample(kind) as (checkpoint, trained):
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    model = Model().to(kind)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    state = model.state_dict()  # views of the model's memory, which dcp.load fills
    reader = lading.dcp.Reader(checkpoint)
    dcp.load(state, storage_reader=reader)
    print(reader.report)

    of_files = lading.fingerprint(checkpoint)  # each rank reads the files once more
    assert lading.fingerprint(model).differences(of_files) == {}

    compare(model, trained)
