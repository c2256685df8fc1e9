"""Wrappers and optimizers that keep copies of what a load fills, on forked ranks. After the load a forward pass and a
step must be those of the same wrapper around a model that had the loaded values from the start. Each case answers what
is wrong on this rank; an empty list is a case that holds."""

import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import accelerate
import deepspeed
import peft
import safetensors.torch
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lading

RANKS_DEADLINE_S = 100


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 5)
        self.two = nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def filled(seed):
    model = Net()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():  # exact in half precision
            parameter.copy_(torch.randint(-8, 8, parameter.shape, generator=generator) / 8)
    return model


def saved(folder):
    """A model, and its file, which the first rank writes."""
    want, path = filled(3), folder / "net.safetensors"
    if dist.get_rank() == 0 and not path.exists():
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in want.state_dict().items()}, path)
    dist.barrier()
    return want, path


def load(model, path, **options):
    return lading.materialize(model, path, cast="destination", progress=False, timeout=30, **options)


def inputs(dtype=torch.float32):
    rank = dist.get_rank()
    return torch.arange(8.0).reshape(2, 4).sub(3 + rank).div(4).to(dtype)


def differences(found, wanted, what):
    return [
        f"{what}: {name} is {found[name].flatten()[:3].tolist()}, not {tensor.flatten()[:3].tolist()}"
        for name, tensor in wanted.items()
        if not torch.equal(found[name], tensor)
    ]


# ---- DeepSpeed


def engine_of(model, kind, stage, *, fused=False, **more):
    fields = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2 * dist.get_world_size()}
    fields |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    fields |= {"zero_optimization": {"stage": stage, **more.pop("zero", {})}} | more
    fields |= {} if kind == "fp32" else {kind: {"enabled": True}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if fused:  # the class decides which of DeepSpeed's optimizers is made; its step is that of SGD
        fused_adam = importlib.import_module("deepspeed.ops.adam").FusedAdam
        optimizer.__class__ = type("Fused", (torch.optim.SGD, fused_adam), {"step": torch.optim.SGD.step})
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=fields)
    return engine


def stepped(engine):
    """An output, and the parameters after a step."""
    parameter = next(engine.module.parameters())
    output = engine(inputs(parameter.dtype))
    engine.backward(output.float().square().sum())
    engine.step()
    found = {name: tensor.detach().clone() for name, tensor in engine.module.named_parameters()}
    return {"the output": output.detach(), **found}


WAYS = {  # the optimizer that DeepSpeed makes, and how to get it
    "FP16_UnfusedOptimizer": ("bf16", 0, {}),
    "FP16_Optimizer": ("bf16", 0, {"fused": True}),
    "BF16_Optimizer": ("bf16", 1, {"data_types": {"grad_accum_dtype": "fp32"}}),
    "DeepSpeedZeroOptimizer": ("bf16", 1, {}),
    "DeepSpeedZeroOptimizer stage 2": ("bf16", 2, {}),
    "DeepSpeedZeroOptimizer in fp32": ("fp32", 1, {}),
    "DeepSpeedZeroOptimizer stage 2 in fp32": ("fp32", 2, {}),
    "DeepSpeedZeroOptimizer round robin": ("bf16", 2, {"zero": {"round_robin_gradients": True}}),
    "DeepSpeedZeroOptimizer offloaded": ("bf16", 2, {"zero": {"offload_optimizer": {"device": "cpu"}}}),
    "SGD": ("fp32", 0, {}),
}


def deepspeed_masters(folder):
    """The engine is loaded, or the model alone, of which nothing says that there is an engine."""
    want, path = saved(folder)
    problems = []
    for way, (kind, stage, more) in WAYS.items():
        expected = stepped(engine_of(filled(3), kind, stage, **dict(more)))
        for is_engine in (True, False):
            model = filled(4)
            engine = engine_of(model, kind, stage, **dict(more))
            if type(engine.optimizer).__name__ != way.split()[0]:
                problems.append(f"{way}: DeepSpeed made {type(engine.optimizer).__name__}")
            stepped(engine)
            load(engine if is_engine else model, path)
            problems += differences(stepped(engine), expected, f"{way}, {'engine' if is_engine else 'model'}")
            engine.destroy()
    return problems


def deepspeed_refusals(folder):
    """On one rank alone, or on all: all of them are told, and nothing was written."""
    _, path = saved(folder)
    problems = []

    def unknown(engine):
        if dist.get_rank() == 1:
            engine.optimizer.__class__ = type("Another", (type(engine.optimizer),), {})

    def detached(engine):
        engine.module.one.weight.data = engine.module.one.weight.data.clone()

    def offloaded(engine):
        engine.optimizer.offloaded_states.add("hp_params")

    def hybrid(engine):
        engine.__class__ = type("DeepSpeedHybridEngine", (type(engine),), {})

    ways = {unknown: "Another", detached: "one.weight", offloaded: "reload_states", hybrid: "hybrid"}
    for spoil, words in ways.items():
        engine = engine_of(filled(4), "bf16", 1)
        spoil(engine)
        before = {name: tensor.detach().clone() for name, tensor in engine.module.named_parameters()}
        error = refused(lambda engine=engine: load(engine, path))
        if error.code != "copies" or words not in error.full_text() or not all(one.remedy for one in error.problems):
            problems.append(f"{words}: {error}")
        problems += same_everywhere(error.full_text())
        problems += differences(dict(engine.module.named_parameters()), before, words)
    return problems


# ---- torch


def ddp_and_its_buckets(folder):
    """Values live in the parameters; the gradients' buckets are views of nothing that a load writes."""
    want, path = saved(folder)
    problems = []
    for make in (
        lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        lambda model: ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.5
        ),
    ):
        steps = []
        for seed in (3, 4):
            model = DistributedDataParallel(filled(seed), gradient_as_bucket_view=True)
            optimizer = make(model)
            if seed == 4:
                model(inputs()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                load(model if len(steps) else model.module, path)
            model(inputs()).square().sum().backward()
            optimizer.step()
            steps.append({name: tensor.detach().clone() for name, tensor in model.module.named_parameters()})
        problems += differences(steps[1], steps[0], str(type(optimizer)))
        if torch.equal(steps[0]["two.weight"], want.two.weight):
            problems.append("a step changed nothing: this case shows nothing")
    model = DistributedDataParallel(filled(4))
    error = refused(lambda: load(model, path, device="cuda:0"))
    if error.tensors != ("one.bias", "one.weight", "two.weight") or error.code != "copies":
        problems.append(error.full_text())
    return problems


# ---- accelerate


def accelerate_offload_is_refused(folder):
    want, path = saved(folder)
    problems = []
    on = "cpu"
    disk = str(folder / f"offloaded{dist.get_rank()}")
    ways = {
        "cpu_offload": lambda model: accelerate.cpu_offload(model, execution_device=torch.device(on)),
        "by classes": lambda model: accelerate.cpu_offload(  # the hook is on a module that has no tensors of its own
            nn.Sequential(model), torch.device(on), preload_module_classes=["Net"]
        ),
        "disk_offload": lambda model: accelerate.disk_offload(model, disk, execution_device=torch.device(on)),
        "dispatch_model": lambda model: accelerate.dispatch_model(
            model, {"one": "cpu", "two": "disk"}, main_device=on, offload_dir=disk, force_hooks=True
        ),
    }
    for way, offload in ways.items():
        model = filled(4)
        offload(model)
        error = refused(lambda model=model: load(model, path, device="cpu"))
        named = "the model" if way == "by classes" else "'two'"
        if error.code != "copies" or named not in error.full_text() or "remove_hook_from_module" not in error.full_text():
            problems.append(f"{way}: {error}")
        accelerate.hooks.remove_hook_from_module(model, recurse=True)
        load(model, path, device="cpu")
        problems += differences(dict(model.named_parameters()), dict(want.named_parameters()), way)
        if not torch.equal(model(inputs()), want(inputs())):
            problems.append(f"{way}: the output differs")
    model = filled(4)
    accelerate.dispatch_model(model, {"": "cpu"}, main_device=on, force_hooks=True)  # these hooks keep nothing
    load(model, path, device="cpu")
    return problems + ([] if torch.equal(model(inputs()), want(inputs())) else ["without offload: the output differs"])


# ---- PEFT


def adapted(seed, **options):
    return peft.get_peft_model(filled(seed), peft.LoraConfig(target_modules=["one", "two"], r=2, **options))


def saved_adapter(folder, **options):
    """A trained adapter over the right base, as PEFT saves it."""
    torch.manual_seed(1)
    want = adapted(3, **options)
    for name, parameter in want.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    place = folder / f"adapter{len(options)}-{dist.get_rank()}"
    want.save_pretrained(place)
    return want, place


def merged_adapters_are_refused(folder):
    _, path = saved(folder)
    want, place = saved_adapter(folder)
    model = adapted(4)
    model.merge_adapter()
    error = refused(lambda: load(model, path, adapter=place))
    is_told = error.code == "copies" and len(error.problems) == 2 and "unmerge_adapter" in error.full_text()
    problems = [] if is_told else [error.full_text()]
    model.unmerge_adapter()
    load(model, path, adapter=place)
    model.merge_adapter()
    want.merge_adapter()
    problems += [] if torch.equal(model(inputs()), want(inputs())) else ["merged after the load, the output differs"]
    return problems


def dora_caches_are_cleared(folder):
    _, path = saved(folder)
    want, place = saved_adapter(folder, use_dora=True)
    model = adapted(4, use_dora=True).eval()
    with peft.helpers.DoraCaching(), torch.no_grad():
        model(inputs())
        cached = [module for module in model.modules() if getattr(module, "_dora_cache", None)]
        load(model, path, adapter=place)
        found = model(inputs())
    problems = [] if cached else ["nothing was cached: this case shows nothing"]
    return problems + ([] if torch.equal(found, want.eval()(inputs())) else ["the output differs"])


class Skipping(torch.nn.Module):
    """As with stochastic depth: the second layer may be left out."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, -5.0)

    def forward(self, x, *, skips=False):
        x = self.a(x)
        return x if skips else self.b(x)


def gathers_of_fsdp2_that_nobody_used(folder):
    """What was gathered ahead of a forward pass, and not used, is not used after the load."""
    from torch.distributed.fsdp import fully_shard

    path = folder / "skipping.safetensors"
    if dist.get_rank() == 0:
        safetensors.torch.save_file({"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4)}, path)
    dist.barrier()
    problems = []
    for how in ("prefetched", "unsharded"):
        model = Skipping()
        for module in (model.a, model.b, model):
            fully_shard(module)
        with torch.no_grad():
            if how == "prefetched":
                model.a.set_modules_to_forward_prefetch([model.b])
                model(torch.ones(1, 4), skips=True)
            else:
                model.b.unshard(async_op=True)
            load(model, path)
            found = model(torch.ones(1, 4))
        if not torch.equal(found, torch.full((1, 4), 16.0)):
            problems.append(f"{how}: {found.tolist()}")
    return problems


class OnlyOneBears(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))

    def get_extra_state(self):
        return torch.zeros(1)

    def set_extra_state(self, state):
        if dist.get_rank() == 1:
            raise ValueError("bad version")


def extra_state_that_fails_on_one_rank(folder):
    """All ranks are told."""
    path = folder / "extra.safetensors"
    if dist.get_rank() == 0:
        safetensors.torch.save_file({"w": torch.ones(2), "_extra_state": torch.ones(1)}, path)
    dist.barrier()
    try:
        load(OnlyOneBears(), path)
    except lading.LadingError as error:
        return [] if "rank 1" in error.full_text() and "bad version" in error.full_text() else [f"told otherwise: {error}"]
    return ["not told"]


CASES = (
    deepspeed_masters,
    deepspeed_refusals,
    ddp_and_its_buckets,
    accelerate_offload_is_refused,
    merged_adapters_are_refused,
    dora_caches_are_cleared,
    gathers_of_fsdp2_that_nobody_used,
    extra_state_that_fails_on_one_rank,
)


def on_a_rank(_rank, folder, only):
    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    found = {}
    for case in CASES:
        if not only or case.__name__ in only:
            try:
                found[case.__name__] = case(Path(folder))
            except Exception:  # the others are run all the same
                found[case.__name__] = [traceback.format_exc()[-3000:]]
            if found[case.__name__]:  # said at once: a peer may wait for ever
                print(case.__name__, found[case.__name__], flush=True)
            dist.barrier()
    return found


def main(only=()):
    """{case: what is wrong, of all ranks}"""
    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    answers = {}
    for rank, found in enumerate(run_ranks(2, on_a_rank, RANKS_DEADLINE_S, folder, list(only))):
        for case, problems in found.items():
            answers.setdefault(case, []).extend(f"rank {rank}: {problem}" for problem in problems)
    return answers
