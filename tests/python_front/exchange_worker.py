"""Loads with `exchange=` on four gloo ranks, in several layouts. Run by geometry.launch."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import lading
from lading import exchange as exchanging
from lading import _engine

WORLD = 4
DEADLINE_S = 100
SIDE = 512


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(SIDE, SIDE) for _ in range(12))
        self.head = torch.nn.Linear(SIDE, 7, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(6.0), persistent=False)


def main():
    scratch = Path(os.environ["LADING_SCRATCH"])
    torch.manual_seed(3)
    made = {name: torch.randn(value.shape).to(value.dtype) for name, value in Model().state_dict().items()}
    save_file(made, scratch / "model.safetensors")
    size = (scratch / "model.safetensors").stat().st_size
    return {"size": size, "ranks": run_ranks(WORLD, rank_main, DEADLINE_S, scratch, made)}


def rank_main(rank, scratch, made):
    choose = _engine.Plan.exchange
    _engine.Plan.exchange = lambda plan, facts: choose(plan, {**facts, "least_bytes": 0})  # the checkpoint is small
    answers = {}
    for layout in (ddp, hsdp, tensor_parallel, in_place):
        for scope in ("never", "node", "job", "auto"):
            answers[f"{layout.__name__} {scope}"] = loaded(layout, scope, scratch, made)
    for layout in (ddp, in_place):
        answers[f"memory {layout.__name__}"] = with_staging_counted(layout, scratch, made)
    answers["two machines node"] = on_two_machines(scratch, made)
    answers["half of the ranks"] = in_halves(scratch, made)
    answers["wrong byte"] = with_a_wrong_byte(rank, scratch)
    answers["after a failure"] = after_a_failure(rank, scratch, made)
    return answers


# ---- layouts


def on_meta():
    with lading.skeleton():
        return Model()


def ddp():
    return on_meta()


def in_place():
    return Model()


def hsdp():
    model = on_meta()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, ignored_params={model.scale})
    return model


def tensor_parallel():
    """Blocks are cut, the head is a replica on all, and a bias only across the first dim of the mesh."""
    model = on_meta()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for index, block in enumerate(model.blocks):
        cuts = [Replicate(), Shard(index % 2)]
        for name, places in (("weight", cuts), ("bias", [Replicate(), Replicate()])):
            value = getattr(block, name)
            part = distribute_tensor(value.detach(), mesh, places)
            setattr(block, name, torch.nn.Parameter(part))
    return model


# ---- cases


def loaded(layout, scope, scratch, made, **options):
    model = layout()
    dist.barrier()
    before = read_calls_bytes()
    report = lading.materialize(model, scratch, device="cpu", exchange=scope, progress=False, **options)
    answer = {"read": report.read_bytes, "syscalls": read_calls_bytes() - before, "notes": list(report.notes)}
    answer |= {"memory": report.memory.exchange, "wrong": wrong_names(model, made)}
    ledger = json.loads(report.ledger)
    answer["received"] = json.dumps(ledger).count('"received_from"')
    return answer


def with_staging_counted(layout, scratch, made):
    """The most memory that blocks had for themselves at once, beside what the report says."""
    begin, finish, most, flying = exchanging._Flight.__init__, exchanging._Flight.finish, [0], {}

    def counted_begin(flight, *arguments):
        begin(flight, *arguments)
        flying[id(flight)] = 0 if flight._staging is None else flight._staging.nbytes
        most[0] = max(most[0], sum(flying.values()))

    def counted_finish(flight):
        finish(flight)
        del flying[id(flight)]

    model = layout()
    limit, exchanging._IN_FLIGHT_BYTES = exchanging._IN_FLIGHT_BYTES, 3 << 20  # so that blocks have to wait
    exchanging._Flight.__init__, exchanging._Flight.finish = counted_begin, counted_finish
    try:
        report = lading.materialize(model, scratch, device="cpu", exchange="job", progress=False)
    finally:
        exchanging._Flight.__init__, exchanging._Flight.finish = begin, finish
        exchanging._IN_FLIGHT_BYTES = limit
    return {"planned": report.memory.exchange, "staged": most[0], "wrong": wrong_names(model, made)}


def on_two_machines(scratch, made):
    """Ranks 0 and 1 here, 2 and 3 there: only the names of nodes are made up."""
    from lading import preparing

    real = preparing.node_name
    preparing.node_name = lambda: f"machine {dist.get_rank() // 2}"
    try:
        return loaded(ddp, "node", scratch, made)
    finally:
        preparing.node_name = real


def in_halves(scratch, made):
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return loaded(ddp, "job", scratch, made, group=halves[dist.get_rank() // 2])


def with_a_wrong_byte(rank, scratch):
    """One rank receives another byte than was sent: replicas differ, and all ranks say of which tensor."""
    model = ddp()
    real = exchanging.Exchange.run

    def run(exchange, tell, is_stopped):
        real(exchange, tell, is_stopped)
        received = [
            slot for slot, owner in zip(exchange._slots, exchange.owners, strict=True) if owner not in (None, rank)
        ]
        if rank == 2:
            slot = next(slot for slot in received if slot.destination.name == "blocks.3.weight")
            slot.memory.view(-1)[17] += 1

    exchanging.Exchange.run = run
    try:
        lading.materialize(model, scratch, device="cpu", exchange="job", progress=False)
    except lading.LadingError as error:
        on_meta_still = all(value.is_meta for value in model.parameters())
        return {
            "text": error.full_text(),
            "codes": [p.code for p in error.problems],
            "tensors": list(error.tensors),
            "untouched": on_meta_still,
        }
    finally:
        exchanging.Exchange.run = real
    return {"text": "well"}


def after_a_failure(rank, scratch, made):
    """One rank stops in the middle: the group is in step afterwards, and nobody writes to the model any more."""
    model = in_place()
    real, count = exchanging.Wires.broadcast, 0

    def broadcast(wires, *arguments):
        nonlocal count
        count += 1
        if rank == 1 and count == 3:
            raise OSError("the cable is gone")
        return real(wires, *arguments)

    exchanging.Wires.broadcast = broadcast
    try:
        lading.materialize(model, scratch, device="cpu", exchange="job", progress=False)
        text = "well"
    except lading.LadingError as error:
        text = error.full_text()
    finally:
        exchanging.Wires.broadcast = real
    model.load_state_dict({name: torch.zeros_like(value) for name, value in made.items()})
    sent = torch.full((SIDE, SIDE), float(rank))
    dist.broadcast(sent, src=3)
    again = loaded(ddp, "job", scratch, made)
    untouched = not any(value.any() for value in model.state_dict().values())
    return {"text": text, "sent": sent.unique().tolist(), "again": again["wrong"], "untouched": untouched}


def wrong_names(model, made):
    found = [name for name, value in model.state_dict().items() if not torch.equal(whole(value), made[name])]
    return found + ([] if torch.equal(model.table, torch.arange(6.0)) else ["table"])


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def read_calls_bytes():
    """By all read calls of this process, as the kernel counts them, whether the pages were cached or not."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
