"""What the cases share: layouts, and how a model that was filled is compared with the original, in ways that know
nothing of lading."""

import lading
import ranks_models as models
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

LAYOUTS = {
    "fsdp2x1": (("dp", 1),),
    "ddp": (("dp", 2),),
    "fsdp2": (("dp", 2),),
    "fsdp2x4": (("dp", 4),),
    "hsdp": (("replicate", 2), ("shard", 2)),
    "tp": (("tp", 2),),
    "fsdp2tp": (("dp", 2), ("tp", 2)),
}


def world_of(layout):
    size = 1
    for _, length in LAYOUTS[layout]:
        size *= length
    return size


def make_checkpoints(scratch):
    folder = scratch / "checkpoints"
    for name in models.MODELS:
        models.save(models.original(name), folder / name)
    return folder


# ---- layouts


def shard(model, layout, mesh):
    if layout in ("tp", "fsdp2tp"):
        tensor_parallel(model, mesh["tp"])
    if layout != "tp" and layout != "ddp":
        data = mesh["dp"] if layout == "fsdp2tp" else mesh
        for block in model.blocks if hasattr(model, "blocks") else model.model.layers:
            fully_shard(block, mesh=data)
        fully_shard(model, mesh=data)


def tensor_parallel(model, mesh):
    """Geometry only: linears by columns and rows in turns, embeddings by rows (25 or 97 of them, so unevenly)."""
    done = {}
    column = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            placements = {"weight": Shard(0)}
        elif isinstance(module, torch.nn.Linear):
            column += 1
            placements = (
                {"weight": Shard(0), "bias": Shard(0)} if column % 2 else {"weight": Shard(1), "bias": Replicate()}
            )
        else:
            continue
        for key, placement in placements.items():
            old = module._parameters.get(key)
            if old is None:
                continue
            if id(old) not in done:
                value = distribute_tensor(old.detach(), mesh, [placement], src_data_rank=None)
                done[id(old)] = (old, torch.nn.Parameter(value, requires_grad=old.requires_grad))
            module._parameters[key] = done[id(old)][1]


def chunk(tensor, dim, parts, place):
    """torch.chunk, with empty parts at the end."""
    size = -(-tensor.shape[dim] // parts) if tensor.shape[dim] else 0
    begin = min(tensor.shape[dim], place * size)
    return tensor.narrow(dim, begin, min(size, tensor.shape[dim] - begin))


def part(full, tensor):
    """What this rank should hold of `full`: tensor parallelism first, then FSDP2 (R54)."""
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    places = list(range(len(placements)))
    strided = [place for place in places if isinstance(placements[place], _StridedShard)]
    for place in [place for place in places if place not in strided] + strided:
        if not placements[place].is_replicate():
            full = chunk(full, placements[place].dim, mesh.size(place), coordinate[place])
    return full


# ---- the common case


def build(name, how):
    with lading.skeleton() if how == "skeleton" else torch.device("meta"):
        return models.MODELS[name]()


def recipes(how):
    """Under plain meta nobody knows what the small model's constructor computed."""
    if how == "skeleton":
        return None
    return {
        "*.table": lambda module, attribute: torch.cos(torch.arange(12) * 0.1),
        "softcap": lambda module, attribute: torch.tensor(50.0),
    }


def load_and_compare(layout, mesh, name, how, folder):
    want = models.original(name)
    model = build(name, how)
    shard(model, layout, mesh)
    first = next(model.parameters())
    first.note = "mine"
    hooked = []
    first.register_hook(lambda gradient: hooked.append(1))
    before = {key: (id(tensor), tensor.requires_grad) for key, tensor in models.tensors(model).items()}
    ties = classes(model)
    random_state = torch.random.get_rng_state()
    report = lading.materialize(
        model,
        folder / name,
        device="cpu" if layout == "ddp" else None,
        recipes=recipes(how) if name.startswith("small") else None,
        timeout=60,
    )
    problems = [] if torch.equal(random_state, torch.random.get_rng_state()) else ["random numbers were touched"]
    problems += compare(model, want)
    after = models.tensors(model)
    for key, (identity, requires_grad) in before.items():
        if id(after[key]) != identity:
            problems.append(f"{key} is another object")
        if after[key].requires_grad != requires_grad:
            problems.append(f"{key} has another requires_grad")
    if classes(model) != ties:
        problems.append(f"ties are {classes(model)}, were {ties}")
    if getattr(first, "note", "") != "mine":
        problems.append("an attribute of a parameter is gone")
    if report.ranks != world_of(layout) or set(report.tensors) != set(after):
        problems.append(f"the report speaks of {sorted(set(report.tensors) ^ set(after))}")
    if not problems:
        problems += compare_forward(model, want, layout, hooked)
    return problems


def classes(model):
    """Names by object."""
    found = {}
    for key, tensor in models.tensors(model).items():
        found.setdefault(id(tensor), []).append(key)
    return sorted(names for names in found.values() if len(names) > 1)


def compare(model, want):
    problems = []
    originals = models.tensors(want)
    found = models.tensors(model)
    if set(found) != set(originals):
        problems.append(f"names differ: {set(found) ^ set(originals)}")
    for key, tensor in found.items():
        full, local = originals[key].detach(), tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()
        expected = part(full, tensor) if isinstance(tensor, DTensor) else full
        if local.is_meta or local.device.type != "cpu":
            problems.append(f"{key} is on {local.device}")
        elif local.dtype != full.dtype or tensor.dtype != full.dtype:
            problems.append(f"{key} is {tensor.dtype}, {local.dtype} locally")
        elif local.numel() != expected.numel() or not torch.equal(local.reshape(-1), expected.reshape(-1)):
            problems.append(f"{key} differs: {local.reshape(-1)[:4].tolist()} for {expected.reshape(-1)[:4].tolist()}")
        elif tuple(tensor.shape) != tuple(full.shape):
            problems.append(f"{key} has the shape {tuple(tensor.shape)}")
    return problems


def compare_forward(model, want, layout, hooked):
    """FSDP2 gathers what it knows, not what DTensor shows: only a forward pass tells (R37)."""
    problems = []
    if layout in ("tp", "fsdp2tp"):  # not really parallelised: no forward pass; FSDP2's gather is asked instead
        if layout == "fsdp2tp":
            for module in model.modules():
                if hasattr(module, "unshard"):
                    module.unshard()
            originals = models.tensors(want)
            for key, tensor in models.tensors(model).items():
                local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
                expected = part(originals[key].detach(), tensor) if isinstance(tensor, DTensor) else originals[key]
                if not torch.equal(local.detach(), expected):
                    problems.append(f"{key} differs once it is gathered")
        return problems
    ids = torch.arange(20).reshape(2, 10)
    model.eval(), want.eval()
    got, expected = model(ids), want(ids)
    got, expected = getattr(got, "logits", got), getattr(expected, "logits", expected)
    if not torch.equal(got, expected):
        problems.append(f"the output differs by {(got - expected).abs().max()}")
    got.sum().backward()
    if layout == "ddp" and not hooked:
        problems.append("a hook of a parameter is gone")
    return problems


def part_of(full, tensor):
    return part(full.detach(), tensor) if isinstance(tensor, DTensor) else full.detach()


def refused(call):
    try:
        call()
    except lading.LadingError as error:
        return error
    raise AssertionError("it was not refused")


def same_everywhere(text):
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return [] if len(set(texts)) == 1 else [f"the ranks were told different things: {texts}"]
