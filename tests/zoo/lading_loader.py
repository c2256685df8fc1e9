"""lading as a loader of the zoo's checkers.

python zoo.py check --loader lading_loader:load --list dev40.txt
python zoo_ranks.py check --layout fsdp2,tp --loader lading_loader:load_on_ranks --list dev40.txt

`load_every_build` and `load_by_plan` do more on the same ranks: they build the model in all three ways, one after the
other, load and compare each, and give the last to the checker. `load_by_dcp` loads through `torch.distributed.checkpoint`. With the variable LADING_ZOO_FORWARD, a folder, a
forward pass follows, and what came out is written there. `load_by_plan` shards by the tensor parallel plan that
transformers has for a model, then by FSDP2 if the layout says so.
"""

import copy
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import forward
import lading
import zoo
from zoo_ranks import NotApplicable, apply_layout, blocks, is_dtensor, local_differences, ties

FORWARD = "LADING_ZOO_FORWARD"


def load(model, folder):
    lading.materialize(model, folder, device="cpu", progress=False)
    return model


# ---- builds


def under_skeleton(model_type):
    config, name = zoo.build_config(model_type)
    with lading.skeleton():
        return zoo.model_class(name, config)(config)


def under_meta(model_type):
    return zoo.build(model_type, "meta")


def under_accelerate(model_type):
    from accelerate import init_empty_weights

    config, name = zoo.build_config(model_type)
    with init_empty_weights(include_buffers=True):
        return zoo.model_class(name, config)(config)


BUILDS = {"skeleton": under_skeleton, "meta": under_meta, "accelerate": under_accelerate}


# ---- loaders on ranks


def load_on_ranks(model, folder, ctx):
    return load(model, folder)


def load_every_build(model, folder, ctx):
    problems = []
    for how in ("skeleton", "accelerate"):
        problems += _problems(how, _sharded(BUILDS[how](ctx.model_type), ctx, _shard_like_checker), folder, ctx)
    problems += _problems("meta", model, folder, ctx)
    return _forwarded(model, ctx, _shard_like_checker, problems)


def load_by_dcp(model, folder, ctx):
    """Fills the state dict by `dcp.load`, from a file with the model's own names. Before that the model is loaded, for what
    no state dict has, and every tensor of the state dict is overwritten."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    load(model, folder)
    plain = Path(folder).with_name(f"{Path(folder).name}-{ctx.layout}-plain")
    if ctx.rank == 0:
        plain.mkdir(exist_ok=True)
        save_state(ctx.reference.state_dict(), plain / "model.safetensors")
    dist.barrier()
    state = model.state_dict()
    with torch.no_grad():
        for value in state.values():
            (value._local_tensor if is_dtensor(value) else value).fill_(1)
    dcp.load(state, storage_reader=lading.dcp.Reader(plain, strict=True, progress=False))
    return model


def save_state(state, path):
    """Names of one memory once: safetensors writes no shared memory."""
    from safetensors.torch import save_file

    seen = {}
    for name, value in state.items():
        seen.setdefault((value.data_ptr(), tuple(value.shape), value.stride()) if value.numel() else name, (name, value))
    save_file({name: value.contiguous().clone() for name, value in seen.values()}, path)


def load_by_plan(model, folder, ctx):
    if not getattr(model, "tp_plan", None):
        raise NotApplicable("transformers has no tensor parallel plan for it")
    problems = []
    for how, build in BUILDS.items():
        try:
            model = _sharded(build(ctx.model_type), ctx, _shard_by_plan)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise NotApplicable(f"not by transformers' own plan: {error}") from error
        lost = zoo.tie_groups(ctx.reference) - ties(model)
        if lost:
            raise NotApplicable(f"transformers' own plan breaks the tie {min(map(sorted, lost))[:3]}")
        problems += _problems(how, model, folder, ctx)
    return _forwarded(model, ctx, _shard_by_plan, problems)


load_by_plan.own_model = True


def _shard_like_checker(model, ctx):
    apply_layout(model, ctx.layout, ctx.mesh)


def _shard_by_plan(model, ctx):
    from torch.distributed.fsdp import fully_shard
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    apply_tensor_parallelism(model, ctx.mesh["tp"])
    model.tie_weights()  # as from_pretrained does: the plan makes one new parameter per name
    if ctx.layout == "fsdp2tp":
        for block in blocks(model):
            fully_shard(block, mesh=ctx.mesh["dp"])
        fully_shard(model, mesh=ctx.mesh["dp"])


def _sharded(model, ctx, shard):
    shard(model, ctx)
    for name, (_, value) in zoo.tensors(model).items():
        if is_dtensor(value):
            ctx.spec[name] = tuple(map(str, value.placements))
    return model


def _problems(how, model, folder, ctx):
    """Loads, and says what is not as it was in the original, or another object than before."""
    before = {name: id(value) for name, (_, value) in zoo.tensors(model).items()}
    lading.materialize(model, folder, device="cpu", progress=False)
    found = local_differences(ctx.reference, model, ctx)[0] + _attribute_differences(ctx.reference, model)
    after = {name: id(value) for name, (_, value) in zoo.tensors(model).items()}
    found += [("object", name, "another than before") for name in before if after.get(name) != before[name]]
    return [f"built under {how}: {zoo.summary(found)}"] if found else []


def _attribute_differences(original, model):
    """Of tensors that are not registered. One that is a parameter too, as an LSTM's are, has been compared as such."""
    registered = {id(value) for _, value in zoo.tensors(model).values()}
    there = zoo.plain_tensors(model)
    found = []
    for name, value in zoo.plain_tensors(original).items():
        other = there.get(name)
        if other is None or (id(other) not in registered and (other.is_meta or not zoo.same_bits(value, other))):
            found.append(("attribute", name, "absent" if other is None else str(other.device)))
    return found


# ---- the forward pass


def _forwarded(model, ctx, shard, problems):
    """After a forward pass, before which the ranks tell each other of problems: nobody waits for one that has some."""
    import torch.distributed as dist

    everybody = [None] * ctx.world
    dist.all_gather_object(everybody, problems)
    told = [f"rank {rank}, {problem}" for rank, mine in enumerate(everybody) for problem in mine]
    if told:
        raise AssertionError("; ".join(told))
    folder = os.environ.get(FORWARD)
    if folder:
        kind = "plan" if shard is _shard_by_plan else "layout"
        path = Path(folder) / f"{kind}.{ctx.layout}.{ctx.model_type}.{ctx.rank}.json"
        path.write_text(json.dumps(_forward(model, ctx, shard)))
    return model


def _forward(model, ctx, shard):
    """How far the outputs are from the original's, and from those of a twin: the original itself, sharded.

    {"distance": …, "twin": …, "note": …}, or {"cannot": why}: the original, or the twin, has no forward pass.
    """
    if ctx.layout in ("tp", "fsdp2tp") and shard is not _shard_by_plan:
        return {"cannot": "only the geometry of tensor parallelism"}
    try:
        given, wanted, note = forward.reference(ctx.reference)
    except forward.CannotRunError as error:
        return {"cannot": f"the original: {error}"}
    twin = copy.deepcopy(ctx.reference)
    try:
        shard(twin, ctx)
        expected = _outputs(twin, given, ctx)
    except Exception as error:  # noqa: BLE001  # whatever a framework says
        return {"cannot": f"the original, sharded: {zoo.describe(error)}"}
    got = _outputs(model, given, ctx)
    return {"distance": forward.distance(wanted, got), "twin": forward.distance(expected, got), "note": note}


def _outputs(model, given, ctx):
    from torch.nn.parallel import DistributedDataParallel

    found = forward.outputs(DistributedDataParallel(model) if ctx.layout == "ddp" else model, given)
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    return found
