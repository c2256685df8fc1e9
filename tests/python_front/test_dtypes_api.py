"""`resolve_dtypes`, `shard_by_dtype` and `cast_frozen`: one process, and two real gloo ranks with torch's own
`fully_shard`. The model mixes dtypes as real ones do: F32 norms and a state-space mixer that owns F32 parameters
itself, in blocks of BF16; a frozen tower with an F32 buffer; a tied head."""

import pytest
from geometry.launch import require, run_ranks, run_worker

require("torch")
DEADLINE_S = 150
EXACT = 1 + 2**-10  # which BF16 cannot hold


@pytest.fixture(scope="module")
def found():
    return run_worker("test_dtypes_api", DEADLINE_S, package="python_front")


ALONE = ("R23_R26_table", "R26_record", "R32_subconfigs", "R28_cast", "R28_several", "R29_tables", "units")
ALONE += ("no_checkpoint",)
RANKS = ("torch_alone", "R27_on_meta", "R27_real", "R27_masters", "R27_siblings", "R28_sharded", "R27_tied_units")
RANKS += ("R27_parts", "R27_shared_by_parts", "R28_several_sharded")


@pytest.mark.parametrize("case", ALONE)
def test_in_one_process(found, case):
    assert found["alone"][case] == []


@pytest.mark.parametrize("case", RANKS)
def test_on_two_ranks(found, case):
    for rank in found["ranks"]:
        assert rank[case] == []


# ---- the model


def model_of(*, mixed_leaf=False, is_tied=True):
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.weight * x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.A_log = nn.Parameter(torch.zeros(8))
            self.D = nn.Parameter(torch.ones(8))
            self.in_proj = nn.Linear(8, 8)
            self.out_proj = nn.Linear(8, 8)

        def forward(self, x):
            h = self.in_proj(x)
            return self.out_proj(h * torch.exp(-torch.exp(self.A_log)) + h * self.D)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.weight * self.scale

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.mixer = Mixer()
            self.gate = nn.Linear(8, 8)
            if mixed_leaf:
                self.mixed = Mixed()

        def forward(self, x):
            h = self.norm(x)
            return x + self.mixer(h) * torch.sigmoid(self.gate(h))

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)
            self.register_buffer("std_bias", torch.full((8,), 0.25))
            self.requires_grad_(False)

        def forward(self, x):
            return self.proj(x - self.std_bias)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 8)
            self.tower = Tower()
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.norm = Norm()
            self.head = nn.Linear(8, 16, bias=False)
            if is_tied:
                self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids)
            x = x + self.tower(x)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


def is_wide(name):
    return name.endswith(("A_log", ".D", "norm.weight", "std_bias", "mixed.scale"))


def save(folder, name, *, wide=is_wide, **options):
    """The checkpoint: F32 where `wide` says so, BF16 elsewhere. And its model, real, in exactly these dtypes."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(3)
    model = model_of(**options)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(torch.randn_like(tensor) * 0.3)
            if key.endswith("A_log"):
                tensor.fill_(EXACT)
            tensor.data = tensor.data.to(torch.float32 if wide(key) else torch.bfloat16)
    state = {
        key: value
        for key, value in model.state_dict().items()
        if key != "head.weight" or not options.get("is_tied", True)
    }
    save_file(state, f"{folder}/{name}.safetensors")
    return model


def on_meta(**options):
    import lading

    with lading.skeleton():
        return model_of(**options)


# ---- one process


def main():
    import os
    import tempfile

    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    save(folder, "mixed")
    save(folder, "wide", wide=lambda name: True)
    save(folder, "leaf", mixed_leaf=True)
    save(folder, "untied", is_tied=False)
    cases = {"R23_R26_table": table, "R26_record": record, "R32_subconfigs": subconfigs, "R28_cast": cast}
    cases |= {"R28_several": cast_several}
    cases |= {"R29_tables": tables, "units": units, "no_checkpoint": no_checkpoint}
    alone = {name: case(folder) for name, case in cases.items()}
    return {"alone": alone, "ranks": run_ranks(2, on_a_rank, DEADLINE_S - 40, folder)}


def differences(wanted, found):
    return [f"{key}: {found.get(key)} for {value}" for key, value in wanted.items() if found.get(key) != value]


def table(folder):
    """Each tensor's three dtypes and rules, of a model on meta whose constructor says F32 everywhere."""
    import lading
    import torch

    bf16, f32 = torch.bfloat16, torch.float32
    found = lading.resolve_dtypes(on_meta(), f"{folder}/mixed.safetensors", bf16, compute_dtype=bf16)
    got = {n: (t.checkpoint, t.storage, t.compute, t.storage_rule, t.compute_rule) for n, t in found.items()}
    wanted = {
        "blocks.0.gate.weight": (bf16, bf16, bf16, "R23", "R26"),
        "blocks.0.mixer.A_log": (f32, f32, f32, "R23", "R26"),
        "blocks.1.norm.weight": (f32, f32, f32, "R23", "R26"),
        "head.weight": (bf16, bf16, bf16, "R23", "R26"),
        "tower.std_bias": (f32, bf16, bf16, "R28", "R28"),
        "tower.proj.weight": (bf16, bf16, bf16, "R28", "R28"),
    }
    problems = differences(wanted, got)
    if found.frozen_subtrees != ("tower",):
        problems.append(f"frozen: {found.frozen_subtrees}")
    if set(found) != set(dict(on_meta().named_parameters(remove_duplicate=False))) | {"tower.std_bias"}:
        problems.append(f"names: {sorted(found)}")
    if "blocks.0.mixer.A_log" not in str(found):
        problems.append("the text does not have every name")
    masters = lading.resolve_dtypes(on_meta(), f"{folder}/mixed.safetensors", "fp32", compute_dtype=bf16)
    wanted = {
        "blocks.0.gate.weight": (f32, bf16),
        "blocks.0.mixer.A_log": (f32, f32),
        "tower.proj.weight": (bf16, bf16),
    }
    return problems + differences(wanted, {name: (t.storage, t.compute) for name, t in masters.items()})


def record(folder):
    """R26: its text by default, with a warning; its test under `compute_record="ignore"`; a pin beats both."""
    import lading
    import torch

    bf16, f32 = torch.bfloat16, torch.float32
    file = f"{folder}/wide.safetensors"
    problems = []
    for word, gate in (("checkpoint", f32), ("ignore", bf16)):
        options = {"compute_dtype": bf16, "compute_record": word, "pins": ["A_log"]}
        found = lading.resolve_dtypes(on_meta(), file, **options)
        got = {name: tensor.compute for name, tensor in found.items()}
        wanted = {"blocks.0.gate.weight": gate, "blocks.0.mixer.A_log": f32, "tower.proj.weight": bf16}
        problems += [f"{word}: {text}" for text in differences(wanted, got)]
        if bool(found.warnings) != (word == "checkpoint"):
            problems.append(f"{word}: {found.warnings}")
    return problems


def subconfigs(folder):
    """R32: a request reaches configs inside of configs inside of configs; and the tensors of every part."""
    import lading
    import torch
    import transformers
    from lading import huggingface

    config = transformers.Qwen2_5OmniConfig()
    with huggingface.construction(config, torch.float16, cast="exact") as built:
        found = {
            "thinker": built.thinker_config.dtype,
            "text": built.thinker_config.text_config.dtype,
            "audio": built.thinker_config.audio_config.dtype,
            "talker": built.talker_config.dtype,
        }
    problems = differences(dict.fromkeys(found, torch.float16), found)
    part = {
        "text_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 32,
        }
    }
    part["vision_config"] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "model_type": "clip_vision_model",
    }
    config = transformers.LlavaConfig(**part, dtype=torch.float32)
    with huggingface.construction(config, torch.bfloat16, cast="exact") as built, lading.skeleton():
        model = transformers.LlavaForConditionalGeneration(built)
    dtypes = {
        n: t.storage
        for n, t in lading.resolve_dtypes(model, None, torch.bfloat16, cast="exact").items()
        if t.kind == "parameter"
    }
    wrong = [name for name, dtype in dtypes.items() if dtype != torch.bfloat16]
    return problems + [f"{name} is {dtypes[name]}" for name in wrong] + ([] if dtypes else ["no parameters"])


def cast(folder):
    """Frozen subtrees in place, both kinds of buffers, pins and trainable parts excepted."""
    import lading
    import torch

    model = model_of()
    model.tower.register_buffer("window", torch.ones(3), persistent=False)
    model.tower.register_buffer("steps", torch.ones(3, dtype=torch.int64))
    model.tower.keep_log = torch.nn.Parameter(torch.full((3,), EXACT), requires_grad=False)
    model.tower.twin = torch.nn.Linear(8, 8)
    model.tower.twin.weight = torch.nn.Parameter(model.tower.proj.weight.data, requires_grad=False)  # one storage
    model.tower.twin.bias.requires_grad_(False)
    before = {name: id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    done = lading.cast_frozen(model, "bf16", pins=["keep_log"])
    names = {"proj.weight", "proj.bias", "twin.weight", "twin.bias", "std_bias", "window"}
    problems = [] if set(done) == {f"tower.{name}" for name in names} else [f"cast: {sorted(done)}"]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_cast = name in done
        if tensor.dtype != (torch.bfloat16 if is_cast else torch.int64 if name == "tower.steps" else torch.float32):
            problems.append(f"{name} is {tensor.dtype}")
        if id(tensor) != before[name]:
            problems.append(f"{name} is another object")
    if model.tower.twin.weight.data_ptr() != model.tower.proj.weight.data_ptr():
        problems.append("a tie is gone")
    if not torch.equal(model.tower.keep_log, torch.full((3,), EXACT)):
        problems.append("a pinned value was rounded")
    if lading.cast_frozen(model, torch.bfloat16, pins=["keep_log"]):
        problems.append("twice is not once")
    try:
        lading.cast_frozen(on_meta(), torch.bfloat16)
        problems.append("a model on meta was not refused")
    except lading.LadingError as error:
        if error.rule != "R28" or "tower.std_bias" not in error.tensors:
            problems.append(str(error))
    return problems


def towers():
    """`model_of` with a second frozen tower, and a pool inside of the first."""
    import torch

    model = model_of()
    model.audio = model_of().tower
    model.tower.pool = torch.nn.Linear(8, 8).requires_grad_(False)
    return model


def cast_several(folder):
    """Each frozen subtree in its own dtype, the longest name wins; names with nothing frozen; torn ties; parts."""
    import lading
    import torch

    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    model = towers()
    pool = model.tower.pool.weight.clone()
    done = lading.cast_frozen(model, "fp16", subtree_dtypes={"tower": "bf16", "tower.pool": f32})
    found = {name: tensor.dtype for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    wanted = dict.fromkeys(found, f32)
    wanted |= {name: bf16 for name in ("tower.proj.weight", "tower.proj.bias", "tower.std_bias")}
    wanted |= {name: f16 for name in ("audio.proj.weight", "audio.proj.bias", "audio.std_bias")}
    problems = differences(wanted, found)
    problems += differences({name: dtype for name, dtype in wanted.items() if dtype != f32}, done)
    problems += [] if len(done) == 6 and torch.equal(model.tower.pool.weight, pool) else [f"cast: {done}"]
    parts = [model_of().tower, model_of().blocks.requires_grad_(False)]
    done = lading.cast_frozen(parts, bf16, subtree_dtypes={"0.mixer": f16})
    wanted = {"proj.weight": bf16, "std_bias": bf16, "0.mixer.D": f16, "0.gate.weight": bf16, "1.mixer.D": bf16}
    problems += differences(wanted, done)
    model = towers()
    model.audio.proj.weight = model.tower.proj.weight
    for given, names in (
        ({"vision": f16, "blocks.0": f16, "audio": bf16}, ("vision", "blocks.0")),
        ({"audio": f16}, ("audio.proj.weight", "tower.proj.weight")),
    ):
        try:
            lading.cast_frozen(model, bf16, subtree_dtypes=given)
            problems.append(f"{given} was not refused")
        except lading.LadingError as error:
            problems += [f"{name} is not named: {error}" for name in names if name not in str(error)]
            problems += [] if error.rule == "R28" and "'audio'" not in str(error) else [str(error)]
    if {parameter.dtype for parameter in model.parameters()} != {f32}:
        problems.append("something was cast before the error")
    return problems


def tables(folder):
    """A frozen model of transformers that somebody else loaded: RoPE's table stays F32."""
    import lading
    import torch
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes))
    model.requires_grad_(False)
    done = lading.cast_frozen(model, torch.bfloat16)
    problems = [] if len(done) == len(dict(model.named_parameters())) else [f"cast: {sorted(done)}"]
    return problems + [f"{name} is {b.dtype}" for name, b in model.named_buffers() if b.dtype != torch.float32]


def units(folder):
    """Which modules are units by themselves, and what is refused."""
    import lading
    import torch
    import transformers
    from lading.sharding import _wish
    from torch import nn

    def wish(model, units=None, ignored=()):
        return _wish(model, dict(lading.inventory.canonical_modules(model)), units, set(ignored))

    model = model_of()
    model.again = model.blocks[0]
    model.scales = nn.ParameterList([nn.Parameter(torch.ones(2))])
    usual = wish(model, None, [model.norm.weight])
    wanted = {"modules": ["blocks.0", "blocks.1"], "containers": ["blocks", "scales"], "ignored": ["norm.weight"]}
    problems = differences(wanted, usual)
    if "again" not in usual["duplicates"] or "again.mixer.in_proj" not in usual["duplicates"]:
        problems.append(f"duplicates: {usual['duplicates']}")
    if wish(model, "blocks.*.mixer")["modules"] != ["blocks.0.mixer", "blocks.1.mixer"]:
        problems.append("a pattern")
    if wish(model, lambda name, module: isinstance(module, nn.Embedding))["modules"] != ["embed"]:
        problems.append("a function")
    try:
        wish(model, ["block.*"])
        problems.append("a pattern without a module was not refused")
    except ValueError:
        pass
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.device("meta"):
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, num_key_value_heads=2, **sizes))
    if wish(llama)["modules"] != ["model.layers.0", "model.layers.1"]:
        problems.append(f"transformers: {wish(llama)['modules']}")
    return problems


def no_checkpoint(folder):
    """What is there counts: a real model's own dtypes, F32 computing in the policy's."""
    import lading
    import torch

    model = save(folder, "again")
    found = lading.resolve_dtypes(model, compute_dtype=torch.bfloat16)
    got = {name: (tensor.checkpoint, tensor.storage, tensor.compute) for name, tensor in found.items()}
    wanted = {
        "blocks.0.gate.weight": (None, torch.bfloat16, torch.bfloat16),
        "blocks.0.mixer.A_log": (None, torch.float32, torch.bfloat16),
        "tower.std_bias": (None, torch.float32, torch.bfloat16),
    }
    problems = differences(wanted, got)
    if found["tower.std_bias"].cast != torch.bfloat16 or found["blocks.0.mixer.A_log"].cast is not None:
        problems.append("what is to be cast")
    return problems


# ---- two ranks


def on_a_rank(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    cases = {"torch_alone": torch_alone, "R27_on_meta": sharded_on_meta, "R27_real": sharded_real}
    cases |= {"R27_masters": masters, "R27_siblings": siblings, "R28_sharded": cast_sharded}
    cases |= {"R27_tied_units": tied_units, "R27_parts": parts, "R27_shared_by_parts": shared_by_parts}
    cases |= {"R28_several_sharded": cast_several_sharded}
    return {name: case(mesh, folder) for name, case in cases.items()}


def mixed_precision(**options):
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, **options)


def torch_alone(mesh, folder):
    """What torch says of units by blocks: so that this file notices when it is no longer needed."""
    import torch
    from torch.distributed.fsdp import fully_shard

    model = real(folder)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=mixed_precision())
    fully_shard(model, mesh=mesh, mp_policy=mixed_precision())
    try:
        model(torch.arange(8).reshape(1, 8))
    except (AssertionError, RuntimeError) as error:
        return [] if "uniform original parameter dtype" in str(error) else [str(error)]
    return ["it worked"]


def real(folder, name="mixed"):
    """The model with its values, as one process alone has it."""
    import lading

    model = on_meta()
    lading.materialize(model, f"{folder}/{name}.safetensors", device="cpu", group=False, progress=False)
    return model


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trains(model, folder, name="mixed"):
    """Two steps, beside one process in F32 on the same numbers: losses and gradients agree within BF16's rounding."""
    import torch

    plain = real(folder, name).float()
    ids = torch.arange(32).reshape(2, 16) % 16
    problems = []
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.01) for m in (model, plain)]
    for step in range(2):
        losses = [
            torch.nn.functional.cross_entropy(m(ids).float().flatten(0, 1), ids.flatten()) for m in (model, plain)
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        if not torch.allclose(losses[0], losses[1], rtol=0.02):
            problems.append(f"step {step}: the loss is {losses[0].item()} for {losses[1].item()}")
        wanted = dict(plain.named_parameters())
        for key, parameter in model.named_parameters():
            if (parameter.grad is not None) != parameter.requires_grad:
                problems.append(f"step {step}: {key} has {'a' if parameter.grad is not None else 'no'} gradient")
                continue
            if parameter.grad is None:
                continue
            grad, want = whole(parameter.grad).float(), wanted[key].grad
            if not torch.isfinite(grad).all() or (grad - want).norm() > 0.05 * want.norm() + 1e-4:
                problems.append(f"step {step}: the gradient of {key} is off by {(grad - want).norm()} of {want.norm()}")
        for optimizer in optimizers:
            optimizer.step()
    return problems


def check_units(sharding, wanted):
    found = [("+".join(unit.modules), str(unit.compute).removeprefix("torch.")) for unit in sharding.units]
    return [] if found == wanted else [f"units: {found}"]


UNITS = [
    unit
    for block in ("blocks.0", "blocks.1")
    for unit in (
        (f"{block}.mixer.in_proj+{block}.mixer.out_proj", "bfloat16"),
        (f"{block}.mixer+{block}.norm", "float32"),
        (block, "bfloat16"),
    )
] + [("norm", "float32"), ("", "bfloat16")]


def sharded_on_meta(mesh, folder):
    """The request is BF16: what the file has in F32 is F32 to the last bit, and computes in it."""
    import lading
    import torch

    file = f"{folder}/mixed.safetensors"
    model = on_meta()
    dtypes = lading.resolve_dtypes(model, file, torch.bfloat16)
    sharding = lading.shard_by_dtype(model, mesh, mixed_precision(), dtypes=dtypes, timeout=60)
    problems = check_units(sharding, UNITS)
    lading.materialize(model, file, dtype=torch.bfloat16, compute_dtype=torch.bfloat16, progress=False, timeout=60)
    for key, parameter in model.named_parameters():
        if parameter.dtype != (torch.float32 if is_wide(key) else torch.bfloat16):
            problems.append(f"{key} is {parameter.dtype}")
    if not torch.equal(whole(model.blocks[0].mixer.A_log.detach()), torch.full((8,), EXACT)):
        problems.append("A_log was rounded")
    if model.tower.std_bias.dtype != torch.bfloat16:
        problems.append(f"std_bias is {model.tower.std_bias.dtype}")
    seen = {}
    model.blocks[0].mixer.register_forward_pre_hook(lambda module, given: seen.update(A_log=module.A_log.dtype))
    model.blocks[0].gate.register_forward_pre_hook(lambda module, given: seen.update(gate=module.weight.dtype))
    model.head.register_forward_pre_hook(lambda module, given: seen.update(tie=module.weight is model.embed.weight))
    problems += trains(model, folder)
    return problems + differences({"A_log": torch.float32, "gate": torch.bfloat16, "tie": True}, seen)


def sharded_real(mesh, folder):
    """A model that is there already, without its checkpoint: F32 parameters compute in the policy's dtype, pins not."""
    import lading
    import torch

    model = real(folder)
    dtypes = lading.resolve_dtypes(model, pins=["A_log", "D"])
    sharding = lading.shard_by_dtype(
        model, mesh, mixed_precision(output_dtype=torch.float32), dtypes=dtypes, timeout=60
    )
    computes = {name: unit.compute for unit in sharding.units for name in unit.parameters}
    wanted = {
        "blocks.0.mixer.A_log": torch.float32,
        "blocks.0.norm.weight": torch.bfloat16,
        "norm.weight": torch.bfloat16,
    }
    problems = differences(wanted, computes)
    lading.cast_frozen(model, torch.bfloat16)
    problems += [] if model.tower.std_bias.dtype == torch.bfloat16 else ["std_bias"]
    problems += trains(model, folder)
    return problems + (
        [] if model(torch.arange(8)[None]).dtype == torch.float32 else ["the user's output_dtype is lost"]
    )


def masters(mesh, folder):
    """F32 masters of a BF16 file: one storage dtype, two compute dtypes, by what the file recorded."""
    import lading
    import torch

    file = f"{folder}/mixed.safetensors"
    model = on_meta()
    dtypes = lading.resolve_dtypes(model, file, torch.float32)
    sharding = lading.shard_by_dtype(model, mesh, mixed_precision(), dtypes=dtypes, units="blocks.*", timeout=60)
    problems = check_units(sharding, UNITS)
    problems += [f"{unit.modules} is {unit.storage}" for unit in sharding.units if unit.storage != torch.float32]
    lading.materialize(model, file, dtype=torch.float32, compute_dtype=torch.bfloat16, progress=False, timeout=60)
    trainable = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    problems += [] if trainable == {torch.float32} else [f"stored: {trainable}"]
    return problems + trains(model, folder)


def refused(call):
    import lading
    import torch.distributed as dist

    try:
        call()
    except lading.LadingError as error:
        texts = [None] * dist.get_world_size()
        dist.all_gather_object(texts, error.full_text())
        return error, [] if len(set(texts)) == 1 else [f"the ranks were told different things: {texts}"]
    raise AssertionError("it was not refused")


def siblings(mesh, folder):
    """Parameters of one module that differ: every such module, every name, on every rank, and nothing was sharded."""
    import lading

    model = on_meta(mixed_leaf=True)
    options = {"checkpoint": f"{folder}/leaf.safetensors", "timeout": 60}
    error, problems = refused(lambda: lading.shard_by_dtype(model, mesh, mixed_precision(), **options))
    names = [f"blocks.{place}.mixed.{name}" for place in (0, 1) for name in ("weight", "scale")]
    problems += [f"{name} is not named: {error}" for name in names if f'"{name}"' not in error.full_text()]
    problems += [] if len(error.problems) == 2 and error.rule == "R27" else [str(error)]
    problems += ["something was sharded"] if any(hasattr(module, "unshard") for module in model.modules()) else []
    if mesh.get_local_rank() == 1:  # one rank alone cannot read the file: all ranks are told
        options["checkpoint"] = f"{folder}/none.safetensors"
    error, differ = refused(lambda: lading.shard_by_dtype(on_meta(), mesh, mixed_precision(), **options))
    return problems + differ + ([] if "rank 1" in str(error) else [str(error)])


def cast_sharded(mesh, folder):
    """A frozen tower that FSDP2 gathers in another dtype is an error; in the right one, only its buffers are cast."""
    import lading
    import torch
    from torch.distributed.fsdp import fully_shard

    problems = []
    model = real(folder, "wide")
    fully_shard(model.tower, mesh=mesh)
    error, differ = refused(lambda: lading.cast_frozen(model, torch.bfloat16))
    if error.rule != "R28" or set(error.tensors) != {"tower.proj.weight", "tower.proj.bias"}:
        problems.append(str(error))
    if model.tower.std_bias.dtype != torch.float32:
        problems.append("half of it was cast")
    model = real(folder, "wide")
    fully_shard(model.tower, mesh=mesh, mp_policy=mixed_precision())
    done = lading.cast_frozen(model, torch.bfloat16)
    problems += [] if set(done) == {"tower.std_bias"} else [f"cast: {done}"]
    problems += [] if model.tower.proj.weight.dtype == torch.float32 else ["a DTensor was cast"]
    out = model.tower(torch.ones(2, 8, dtype=torch.bfloat16))
    return problems + differ + ([] if out.dtype == torch.bfloat16 else [f"the tower promotes to {out.dtype}"])


def tied_units(mesh, folder):
    """Units that the user names on both ends of a tie become one; the tie is there after the load and in a step."""
    import lading
    import torch

    file = f"{folder}/mixed.safetensors"
    model = on_meta()
    wished = ["embed", "head", "blocks.*"]
    sharding = lading.shard_by_dtype(model, mesh, mixed_precision(), checkpoint=file, units=wished, timeout=60)
    problems = [] if any(unit.modules == ("embed", "head") for unit in sharding.units) else [f"{sharding.units}"]
    lading.materialize(model, file, compute_dtype=torch.bfloat16, progress=False, timeout=60)
    problems += [] if model.head.weight is model.embed.weight else ["the tie is gone"]
    return problems + trains(model, folder)


def stages(*, is_tied=False):
    """The model as a rank of an interleaved pipeline has it: two parts. The tower is elsewhere."""
    import lading
    from torch import nn

    class Stage(nn.Module):
        def forward(self, x):
            for name in ("embed", "blocks", "norm", "head"):
                for module in self._modules.get(name, nn.ModuleDict()).values() if name == "blocks" else ():
                    x = module(x)
                x = self._modules[name](x) if name != "blocks" and name in self._modules else x
            return x

    with lading.skeleton():
        model = model_of(is_tied=is_tied)
    first, last = Stage(), Stage()
    first.embed, first.blocks = model.embed, nn.ModuleDict({"0": model.blocks[0]})
    last.blocks, last.norm, last.head = nn.ModuleDict({"1": model.blocks[1]}), model.norm, model.head
    return first, last, model


def parts(mesh, folder):
    """`shard_by_dtype` over parts: units and a root in each, none across them, though the file has keys of others. The
    parts are then one after the other what the whole is."""
    import lading
    import torch
    from torch.distributed.fsdp import FSDPModule

    file = f"{folder}/untied.safetensors"
    first, last, _ = stages()
    how = {"checkpoint": file, "units": ["blocks.*", "head"], "timeout": 60}
    sharding = lading.shard_by_dtype([first, last], mesh, mixed_precision(), **how)
    wanted = [unit for unit in UNITS if unit[0].startswith("blocks.0")] + [("", "bfloat16")]
    wanted += [unit for unit in UNITS if unit[0].startswith("blocks.1")]
    wanted += [("head", "bfloat16"), ("", "float32")]
    problems = check_units(sharding, wanted)
    problems += [] if sharding.dtypes.units == sharding.units else ["the dtypes have other units"]
    problems += [] if isinstance(first, FSDPModule) and isinstance(last, FSDPModule) else ["a part is no root"]
    options = {"compute_dtype": torch.bfloat16, "allow_unexpected": ["tower.*"], "progress": False, "timeout": 60}
    lading.materialize([first, last], file, **options)
    if last.blocks["1"].mixer.A_log.dtype != torch.float32 or first.embed.weight.dtype != torch.bfloat16:
        problems.append("dtypes")
    with lading.skeleton():
        plain = model_of(is_tied=False)
    lading.materialize(plain, file, device="cpu", group=False, progress=False)
    ids = torch.arange(16).reshape(1, 16)
    plain.float()
    x = plain.embed(ids)
    for block in plain.blocks:
        x = block(x)
    want = plain.head(plain.norm(x))
    got = last(first(ids))
    is_close = torch.allclose(got.float(), want, atol=0.05, rtol=0.05)
    problems += [] if is_close else [f"off by {(got - want).abs().max()}"]
    got.float().square().mean().backward()
    for part in (first, last):
        problems += [f"{name} has no gradient" for name, one in part.named_parameters() if one.grad is None]
    return problems


def shared_by_parts(mesh, folder):
    """A tie over two parts, and a module of two parts: named, on all ranks, and nothing was sharded."""
    import lading

    first, last, model = stages(is_tied=True)
    error, problems = refused(lambda: lading.shard_by_dtype([first, last], mesh, mixed_precision(), timeout=60))
    problems += [] if error.rule == "R27" and "head.weight in part 1" in str(error) else [str(error)]
    first, last, model = stages()
    first.norm = last.norm
    error, differ = refused(lambda: lading.shard_by_dtype([first, last], mesh, mixed_precision(), timeout=60))
    problems += [] if "norm.weight in part 0, 1" in str(error) and len(error.problems) == 1 else [str(error)]
    problems += ["something was sharded"] if any(hasattr(module, "unshard") for module in first.modules()) else []
    return problems + differ


def cast_several_sharded(mesh, folder):
    """Two frozen towers, gathered in different dtypes: right if the words say so, else refused by name."""
    import lading
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = towers()
    fully_shard(model.tower, mesh=mesh, mp_policy=mixed_precision())
    fully_shard(model.audio, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
    error, problems = refused(lambda: lading.cast_frozen(model, torch.bfloat16))
    problems += [] if set(error.tensors) == {"audio.proj.weight", "audio.proj.bias"} else [str(error)]
    done = lading.cast_frozen(model, torch.bfloat16, subtree_dtypes={"audio": torch.float16})
    problems += differences({"tower.std_bias": torch.bfloat16, "audio.std_bias": torch.float16}, done)
    problems += [] if len(done) == 2 else [f"cast: {done}"]
    for tower, dtype in ((model.tower, torch.bfloat16), (model.audio, torch.float16)):
        out = tower(torch.ones(2, 8, dtype=dtype))
        problems += [] if out.dtype == dtype else [f"a tower promotes to {out.dtype}"]
    return problems
