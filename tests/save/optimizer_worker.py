"""Optimizer state on forked gloo ranks: `lading.save(…, optimizer=)` in one layout, `lading.materialize(…, optimizer=)`
in another. The measure is one process of plain torch, which takes all steps without a save; and what DCP's
`get_optimizer_state_dict` gathers. Gradients are made by name, so that every layout has the same. Each case answers
what is wrong on this rank; an empty list is a case that holds."""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import save_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import LAYOUTS, refused, same_everywhere, shard, world_of
from safetensors.torch import load_file, save_file
from save_worker import by_case, guarded
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

import lading

RANKS_DEADLINE_S = 250
BEFORE, AFTER = 3, 2  # steps before the save, and after the load
IDLE = "blocks.0.norm.bias"  # which never gets a gradient, and so has no state


def adamw(decayed, others):
    groups = [{"params": decayed, "weight_decay": 0.1, "lr": torch.tensor(2e-3)}, {"params": others, "betas": (0.8, 0.95)}]
    return torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)


def sgd(decayed, others):
    return torch.optim.SGD([*decayed, *others], lr=0.1, momentum=0.9, nesterov=True)


def adafactor(decayed, others):
    return torch.optim.Adafactor([*decayed, *others], lr=0.1)


OPTIMIZERS = {"adamw": adamw, "sgd": sgd}
# torch's own step of an Adafactor fails with sharded gradients, so that such an optimizer has no state.
OF_LAYOUT = {"one": OPTIMIZERS | {"adafactor": adafactor}, "ddp": OPTIMIZERS | {"adafactor": adafactor}}


def main(layouts):
    """{"CASE in LAYOUT": [problem of a rank, …]}"""
    scratch = Path(os.environ["LADING_SCRATCH"])
    answers = {f"{name} in one": guarded_alone(lambda name=name: straight(name, scratch)) for name in OF_LAYOUT["one"]}
    for phase in (saved_in, loaded_in):
        for layout in layouts:
            by_rank = run_ranks(world_of(layout), phase, RANKS_DEADLINE_S, layout, layouts, scratch)
            answers |= {f"{case} in {layout}": found for case, found in by_case(by_rank).items()}
    for name in OF_LAYOUT["one"]:
        for layout in layouts:
            if name in OF_LAYOUT.get(layout, OPTIMIZERS) and is_tried(name, layout, "one"):
                case = f"{name} of {layout} in one"
                answers[case] = guarded_alone(lambda: resumed("one", None, name, scratch / f"{layout}-{name}", scratch))
    return answers


def guarded_alone(case):
    return guarded(case, barrier=False)


def is_tried(name, source, layout):
    """Every pair with AdamW. All layouts write the same files, so a few pairs do for others."""
    return name == "adamw" or source in ("one", layout)


# ---- steps


def model_of(seed):
    torch.manual_seed(seed)
    return models.MODELS["small"]()


def optimizer_for(name, model):
    trained = [one for one in model.parameters() if one.requires_grad]
    make = (OPTIMIZERS | {"adafactor": adafactor})[name]
    return make([one for one in trained if one.dim() > 1], [one for one in trained if one.dim() < 2])


def step(model, optimizer, number):
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or name == IDLE:
            continue
        seed = int(hashlib.sha256(f"{name}{number}".encode()).hexdigest()[:8], 16)
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.grad = whole
    optimizer.step()
    optimizer.zero_grad()


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def straight(name, scratch):
    """Plain torch: all steps in one process. The files that the others are compared with."""
    model = model_of(0)
    optimizer = optimizer_for(name, model)
    for number in range(BEFORE):
        step(model, optimizer, number)
    save_file(state_of(model, optimizer), scratch / f"{name}-before.safetensors")
    lading.save(model, scratch / f"one-{name}", optimizer=optimizer, group=False)
    for number in range(BEFORE, BEFORE + AFTER):
        step(model, optimizer, number)
    save_file(state_of(model, optimizer), scratch / f"{name}-after.safetensors")
    return []


def state_of(model, optimizer):
    """{name: whole tensor}: parameters, and their state with steps."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = whole(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}.{key}"] = whole(value)
    return found


def compared(found, wanted):
    problems = []
    if found.keys() != wanted.keys():
        problems.append(f"the tensors are {sorted(found.keys() ^ wanted.keys())[:6]} otherwise")
    for name in found.keys() & wanted.keys():
        if found[name].dtype != wanted[name].dtype or not torch.equal(found[name], wanted[name]):
            problems.append(f"{name} differs by {(found[name] - wanted[name]).abs().max()}")
    return problems[:6]


# ---- phases


def meshed(layout):
    sizes, names = zip(*((size, name) for name, size in LAYOUTS[layout]), strict=True)
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def saved_in(rank, layout, layouts, scratch):
    mesh = meshed(layout)
    found = {}
    for name in OF_LAYOUT.get(layout, OPTIMIZERS):
        found[f"{name} saved"] = guarded(lambda name=name: saved(layout, mesh, rank, name, scratch))
    return found


def saved(layout, mesh, rank, name, scratch):
    model = model_of(0)
    shard(model, layout, mesh)
    optimizer = optimizer_for(name, model)
    for number in range(BEFORE):
        step(model, optimizer, number)
    out = scratch / f"{layout}-{name}"
    report = lading.save(model, out, optimizer=optimizer, timeout=60)
    wanted = load_file(scratch / f"{name}-before.safetensors")
    problems = compared(state_of(model, optimizer), wanted)
    problems += as_one_process(report, out, scratch / f"one-{name}") if rank == 0 else []
    return problems + as_dcp_gathers(model, optimizer, report)


def as_one_process(report, out, wanted):
    """File by file, bit by bit."""
    problems = []
    files = sorted(path.name for path in (out / "optimizer").iterdir())
    if files != sorted(path.name for path in (wanted / "optimizer").iterdir()) or "optimizer.json" not in files:
        problems.append(f"the files are {files}")
    for name in ("model.safetensors", "optimizer/model.safetensors", "optimizer/optimizer.json"):
        if (out / name).read_bytes() != (wanted / name).read_bytes():
            problems.append(f"{name} is not that of one process")
    if report.optimizer.path != out / "optimizer" or "optimizer/optimizer.json" not in report.beside:
        problems.append(f"the report has {report.optimizer.path} and {report.beside}")
    return problems


def as_dcp_gathers(model, optimizer, report):
    """`get_optimizer_state_dict`, whole, has the same tensors, numbers and options."""
    gathered = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() != 0:
        return []
    document = json.loads((report.optimizer.path / "optimizer.json").read_text())
    found = load_file(report.optimizer.path / "model.safetensors")
    problems = []
    for name, states in gathered["state"].items():
        for key, value in states.items():
            if key == "step":
                saved = document["parameters"].get(name, {"values": {}})["values"].get("step", {"value": 0.0})
                problems += [] if saved["value"] == value.item() else [f"{name}: the step is {saved}, not {value}"]
            elif f"{name}.{key}" in found and not torch.equal(found.pop(f"{name}.{key}"), value):
                problems.append(f"{name}.{key} is not what DCP gathers")
    problems += [f"DCP does not have {sorted(found)[:4]}"] if found else []
    for theirs, ours in zip(gathered["param_groups"], document["groups"], strict=True):
        options = {key: value for key, value in theirs.items() if key not in ("params", "param_names")}
        read = {key: _plain(value) for key, value in ours["options"].items()}
        wanted = {key: float(value) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
        if sorted(theirs["params"]) != sorted(ours["parameters"]) or read != wanted:
            problems.append(f"a group is {ours}, not {theirs}")
    return problems


def _plain(value):
    if isinstance(value, dict):
        return value["value"]
    return tuple(value) if isinstance(value, list) else value


def loaded_in(rank, layout, layouts, scratch):
    mesh = meshed(layout)
    found = {}
    for name in OF_LAYOUT.get(layout, OPTIMIZERS):
        for other in ("one", *layouts):
            if name in OF_LAYOUT.get(other, OPTIMIZERS) and is_tried(name, other, layout):
                source = scratch / f"{other}-{name}"
                found[f"{name} of {other}"] = guarded(lambda n=name, s=source: resumed(layout, mesh, n, s, scratch))
    for case in CASES.get(layout, ()):
        found[case.__name__] = guarded(lambda case=case: case(mesh, scratch))
    return found


def resumed(layout, mesh, name, source, scratch):
    """From what another layout has saved: the same state, and the same next steps."""
    if layout in ("fsdp2", "fsdp2x4", "hsdp"):
        with lading.skeleton():
            model = model_of(1)
    else:
        model = model_of(1)
    if layout != "one":
        shard(model, layout, mesh)
    optimizer = optimizer_for(name, model)
    if layout == "tp":  # an optimizer that has state already
        step(model, optimizer, 77)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    group = False if layout == "one" else None
    report = lading.materialize(model, source, optimizer=optimizer, group=group, timeout=60)
    problems = compared(state_of(model, optimizer), load_file(scratch / f"{name}-before.safetensors"))
    problems += [] if "was loaded" in str(report) else [f"the report says {report}"]
    for number in range(BEFORE, BEFORE + AFTER):
        step(model, optimizer, number)
    return problems + compared(state_of(model, optimizer), load_file(scratch / f"{name}-after.safetensors"))


# ---- cases


def sharded_with(optimizer_of, mesh):
    model = model_of(2)
    shard(model, "fsdp2", mesh)
    return model, optimizer_of(model)


def others_are_refused(mesh, scratch):
    """Another class, other groups, other parameters: all that differs, on all ranks, and nothing is changed."""
    problems = []

    def small_groups(model):
        first, *rest = [one for one in model.parameters() if one.requires_grad]
        return torch.optim.AdamW([{"params": [first]}, {"params": rest[:-1]}])

    for make, words in (
        (lambda model: optimizer_for("sgd", model), ("expected SGD, found AdamW", "Make a AdamW")),
        (small_groups, ("the optimizer has not",)),
        (lambda model: torch.optim.AdamW([one for one in model.parameters() if one.requires_grad]), ("companions",)),
    ):
        model, optimizer = sharded_with(make, mesh)
        before = {name: whole(one) for name, one in model.named_parameters()}
        error = refused(lambda: lading.materialize(model, scratch / "fsdp2-adamw", optimizer=optimizer, timeout=60))
        problems += same_everywhere(error.full_text())
        problems += [f"{word!r} is not in {error.full_text()}" for word in words if word not in error.full_text()]
        problems += compared({name: whole(one) for name, one in model.named_parameters()}, before)
        problems += ["the optimizer got state"] if optimizer.state else []
    return problems


def a_checkpoint_without_state_is_refused(mesh, scratch):
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    lading.save(model, scratch / "without", timeout=60)
    error = refused(lambda: lading.materialize(model, scratch / "without", optimizer=optimizer, timeout=60))
    return same_everywhere(error.full_text()) + ([] if "no optimizer state" in str(error) else [str(error)])


def before_the_first_step(mesh, scratch):
    """Options without state."""
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    report = lading.save(model, scratch / "fresh", optimizer=optimizer, timeout=60)
    model, other = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    other.param_groups[1] |= {"eps": 1.0, "foreach": True}
    lading.materialize(model, scratch / "fresh", optimizer=other, timeout=60)
    problems = [] if report.optimizer is None and not other.state else ["there is state"]
    group = other.param_groups[1]
    problems += [] if group["foreach"] is True else ["how the step is computed is not the optimizer's own"]
    return problems + ([] if group["eps"] == 1e-8 else ["the options were not loaded"])


def what_cannot_be_saved(mesh, scratch):
    """All of it is named, on all ranks, and nothing is written."""
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    step(model, optimizer, 0)
    first = optimizer.param_groups[0]["params"][0]
    optimizer.state[first]["local"] = torch.ones(3)
    optimizer.state[first]["history"] = [torch.ones(3)]
    optimizer.param_groups[0]["schedule"] = lambda step: 1.0
    error = refused(lambda: lading.save(model, scratch / "unsaved", optimizer=optimizer, timeout=60))
    words = ("'local' of it is a tensor of this rank alone", "'history' of it is a value of type list", "'schedule'")
    problems = same_everywhere(error.full_text())
    problems += [f"{word!r} is not in {error.full_text()}" for word in words if word not in error.full_text()]
    return problems + (["something was written"] if (scratch / "unsaved").exists() else [])


def ranks_that_differ(mesh, scratch):
    """Steps that are not those of another rank."""
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    step(model, optimizer, 0)
    optimizer.state[optimizer.param_groups[0]["params"][0]]["step"] += dist.get_rank()
    error = refused(lambda: lading.save(model, scratch / "unsaved", optimizer=optimizer, timeout=60))
    return same_everywhere(error.full_text()) + ([] if error.code == "ranks_differ" else [str(error)])


def a_rank_that_cannot_read(mesh, scratch):
    """The state fails after planning: neither the model nor the optimizer has changed."""
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    before = {name: whole(one) for name, one in model.named_parameters()}

    def progress(_):
        raise RuntimeError("enough")

    source = scratch / "fsdp2-adamw"
    error = refused(lambda: lading.materialize(model, source, optimizer=optimizer, progress=progress, timeout=60))
    problems = compared({name: whole(one) for name, one in model.named_parameters()}, before)
    problems += ["the optimizer got state"] if optimizer.state else []
    return problems + ([] if "enough" in error.full_text() else [error.full_text()])


def a_hook_that_raises(mesh, scratch):
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)

    def hook(*_):
        if dist.get_rank() == 1:
            raise RuntimeError("enough")

    optimizer.register_load_state_dict_post_hook(hook)
    source = scratch / "fsdp2-adamw"
    error = refused(lambda: lading.materialize(model, source, optimizer=optimizer, timeout=60))
    return same_everywhere(error.full_text()) + ([] if error.begun and "did not take" in str(error) else [str(error)])


def into_a_directory_that_exists(mesh, scratch):
    """Replaced as a whole: no state of an older save stays beside new weights."""
    model, optimizer = sharded_with(lambda model: optimizer_for("adamw", model), mesh)
    step(model, optimizer, 0)
    lading.save(model, scratch / "again", optimizer=optimizer, timeout=60)
    lading.save(model, scratch / "again", exist="replace", timeout=60)
    dist.barrier()
    return ["the old state is there"] if (scratch / "again" / "optimizer").exists() else []


CASES = {
    "fsdp2": (
        others_are_refused, a_checkpoint_without_state_is_refused, before_the_first_step, what_cannot_be_saved,
        ranks_that_differ, a_rank_that_cannot_read, a_hook_that_raises, into_a_directory_that_exists,
    )
}  # fmt: skip
