"""What each rank does in the tests of wrappers: PEFT, FSDP1, pipeline stages, expert parallelism, DDP, compile. A case
answers its problems; an empty list is a case that holds. Each number of ranks is one process group."""

import copy
import functools
import gc
import json
import math
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lading
import peft
import ranks_models as models
import torch
import torch.distributed as dist
import zoo
from geometry.launch import numbers, run_ranks
from ranks_common import part_of, recipes, refused, same_everywhere
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, SplitPoint, pipeline
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

ZOO = ("gemma4", "qwen3_moe", "whisper")
CPU = torch.device("cpu")
IDS = torch.arange(20).reshape(2, 10)


# ---- what cases share


def build(make, how):
    with lading.skeleton() if how == "skeleton" else torch.device("meta"):
        return make()


def small_recipes(how):
    """As ranks_common has them, for models that are wrapped."""
    found = recipes(how)
    return None if found is None else {"*.table": found["*.table"], "*softcap": found["softcap"]}


def named(model):
    """Every parameter and buffer, under every name, without the names of wrappers."""
    wrapped = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    found = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        plain = ".".join(part for part in name.split(".") if part not in wrapped)
        found[plain.removeprefix("module.")] = tensor
    return found


def same(model, want, but=()):
    """Bits of this rank's parts against the whole tensors of another model, or of a dict."""
    expected = want if isinstance(want, dict) else named(want)
    found = named(model)
    problems = [] if set(found) == set(expected) else [f"names differ: {sorted(set(found) ^ set(expected))}"]
    for name in sorted(set(found) & set(expected)):
        tensor, full = found[name], expected[name].detach()
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor.detach()
        if local.is_meta or local.device.type != "cpu":
            problems.append(f"{name} is on {local.device}")
            continue
        if name in but:
            continue
        there = part_of(full, tensor) if isinstance(tensor, DTensor) else full
        if local.dtype != full.dtype or not zoo.same_bits(local.reshape(there.shape), there):
            problems.append(f"{name}: {local.reshape(-1)[:3].tolist()} for {there.reshape(-1)[:3].tolist()}")
    return problems


def same_output(model, want):
    got, expected = model(IDS), want(IDS)
    got, expected = getattr(got, "logits", got), getattr(expected, "logits", expected)
    return [] if torch.equal(got, expected) else ["the output differs"]


# ---- PEFT


LORA = {"target_modules": ["q_proj", "embed_tokens"], "r": 2, "modules_to_save": ["norm"]}


def lora(name, **options):
    return peft.get_peft_model(models.MODELS[name](), peft.LoraConfig(**options))


def with_adapters(name, **options):
    """What a PEFT model should hold: the original's values, and PEFT's own for adapters."""
    return peft.get_peft_model(models.original(name), peft.LoraConfig(**options))


def adapters_of(model):
    return {name for name in named(model) if "lora_" in name}


def check_adapters(model):
    """R65: as PEFT would initialise them: A and B of an embedding the other way round."""
    problems = []
    for name, tensor in named(model).items():
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        is_zero = "lora_B." in name or "lora_embedding_A" in name
        if "lora_" in name and local.numel() and bool(local.any()) == is_zero:
            problems.append(f"{name} is {'not ' if is_zero else ''}zero")
    return problems


def peft_is_initialised_alike_however_it_was_built(rank, folder):
    """On meta PEFT's own initialiser is run and recorded: bit for bit what lading.skeleton() recorded."""
    found, problems = {}, []
    want = with_adapters("llama", **LORA)
    for how in ("skeleton", "meta"):
        model = build(lambda: lora("llama", **LORA), how)
        before = {name: (id(tensor), tensor.requires_grad) for name, tensor in named(model).items()}
        lading.materialize(model, folder / "llama", device="cpu", seed=3)
        problems += same(model, want, but=adapters_of(model)) + check_adapters(model)
        found[how] = {name: tensor.detach().clone() for name, tensor in named(model).items()}
        if before != {name: (id(tensor), tensor.requires_grad) for name, tensor in named(model).items()}:
            problems.append("objects or requires_grad changed")
    return problems + same(model, found["skeleton"])


def peft_over_a_model_of_nobodys(rank, folder):
    options = {"target_modules": ["up", "embed"], "r": 2, "modules_to_save": ["head"]}
    problems = []
    for how in ("skeleton", "meta"):
        model = build(lambda: lora("small_untied", **options), how)
        lading.materialize(model, folder / "small_untied", device="cpu", recipes=small_recipes(how))
        problems += same(model, with_adapters("small_untied", **options), but=adapters_of(model))
        problems += check_adapters(model)
    return problems


def peft_copies_of_a_tied_head(rank, folder):
    """The file has the embedding only; the copy of the head begins with its values."""
    options = {"target_modules": ["q_proj"], "r": 2, "modules_to_save": ["lm_head"]}
    model = build(lambda: lora("llama_tied", **options), "skeleton")
    lading.materialize(model, folder / "llama_tied", device="cpu")
    return same(model, with_adapters("llama_tied", **options), but=adapters_of(model))


def peft_that_needs_base_weights_is_refused(rank, folder):
    """DoRA computes from weights that were not there when the model was built; PiSSA changes them, too."""
    problems = []
    ways = [({"use_dora": True}, "skeleton", "R66"), ({"use_dora": True}, "meta", "R13")]
    ways += [({"init_lora_weights": "pissa"}, how, "R66") for how in ("skeleton", "meta", "real")]
    for options, how, rule in ways:
        make = functools.partial(lora, "llama", target_modules=["q_proj"], r=2, **options)
        model = make() if how == "real" else build(make, how)
        error = refused(lambda model=model: lading.materialize(model, folder / "llama", device="cpu"))
        changed = [name for name in error.tensors if "lora_" not in name]
        if error.rule != rule or len(changed) != (2 if "init_lora_weights" in options else 0):
            problems.append(f"{options} {how}: {error}")
    return problems


def saved_adapter(folder, name="llama", **options):
    """A trained adapter, saved as PEFT saves it; and the model that it belongs to."""
    want = with_adapters(name, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in want.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    if not dist.is_initialized() or dist.get_rank() == 0:
        want.save_pretrained(folder)
    if dist.is_initialized():
        dist.barrier()
    return want


def peft_from_an_adapter_file(rank, folder):
    problems = []
    for number, options in enumerate((LORA, {"target_modules": ["q_proj"], "r": 2, "use_dora": True})):
        place = folder / f"adapter{number}"
        want = saved_adapter(place, **options)
        for how in ("skeleton", "meta"):
            model = build(lambda options=options: lora("llama", **options), how)
            report = lading.materialize(model, folder / "llama", device="cpu", adapter=place)
            problems += same(model, want)
            if not any("adapter default" in note for note in report.notes):
                problems.append(f"the report does not speak of the file: {report.notes}")
    return problems


def bad_adapter_files(rank, folder):
    """All that is wrong with one, in one message; a pickle is not read."""
    from safetensors.torch import load_file, save_file

    place = folder / "bad_adapter"
    saved_adapter(place, target_modules=["q_proj"], r=2)
    state = load_file(place / "adapter_model.safetensors")
    keys = sorted(state)
    state["surplus"] = torch.zeros(1)
    state[keys[0]] = torch.zeros(3, 3)
    del state[keys[1]]
    save_file(state, place / "adapter_model.safetensors")
    make = functools.partial(build, lambda: lora("llama", target_modules=["q_proj"], r=2), "skeleton")
    error = refused(lambda: lading.materialize(make(), folder / "llama", device="cpu", adapter=place))
    problems = [] if len(error.problems) == 3 and "surplus" in error.tensors else [error.full_text()]
    (place / "adapter_model.safetensors").unlink()
    (place / "adapter_model.bin").write_bytes(b"no")
    error = refused(lambda: lading.materialize(make(), folder / "llama", device="cpu", adapter=place))
    problems += [] if error.code == "unsupported_format" else [error.full_text()]
    plain = build(models.MODELS["llama"], "skeleton")
    error = refused(lambda: lading.materialize(plain, folder / "llama", device="cpu", adapter=place))
    return problems + ([] if "not a PeftModel" in error.full_text() else [error.full_text()])


def seed_000_one_device(rank, folder):
    """Gemma4 with LoRA: parameters on meta, buffers real, as init_empty_weights leaves them; and all on meta."""
    from accelerate import init_empty_weights

    want = peft.get_peft_model(zoo.build("gemma4"), gemma4_lora())
    problems = []
    for context in (init_empty_weights(), torch.device("meta"), lading.skeleton()):
        with context:
            model = peft.get_peft_model(gemma4(), gemma4_lora())
        lading.materialize(model, folder / "gemma4", device="cpu")
        problems += same(model, want, but=adapters_of(model)) + check_adapters(model)
    return problems


def seed_000_sharded(rank, folder):
    want = peft.get_peft_model(zoo.build("gemma4"), gemma4_lora())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    problems = []
    for how in ("skeleton", "meta"):
        model = build(lambda: peft.get_peft_model(gemma4(), gemma4_lora()), how)
        shard_blocks(model, mesh)
        lading.materialize(model, folder / "gemma4", timeout=60)
        problems += same(model, want, but=adapters_of(model)) + check_adapters(model)
    return problems


def gemma4():
    config, name = zoo.build_config("gemma4")
    return zoo.model_class(name, config)(config)


def gemma4_lora():
    return peft.LoraConfig(target_modules=r".*language_model.*\.(q_proj|down_proj)", r=2)


def shard_blocks(model, mesh, **options):
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    nested = {id(inner) for outer in lists for inner in outer.modules() if inner is not outer}
    for module in lists:
        if id(module) not in nested:
            for block in module:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def peft_over_ddp_fsdp2_and_fsdp1(rank, folder):
    """Adapters have the same values under every sharding (R16), initialised and from a file."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = build(lambda: lora("llama", **LORA), "skeleton")
    lading.materialize(whole, folder / "llama", device="cpu", group=False)
    trained = saved_adapter(folder / "trained", **LORA)
    problems = []
    for how in ("skeleton", "meta"):
        for want, adapter in ((whole, None), (trained, folder / "trained")):
            model = build(lambda: lora("llama", **LORA), how)
            lading.materialize(model, folder / "llama", device="cpu", adapter=adapter, timeout=60)
            problems += same(DistributedDataParallel(model), want)
            model = build(lambda: lora("llama", **LORA), how)
            shard_blocks(model, mesh)
            report = lading.materialize(model, folder / "llama", adapter=adapter, timeout=60, verify="full")
            problems += same(model, want) + same_output(model, want) + reads_its_part(report, adapter)
            model = build(lambda: lora("llama", **LORA), how)
            model = flat(model, model.base_model.model.model.layers, use_orig_params=True)
            report = lading.materialize(model, folder / "llama", adapter=adapter, timeout=60, verify="full")
            problems += same_gathered(model, want) + same_output(model, want) + reads_its_part(report, adapter)
    return problems


def reads_its_part(report, adapter):
    """A rank takes the bytes of an adapter's file that it holds, and no others; the ledger knows them exactly."""
    ledger = json.loads(report.ledger)
    records = [one for one in ledger["records"] if "lora_" in one["tensor"] and one["provenance"] != "alias"]
    taken = {one["tensor"]: sum(size * _times(loops) for _, _, size, *loops in one.get("reads", ())) for one in records}
    problems = [] if records or adapter is None else ["no adapter is in the ledger"]
    if adapter is None:
        return problems
    for one in records:  # F32 in memory and in the file
        if one["provenance"] != "file" or taken[one["tensor"]] != one["bytes"]:
            problems.append(f"{one['tensor']}: {one['provenance']}, {taken[one['tensor']]} bytes for {one['bytes']}")
    return problems


def _times(loops):
    return math.prod(loops[::2])


def peft_over_tensor_parallelism(rank, folder):
    """Adapters from a file, of which a rank holds rows (R65)."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    options = {"target_modules": ["q_proj"], "r": 2}
    trained = saved_adapter(folder / "trained_tp", **options)
    model = build(lambda: lora("llama", **options), "skeleton")
    layers = [name for name, module in model.named_modules() if name.endswith("q_proj")]
    cut = {f"{name}.{part}": ColwiseParallel() for name in layers for part in ("base_layer", "lora_B.default")}
    parallelize_module(model, mesh, cut)
    report = lading.materialize(model, folder / "llama", adapter=folder / "trained_tp", timeout=60, verify="full")
    rows = [one for one in model.parameters() if isinstance(one, DTensor)]
    problems = [] if len(rows) == 2 * len(layers) else [f"{len(rows)} DTensors"]
    return problems + same(model, trained) + reads_its_part(report, folder)


# ---- FSDP1


def flat(model, blocks=None, **options):
    """FSDP1 on each block and on the whole."""
    options = {"device_id": CPU, "param_init_fn": lading.empty_parameters} | options
    for place, block in enumerate(blocks if blocks is not None else ()):
        blocks[place] = FSDP(block, **options)
    return FSDP(model, **options)


def same_gathered(model, want):
    with FSDP.summon_full_params(model, writeback=False):
        return same(model, want)


def padding_of(model):
    """What FSDP1 has put between and behind the parameters of every unit."""
    found = []
    for unit in FSDP.fsdp_modules(model):
        handle = unit._handle
        shard = getattr(handle.flat_param, "_local_shard", handle.flat_param).detach()
        is_padding = torch.ones(shard.numel(), dtype=torch.bool)
        for info in handle.flat_param._shard_param_infos:
            if info.in_shard:
                is_padding[info.offset_in_shard : info.offset_in_shard + info.numel_in_shard] = False
        found.append(shard[is_padding].tolist())
    return found


def fsdp1(rank, folder, *, use_orig_params):
    """Every parameter and buffer, padding, identity, a forward pass; again after it, over spoilt values."""
    problems = []
    for name in ("small", "llama_tied"):
        for how in ("skeleton", "meta"):
            want = models.original(name)
            model = build(models.MODELS[name], how)
            if not use_orig_params:
                model.requires_grad_(True)  # one flat parameter is trained or not as a whole
            blocks = model.blocks if name == "small" else model.model.layers
            model = flat(model, blocks, use_orig_params=use_orig_params)
            padding = padding_of(model)
            before = [id(parameter) for parameter in model.parameters()]
            report = lading.materialize(model, folder / name, recipes=small_recipes(how) if name == "small" else None)
            problems += same_gathered(model, want)
            has_padding = [False] * dist.get_world_size()
            dist.all_gather_object(has_padding, any(padding))
            if padding != padding_of(model) or not (any(has_padding) or name == "llama_tied"):
                problems.append(f"padding was {padding}, and is {padding_of(model)}")
            if before != [id(parameter) for parameter in model.parameters()]:
                problems.append("parameters are other objects")
            if set(report.tensors) != set(named(want)):
                problems.append(f"the report speaks of {sorted(set(report.tensors) ^ set(named(want)))}")
            problems += same_output(model, want)
            with torch.no_grad():
                for unit in FSDP.fsdp_modules(model):
                    unit._handle.flat_param._local_shard.fill_(3.0)
            lading.materialize(model, folder / name, recipes=small_recipes(how) if name == "small" else None)
            problems += same_output(model, want) + same_gathered(model, want)
    return problems


def fsdp1_with_original_parameters(rank, folder):
    return fsdp1(rank, folder, use_orig_params=True)


def fsdp1_with_flat_parameters(rank, folder):
    return fsdp1(rank, folder, use_orig_params=False)


def fsdp1_strategies(rank, folder):
    """Real models, whose values are overwritten, and every way of sharing out."""
    problems = []
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for use_orig_params in (True, False):
            model = models.MODELS["small_untied"]()
            model.requires_grad_(True)
            model = flat(model, model.blocks, use_orig_params=use_orig_params, sharding_strategy=strategy)
            lading.materialize(model, folder / "small_untied", timeout=60)
            want = models.original("small_untied")
            problems += same_gathered(model, want) + same_output(model, want)
    return problems


def fsdp1_again_after_evaluation(rank, folder):
    """FSDP1 then shows its shard and keeps the gathered parameters, which it would use again."""
    from safetensors.torch import load_file, save_file

    other = folder / "doubled"
    if rank == 0:
        other.mkdir(exist_ok=True)
        state = load_file(folder / "small_untied" / "model.safetensors")
        save_file({name: value * 2 for name, value in state.items()}, other / "model.safetensors")
    dist.barrier()
    want = models.original("small_untied")
    want.load_state_dict({name: value * 2 for name, value in want.state_dict().items()})
    problems = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for use_orig_params in (True, False):
            model = models.MODELS["small_untied"]()
            model.requires_grad_(True)
            model = flat(model, model.blocks, use_orig_params=use_orig_params, sharding_strategy=strategy)
            lading.materialize(model, folder / "small_untied", timeout=60)
            with torch.no_grad():
                model(torch.arange(20).reshape(2, 10))
            lading.materialize(model, other, timeout=60)
            problems += same_gathered(model, want) + same_output(model, want)
    return problems


def fsdp1_hybrid(rank, folder):
    """Shared out within pairs of ranks, replicated over the pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = build(models.MODELS["small_untied"], "skeleton")
    options = {"device_mesh": mesh, "sharding_strategy": ShardingStrategy.HYBRID_SHARD, "use_orig_params": True}
    model = flat(model, model.blocks, **options)
    lading.materialize(model, folder / "small_untied", timeout=60)
    want = models.original("small_untied")
    return same_gathered(model, want) + same_output(model, want)


def fsdp1_missing_keys_are_not_hidden(rank, folder):
    """Memory without a value is no value: what no file has is an error, or its recipe if that is allowed."""
    from safetensors.torch import load_file, save_file

    place = folder / "less"
    if rank == 0:
        state = load_file(folder / "small_untied" / "model.safetensors")
        del state["head.weight"]
        place.mkdir(exist_ok=True)
        save_file(state, place / "model.safetensors")
    dist.barrier()
    make = functools.partial(build, models.MODELS["small_untied"], "skeleton")
    model = flat(make(), use_orig_params=True)
    error = refused(lambda: lading.materialize(model, place, timeout=60))
    problems = same_everywhere(error.full_text()) + ([] if error.tensors == ("head.weight",) else [error.full_text()])
    lading.materialize(model, place, allow_missing="head.weight", timeout=60)
    whole = make()
    lading.materialize(whole, place, device="cpu", allow_missing="head.weight", group=False)
    return problems + same_gathered(model, whole)


def emptied_buffers_are_refused(rank, folder):
    """`to_empty` gives buffers memory without values, which look like values."""
    empty = functools.partial(torch.nn.Module.to_empty, device="cpu", recurse=False)
    model = build(models.MODELS["small_untied"], "skeleton")
    model = flat(model, model.blocks, use_orig_params=True, param_init_fn=lambda module: empty(module))
    for name, buffer in model.named_buffers():
        if name.endswith(("table", "softcap")):
            buffer.fill_(-7.0)
    error = refused(lambda: lading.materialize(model, folder / "small_untied", timeout=60))
    wanted = ("blocks.0.table", "blocks.1.table", "softcap")
    problems = [] if error.tensors == wanted and error.rule == "R6" else [error.full_text()]
    lading.materialize(model, folder / "small_untied", keep=["*table", "softcap"], timeout=60)
    return problems + ([] if float(model.softcap) == -7.0 else ["a value that was to be kept is gone"])


def fsdp1_of_the_zoo(rank, folder):
    problems = []
    for model_type in ZOO:
        model = flat(zoo.build(model_type, "meta"), use_orig_params=True)
        lading.materialize(model, folder / model_type, timeout=60)
        problems += same_gathered(model, zoo.build(model_type))
    return problems


# ---- other wrappers


def wrapped_modules(rank, folder):
    """compile, activation checkpointing and DDP leave no trace in names, in any order."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    want = models.original("small")
    problems = []

    def checkpointed(model):
        for place, block in enumerate(model.blocks):
            model.blocks[place] = checkpoint_wrapper(block)
        return model

    def compiled_blocks(model):
        for place, block in enumerate(model.blocks):
            model.blocks[place] = torch.compile(block, backend="eager")
        return model

    ways = {
        "compile": lambda model: torch.compile(model, backend="eager"),
        "blocks": lambda model: torch.compile(compiled_blocks(checkpointed(model)), backend="eager"),
        "checkpoint, fsdp2": lambda model: fully_shard(checkpointed(model), mesh=mesh),
        "checkpoint, fsdp1": lambda model: flat(checkpointed(model), model.blocks, use_orig_params=True),
        "ddp": lambda model: torch.compile(DistributedDataParallel(checkpointed(model)), backend="eager"),
    }
    for way, wrap in ways.items():
        model = models.MODELS["small"]() if way == "ddp" else build(models.MODELS["small"], "skeleton")
        model = wrap(model)
        is_flat = way == "checkpoint, fsdp1"
        device = None if "fsdp" in way or way == "ddp" else "cpu"
        lading.materialize(model, folder / "small", device=device, timeout=60)
        found = same_gathered(model, want) if is_flat else same(model, want)
        problems += [f"{way}: {problem}" for problem in found]
        if not (way == "ddp" or "blocks" in way):
            problems += [f"{way}: {problem}" for problem in same_output(model, want)]
    return problems


def offloaded(rank, folder):
    """Parameters on the CPU; pinned memory only where there is an accelerator."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    problems = []
    for model_type in ("gemma4", "whisper"):
        model = zoo.build(model_type, "meta")
        shard_blocks(model, mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        lading.materialize(model, folder / model_type, timeout=60)
        problems += same(model, zoo.build(model_type))
    if not torch.accelerator.is_available():
        model = build(models.MODELS["small"], "skeleton")
        fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=True))
        error = refused(lambda: lading.materialize(model, folder / "small", timeout=60))
        problems += [] if error.rule == "R36" and all(one.is_meta for one in model.parameters()) else [error.full_text()]
    return problems


# ---- pipelines


def traced_pipeline(rank, folder):
    """`pipeline()` loses which buffers are in files, which names are tied, and what no stage uses: `whole` knows.
    Before torch 2.13, `pipeline()` itself fails on a tied Llama: "unexpected placeholder node at index 3"."""
    problems = []
    llama = ["llama_tied"] if numbers(torch.__version__) >= (2, 13) else []
    for name in ["small", "small_untied", *llama]:
        for how in ("skeleton", "meta"):
            want = models.original(name)
            model = build(models.MODELS[name], how)
            if name == "llama_tied":
                model.config.use_cache = want.config.use_cache = False
            split = {"model.layers.1" if name == "llama_tied" else "blocks.1": SplitPoint.BEGINNING}
            pipe = pipeline(model, mb_args=(torch.zeros(2, 10, dtype=torch.int64, device="meta"),), split_spec=split)
            part = pipe.get_stage_module(rank)
            lading.materialize(
                part,
                folder / name,
                device="cpu",
                whole=model,
                recipes=small_recipes(how) if name.startswith("small") else None,
                timeout=60,
            )
            held = named(part)
            problems += same(part, {key: tensor for key, tensor in named(want).items() if key in held})
            if name == "llama_tied":  # traced on meta, it makes positions on meta, whatever its weights are
                continue
            schedule = ScheduleGPipe(pipe.build_stage(rank, CPU), 1)
            output = schedule.step(IDS) if rank == 0 else schedule.step()
            if rank == 1:
                expected = want(IDS)
                got = getattr(output, "logits", output)
                if not torch.equal(got, getattr(expected, "logits", expected)):
                    problems.append(f"{name}, {how}: the output differs")
    return problems


class Stage(torch.nn.Module):
    """Half of a tied Llama, under the names that the whole has: the head is on the stage that has no embedding."""

    def __init__(self, model, rank, layers):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleDict({str(place): model.model.layers[place] for place in layers})
        self.model.rotary_emb = model.model.rotary_emb
        self.is_first = rank == 0
        if self.is_first:
            self.model.embed_tokens = model.model.embed_tokens
        else:
            self.model.norm = model.model.norm
            self.lm_head = model.lm_head

    def forward(self, hidden):
        if self.is_first:
            hidden = self.model.embed_tokens(hidden)
        places = torch.arange(hidden.shape[1])[None]
        embeddings = self.model.rotary_emb(hidden, places)
        mask = torch.full((hidden.shape[1],) * 2, float("-inf")).triu(1)[None, None]
        for layer in self.model.layers.values():
            hidden = layer(hidden, attention_mask=mask, position_ids=places, position_embeddings=embeddings)
        return hidden if self.is_first else self.lm_head(self.model.norm(hidden))


def manual_pipeline(rank, folder):
    """R51: a head that is tied to the embedding of another stage takes that one's key; the output is the model's."""
    problems = []
    for how in ("skeleton", "meta"):
        whole = build(models.MODELS["llama_tied"], how)
        want = models.original("llama_tied")
        part = Stage(copy.deepcopy(whole) if how == "meta" else whole, rank, [rank])
        lading.materialize(part, folder / "llama_tied", device="cpu", whole=whole, timeout=60)
        held = named(part)
        problems += same(part, {key: tensor for key, tensor in named(want).items() if key in held})
        schedule = ScheduleGPipe(PipelineStage(part, rank, 2, CPU), 1)
        output = schedule.step(IDS) if rank == 0 else schedule.step()
        if rank == 1 and not torch.allclose(output, want(IDS).logits, atol=1e-5):
            problems.append(f"{how}: the output differs by {(output - want(IDS).logits).abs().max()}")
    return problems


def pipeline_over_fsdp2_with_a_tie(rank, folder):
    """Two stages of two ranks each, and `model` as a list of parts."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage = grid.get_local_rank("pp")
    whole = build(models.MODELS["llama_tied"], "skeleton")
    want = models.original("llama_tied")
    part = Stage(whole, stage, [stage])
    fully_shard(part, mesh=grid["dp"])
    lading.materialize([part], folder / "llama_tied", whole=whole, timeout=60)
    held = named(part)
    return same(part, {key: tensor for key, tensor in named(want).items() if key in held})


def a_stage_of_another_model_is_refused(rank, folder):
    part = torch.nn.ModuleDict({"other": torch.nn.Linear(2, 2, device="meta")})
    whole = build(models.MODELS["small"], "skeleton")
    error = refused(lambda: lading.materialize(part, folder / "small", device="cpu", whole=whole, timeout=60))
    return [] if error.tensors == ("other.bias", "other.weight") else [error.full_text()]


# ---- expert parallelism


def expert_parallel(rank, folder):
    """Stacked experts, made of one key each: cut by experts over one axis of a mesh, by columns over the other, which
    is FSDP2's; everything else FSDP2 over all ranks."""
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "ep_shard"))
    model = zoo.build("qwen3_moe", "meta")
    want = zoo.build("qwen3_moe")
    experts = [module for module in model.modules() if {"gate_up_proj", "down_proj"} <= set(module._parameters)]
    for module in experts:
        for name, old in list(module._parameters.items()):
            spread = distribute_tensor(old.detach(), grid["ep"], [Shard(0)], src_data_rank=None)
            module._parameters[name] = torch.nn.Parameter(spread, old.requires_grad)
        fully_shard(module, mesh=grid["ep_shard"], shard_placement_fn=lambda parameter: Shard(1))
    ignored = {parameter for module in experts for parameter in module.parameters()}
    fully_shard(model, mesh=world, ignored_params=ignored)
    lading.materialize(model, folder / "qwen3_moe", timeout=60)
    placements = {one for parameter in ignored for one in parameter.placements}
    problems = [] if placements == {Shard(0), Shard(1)} else [f"experts lie as {placements}"]
    for module in experts:
        module.unshard()
    parts = [module._parameters["gate_up_proj"] for module in experts]
    if any(tuple(part.to_local().shape)[0] * 2 != part.shape[0] for part in parts):
        problems.append("FSDP2 gathered more than this rank's experts")
    gathered = {name: tensor for name, tensor in named(want).items() if "experts." in name}
    for name, tensor in named(model).items():
        if name in gathered and not zoo.same_bits(tensor.to_local(), part_of(gathered[name], tensor)):
            problems.append(f"{name} differs once it is gathered")
    for module in experts:
        module.reshard()
    return problems + same(model, want)


# ---- running them


CASES = {
    1: (
        peft_is_initialised_alike_however_it_was_built,
        peft_over_a_model_of_nobodys,
        peft_copies_of_a_tied_head,
        peft_that_needs_base_weights_is_refused,
        peft_from_an_adapter_file,
        bad_adapter_files,
        seed_000_one_device,
    ),
    2: (
        fsdp1_with_original_parameters,
        fsdp1_with_flat_parameters,
        fsdp1_strategies,
        fsdp1_again_after_evaluation,
        fsdp1_missing_keys_are_not_hidden,
        emptied_buffers_are_refused,
        fsdp1_of_the_zoo,
        peft_over_ddp_fsdp2_and_fsdp1,
        peft_over_tensor_parallelism,
        seed_000_sharded,
        wrapped_modules,
        offloaded,
        traced_pipeline,
        manual_pipeline,
        a_stage_of_another_model_is_refused,
    ),
    4: (fsdp1_hybrid, pipeline_over_fsdp2_with_a_tie, expert_parallel),
}


def guarded(case, rank, folder):
    try:
        problems = case(rank, folder)
    except Exception:
        problems = [traceback.format_exc()[-3000:]]
    if problems:  # said at once: a peer may wait for ever
        print(f"rank {rank}: {case.__name__}: {problems}", flush=True)
    dist.barrier()
    gc.collect()
    return problems


def run(rank, folder, cases):
    zoo.seed_all(1)
    return {case.__name__: guarded(case, rank, folder) for case in cases}


def main(worlds=(1, 2, 4), only="", rank_deadline_s=200):
    """{case: [problem of a rank, …]}"""
    folder = Path(os.environ["LADING_SCRATCH"]) / "checkpoints"
    for name in models.MODELS:
        models.save(models.original(name), folder / name)
    for model_type in ZOO:
        zoo.make(model_type, str(folder / model_type))
    answers = {}
    for world in worlds:
        cases = [case for case in CASES[world] if only in case.__name__]
        by_rank = run_ranks(world, run, rank_deadline_s, folder, cases) if cases else []
        for rank, found in enumerate(by_rank):
            for case, problems in found.items():
                answers.setdefault(case, []).extend(f"rank {rank}: {problem}" for problem in problems)
    return answers
