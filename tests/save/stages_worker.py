"""`lading.save` of models that are cut into stages, on forked gloo ranks. The stages are cut and sharded by torch, from
real values. What is written is compared with the files that transformers writes in one process."""

import copy
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
from ranks_common import refused, same_everywhere, tensor_parallel
from save_worker import by_case, guarded, loaded_by_transformers, made_checkpoints
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import SplitPoint, pipeline

import lading

RANKS_DEADLINE_S = 150
EMBEDDING, FIRST, SECOND, HEAD = range(4)  # pieces of a model of two layers


def main(worlds):
    """{case: [problem of a rank, …]}"""
    folder, scratch = made_checkpoints()
    answers = {}
    for world in worlds:
        answers |= by_case(run_ranks(world, run, RANKS_DEADLINE_S, folder, scratch / f"out{world}"))
    return answers


def run(rank, folder, out):
    out.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    found = {}
    for case in CASES[dist.get_world_size()]:
        found[case.__name__] = guarded(lambda case=case: case(rank, folder, out / case.__name__))
    return found


# ---- cutting


def cut(model, *pieces):
    """The model's own class, without the other pieces: every name is that of the whole."""
    inner = model.model
    inner.layers = torch.nn.ModuleDict({str(place): inner.layers[place] for place in (0, 1) if place + 1 in pieces})
    if EMBEDDING not in pieces:
        inner.embed_tokens = None
    if HEAD not in pieces:
        inner.norm = model.lm_head = None
    return model


def half(name, stage):
    return cut(models.original(name), *((EMBEDDING, FIRST) if stage == 0 else (SECOND, HEAD)))


def loose(model, stage):
    """The same as a module that no library knows, as a trainer's own stage is."""
    part = torch.nn.Module()
    part.model = torch.nn.Module()
    part.model.layers = torch.nn.ModuleDict({str(stage): model.model.layers[stage]})
    if stage == 0:
        part.model.embed_tokens = model.model.embed_tokens
    else:
        part.model.norm, part.lm_head = model.model.norm, model.lm_head
    return part


# ---- what is written


def same_files(rank, name, folder, out, part, ways=("", "shards", "base")):
    """Byte for byte those of transformers: in one file, in several, and as in a base."""
    problems = []
    shards = folder / f"{name}-shards"
    options = {"": {}, "shards": {"max_shard_size": models.SHARD_BYTES}, "base": {"base": shards}}
    for way in ways:
        target = out.parent / f"{out.name}-{name}-{way}"
        report = lading.save(part, target, **options[way], timeout=60)
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, report.written_bytes)
        data = sum(value[2].__len__() for value in models.tensors_in(target).values()) if rank == 0 else sum(counts)
        if sum(counts) != data:
            problems.append(f"{name}, {way}: the ranks wrote {counts} of {data} bytes")
        if not all(counts):
            problems.append(f"{name}, {way}: a rank wrote nothing: {counts}")
        if rank == 0:
            wanted = shards if way else folder / name
            problems += [f"{name}, {way}: {problem}" for problem in models.differences(target, wanted)]
            problems += loaded_by_transformers(target, models.original(name))
    return problems


def two_stages(rank, folder, out):
    problems = []
    for name in models.OF_TRANSFORMERS:
        problems += same_files(rank, name, folder, out, half(name, rank))
    return problems


def several_stages_on_a_rank(rank, folder, out):
    """Interleaved, and as a V: the last rank of the tie is the first one."""
    problems = []
    for name in ("llama_tied", "qwen3_moe"):
        for way, pieces in (("a", ((EMBEDDING, SECOND), (FIRST, HEAD))), ("v", ((EMBEDDING, HEAD), (FIRST, SECOND)))):
            parts = [cut(models.original(name), piece) for piece in pieces[rank]]
            problems += same_files(rank, name, folder, out.with_name(f"{out.name}-{way}"), parts)
    return problems


def all_stages_in_one_process(rank, folder, out):
    problems = []
    for name in ("llama_tied", "mixtral"):
        parts = [half(name, stage) for stage in (0, 1)]
        for base in (None, folder / name):
            target = out.with_name(f"{out.name}-{name}-{rank}-{base is None}")
            lading.save(parts, target, base=base, group=False)
            problems += models.differences(target, folder / name)
    return problems


def stages_over_fsdp2(rank, folder, out):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    problems = []
    for name in ("llama", "llama_tied", "qwen3_moe"):
        part = half(name, grid.get_local_rank("pp"))
        for layer in part.model.layers.values():
            fully_shard(layer, mesh=grid["dp"])
        fully_shard(part, mesh=grid["dp"])
        problems += same_files(rank, name, folder, out, part)
    return problems


def stages_over_fsdp1(rank, folder, out):
    """Flattened values are not compared: a tie over stages is refused."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))

    def sharded(name):
        part = half(name, grid.get_local_rank("pp"))
        return FSDP(part, device_mesh=grid["dp"], device_id=torch.device("cpu"), use_orig_params=True)

    problems = same_files(rank, "llama", folder, out, sharded("llama"))
    part = sharded("llama_tied")
    error = refused(lambda: lading.save(part, out, timeout=60))
    return problems + told(error, out, "FSDP1", tensors=("model.embed_tokens.weight", "lm_head.weight"))


def stages_sharded_differently(rank, folder, out):
    """The first stage is replicated, the second one sharded by FSDP2."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    problems = []
    for name in ("llama", "llama_tied"):
        part = half(name, grid.get_local_rank("pp"))
        if grid.get_local_rank("pp"):
            fully_shard(part, mesh=grid["dp"])
        problems += same_files(rank, name, folder, out, part)
    return problems


def stages_over_tensor_parallelism(rank, folder, out):
    """Embedding and head are cut by rows on their stages, the tie as well."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    problems = []
    for name in ("llama", "llama_tied"):
        part = half(name, grid.get_local_rank("pp"))
        tensor_parallel(part, grid["tp"])
        if (head := part.lm_head) is not None:  # not by columns, as the embedding
            whole = head.weight.detach().full_tensor()
            spread = torch.distributed.tensor.Shard(0)
            head.weight = torch.nn.Parameter(
                torch.distributed.tensor.distribute_tensor(whole, grid["tp"], [spread], src_data_rank=None)
            )
        problems += same_files(rank, name, folder, out, part)
    return problems


def replicated_stages(rank, folder, out):
    """Each stage on two ranks: one of them writes."""
    part = half("llama_tied", rank // 2)
    return same_files(rank, "llama_tied", folder, out, part, ways=("", "base"))


def stages_of_nobodys(rank, folder, out):
    """A model of no library: the names of the state dict."""
    model = models.original("small_untied")
    parts = torch.nn.Module()
    parts.blocks = torch.nn.ModuleDict({str(rank): model.blocks[rank]})
    if rank == 0:
        parts.embed = model.embed
    else:
        parts.head = model.head
    problems = []
    for base in (None, folder / "small_untied"):
        target = out.with_name(f"{out.name}-{base is None}")
        lading.save(parts, target, base=base, timeout=60)
        if models.tensors_in(target) != models.tensors_in(folder / "small_untied"):
            problems.append(f"other tensors: {sorted(models.tensors_in(target))}")
    return problems


def stages_that_were_loaded(rank, folder, out):
    """The report knows what `whole=` told: conversions, and the tie to another stage."""
    problems = []
    for name in ("llama_tied", "qwen3_moe"):
        with lading.skeleton():
            whole = models.MODELS[name]()
        part = loose(whole, rank)
        report = lading.materialize(part, folder / name, device="cpu", whole=whole, timeout=60)
        lading.save(part, out.with_name(f"{out.name}-{name}"), base=report, timeout=60)
        dist.barrier()
        if models.tensors_in(out.with_name(f"{out.name}-{name}")) != models.tensors_in(folder / name):
            problems.append(f"{name}: other tensors")
    return problems


def a_traced_pipeline(rank, folder, out):
    """`pipeline()` gives tied tensors one name, and calls all buffers persistent."""
    problems = []
    with torch.device("meta"):
        whole = models.MODELS["llama_tied"]()
    whole.config.use_cache = False
    ids = torch.zeros(2, 10, dtype=torch.int64, device="meta")
    pipe = pipeline(whole, mb_args=(ids,), split_spec={"model.layers.1": SplitPoint.BEGINNING})
    part = pipe.get_stage_module(rank)
    report = lading.materialize(part, folder / "llama_tied", device="cpu", whole=whole, timeout=60)
    lading.save(part, out, base=report, timeout=60)
    dist.barrier()
    if models.tensors_in(out) != models.tensors_in(folder / "llama_tied"):
        problems.append("other tensors")
    error = refused(lambda: lading.save(part, out, exist="replace", timeout=60))
    return problems + told(error, out, "base=", exists=True)


def only_one_stage_has_a_config(rank, folder, out):
    """It knows the conversions and the ties of all, and writes the config."""
    problems = []
    for name in ("llama_tied", "qwen3_moe"):
        part = loose(models.original(name), 0) if rank == 0 else half(name, 1)
        problems += same_files(rank, name, folder, out, part)
    return problems


def a_tie_of_two_keys(rank, folder, out):
    """If the base has a key for each, their values may differ."""
    part = half("llama_tied", rank)
    if rank == 1:
        with torch.no_grad():
            part.lm_head.weight.add_(1)
    want = models.original("llama_tied")
    want.lm_head.weight = torch.nn.Parameter(want.lm_head.weight.detach() + 1)
    base = folder / "with_two_keys"
    if rank == 0:
        want.save_pretrained(base)
    dist.barrier()
    lading.save(part, out, base=base, timeout=60)
    dist.barrier()
    return models.differences(out, base) if rank == 0 else []


# ---- refusals


def told(error, out, *words, tensors=None, exists=False):
    """What is wrong with a refusal: it is the same everywhere, has a remedy, and nothing was written."""
    problems = same_everywhere(error.full_text())
    problems += [f"nothing says {word!r}: {error.full_text()}" for word in words if word not in error.full_text()]
    if tensors is not None and error.tensors != tensors:
        problems.append(f"the tensors are {error.tensors}: {error.full_text()}")
    if error.begun or out.exists() is not exists or not all(problem.remedy for problem in error.problems):
        problems.append(f"not a refusal: {error.full_text()}")
    dist.barrier()
    return problems


def tied_values_that_differ(rank, folder, out):
    part = half("llama_tied", rank)
    if rank == 1:
        with torch.no_grad():
            part.lm_head.weight[0, 0] += 1
    problems = []
    for base in (None, folder / "llama_tied"):
        error = refused(lambda base=base: lading.save(part, out, base=base, timeout=60))
        problems += told(error, out, "model.embed_tokens.weight", tensors=("lm_head.weight",))
        problems += [] if error.code == "values_differ" else [error.code]
    return problems


def copies_that_differ(rank, folder, out):
    """Both stages have the embedding under its own name, and use it as they like."""
    part = half("llama", rank)
    if rank == 1:
        part.model.embed_tokens = models.original("llama").model.embed_tokens
    problems = same_files(rank, "llama", folder, out, part)
    if rank == 1:
        with torch.no_grad():
            part.model.embed_tokens.weight[3] += 1
    error = refused(lambda: lading.save(part, out, timeout=60))
    return problems + told(error, out, "several stages", tensors=("model.embed_tokens.weight",))


def a_config_of_one_stage(rank, folder, out):
    part = half("llama", rank)
    part.config.num_hidden_layers = 1
    problems = []
    for base in (None, folder / "llama"):
        error = refused(lambda base=base: lading.save(part, out, base=base, timeout=60))
        problems += told(error, out, "config of the whole model")
        problems += [] if "model.layers.1.mlp.up_proj.weight" in error.tensors else [str(error.tensors)]
    part.config.num_hidden_layers = 2 - rank
    error = refused(lambda: lading.save(part, out, timeout=60))
    return problems + told(error, out, "different configs", "num_hidden_layers")


def a_stage_that_nobody_has(rank, folder, out):
    part = cut(models.original("llama"), *((EMBEDDING,), (SECOND, HEAD))[rank])
    error = refused(lambda: lading.save(part, out, timeout=60))
    problems = told(error, out, "no rank holds it")
    problems += [] if "model.layers.0.mlp.up_proj.weight" in error.tensors else [str(error.tensors)]
    error = refused(lambda: lading.save(part, out, base=folder / "llama", timeout=60))
    return problems + told(error, out, "no tensor of the model makes this key")


def keys_that_nobody_knows(rank, folder, out):
    """Parts of a model of transformers: their names may be others in files, and one of two may be left out."""
    part = loose(models.original("llama_tied"), rank)
    error = refused(lambda: lading.save(part, out, timeout=60))
    problems = told(error, out, "base=")
    error = refused(lambda: lading.save(part, out, base=folder / "llama_tied", timeout=60))
    return problems + told(error, out, "whole=", tensors=("lm_head.weight",))


def a_stage_on_meta(rank, folder, out):
    with torch.device("meta" if rank else "cpu"):
        model = models.MODELS["llama"]()
    part = cut(model, *((EMBEDDING, FIRST), (SECOND, HEAD))[rank])
    error = refused(lambda: lading.save(part, out, timeout=60))
    return told(error, out, "on meta")


def a_class_that_cannot_be_built_again(rank, folder, out):
    """The report of a load that was given the whole knows its keys all the same."""
    with torch.device("meta"):
        whole = models.MODELS["llama"]()
    part = cut(copy.deepcopy(whole), *((EMBEDDING, FIRST), (SECOND, HEAD))[rank])

    class Needy(type(part)):
        def __init__(self, config, more):
            raise AssertionError

    part.__class__ = Needy
    report = lading.materialize(part, folder / "llama", device="cpu", whole=whole, timeout=60)
    error = refused(lambda: lading.save(part, out, timeout=60))
    problems = told(error, out, "could not be built", "whole=")
    lading.save(part, out, base=report, timeout=60)
    dist.barrier()
    if models.tensors_in(out) != models.tensors_in(folder / "llama"):
        problems.append("other tensors")
    if json.loads((out / "config.json").read_text())["dtype"] != "float32":
        problems.append("another dtype in the config")
    return problems


CASES = {
    2: (
        two_stages,
        several_stages_on_a_rank,
        all_stages_in_one_process,
        stages_of_nobodys,
        stages_that_were_loaded,
        a_traced_pipeline,
        only_one_stage_has_a_config,
        a_tie_of_two_keys,
        tied_values_that_differ,
        copies_that_differ,
        a_config_of_one_stage,
        a_stage_that_nobody_has,
        keys_that_nobody_knows,
        a_stage_on_meta,
        a_class_that_cannot_be_built_again,
    ),
    4: (
        stages_over_fsdp2,
        stages_over_fsdp1,
        stages_over_tensor_parallelism,
        stages_sharded_differently,
        replicated_stages,
    ),
}
