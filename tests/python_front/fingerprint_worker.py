"""`lading.fingerprint` of models on gloo ranks, in several layouts, against the files. Run by geometry.launch."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ranks_common
import ranks_models as models
import torch
from geometry.launch import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

LAYOUTS = {
    "ddp": (("dp", 2),),
    "fsdp2": (("dp", 2),),
    "fsdp2x3": (("dp", 3),),
    "fsdp2x4": (("dp", 4),),
    "hsdp": (("replicate", 2), ("shard", 2)),
    "tp": (("tp", 2),),
    "fsdp2tp": (("dp", 2), ("tp", 2)),
}
DEADLINE_S = 60


def main(layouts):
    """{layout: {case: [what is wrong on a rank, …]}}"""
    folder = ranks_common.make_checkpoints(Path(os.environ["LADING_SCRATCH"]))
    answers = {}
    for layout in layouts:
        world = 1
        for _, size in LAYOUTS[layout]:
            world *= size
        by_rank = run_ranks(world, rank_main, DEADLINE_S, layout, folder)
        answers[layout] = {case: sum((found[case] for found in by_rank), []) for case in by_rank[0]}
    answers["refused"] = {"replicas": sum(run_ranks(2, replicas_that_differ, DEADLINE_S), [])}
    return answers


def rank_main(_rank, layout, folder):
    names, sizes = zip(*LAYOUTS[layout], strict=True)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    found = {}
    for name in models.MODELS:
        model = models.original(name)
        ranks_common.shard(model, layout, mesh)
        found[name] = compared(model, lading.fingerprint(folder / name))
    if layout == "fsdp2":
        found["gathered"] = after_a_forward_pass(mesh, folder)
    return found


def compared(model, files):
    before = {name: tensor.clone() for name, tensor in local_state(model).items()}
    of_model = lading.fingerprint(model)
    problems = [f"{name}: {what}" for name, what in of_model.differences(files).items()]
    if {name for name, _ in model.state_dict().items()} != set(of_model.tensors):
        problems.append(f"it has {sorted(of_model.tensors)}")
    after = local_state(model)
    problems += [f"{name} was changed" for name in before if not torch.equal(before[name], after[name])]
    last = next(name for name in sorted(before, reverse=True) if name.endswith("weight"))
    flip_everywhere(after[last])
    changed = lading.fingerprint(model).differences(files)
    tied = {last, *of_model.tensors[last].aliases}
    if set(changed) - tied or set(changed.values()) != {"values"}:
        problems.append(f"after a flip in {last} they differ in {changed}")
    return problems


def flip_everywhere(memory):
    """The lowest bit of each element that a rank has: replicas stay alike."""
    with torch.no_grad():
        bits = memory.view(torch.int32) if memory.is_contiguous() else memory.contiguous().view(torch.int32)
        bits ^= 1


def local_state(model):
    return {name: getattr(tensor, "_local_tensor", tensor) for name, tensor in model.state_dict().items()}


def after_a_forward_pass(mesh, folder):
    """Its root's parameters stay gathered."""
    model = models.original("small")
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model(torch.arange(4))
    return [str(one) for one in lading.fingerprint(model).differences(lading.fingerprint(folder / "small")).items()]


def replicas_that_differ(rank):
    model = models.original("small")
    if rank == 1:
        with torch.no_grad():
            model.blocks[0].up.weight[3, 4] += 1
    try:
        lading.fingerprint(model)
    except lading.LadingError as error:
        right = error.rule == "R17" and error.tensors == ("blocks.0.up.weight",)
        return [] if right else [error.full_text()]
    return ["different replicas were accepted"]
