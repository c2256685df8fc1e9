"""What each rank does: the models under every layout, and single cases of some layouts. A case answers its problems."""

import gc
import time
import traceback

import lading
import ranks_models as models
import torch
import torch.distributed as dist
from ranks_common import LAYOUTS, build, compare, load_and_compare, part_of, refused, same_everywhere
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

BUILDS = (
    ("small", "skeleton"),
    ("small", "meta"),
    ("small_untied", "skeleton"),
    ("llama", "meta"),
    ("llama_tied", "skeleton"),
)


def run(layout, rank, folder):
    mesh = init_device_mesh(
        "cpu", tuple(size for _, size in LAYOUTS[layout]), mesh_dim_names=tuple(name for name, _ in LAYOUTS[layout])
    )
    found = {}
    for name, how in BUILDS:
        found[f"{name}, {how}"] = guarded(lambda name=name, how=how: load_and_compare(layout, mesh, name, how, folder))
    for case in EXTRA.get(layout, ()):
        found[case.__name__] = guarded(lambda case=case: case(mesh, rank, folder))
    return found


def guarded(case):
    """A case that raises is a failed one. All ranks wait for each other before the next."""
    try:
        problems = case()
    except Exception:
        problems = [traceback.format_exc()[-3000:]]
    dist.barrier()
    gc.collect()
    return problems


def bad_keys_are_listed_together(mesh, rank, folder):
    """Missing, unexpected and of another shape: one message, on every rank, and nothing changed."""
    from safetensors.torch import load_file, save_file

    bad = folder / "bad_keys"
    if rank == 0:
        state = load_file(folder / "small" / "model.safetensors")
        del state["blocks.0.down.bias"]
        state["blocks.1.down.bias"] = torch.zeros(13)
        state["surplus.weight"] = torch.zeros(2)
        bad.mkdir(exist_ok=True)
        save_file(state, bad / "model.safetensors")
    dist.barrier()
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    before = {key: (id(tensor), tensor.is_meta) for key, tensor in models.tensors(model).items()}
    error = refused(lambda: lading.materialize(model, bad, timeout=60))
    problems = same_everywhere(error.full_text())
    for name in ("blocks.0.down.bias", "blocks.1.down.bias", "surplus.weight"):
        if name not in error.full_text():
            problems.append(f"{name} is not in the message: {error}")
    if error.begun or {key: (id(tensor), tensor.is_meta) for key, tensor in models.tensors(model).items()} != before:
        problems.append("the model was changed")
    return problems


def values_that_ranks_hand_in_must_be_the_same(mesh, rank, folder):
    """R17: a value of the caller's that differs would make one tensor of two."""
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    given = {"blocks.0.up.weight": torch.full((20, 12), float(rank))}
    error = refused(lambda: lading.materialize(model, folder / "small", external=given, timeout=60))
    problems = same_everywhere(error.full_text())
    if "blocks.0.up.weight" not in error.full_text() or not all(one.is_meta for one in models.tensors(model).values()):
        problems.append(f"not refused as it should be: {error}")
    return problems


def wrong_words_on_one_rank_reach_all(mesh, rank, folder):
    """R44: an argument that only one rank has wrong."""
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    words = {"cast": "bogus"} if rank else {}
    error = refused(lambda: lading.materialize(model, folder / "small", timeout=60, **words))
    problems = same_everywhere(error.full_text()) + ([] if "bogus" in error.full_text() else [error.full_text()])
    lading.materialize(model, folder / "small", timeout=60)  # the next load is nobody's last one
    return problems + compare(model, models.original("small"))


def an_audit_leaves_a_gathered_model_usable(mesh, rank, folder):
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    lading.materialize(model, folder / "small", timeout=60)
    ids = torch.arange(20).reshape(2, 10)
    output = model(ids)
    report = lading.audit(model, folder / "small", timeout=60)
    output.sum().backward()
    again = model(ids)
    return [str(report)] * (not report.ok) + ([] if torch.equal(output, again) else ["another output"])


def one_rank_fails_and_all_are_told(mesh, rank, folder):
    """The last rank alone is refused: the others do not wait for the deadline, and are told why."""
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    checkpoint = folder / "small" if rank != dist.get_world_size() - 1 else folder / "nowhere"
    began = time.monotonic()
    error = refused(lambda: lading.materialize(model, checkpoint, timeout=60))
    problems = same_everywhere(error.full_text())
    if "nowhere" not in error.full_text():
        problems.append(f"the reason is not in the message: {error}")
    if time.monotonic() - began > 20:
        problems.append("the others waited")
    return problems


def ranks_that_differ_are_refused(mesh, rank, folder):
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)
    error = refused(
        lambda: lading.materialize(model, folder / "small", dtype="float64" if rank == 0 else "auto", timeout=60)
    )
    return same_everywhere(error.full_text()) + ([] if error.code == "ranks_differ" and error.rule == "R44" else [error.full_text()])


def more_layers_on_one_rank_are_refused(mesh, rank, folder):
    """Of a layer that FSDP2 cuts over ranks of which some do not have it, each tensor, with these ranks."""
    model = build("small", "skeleton")
    if rank == 0:
        del model.blocks[1]
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    error = refused(lambda: lading.materialize(model, folder / "small", device="cpu", timeout=60))
    said = {(problem.tensor.split(".")[1], problem.found) for problem in error.problems}
    told = error.code == "ranks_differ" and said == {("1", "no such tensor on rank 0")}
    return same_everywhere(error.full_text()) + ([] if told else [error.full_text()])


def a_rank_that_stays_away(mesh, rank, folder):
    """Nobody waits for ever."""
    if rank == 1:
        return []
    model = build("small", "skeleton")
    error = refused(lambda: lading.materialize(model, folder / "small", device="cpu", timeout=1))
    return [] if "rank 1 did not reach" in error.full_text() and error.exit_code == 7 else [error.full_text()]


def one_load_fails_and_nobody_has_weights(mesh, rank, folder):
    """After the plan, on one rank only: the others, which are done, do not take what they loaded."""
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh)

    def softcap(module, attribute):
        if rank == 1:
            raise ArithmeticError("no softcap here")
        return torch.tensor(50.0)

    error = refused(lambda: lading.materialize(model, folder / "small", recipes={"softcap": softcap}, timeout=60))
    problems = same_everywhere(error.full_text())
    if "no softcap here" not in error.full_text() or "rank 1" not in error.full_text():
        problems.append(f"the reason is not in the message: {error}")
    if error.begun or not all(tensor.is_meta for tensor in models.tensors(model).values()):
        problems.append("the model was changed")
    lading.materialize(model, folder / "small", timeout=60)
    return problems + compare(model, models.original("small"))


def offloaded_to_the_cpu(mesh, rank, folder):
    model = build("small", "skeleton")
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    lading.materialize(model, folder / "small", timeout=60)
    return compare(model, models.original("small"))


def external_values_may_be_sharded(mesh, rank, folder):
    """Another model on the same ranks, of another sharding, gives its values."""
    other = models.fill(models.MODELS["small"](), seed=11)
    given = other.blocks[0].up.weight.detach().clone()
    fully_shard(other, mesh=mesh)
    model = build("small", "skeleton")
    model.blocks[0].up._parameters["weight"] = torch.nn.Parameter(
        distribute_tensor(model.blocks[0].up.weight.detach(), mesh, [Shard(1)], src_data_rank=None)
    )
    lading.materialize(model, folder / "small", external={"blocks.0.up.weight": other}, timeout=60)
    want = models.original("small")
    with torch.no_grad():
        want.blocks[0].up.weight.copy_(given)
    return compare(model, want)


def wrapped_in_ddp(mesh, rank, folder):
    """The wrapper leaves no trace in names; its buckets know the parameters' memory, which stays."""
    model = models.MODELS["small"]()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    lading.materialize(wrapped, folder / "small", timeout=60)
    wrapped(torch.arange(6)).sum().backward()
    return compare(model, models.original("small"))


def in_bfloat16_on_request(mesh, rank, folder):
    """Meta parameters are allocated in the dtype that the plan decided, and FSDP2 gathers them in it."""
    want = models.original("small")
    model = build("small", "skeleton")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    lading.materialize(model, folder / "small", dtype=torch.bfloat16, cast="exact", timeout=60)
    problems = []
    originals = models.tensors(want)
    for module in model.modules():
        if hasattr(module, "unshard"):
            module.unshard()
    for key, tensor in models.tensors(model).items():
        full = originals[key].detach()
        is_derived = key.endswith("table") or key == "softcap"
        expected = full.to(torch.bfloat16) if full.is_floating_point() and not is_derived else full
        if tensor.dtype != expected.dtype or not torch.equal(tensor.detach(), expected):
            problems.append(f"{key} is {tensor.dtype}, and should be {expected.dtype}")
    return problems


def again_after_a_forward_pass(mesh, rank, folder):
    """A second load writes in place, into the memory that FSDP2 gathers from."""
    want = models.original("small")
    model = build("small", "skeleton")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    lading.materialize(model, folder / "small", timeout=60)
    sharded = list(model.parameters())
    addresses = [parameter._local_tensor.data_ptr() for parameter in sharded]
    ids = torch.arange(20).reshape(2, 10)
    expected = want(ids)
    model(ids)
    with torch.no_grad():
        for parameter in sharded:
            parameter._local_tensor.fill_(3.0)
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    problems = ["the model was not spoilt"] if torch.equal(model(ids), expected) else []
    lading.materialize(model, folder / "small", timeout=60)  # the root's parameters are still gathered
    if [parameter._local_tensor.data_ptr() for parameter in model.parameters()] != addresses:
        problems.append("memory was replaced")
    if not torch.equal(model(ids), expected):
        problems.append("FSDP2 gathers something else")
    return problems


def partial_placements_are_refused(mesh, rank, folder):
    model = build("small", "skeleton")
    bias = model.blocks[0].up._parameters["bias"]
    model.blocks[0].up._parameters["bias"] = torch.nn.Parameter(
        DTensor.from_local(bias.detach(), mesh, [Partial()], run_check=False)
    )
    error = refused(lambda: lading.materialize(model, folder / "small", timeout=60))
    return [] if error.tensors == ("blocks.0.up.bias",) and "Partial" in error.full_text() else [error.full_text()]


def buffers_may_be_dtensors(mesh, rank, folder):
    """R57"""
    want = models.original("small")
    model = build("small", "skeleton")
    block = model.blocks[0]
    block._buffers["steps"] = distribute_tensor(block.steps, mesh, [Shard(0)], src_data_rank=None)
    block._buffers["scale"] = distribute_tensor(block.scale, mesh, [Replicate()], src_data_rank=None)
    lading.materialize(model, folder / "small", timeout=60)
    problems = compare(model, want)
    return problems + (
        [] if isinstance(block.steps, DTensor) and isinstance(block.scale, DTensor) else ["it is no DTensor any more"]
    )


def views_of_what_was_sharded_since_are_refused(mesh, rank, folder):
    model = build("small", "skeleton")
    model.turned = model.blocks[0].up.weight.detach().t()
    fully_shard(model, mesh=mesh)
    error = refused(lambda: lading.materialize(model, folder / "small", timeout=60))
    return [] if error.tensors == ("turned",) and error.rule == "R52" else [error.full_text()]


def strided_shards_of_fused_weights(mesh, rank, folder):
    """R55: a lone _StridedShard, as transformers has it: gate and up are each cut, then put side by side."""
    want = models.original("small")
    model = build("small", "skeleton")
    weight = model.blocks[0].up.weight
    full = want.blocks[0].up.weight.detach()
    expected = torch.cat([half.chunk(2)[rank] for half in full.chunk(2)])
    local = torch.empty(expected.shape, device="meta")
    spread = DTensor.from_local(
        local, mesh, [_StridedShard(0, split_factor=2)], run_check=False, shape=weight.shape, stride=weight.stride()
    )
    model.blocks[0].up._parameters["weight"] = torch.nn.Parameter(spread)
    lading.materialize(model, folder / "small", timeout=60)
    found = model.blocks[0].up.weight._local_tensor
    return [] if torch.equal(found, expected) else [f"{found[:, 0].tolist()} for {expected[:, 0].tolist()}"]


def fully_shard_over_strided_shards(mesh, rank, folder):
    """R54, R55: a fused weight is cut strided for tensor parallelism, then by FSDP2: two strided cuts of one dim, which
    FSDP2 gathers right, whatever DTensor says. Two of our own are refused: torch cannot gather them."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    full = models.original("small").blocks[0].up.weight.detach()
    model = build("small", "skeleton")
    spread = distribute_tensor(full.clone(), grid["tp"], [_StridedShard(0, split_factor=2)], src_data_rank=None)
    model.blocks[0].up.weight = torch.nn.Parameter(spread)
    expected = fully_shard(torch.nn.ParameterList([spread.clone()]), mesh=grid["dp"])[0].to_local().detach().clone()
    fully_shard(model.blocks[0].up, mesh=grid["dp"])
    with torch.no_grad():
        model.blocks[0].up.weight.to_local().zero_()
    lading.materialize(model, folder / "small", device="cpu", timeout=60)
    found = model.blocks[0].up.weight.to_local()
    problems = [] if torch.equal(found, expected) else [f"{found[:, 0].tolist()} for {expected[:, 0].tolist()}"]
    other = build("small", "skeleton")
    twice = distribute_tensor(full.clone(), grid, [_StridedShard(0, split_factor=2)] * 2, src_data_rank=None)
    other.blocks[0].up.weight = torch.nn.Parameter(twice)
    error = refused(lambda: lading.materialize(other, folder / "small", device="cpu", timeout=60))
    problems += [] if error.tensors == ("blocks.0.up.weight",) and error.rule == "R54" else [error.full_text()]
    column = init_device_mesh("cpu", (4, 1), mesh_dim_names=("a", "b"))  # a cut over one rank is none
    for cuts in ([_StridedShard(0, split_factor=2), Shard(0)], [_StridedShard(0, split_factor=2)] * 2):
        third = build("small", "skeleton")
        spread = distribute_tensor(full.clone(), column, cuts, src_data_rank=None)
        expected = spread.to_local().detach().clone()
        third.blocks[0].up.weight = torch.nn.Parameter(torch.zeros_like(spread))
        lading.materialize(third, folder / "small", device="cpu", timeout=60)
        found = third.blocks[0].up.weight.to_local()
        problems += [] if torch.equal(found, expected) else [f"{cuts}: {found[:, 0].tolist()} for {expected[:, 0].tolist()}"]
    return problems


def several_meshes_in_one_model(mesh, rank, folder):
    """Rows and columns of a mesh, the transposed mesh, and all ranks at once: one common mesh is found."""
    want = models.original("small_untied")
    model = build("small_untied", "skeleton")
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    turned = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("x", "y"))
    choices = [(grid["a"], [Shard(0)]), (grid["b"], [Shard(0)]), (mesh, [Shard(0)]), (grid, [Shard(0), Shard(0)])]
    choices += [
        (turned, [Shard(0), Replicate()]),
        (turned, [Shard(0), Shard(0)]),
        (grid, [Replicate(), Shard(0)]),
    ]
    places = [
        (module, key) for module in model.modules() for key in module._parameters if module._parameters[key] is not None
    ]
    for (module, key), (chosen, placements) in zip(places, choices * 9, strict=False):
        old = module._parameters[key]
        module._parameters[key] = torch.nn.Parameter(
            distribute_tensor(old.detach(), chosen, placements, src_data_rank=None), old.requires_grad
        )
    lading.materialize(model, folder / "small_untied", timeout=60)
    return compare(model, want)


def a_mesh_without_order_is_refused(mesh, rank, folder):
    model = build("small", "skeleton")
    odd = DeviceMesh("cpu", [0, 3, 1, 2])
    bias = model.blocks[0].up._parameters["bias"]
    model.blocks[0].up._parameters["bias"] = torch.nn.Parameter(
        distribute_tensor(bias.detach(), odd, [Shard(0)], src_data_rank=None)
    )
    error = refused(lambda: lading.materialize(model, folder / "small", timeout=60))
    return same_everywhere(error.full_text()) + (
        [] if "no regular order" in error.full_text() and error.tensors == ("blocks.0.up.bias",) else [error.full_text()]
    )


def ranks_outside_of_a_mesh(mesh, rank, folder):
    """A tensor on the last two ranks only: these hold it, the others hold nothing, and nothing stays on meta."""
    want = models.original("small")
    model = build("small", "skeleton")
    some = DeviceMesh("cpu", [2, 3])
    old = model.blocks[0].up.weight
    model.blocks[0].up._parameters["weight"] = torch.nn.Parameter(
        distribute_tensor(old.detach(), some, [Shard(0)], src_data_rank=None)
    )
    lading.materialize(model, folder / "small", timeout=60, device="cpu")
    local = model.blocks[0].up.weight._local_tensor
    full = want.blocks[0].up.weight.detach()
    expected = full.chunk(2)[rank - 2] if rank >= 2 else full[:0]
    problems = (
        [] if local.device.type == "cpu" and local.numel() == expected.numel() else [f"{local.shape} on {local.device}"]
    )
    if rank >= 2 and not torch.equal(local, expected):
        problems.append("it differs")
    del model.blocks[0].up._parameters["weight"], want.blocks[0].up._parameters["weight"]
    return problems + compare(model, want)


def a_group_of_some_ranks(mesh, rank, folder):
    """The others take no part, and nobody waits for them."""
    some = DeviceMesh("cpu", [1, 3])
    if rank not in (1, 3):
        return []
    model = build("small", "skeleton")
    fully_shard(model, mesh=some)
    report = lading.materialize(model, folder / "small", group=some.get_group(), timeout=60)
    return compare(model, models.original("small")) + (
        [] if report.ranks == 2 and report.rank == rank else [str(report)]
    )


def pipeline_stages_over_fsdp2(mesh, rank, folder):
    """Every rank has one stage only. The verdict is over all: no key is unexpected; a surplus one is, everywhere."""
    from safetensors.torch import load_file, save_file

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage = grid.get_local_rank("pp")

    def cut(model):
        part = torch.nn.Module()
        part.blocks = torch.nn.ModuleDict({str(stage): model.blocks[stage]})
        if stage == 0:
            part.embed = model.embed
            part.softcap = model.softcap
        else:
            part.head = model.head
        return part

    want = cut(models.original("small_untied"))
    part = cut(build("small_untied", "skeleton"))
    fully_shard(part.blocks[str(stage)], mesh=grid["dp"])
    fully_shard(part, mesh=grid["dp"])
    lading.materialize(part, folder / "small_untied", external={"softcap": torch.tensor(50.0)}, timeout=60)
    originals = models.tensors(want) | ({"softcap": torch.tensor(50.0)} if stage == 0 else {})
    problems = []
    for key, tensor in models.tensors(part).items():
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        expected = part_of(originals[key], tensor)
        if not torch.equal(local.detach().reshape(-1), expected.reshape(-1)):
            problems.append(f"{key} differs")
    surplus = folder / "surplus"
    if rank == 0:
        surplus.mkdir(exist_ok=True)
        save_file(
            load_file(folder / "small_untied" / "model.safetensors") | {"more": torch.zeros(1)},
            surplus / "model.safetensors",
        )
    dist.barrier()
    part = cut(build("small_untied", "skeleton"))
    error = refused(
        lambda: lading.materialize(part, surplus, device="cpu", external={"softcap": torch.tensor(50.0)}, timeout=60)
    )
    return problems + same_everywhere(error.full_text()) + ([] if error.tensors == ("more",) else [error.full_text()])


EXTRA = {
    "ddp": (a_rank_that_stays_away, wrapped_in_ddp),
    "fsdp2": (
        bad_keys_are_listed_together,
        one_rank_fails_and_all_are_told,
        ranks_that_differ_are_refused,
        more_layers_on_one_rank_are_refused,
        in_bfloat16_on_request,
        again_after_a_forward_pass,
        one_load_fails_and_nobody_has_weights,
        offloaded_to_the_cpu,
        external_values_may_be_sharded,
        values_that_ranks_hand_in_must_be_the_same,
        wrong_words_on_one_rank_reach_all,
        an_audit_leaves_a_gathered_model_usable,
    ),
    "fsdp2x4": (
        bad_keys_are_listed_together,
        several_meshes_in_one_model,
        fully_shard_over_strided_shards,
        a_mesh_without_order_is_refused,
        ranks_outside_of_a_mesh,
        a_group_of_some_ranks,
        pipeline_stages_over_fsdp2,
    ),
    "tp": (
        views_of_what_was_sharded_since_are_refused,
        partial_placements_are_refused,
        buffers_may_be_dtensors,
        strided_shards_of_fused_weights,
    ),
}
