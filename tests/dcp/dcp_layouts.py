"""Every layout fills every model, and every rank holds the bits of the file, and those of DCP's own reader."""

import ranks_common
import ranks_models as models
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import lading.dcp

LAYOUTS = {
    "fsdp2": (("dp", 2),),
    "fsdp2x3": (("dp", 3),),  # no dim of a model divides by 3
    "hsdp": (("replicate", 2), ("shard", 2)),
    "tp": (("tp", 2),),
    "fsdp2tp": (("dp", 2), ("tp", 2)),
}


def world_of(layout):
    size = 1
    for _, length in LAYOUTS[layout]:
        size *= length
    return size


def run(_rank, layout, folder):
    names, sizes = zip(*LAYOUTS[layout], strict=True)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    return {name: filled_and_compared(layout, mesh, name, folder / name) for name in models.MODELS}


def sharded(layout, mesh, name):
    """With other values than the file has, under every name."""
    model = models.fill(models.MODELS[name](), seed=99)
    ranks_common.shard(model, layout, mesh)
    return model


def filled_and_compared(layout, mesh, name, folder):
    ours, theirs = sharded(layout, mesh, name), sharded(layout, mesh, name)
    wanted = in_files(folder)
    state = ours.state_dict()
    before = {key: id(tensor) for key, tensor in state.items()}
    reader = lading.dcp.Reader(folder, verify="full", timeout=60)
    dcp.load(state, storage_reader=reader)
    problems = [f"{key} is another object" for key, identity in before.items() if id(state[key]) != identity]
    problems += differences(ours, wanted)
    if sorted(reader.report.tensors) != sorted(state):
        problems.append(f"the report has {sorted(reader.report.tensors)}")

    in_their_way = {key: tensor for key, tensor in theirs.state_dict().items() if key in wanted}  # ties are missing keys to it
    dcp.load(in_their_way, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    after = ours.state_dict()
    problems += [
        f"{key} is not as DCP's own reader has it"
        for key, tensor in in_their_way.items()
        if not torch.equal(local(tensor), local(after[key]))
    ]
    return problems


def in_files(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def differences(model, wanted):
    """Of the model itself, not of the state dict that was filled: they share memory."""
    problems = []
    seen = {}
    for key, tensor in model.state_dict().items():
        memory = local(tensor)
        full = wanted.get(key)
        if full is None:  # the other name of a tie
            full = seen.get(memory.data_ptr())
        if full is None:
            problems.append(f"{key} is in no file, and no tie")
            continue
        seen.setdefault(memory.data_ptr(), full)
        part = ranks_common.part(full, tensor) if isinstance(tensor, DTensor) else full
        if memory.shape != part.shape and memory.numel() + part.numel():
            problems.append(f"{key} has the shape {list(memory.shape)}, not {list(part.shape)}")
        elif not torch.equal(memory.reshape(part.shape), part):
            problems.append(f"{key} has other values")
    return problems


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
