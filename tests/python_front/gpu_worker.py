"""The cases of test_gpu.py. Each answers what is wrong; an empty list is a case that holds."""

import os
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import ranks_models as models
import test_several_stages as stages
import torch
import torch.distributed as dist
import zoo
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import lading

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
IDS = torch.arange(20).reshape(2, 10)
TOLERANCE = 1e-4  # of outputs: a GPU adds up in another order


def main():
    """{"device": where, "cases": {case: problems}}"""
    folder = Path(tempfile.mkdtemp())
    models.save(models.original("small"), folder / "small")
    stages.original().save_pretrained(folder / "llama")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    backend = "gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
    found = {}
    for case in CASES:
        try:
            found[case.__name__] = case(folder)
        except Exception:
            found[case.__name__] = [traceback.format_exc()[-3000:]]
    dist.destroy_process_group()
    return {"device": DEVICE, "cases": found}


def skeleton():
    with lading.skeleton():
        return models.MODELS["small"]()


def load(model, folder, **options):
    return lading.materialize(model, folder / "small", progress=False, timeout=60, **options)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def compare(model, want=None, device=DEVICE, parameters_on=None):
    """Bits, dtype and device of every parameter and buffer, and the tie."""
    expected, found = models.tensors(want or models.original("small")), models.tensors(model)
    problems = [] if set(found) == set(expected) else [f"names differ: {sorted(set(found) ^ set(expected))}"]
    for name in sorted(set(found) & set(expected)):
        tensor = found[name]
        place = parameters_on if parameters_on and isinstance(tensor, torch.nn.Parameter) else device
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if str(local.device) != place:
            problems.append(f"{name} is on {local.device}, not on {place}")
        elif not zoo.same_bits(whole(tensor).cpu(), expected[name].detach()):
            problems.append(f"{name} is wrong")
    return problems + ([] if model.head.weight is model.embed.weight else ["the tie is gone"])


def same_output(model, want=None):
    """A forward pass, and a backward one."""
    output = model(IDS.to(DEVICE))
    output.float().sum().backward()
    expected = (want or models.original("small"))(IDS).detach()
    apart = float((output.detach().cpu().float() - expected.float()).abs().max())
    return [] if apart < TOLERANCE else [f"the output differs by {apart}"]


# ---- cases


def from_meta(folder):
    model = skeleton()
    report = load(model, folder, device=DEVICE)
    problems = [] if report.device == DEVICE else [f"the report speaks of {report.device}"]
    return problems + compare(model) + same_output(model)


def a_real_model_moves_to_the_device(folder):
    """Also what no file has: tables that the constructor made on the CPU."""
    model = models.MODELS["small"]()
    load(model, folder, device=DEVICE)
    return compare(model) + same_output(model)


def kept_values_move_to_the_device(folder):
    """R14: what the user keeps is on the CPU, and belongs beside the rest."""
    model = models.MODELS["small"]()
    with torch.no_grad():
        model.blocks[0].up.bias.fill_(3)
    load(model, folder, device=DEVICE, keep=["blocks.0.up.bias"])
    want = models.original("small")
    with torch.no_grad():
        want.blocks[0].up.bias.fill_(3)
    return compare(model, want)


def memory_on_the_device_is_written_in_place(folder):
    model = models.MODELS["small"]().to(DEVICE)
    before = {name: tensor.data_ptr() for name, tensor in models.tensors(model).items()}
    load(model, folder)
    moved = [name for name, tensor in models.tensors(model).items() if tensor.data_ptr() != before[name]]
    return compare(model) + [f"{name} has other memory" for name in moved]


def in_bfloat16(folder):
    """Rounded on the GPU as on the CPU. What a constructor computes stays as it is made."""
    model = skeleton()
    load(model, folder, device=DEVICE, dtype=torch.bfloat16, cast="exact")
    want = models.original("small")
    in_the_file = set(want.state_dict())
    for name, tensor in models.tensors(want).items():
        if name in in_the_file and tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.bfloat16)
    return compare(model, want)


def read_again_and_compared(folder):
    model = skeleton()
    report = load(model, folder, device=DEVICE, verify="full")
    problems = [] if report.verification and report.verification["ok"] else [f"not verified: {report.verification}"]
    return problems + compare(model)


def audit_names_the_one_stranded_buffer(folder):
    """On a CPU it can be on meta only."""
    model = skeleton()
    load(model, folder, device=DEVICE)
    right = lading.audit(model, folder / "small", timeout=60)
    planted = model.blocks[1].scale.to("meta" if DEVICE == "cpu" else "cpu")
    model.blocks[1].scale = planted
    found = {(one.code, one.tensor) for one in lading.audit(model, folder / "small", timeout=60).problems}
    expected = {("meta" if DEVICE == "cpu" else "device", "blocks.1.scale")}
    return [str(right)] * (not right.ok) + ([] if found == expected else [f"it says {sorted(found)}"])


def sharded(model, **options):
    mesh = init_device_mesh(torch.device(DEVICE).type, (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2(folder):
    model = sharded(skeleton())
    load(model, folder)
    return compare(model) + same_output(model)


def fsdp2_offloaded(folder):
    """R36: parameters on the host, page-locked where there is a GPU; buffers where the model computes."""
    model = sharded(skeleton(), offload_policy=CPUOffloadPolicy(pin_memory=DEVICE != "cpu"))
    load(model, folder)
    problems = compare(model, parameters_on="cpu")
    if DEVICE != "cpu":
        parts = {name: tensor._local_tensor for name, tensor in model.named_parameters()}
        problems += [f"{name} is not pinned" for name, part in parts.items() if part.numel() and not part.is_pinned()]
    return problems + same_output(model)


def fsdp1(folder):
    """A unit of FSDP1, whose memory `empty_parameters` makes on this rank's device."""
    model = FullyShardedDataParallel(
        skeleton(), param_init_fn=lading.empty_parameters, device_id=torch.device(DEVICE), use_orig_params=True
    )
    load(model, folder)
    problems = [f"{name} is on {one.device}" for name, one in model.named_parameters() if str(one.device) != DEVICE]
    return problems + same_output(model)


def several_stages(folder):
    return [text for how in ("skeleton", "meta") for text in stages.alone(folder / "llama", how, DEVICE)]


def saved_from_the_device(folder):
    """R69: whole, sharded, offloaded, and one weight that is not contiguous: the values that torch itself reads."""
    whole_model, offloaded = skeleton(), skeleton()
    load(whole_model, folder, device=DEVICE)
    whole_model.register_buffer("turned", torch.arange(12.0, device=DEVICE).reshape(3, 4).t())
    sharded_model = sharded(skeleton())
    load(sharded_model, folder)
    sharded(offloaded, offload_policy=CPUOffloadPolicy(pin_memory=DEVICE != "cpu"))
    load(offloaded, folder)
    problems = []
    for name, model in {"whole": whole_model, "sharded": sharded_model, "offloaded": offloaded}.items():
        out = folder / f"saved-{name}"
        lading.save(model, out, progress=False, timeout=60)
        found, wanted = load_file(out / "model.safetensors"), model.state_dict()
        problems += [f"{name}: {key}" for key in found if not zoo.same_bits(found[key], whole(wanted[key]).cpu())]
        problems += [] if found.keys() | {"head.weight"} == wanted.keys() else [f"{name} has {sorted(found)}"]
    return problems


CASES = (
    from_meta,
    a_real_model_moves_to_the_device,
    kept_values_move_to_the_device,
    memory_on_the_device_is_written_in_place,
    in_bfloat16,
    read_again_and_compared,
    audit_names_the_one_stranded_buffer,
    fsdp2,
    fsdp2_offloaded,
    fsdp1,
    several_stages,
    saved_from_the_device,
)
