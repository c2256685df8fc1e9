"""`lading.save` on forked gloo ranks. The models are sharded by torch, from real values: nothing of a load takes part.
What is written is compared with the files that transformers writes in one process. Each case answers what is wrong on
this rank; an empty list is a case that holds."""

import gc
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import save_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import LAYOUTS, refused, same_everywhere, shard, world_of
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh

import lading

RANKS_DEADLINE_S = 120


def main(layouts):
    """{layout: {case: [problem of a rank, …]}}"""
    folder, scratch = made_checkpoints()
    answers = {}
    for layout in layouts:
        by_rank = run_ranks(world_of(layout), run, RANKS_DEADLINE_S, layout, folder, scratch / "out" / layout)
        answers[layout] = by_case(by_rank)
    return answers


def made_checkpoints():
    """The folder of the models, and the one of all files; made before ranks are forked."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock is shared by all processes that are forked
    assert transformers.LlamaForCausalLM
    scratch = Path(os.environ["LADING_SCRATCH"])
    return models.make_checkpoints(scratch), scratch


def by_case(by_rank):
    """{case: [problem of a rank, …]}"""
    answers = {case: [] for case in by_rank[0]}
    for rank, found in enumerate(by_rank):
        for case, problems in found.items():
            answers[case] += [f"rank {rank}: {problem}" for problem in problems]
    return answers


def run(rank, layout, folder, out):
    sizes, names = zip(*((size, name) for name, size in LAYOUTS[layout]), strict=True)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    out.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    found = {}
    for name in models.MODELS:
        found[name] = guarded(lambda name=name: as_transformers(layout, mesh, rank, name, folder, out))
    for case in CASES.get(layout, ()):
        found[case.__name__] = guarded(lambda case=case: case(mesh, rank, folder, out / case.__name__))
    return found


def guarded(case, *, barrier=True):
    try:
        problems = case()
    except Exception:
        problems = [traceback.format_exc()[-3000:]]
    if barrier:
        dist.barrier()
    gc.collect()
    return problems


def sharded(layout, mesh, name):
    model = models.original(name)
    if layout != "ddp":
        shard(model, layout, mesh)
    return model


def as_transformers(layout, mesh, rank, name, folder, out):
    """Three times: into one file, into several, and as in the checkpoint that the model might have come from."""
    model = sharded(layout, mesh, name)
    reports = [lading.save(model, out / name, timeout=60)]
    problems = written(reports[0], rank)
    wanted = {out / name: folder / name}
    if name in models.OF_TRANSFORMERS:
        shards = folder / f"{name}-shards"
        wanted |= {out / f"{name}-shards": shards, out / f"{name}-base": shards}
        reports.append(lading.save(model, out / f"{name}-shards", max_shard_size=models.SHARD_BYTES, timeout=60))
        reports.append(lading.save(model, out / f"{name}-base", base=shards, timeout=60))
    dist.barrier()
    if rank == 0:
        for one, other in wanted.items():
            problems += [f"{one.name}: {problem}" for problem in models.differences(one, other)]
        if leftovers := [path.name for path in out.iterdir() if path not in wanted and path.name.startswith(".")]:
            problems.append(f"left behind: {leftovers}")
        if name in models.OF_TRANSFORMERS:
            problems += loaded_by_transformers(out / f"{name}-shards", models.original(name))
    return problems


def written(report, rank):
    """Every byte once: the ranks' bytes add up to the files, headers included."""
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, report.written_bytes)
    data = sum(one.nbytes for one in map(_header_free, report.keys.values()))
    problems = []
    if sum(counts) != data:
        problems.append(f"the ranks wrote {counts}, {sum(counts)} bytes in all, of {data}")
    on_disk = {name: (report.path / name).stat().st_size for name in report.files}
    if report.files != on_disk or report.bytes != sum(on_disk.values()):
        problems.append(f"the report has {report.files}, {report.bytes} bytes in all")
    if report.rank != rank or report.ranks != dist.get_world_size() or str(report.path) not in str(report):
        problems.append(f"the report says {report}")
    return problems


def _header_free(key):
    from lading.dtypes import torch_dtype

    return torch.empty(key.shape, dtype=torch_dtype(key.dtype), device="meta")


def loaded_by_transformers(folder, want):
    model, info = type(want).from_pretrained(folder, dtype="auto", output_loading_info=True)
    problems = [f"transformers has {name}: {keys}" for name, keys in info.items() if keys]
    found, expected = model.state_dict(), want.state_dict()
    wrong = (name for name, value in expected.items() if not torch.equal(found[name], value.to(found[name].dtype)))
    return problems + [f"{name} differs" for name in wrong]  # transformers makes one dtype of all


# ---- cases


def a_target_that_exists(mesh, rank, folder, out):
    """Refused as it is, and replaced in one step on request; nothing of the old one stays."""
    model = sharded("fsdp2", mesh, "llama")
    if rank == 0:
        out.mkdir()
        (out / "old.txt").write_text("mine")
    dist.barrier()
    error = refused(lambda: lading.save(model, out, timeout=60))
    problems = same_everywhere(error.full_text())
    if "exist" not in str(error) or sorted(path.name for path in out.iterdir()) != ["old.txt"]:
        problems.append(f"the directory was changed, or {error}")
    dist.barrier()
    report = lading.save(model, out, exist="replace", timeout=60)
    dist.barrier()
    if not report.replaced:
        problems.append("the report says that nothing was replaced")
    return problems + models.differences(out, folder / "llama") + siblings(out)


def siblings(out):
    """What a save has left beside its target."""
    found = [path.name for path in out.parent.iterdir() if path != out and out.name in path.name]
    return [f"left behind: {found}"] if found else []


def a_parent_that_cannot_be_written(mesh, rank, folder, out):
    model = sharded("fsdp2", mesh, "llama")
    problems = []
    for target in (out / "no" / "such" / "parent", Path("/proc/lading_saved")):
        error = refused(lambda target=target: lading.save(model, target, timeout=60))
        problems += same_everywhere(error.full_text())
        if error.begun or target.exists():
            problems.append(f"something was written: {error}")
    return problems


def a_rank_with_other_arguments(mesh, rank, folder, out):
    model = sharded("fsdp2", mesh, "llama")
    problems = []
    for given in ({"dtype": "bf16"}, {"unmapped": "drop"}):
        error = refused(lambda given=given: lading.save(model, out, **(given if rank else {}), timeout=60))
        problems += same_everywhere(error.full_text())
        problems += [f"{given}: the code is {error.code}"] if error.code != "ranks_differ" or out.exists() else []
    return problems


def a_rank_that_stops(mesh, rank, folder, out):
    """The progress function of one rank raises: all ranks are told, and nothing is left."""
    model = sharded("fsdp2", mesh, "llama")
    ranks_that_stop = rank == 0

    def progress(_):
        raise RuntimeError("enough")

    error = refused(lambda: lading.save(model, out, progress=progress if ranks_that_stop else False, timeout=60))
    problems = same_everywhere(error.full_text().split("(error id")[0][:80])
    dist.barrier()
    if rank == 0:
        problems += siblings(out) + (["the directory exists"] if out.exists() else [])
    return problems


def a_rank_that_cannot_write(mesh, rank, folder, out):
    """Its disk is full: all ranks get its error, the old checkpoint stays, and nothing else does."""
    from lading.save_engine import SavePlan

    model = sharded("fsdp2", mesh, "llama")
    lading.save(model, out, timeout=60)
    written = SavePlan.write

    def write(*arguments, **options):
        problem = lading.errors.Problem("write_failed", "no space left on device", remedy="Free space.")
        raise lading.LadingError(problem, stage="loading", exit_code=5)

    SavePlan.write = write if rank else written
    try:
        error = refused(lambda: lading.save(models.original("llama_tied"), out, exist="replace", timeout=60))
    finally:
        SavePlan.write = written
    problems = same_everywhere(error.code) + ([] if error.code == "write_failed" else [f"{error}"])
    dist.barrier()
    return problems + models.differences(out, folder / "llama") + siblings(out)


def after_a_step(mesh, rank, folder, out):
    """Trained parameters are those that are written, also where FSDP2 has gathered them for the backward pass."""
    model = sharded("fsdp2", mesh, "llama_tied")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(20).reshape(2, 10)).logits.sum().backward()
    optimizer.step()
    model(torch.arange(20).reshape(2, 10))
    lading.save(model, out, base=folder / "llama_tied", timeout=60)
    state = {name: getattr(one, "full_tensor", lambda one=one: one)() for name, one in model.state_dict().items()}
    found = type(models.original("llama_tied")).from_pretrained(out).state_dict()
    problems = [f"{name} differs" for name in state if not torch.equal(state[name], found[name])]
    return problems + (["nothing was trained"] if not models.differences(out, folder / "llama_tied") else [])


def into_another_dtype(mesh, rank, folder, out):
    """BF16 files of F32 memory, on request only: rounded once, as torch rounds."""
    model = sharded("fsdp2", mesh, "llama")
    lading.save(model, out, dtype=torch.bfloat16, timeout=60)
    dist.barrier()
    if rank:
        return []
    want = models.original("llama").bfloat16()
    want.save_pretrained(out.parent / "wanted_bf16")
    return models.differences(out, out.parent / "wanted_bf16")


def a_config_that_is_refused(mesh, rank, folder, out):
    """One rank writes it, and all get the error, before anything is written."""
    model = sharded("fsdp2", mesh, "llama")
    model.generation_config.update(do_sample=False, temperature=0.5)
    error = refused(lambda: lading.save(model, out, timeout=60))
    problems = same_everywhere(error.full_text())
    if error.code != "usage" or "generation_config" not in error.full_text() or out.exists():
        problems.append(f"{error}")
    return problems


def keys_of_the_base_are_kept(mesh, rank, folder, out):
    """Each by one rank, and every byte once."""
    from safetensors.torch import save_file

    state = load_file(folder / "llama" / "model.safetensors")
    extra = {f"head.{place}.weight": torch.full((place, 3), float(place)) for place in range(6)}
    base = out.parent / "kept_base"
    if rank == 0:
        base.mkdir()
        save_file(state | extra, base / "model.safetensors", metadata={"format": "pt"})
    dist.barrier()
    model = sharded("fsdp2", mesh, "llama")
    report = lading.save(model, out, base=base, unmapped="keep", timeout=60)
    problems = written(report, rank)
    dist.barrier()
    return problems + ([] if models.tensors_in(out) == models.tensors_in(base) else ["other tensors"])


def meta_is_refused(mesh, rank, folder, out):
    with torch.device("meta"):
        model = models.MODELS["small"]()
    error = refused(lambda: lading.save(model, out, timeout=60))
    problems = same_everywhere(error.full_text())
    if "blocks.0.up.weight" not in error.tensors or out.exists():
        problems.append(f"{error}")
    return problems


def a_tie_taken_apart(mesh, rank, folder, out):
    """Two tensors have two keys, whatever the config says: so does `save_pretrained`."""
    model = sharded("tp", mesh, "llama_tied")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        model.lm_head.weight.to_local().add_(1)
    lading.save(model, out, timeout=60)
    dist.barrier()
    want = models.original("llama_tied")
    want.lm_head.weight = torch.nn.Parameter(want.lm_head.weight.detach() + 1)
    if rank == 0:
        want.save_pretrained(out.parent / "wanted_apart")
    return models.differences(out, out.parent / "wanted_apart") if rank == 0 else []


def experts_of_their_own(mesh, rank, folder, out):
    """Under the same names, in tensors that are no DTensors: a checkpoint would have those of one rank."""
    model = sharded("ddp", mesh, "mixtral")
    names = [name for name, _ in model.named_parameters() if "experts" in name]
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).add_(rank)
    error = refused(lambda: lading.save(model, out, timeout=60))
    problems = same_everywhere(error.full_text())
    if not names or sorted(error.tensors) != sorted(names) or "R17" not in error.full_text() or out.exists():
        problems.append(f"{error}")
    return problems


def buffers_of_their_own(mesh, rank, folder, out):
    """As BatchNorm has them under DDP: one rank's are saved, and the report says so."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    model(torch.randn(16, 4, generator=torch.Generator().manual_seed(rank)))
    report = lading.save(model, out, timeout=60)
    told = {warning.tensor for warning in report.warnings if warning.code == "values_differ"}
    dist.barrier()
    found = load_file(out / "model.safetensors")
    mine = torch.tensor([torch.equal(found["1.running_mean"], model[1].running_mean)])
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return [] if told == {"1.running_mean", "1.running_var"} and mine.item() else [f"{told}, {mine}"]


CASES = {
    "ddp": (experts_of_their_own, buffers_of_their_own),
    "fsdp2": (
        a_target_that_exists,
        a_parent_that_cannot_be_written,
        a_rank_with_other_arguments,
        a_rank_that_stops,
        a_rank_that_cannot_write,
        after_a_step,
        into_another_dtype,
        a_config_that_is_refused,
        keys_of_the_base_are_kept,
        meta_is_refused,
    ),
    "tp": (a_tie_taken_apart,),
}
