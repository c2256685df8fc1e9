"""`lading.save` in the background, on forked gloo ranks: training goes on while files are written, and they hold the
values from before. Each case answers what is wrong on this rank."""

import contextlib
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import save_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import LAYOUTS, refused, same_everywhere, world_of
from save_worker import by_case, guarded, made_checkpoints, sharded, siblings, written
from torch.distributed.device_mesh import init_device_mesh

import lading
from lading.save_engine import SavePlan

RANKS_DEADLINE_S = 150
ZERO3 = "zero3"


def main(layouts):
    """{layout: {case: [problem of a rank, …]}}"""
    folder, scratch = made_checkpoints()
    answers = {}
    for layout in layouts:
        world = 2 if layout == ZERO3 else world_of(layout)
        answers[layout] = by_case(run_ranks(world, run, RANKS_DEADLINE_S, layout, folder, scratch / "out" / layout))
    return answers


def run(rank, layout, folder, out):
    mesh = None
    if layout != ZERO3:
        sizes, names = zip(*((size, name) for name, size in LAYOUTS[layout]), strict=True)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    out.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    found = {}
    for name in ("llama_tied", "qwen3_moe"):
        found[name] = guarded(lambda name=name: changed_meanwhile(layout, mesh, rank, name, folder, out / name))
    for case in CASES if layout == "fsdp2" else ():
        found[case.__name__] = guarded(lambda case=case: case(mesh, rank, folder, out / case.__name__))
    return found


def model_of(layout, mesh, name):
    if layout == ZERO3:
        import flat_worker

        return flat_worker.partitioned(name)
    return sharded(layout, mesh, name)


@contextlib.contextmanager
def writing_is_held():
    """Nothing is written before the event is set."""
    write, may_write = SavePlan.write, threading.Event()

    def held(*arguments, **options):
        assert may_write.wait(60)
        return write(*arguments, **options)

    SavePlan.write = held
    try:
        yield may_write
    finally:
        may_write.set()
        SavePlan.write = write


def change(model):
    """All that this rank has of every parameter and buffer."""
    with torch.no_grad():
        for one in (*model.parameters(), *model.buffers()):
            local = one.ds_tensor if hasattr(one, "ds_tensor") else getattr(one, "_local_tensor", one)
            local.copy_(torch.ones_like(local) if local.dtype != torch.bool else ~local)


@contextlib.contextmanager
def full_disk(is_full):
    """The engine's error, once it writes."""
    write = SavePlan.write

    def full(*arguments, **options):
        write(*arguments, **options)
        problem = lading.errors.Problem("write_failed", "no space left on device", remedy="Free space.")
        raise lading.LadingError(problem, stage="loading", exit_code=5)

    SavePlan.write = full if is_full else write
    try:
        yield
    finally:
        SavePlan.write = write


# ---- cases


def changed_meanwhile(layout, mesh, rank, name, folder, out):
    """The values change before any is written, and the ranks use their group while files are written."""
    model = model_of(layout, mesh, name)
    with writing_is_held() as may_write:
        pending = lading.save(model, out, background=True, timeout=60)
        change(model)
        problems = ["it was done before it had written"] if pending.done() else []
        group = dist.new_group()  # a question to the group's store
        may_write.set()
        for number in range(200):
            total = torch.full((64,), float(number))
            dist.all_reduce(total, group=group if number % 2 else None)
            if total[0] != number * dist.get_world_size():
                problems.append(f"all_reduce {number} gave {total[0]}")
        report = pending.result(timeout=60)
    problems += written(report, rank)
    if not pending.done() or pending.path != report.path or not report.snapshot_bytes == pending.snapshot_bytes > 0:
        problems.append(f"{report}")
    held = sum(local.nbytes for local in locals_of(model))
    if pending.snapshot_bytes > held + 64 * len(report.keys):
        problems.append(f"the snapshot has {pending.snapshot_bytes} bytes of {held}")
    dist.barrier()
    return problems + (models.differences(out, folder / name) if rank == 0 else [])


def locals_of(model):
    for one in {id(one): one for one in (*model.parameters(), *model.buffers())}.values():
        yield one.ds_tensor if hasattr(one, "ds_tensor") else getattr(one, "_local_tensor", one)


def a_training_step(mesh, rank, folder, out):
    """Forward, backward and optimizer of FSDP2, whose collectives run beside the save."""
    model = sharded("fsdp2", mesh, "llama_tied")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with writing_is_held() as may_write:
        pending = lading.save(model, out, base=folder / "llama_tied", background=True, timeout=60)
        for step in range(6):
            model(torch.arange(20).reshape(2, 10)).logits.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                may_write.set()
        pending.result(timeout=60)
    dist.barrier()
    problems = models.differences(out, folder / "llama_tied")
    lading.save(model, out, exist="replace", timeout=60)
    dist.barrier()
    return problems + ([] if models.differences(out, folder / "llama_tied") else ["nothing was trained"])


def the_next_save_waits(mesh, rank, folder, out):
    """In the background or not. Host memory is used again."""
    from lading.save_snapshot import _host

    model = sharded("fsdp2", mesh, "llama")
    problems = []
    for background in (False, True):
        with writing_is_held() as may_write:
            first = lading.save(model, f"{out}1{background}", background=True, timeout=60)
            threading.Timer(0.3, may_write.set).start()
            second = lading.save(model, f"{out}2{background}", background=background, timeout=60)
            problems += [] if first.done() else ["the first save was not done"]
            second = second.result(60) if background else second
        dist.barrier()
        for report in (first.result(), second):
            problems += models.differences(report.path, folder / "llama")
    kept = [memory.data_ptr() for memory in _host._kept]
    lading.save(model, f"{out}3", background=True, timeout=60).result(60)
    again = [memory.data_ptr() for memory in _host._kept]
    return problems + ([] if kept and kept == again else ["new memory was taken"])


def a_rank_that_cannot_write(mesh, rank, folder, out):
    """Its system call fails while all train on: the result is that error on every rank, and the old checkpoint stays."""
    model = sharded("fsdp2", mesh, "llama")
    lading.save(model, out, timeout=60)
    change(model)
    with writing_is_held() as may_write, full_disk(rank == 1):
        pending = lading.save(model, out, exist="replace", background=True, timeout=60)
        dist.barrier()
        may_write.set()
        error = refused(lambda: pending.result(timeout=60))
    problems = same_everywhere(error.full_text())
    if error.code != "write_failed" or "no space" not in error.full_text() or pending.exception() is None:
        problems.append(error.full_text())
    dist.barrier()
    problems += models.differences(out, folder / "llama") + siblings(out)
    dist.barrier()
    lading.save(model, out, exist="replace", background=True, timeout=60).result(60)
    dist.barrier()
    return problems + siblings(out) + ([] if models.differences(out, folder / "llama") else ["nothing was replaced"])


def what_can_be_refused_at_once_is(mesh, rank, folder, out):
    """A plan that fails, and ranks that differ: by the call itself, on all ranks."""
    model = sharded("fsdp2", mesh, "llama")
    error = refused(lambda: lading.save(model, out, background=rank == 0, timeout=60))
    problems = same_everywhere(error.full_text())
    problems += [] if error.code == "ranks_differ" and "background" in error.full_text() else [error.full_text()]
    error = refused(lambda: lading.save(model, out, base=folder / "qwen3_moe", background=True, timeout=60))
    return problems + same_everywhere(error.full_text()) + siblings(out)


def another_call_meanwhile(mesh, rank, folder, out):
    """lading's other calls on the same group."""
    model = sharded("fsdp2", mesh, "llama")
    with writing_is_held() as may_write:
        pending = lading.save(model, out, background=True, timeout=60)
        lading.materialize(model, folder / "llama", progress=False, timeout=60)
        lading.fingerprint(model, timeout=60)
        may_write.set()
        pending.result(60)
    dist.barrier()
    return models.differences(out, folder / "llama")


CASES = (
    a_training_step,
    the_next_save_waits,
    a_rank_that_cannot_write,
    what_can_be_refused_at_once_is,
    another_call_meanwhile,
)
