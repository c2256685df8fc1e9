"""DeepSpeed ZeRO-3 on forked ranks: models built under zero.Init, filled, and compared with the original in ways that
know nothing of lading. Each case answers what is wrong on this rank; an empty list is a case that holds."""

import importlib
import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import deepspeed
import ranks_models as models
import safetensors.torch
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from ranks_common import refused, same_everywhere
from torch import nn

import lading

# For everybody who imports this: otherwise DeepSpeed compiles a shared-memory operator first, for a minute, in the user's
# home, and waits for ever if another process was killed while it did.
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None

RANKS_DEADLINE_S = 120
TOLERANCE = 2e-6  # of a loss: ranks add up in another order than one process


def config(dtype=torch.float32, **zero):
    fields = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2 * dist.get_world_size()}
    fields |= {"zero_optimization": {"stage": 3, **zero}, "zero_allow_untested_optimizer": True}
    fields |= {"zero_force_ds_cpu_optimizer": False}
    return fields | ({"bf16": {"enabled": True}} if dtype == torch.bfloat16 else {})


def build(make, dtype=torch.float32, **zero):
    """As users do it. What partitions hold is overwritten, so that nothing is right by luck, padding included."""
    with deepspeed.zero.Init(config_dict_or_path=config(dtype, **zero)):
        model = make()
    for parameter in model.parameters():
        for memory in (parameter.ds_tensor, parameter.ds_secondary_tensor):
            if memory is not None:
                memory.fill_(float("nan"))
    return model


def build_on_meta(make, dtype=torch.float32, **zero):
    """lading's own way: the constructor is recorded, and nobody ever holds a whole parameter."""
    with lading.skeleton():
        model = make()
    lading.zero3_init(model, config(dtype, **zero))
    for parameter in model.parameters():
        parameter.ds_tensor.fill_(float("nan"))
    return model


def build_llama(dtype=torch.float32, **zero):
    """As transformers builds for ZeRO-3, without initial values."""
    from transformers import initialization
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.modeling_utils import set_zero3_state

    kept = HfDeepSpeedConfig(config(dtype, **zero))  # its global flag lives as long as it does
    with initialization.no_init_weights(), set_zero3_state():
        model = build(models.MODELS["llama_tied"], dtype, **zero)
    model.tie_weights()
    model.__dict__["_kept"] = kept
    return model


def part_of(full, parameter):
    """This rank's partition and its secondary one, padded by zeros (R56)."""
    flat, world = full.detach().reshape(-1), dist.get_world_size(parameter.ds_process_group)
    padded = torch.zeros(-(-flat.numel() // world) * world, dtype=flat.dtype)
    padded[: flat.numel()] = flat
    parts = [(parameter.ds_tensor, padded.chunk(world)[dist.get_rank(parameter.ds_process_group)])]
    if parameter.ds_secondary_tensor is not None:
        group = parameter.ds_zero_param_process_group
        share = padded.reshape(dist.get_world_size(group), -1)[dist.get_rank(group)]
        parts.append((parameter.ds_secondary_tensor, share))
    return parts


def compare(model, want, dtype=torch.float32):
    """Every bit that this rank has, and what DeepSpeed gathers of it."""
    problems = []
    originals, found = models.tensors(want), models.tensors(model)
    if set(found) != set(originals):
        problems.append(f"names differ: {set(found) ^ set(originals)}")
    for name, tensor in found.items():
        full = originals[name].detach()
        full = full.to(dtype) if hasattr(tensor, "ds_tensor") else full
        pairs = part_of(full, tensor) if hasattr(tensor, "ds_tensor") else [(tensor, full)]
        for got, expected in pairs:
            if got.dtype != expected.dtype or got.shape != expected.shape:
                problems.append(
                    f"{name} is {got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
                )
            elif not torch.equal(got.detach(), expected):
                problems.append(
                    f"{name} differs: {got.reshape(-1)[:4].tolist()} for {expected.reshape(-1)[:4].tolist()}"
                )
    partitioned = {name: tensor for name, tensor in found.items() if hasattr(tensor, "ds_tensor")}
    with deepspeed.zero.GatheredParameters(list(partitioned.values())):
        for name, tensor in partitioned.items():
            if not torch.equal(tensor.data, originals[name].detach().to(dtype)):
                problems.append(f"{name} differs once it is gathered")
    return problems


def saved(folder, name, dtype=torch.float32, seed=7):
    """A model and its checkpoint, which the first rank writes. Buffers that no file has stay as they are made."""
    torch.manual_seed(0)
    model = models.fill(models.MODELS[name](), seed)
    tensors = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in model.state_dict().items()
    }
    path = folder / f"{name}-{dtype}-{seed}.safetensors".replace("torch.", "")
    if dist.get_rank() == 0 and not path.exists():
        safetensors.torch.save_file({key: value.clone() for key, value in tensors.items()}, path)
    dist.barrier()
    model.load_state_dict(tensors, assign=False)
    return model, path


def load(model, path, **options):
    return lading.materialize(model, path, progress=False, timeout=60, **options)


# ---- cases


def a_small_model(folder):
    """R14, R49, R56, R61: fp32, a tie, a frozen parameter, buffers of every kind; objects and marks stay."""
    want, path = saved(folder, "small")
    model = build(models.MODELS["small"])
    before = {key: (id(tensor), tensor.requires_grad) for key, tensor in models.tensors(model).items()}
    report = load(model, path)
    problems = compare(model, want)
    after = models.tensors(model)
    problems += [f"{key} is another object" for key, (identity, _) in before.items() if id(after[key]) != identity]
    problems += [
        f"{key} is not as frozen as it was" for key, (_, grad) in before.items() if after[key].requires_grad != grad
    ]
    if set(report.tensors) != set(after):
        problems.append(f"the report speaks of {sorted(set(report.tensors) ^ set(after))}")
    return problems


def a_model_from_meta(folder):
    """R6, R20, R29: zero3_init. Buffers are as the constructor means them, and it says what a missing key is."""
    want, path = saved(folder, "small", torch.bfloat16)
    model = build_on_meta(models.MODELS["small"], torch.bfloat16)
    load(model, path)
    for name, tensor in models.tensors(want).items():
        if name.endswith("scale"):
            tensor.data = tensor.data.to(torch.bfloat16)  # a buffer of the file, in its dtype
    problems = compare(model, want, torch.bfloat16)
    if torch.equal(want.blocks[0].table, want.blocks[0].table.to(torch.bfloat16)):
        problems.append("the table could be rounded unseen")
    short = folder / "short.safetensors"
    if dist.get_rank() == 0:
        tensors = safetensors.torch.load_file(path)
        del tensors["blocks.1.norm.weight"]
        safetensors.torch.save_file(tensors, short)
    dist.barrier()
    model = build_on_meta(models.MODELS["small"], torch.bfloat16)
    load(model, short, allow_missing="blocks.1.norm.weight")
    want.blocks[1].norm.weight.data.fill_(1)
    return problems + compare(model, want, torch.bfloat16)


def rope_is_made_anew(folder):
    """R29: zero.Init makes RoPE tables bf16. They are derived again, in fp32, and the report says so."""
    want, path = saved(folder, "llama_tied", torch.bfloat16)
    model = build_llama(torch.bfloat16)
    rounded = model.model.rotary_emb.inv_freq.dtype
    report = load(model, path)
    problems = compare(model, want, torch.bfloat16)
    if rounded != torch.bfloat16 or not any("inv_freq" in note and "R29" in note for note in report.notes):
        problems.append(f"it was {rounded} before, and the notes are {report.notes}")
    return problems


def parts_of_transformers_models(folder):
    """R29: transformers builds the parts of a model under a zero.Init of its own, which must not touch the measure."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, initialization
    from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled
    from transformers.modeling_utils import set_zero3_state

    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 1, "num_attention_heads": 4}
    parts = LlavaConfig(
        text_config=LlamaConfig(vocab_size=97, **sizes),
        vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **sizes),
        image_token_index=96,
    )
    want = LlavaForConditionalGeneration(parts).to(torch.bfloat16)
    if dist.get_rank() == 0:
        want.save_pretrained(folder / "llava")
    dist.barrier()
    kept = HfDeepSpeedConfig(config(torch.bfloat16))
    with initialization.no_init_weights(), set_zero3_state():
        model = build(lambda: LlavaForConditionalGeneration(parts), torch.bfloat16)
    load(model, folder / "llava")
    table = model.model.language_model.rotary_emb.inv_freq
    problems = [] if table.dtype == torch.float32 else [f"the table is {table.dtype}"]
    return problems + ([] if is_deepspeed_zero3_enabled() and kept else ["transformers' flag is gone"])


def what_cannot_be_derived_is_kept_and_said(folder):
    """R7: nobody knows how the small model's tables are made. A recipe of the user's is the way."""
    _, path = saved(folder, "small", torch.bfloat16)
    model = build(models.MODELS["small"], torch.bfloat16)
    report = load(model, path)
    problems = [] if model.softcap.item() == 50 else ["a buffer that nobody knows was changed"]
    if model.softcap.dtype != torch.bfloat16 or not any("softcap: kept" in note for note in report.notes):
        problems.append(f"it is {model.softcap.dtype}, and the notes are {report.notes}")
    load(model, path, recipes={"softcap": lambda module, name: torch.tensor(50.001)})
    if not torch.equal(model.softcap, torch.tensor(50.001)):
        problems.append(f"the recipe did not count: {model.softcap}")
    return problems


def narrower_partitions_are_refused(folder):
    """R23: a partition's dtype is what it is. `destination` says that it decides."""
    want, path = saved(folder, "small")
    model = build(models.MODELS["small"], torch.bfloat16)
    error = refused(lambda: load(model, path))
    problems = same_everywhere(error.full_text())
    partitioned = {name for name, tensor in models.tensors(model).items() if hasattr(tensor, "ds_tensor")}
    missing = partitioned - set(error.tensors) - {"head.weight"}
    if missing or error.begun or not model.embed.weight.ds_tensor.isnan().all():
        problems.append(f"not told of {missing}, or something was written: {error}")
    load(model, path, cast="destination")
    for name, tensor in models.tensors(want).items():
        if name.endswith(("scale", "softcap")):
            tensor.data = tensor.data.to(torch.bfloat16)
    return problems + compare(model, want, torch.bfloat16)


def wrong_keys_are_listed(folder):
    """R21, R38, R44: mismatched, missing and unexpected keys, all of them, on all ranks; nothing was written."""
    _, path = saved(folder, "small_untied")
    bad = folder / "bad.safetensors"
    if dist.get_rank() == 0:
        tensors = safetensors.torch.load_file(path)
        tensors["blocks.0.up.weight"] = torch.zeros(3, 4)
        tensors["blocks.0.scale"] = torch.zeros(1)
        tensors["stranger"] = tensors.pop("blocks.1.norm.bias")
        safetensors.torch.save_file(tensors, bad)
    dist.barrier()
    model = build(models.MODELS["small_untied"])
    error = refused(lambda: load(model, bad))
    problems = same_everywhere(error.full_text())
    for name in ("blocks.0.up.weight", "blocks.0.scale", "blocks.1.norm.bias", "stranger"):
        if name not in error.full_text():
            problems.append(f"{name} is not in {error}")
    untouched = model.embed.weight.ds_tensor.isnan().all()
    return problems + ([] if untouched else ["something was written"])


def one_rank_fails_and_all_are_told(folder):
    """R44: the last rank alone has a file that is cut off."""
    _, path = saved(folder, "small")
    if dist.get_rank() == dist.get_world_size() - 1:
        short = folder / "short.safetensors"
        short.write_bytes(path.read_bytes()[:-100])
        path = short
    error = refused(lambda: load(build(models.MODELS["small"]), path))
    problems = same_everywhere(error.full_text())
    return problems if f"rank {dist.get_world_size() - 1}" in error.full_text() else [*problems, error.full_text()]


def values_may_be_kept(folder):
    """R14: by name, in their partitions."""
    want, path = saved(folder, "small")
    model = build(models.MODELS["small"])
    model.blocks[0].up.weight.ds_tensor.fill_(4)
    load(model, path, keep=["blocks.0.up.weight"])
    kept = bool((model.blocks[0].up.weight.ds_tensor == 4).all())
    model.blocks[0].up.weight.ds_tensor.copy_(part_of(want.blocks[0].up.weight, model.blocks[0].up.weight)[0][1])
    return compare(model, want) + ([] if kept else ["it was not kept"])


def parameters_that_zero3_does_not_have(folder):
    """One that was added outside of zero.Init is whole on every rank, as any other tensor."""
    want, path = saved(folder, "small_untied")
    model = build(models.MODELS["small_untied"])
    model.head = nn.Linear(12, 25, bias=False, device="meta")
    load(model, path, device="cpu")
    problems = [] if not hasattr(model.head.weight, "ds_tensor") else ["zero.Init has it after all"]
    return problems + compare(model, want)


def not_while_gathered(folder):
    """What somebody has gathered to change it would be put back over what is loaded."""
    _, path = saved(folder, "small")
    model = build(models.MODELS["small"])
    with deepspeed.zero.GatheredParameters([model.embed.weight]):
        error = refused(lambda: load(model, path))
    return same_everywhere(error.full_text()) + ([] if "GatheredParameters" in error.full_text() else [error.full_text()])


def not_in_a_forward_pass(folder):
    """The same of the framework's own gathering: a load by a hook of a layer that computes."""
    _, path = saved(folder, "small")
    engine = initialised(build(models.MODELS["small"]), torch.float32)
    told = []
    layer = engine.module.blocks[1].up
    hook = layer.register_forward_pre_hook(lambda *_: told.append(refused(lambda: load(engine, path))))
    with torch.no_grad():
        engine(batches()[0])
    hook.remove()
    text = told[0].full_text()
    problems = same_everywhere(text)
    if "gathered this parameter, which is in use" not in text or "Load outside forward passes" not in text:
        problems.append(text)
    load(engine, path)  # and afterwards it can be loaded
    return problems


def every_other_refusal(folder):
    """docs/guides/zero3.md, "What is refused": each says what is wrong and what to do, on all ranks; nothing is written.
    What no CPU can do is planted where DeepSpeed leaves it."""
    _, path = saved(folder, "small")
    _, untied = saved(folder, "small_untied")

    def on_nvme(engine):
        engine.module.embed.weight.ds_tensor.final_location = "nvme"

    def quantized(engine):
        engine.module.embed.weight.ds_tensor.ds_quant_scale = torch.ones(1)

    def on_two_devices(engine):
        parameter = engine.module.embed.weight
        parameter.ds_secondary_tensor = torch.empty_like(parameter.ds_tensor, device="meta")
        parameter.ds_zero_param_process_group = parameter.ds_process_group

    def with_an_unknown_optimizer(engine):
        engine.module.embed.weight._z3_optimizer = object()

    def with_zenflow(engine):
        engine.optimizer.zenflow = True

    def offloaded(engine):
        engine.optimizer.offloaded_states.add("hp_params")  # offload_states() wants FusedAdam, which wants a GPU

    before = "Load before deepspeed.initialize"
    rows = {
        on_nvme: ("is on NVMe", f"{before}, without offload to NVMe"),
        quantized: ("is quantized (ZeRO++)", before),
        on_two_devices: ("on several devices", before),
        with_an_unknown_optimizer: ("does not expose its copy of this parameter", before),
        with_zenflow: ("in a way that lading does not support", before),
        offloaded: ("has offloaded its state", "Call engine.reload_states() first"),
    }
    problems = []
    for spoil, words in rows.items():
        engine = initialised(build(models.MODELS["small"]), torch.float32)
        kept = [one.ds_tensor.clone() for one in engine.module.parameters()]
        spoil(engine)
        problems += refused_with(lambda engine=engine: load(engine, path), words)
        if spoil is offloaded:
            engine.optimizer.offloaded_states.clear()
            load(engine, path)
            continue
        now = [one.ds_tensor for one in engine.module.parameters()]
        if not all(same_or_nan(one, old) for one, old in zip(now, kept, strict=True)):
            problems.append(f"{spoil.__name__}: something was written")
    model = build(models.MODELS["small"])
    words = ("tied tensors that already have memory cannot be untied", "Untie the model before it is allocated and sharded.")
    return problems + refused_with(lambda: load(model, untied, ties="untie"), words)


def refused_with(load_it, words):
    text = refused(load_it).full_text()
    return same_everywhere(text) + [f"{word!r} is not in {text}" for word in words if word not in text]


def same_or_nan(one, other):
    return bool((one == other).logical_or(one.isnan() & other.isnan()).all())


def batches():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 25, (2, 10), generator=generator) for _ in range(3)]


def loss_of(logits, ids):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def initialised(model, dtype, **zero):
    """DeepSpeed's engine over a plain optimizer."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(trainable, lr=0.5, momentum=0.9), config=config(dtype, **zero)
    )
    return engine


def losses_of(engine):
    losses = []
    for ids in batches():
        output = engine(ids)
        loss = loss_of(getattr(output, "logits", output), ids)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def losses_alone(model):
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5, momentum=0.9)
    losses = []
    for ids in batches():
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def training_in_fp32(folder):
    """Loaded before deepspeed.initialize, after it, from meta: the same losses as one process has, three steps long."""
    want, path = saved(folder, "small")
    expected = losses_alone(want)
    problems = []
    host = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    for way, zero in {"before": {}, "after": {}, "from meta": {}, "after, offloaded": host}.items():
        model = (build_on_meta if way == "from meta" else build)(models.MODELS["small"], **zero)
        if not way.startswith("after"):
            load(model, path)
        engine = initialised(model, torch.float32, **zero)
        if way.startswith("after"):
            load(engine, path)
        got = losses_of(engine)
        if any(abs(one - two) > TOLERANCE for one, two in zip(got, expected, strict=True)):
            problems.append(f"{way}: the losses are {got}, not {expected}")
    return problems


def training_in_bf16(folder):
    """The optimizer's fp32 copies are right too: after deepspeed.initialize as before, bit for bit."""
    want, path = saved(folder, "llama_tied", torch.bfloat16)
    problems, losses = [], []
    for is_after in (False, True):
        model = build_llama(torch.bfloat16)
        if not is_after:
            load(model, path)
        engine = initialised(model, torch.bfloat16)
        if is_after:
            load(engine, path)
        if not torch.equal(model.model.rotary_emb.inv_freq, want.model.rotary_emb.inv_freq):
            problems.append(f"after={is_after}: the RoPE table is {model.model.rotary_emb.inv_freq.dtype}")
        for name, tensor in models.tensors(model).items():
            master = deepspeed.utils.safe_get_local_fp32_param(tensor) if tensor.requires_grad else None
            expected = part_of(models.tensors(want)[name], tensor)[0][1] if master is not None else None
            if master is not None and (master.dtype != torch.float32 or not torch.equal(master, expected)):
                problems.append(f"after={is_after}: the optimizer's {name} differs")
        losses.append(losses_of(engine))
    if losses[0] != losses[1] or losses[0][0] == losses[0][-1]:
        problems.append(f"the losses are {losses[0]} before, {losses[1]} after")
    return problems


def masters_take_what_the_file_has(folder):
    """R22, R56: an F32 file in BF16 partitions. Partitions are rounded, the optimizer's masters are the file's bits; a
    frozen parameter has none. Loaded before deepspeed.initialize they are rounded."""
    want, path = saved(folder, "small")
    full = models.tensors(want)
    problems = []
    host = {"offload_optimizer": {"device": "cpu"}}
    for way, zero in {"before": {}, "after": {}, "after, offloaded": host}.items():
        model = build_on_meta(models.MODELS["small"], torch.bfloat16, **zero)
        reports = [load(model, path, cast="destination")] if way == "before" else []
        engine = initialised(model, torch.bfloat16, **zero)
        reports += [load(engine, path, cast="destination")] if way != "before" else []
        is_finer = way != "before"
        if is_finer != any("master weights of ZeRO-3" in note for note in reports[0].notes):
            problems.append(f"{way}: the notes are {reports[0].notes}")
        finer = []
        for name, tensor in models.tensors(model).items():
            if not hasattr(tensor, "ds_tensor"):
                continue
            if not torch.equal(tensor.ds_tensor, part_of(full[name].to(torch.bfloat16), tensor)[0][1]):
                problems.append(f"{way}: the partition of {name} is not the rounded one")
            if tensor.requires_grad:
                expected = part_of(full[name] if is_finer else full[name].to(torch.bfloat16).float(), tensor)[0][1]
                master = deepspeed.utils.safe_get_local_fp32_param(tensor)
                if master.dtype != torch.float32 or not torch.equal(master.reshape(-1), expected):
                    problems.append(f"{way}: the master of {name} begins with {master[:3]} for {expected[:3]}")
                finer += [name] if not torch.equal(expected, expected.to(torch.bfloat16).float()) else []
        if bool(finer) != is_finer:
            problems.append(f"{way}: masters that are more than their partitions: {finer}")
        report = lading.audit(engine, path, cast="destination", timeout=60)
        problems += [f"{way}: {one}" for one in report.problems if one.code == "master"]
    return problems


def masters_in_batches(folder):
    """A batch at a time, and a checkpoint that has some tensors in F32 only: the others' masters are what they were."""
    from lading import zero3_masters

    want, path = saved(folder, "small")
    mixed = folder / "mixed.safetensors"
    if dist.get_rank() == 0:
        tensors = safetensors.torch.load_file(path)
        tensors |= {name: one.to(torch.bfloat16) for name, one in tensors.items() if "up" in name}
        safetensors.torch.save_file(tensors, mixed)
    dist.barrier()
    engine = initialised(build(models.MODELS["small"], torch.bfloat16), torch.bfloat16)
    before, zero3_masters.BATCH_BYTES = zero3_masters.BATCH_BYTES, 200
    try:
        load(engine, mixed, cast="destination")
    finally:
        zero3_masters.BATCH_BYTES = before
    problems = []
    for name, tensor in engine.module.named_parameters():
        if tensor.requires_grad:
            full = models.tensors(want)[name].detach()
            full = full.to(torch.bfloat16).float() if "up" in name else full
            master = deepspeed.utils.safe_get_local_fp32_param(tensor)
            if not torch.equal(master.reshape(-1), part_of(full, tensor)[0][1]):
                problems.append(f"the master of {name} differs")
    return problems


def again_after_training(folder):
    """Small parameters stay gathered after a step: what is gathered is filled too."""
    _, path = saved(folder, "small")
    want, other = saved(folder, "small", seed=8)
    engine = initialised(build(models.MODELS["small"]), torch.float32)
    load(engine, path)
    losses_of(engine)
    problems = []
    if not any(parameter.shape == parameter.ds_shape for parameter in engine.module.parameters()):
        problems.append("nothing stayed gathered: this case shows nothing")
    load(engine, other)
    with torch.no_grad():
        got, expected = engine(batches()[0]), want(batches()[0])
    if (got - expected).abs().max() > TOLERANCE:
        problems.append(f"the output differs by {(got - expected).abs().max()}")
    return problems + compare(engine.module, want)


def secondary_partitions(folder):
    """ZeRO++ (hpZ): forward passes gather from the second partition, so it must be right too."""
    want, path = saved(folder, "small")
    model = build(models.MODELS["small"], zero_hpz_partition_size=2)
    problems = [] if model.embed.weight.ds_secondary_tensor is not None else ["there is no second partition"]
    load(model, path, verify="full")
    return problems + compare(model, want)


def adapted():
    """LoRA over a base on meta."""
    from peft import LoraConfig, get_peft_model

    with lading.skeleton():
        return get_peft_model(models.MODELS["llama"](), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


def adapters_of_peft(folder):
    """R16, R65: LoRA over a base on meta. The base's weights under PEFT's names, adapters as in one process."""
    _, path = saved(folder, "llama")
    want, model = adapted(), adapted()
    lading.materialize(want, path, device="cpu", group=False, progress=False)
    lading.zero3_init(model, config())
    load(model, path)
    originals, found = models.tensors(want), models.tensors(model)
    adapters = [name for name in found if "lora_" in name]
    problems = [] if len(adapters) == 8 and set(found) == set(originals) else [f"names: {sorted(found)}"]
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        for name, tensor in found.items():
            same = torch.equal(tensor.detach(), originals[name].detach())
            if not same or tensor.requires_grad != originals[name].requires_grad:
                problems.append(f"{name} differs")
        if not all(bool(found[name].any()) == ("lora_A" in name) for name in adapters):
            problems.append("adapters are not as PEFT begins them")
    return problems


def adapters_from_a_file(folder):
    """R65: a second checkpoint, of which a rank reads its partition only; `verify` compares it with the file."""
    _, path = saved(folder, "llama")
    want, model = adapted(), adapted()
    lading.materialize(want, path, device="cpu", group=False, progress=False)
    with torch.no_grad():
        for place, parameter in enumerate(one for one in want.parameters() if one.requires_grad):
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) + 1000 * place)
    file = Path(folder) / "zero3_adapter"
    if dist.get_rank() == 0:
        want.save_pretrained(file)
    dist.barrier()
    lading.zero3_init(model, config())
    report = load(model, path, adapter=file, verify="full")
    records = [one for one in json.loads(report.ledger)["records"] if "lora_" in one["tensor"]]
    problems = [] if len(records) == 8 else [f"{len(records)} records of adapters"]
    for one in records:
        taken = sum(read[2] for read in one.get("reads", ()))
        if one["provenance"] != "file" or taken != one["bytes"]:
            problems.append(f"{one['tensor']}: {one['provenance']}, {taken} bytes for {one['bytes']}")
    originals, found = models.tensors(want), models.tensors(model)
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        for name, tensor in found.items():
            if not torch.equal(tensor.detach(), originals[name].detach()):
                problems.append(f"{name} differs")
    return problems


def adapters_with_values_are_kept(folder):
    """R65: adapters that were partitioned with their values, or were trained since a load, are not initialised anew."""
    from peft import LoraConfig, get_peft_model

    _, path = saved(folder, "llama")

    def adapted():
        return get_peft_model(models.MODELS["llama"](), LoraConfig(r=2, target_modules=["q_proj"]))

    def kept(model, how):
        adapters = [(name, parameter) for name, parameter in model.named_parameters() if "lora_" in name]
        for place, (_, parameter) in enumerate(adapters):
            parameter.ds_tensor.fill_(place + 1 + dist.get_rank() / 4)
        load(model, path)
        held = [bool((one.ds_tensor == place + 1 + dist.get_rank() / 4).all()) for place, (_, one) in enumerate(adapters)]
        return [f"{how}: {name} was not kept" for (name, _), same in zip(adapters, held, strict=True) if not same]

    real = adapted()
    deepspeed.zero.Init(module=real, config_dict_or_path=config())
    with lading.skeleton():
        recorded = adapted()
    with torch.device("meta"):
        plain = adapted()
    for model in (recorded, plain):
        lading.zero3_init(model, config())
        load(model, path)
    return [*kept(real, "real"), *kept(recorded, "skeleton"), *kept(plain, "meta")]


def views_of_parameters_are_refused(folder):
    """R52: a buffer that was a view of a parameter would keep the constructor's values, and not get the file's."""

    class Viewing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(4.0))
            self.register_buffer("tail", self.weight.detach()[1:], persistent=False)

    path = folder / "viewing.safetensors"
    if dist.get_rank() == 0:
        safetensors.torch.save_file({"weight": torch.full((4,), 9.0)}, path)
    dist.barrier()
    model = build_on_meta(Viewing)
    try:
        load(model, path)
    except lading.LadingError as refusal:
        return [] if "tail" in str(refusal) and refusal.rule == "R52" else [f"refused for another reason: {refusal}"]
    return ["the view was made anew, and nobody was told"]


def ties_that_to_empty_took_apart(folder):
    """R9: memory of their own makes them two parameters, whatever was recorded on meta."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4, bias=False)
            self.head.weight = self.embed.weight

    path = folder / "untied.safetensors"
    if dist.get_rank() == 0:
        safetensors.torch.save_file({"embed.weight": torch.ones(4, 4), "head.weight": torch.full((4, 4), 2.0)}, path)
    dist.barrier()
    with lading.skeleton():
        model = Tied()
    model.to_empty(device="cpu")
    deepspeed.zero.Init(module=model, config_dict_or_path=config())
    load(model, path)
    found = [float(parameter.ds_tensor[0]) for parameter in (model.embed.weight, model.head.weight)]
    return [] if found == [1.0, 2.0] else [f"embed and head begin with {found}"]


def both_contexts_at_once(folder):
    """One sentence, and not a complaint about each parameter."""
    _, path = saved(folder, "small")
    with lading.skeleton(), deepspeed.zero.Init(config_dict_or_path=config()):
        model = models.MODELS["small"]()
    try:
        load(model, path, device="cpu")
    except lading.LadingError as refusal:
        is_one = len(refusal.problems) == 1 and "lading.zero3_init" in refusal.problems[0].remedy
        return [] if is_one else [f"refused otherwise: {refusal}"]
    return ["it was loaded"]


def groups_of_some_ranks(folder):
    """Partitions over two of four ranks, which then hold what the other two hold."""
    want, path = saved(folder, "small")
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with deepspeed.zero.Init(config_dict_or_path=config(), data_parallel_group=groups[dist.get_rank() % 2]):
        model = models.MODELS["small"]()
    load(model, path)
    return compare(model, want)


CASES = {
    1: (a_small_model,),
    2: (
        a_small_model,
        a_model_from_meta,
        adapters_of_peft,
        adapters_from_a_file,
        adapters_with_values_are_kept,
        views_of_parameters_are_refused,
        ties_that_to_empty_took_apart,
        both_contexts_at_once,
        rope_is_made_anew,
        parts_of_transformers_models,
        what_cannot_be_derived_is_kept_and_said,
        narrower_partitions_are_refused,
        wrong_keys_are_listed,
        values_may_be_kept,
        parameters_that_zero3_does_not_have,
        not_while_gathered,
        not_in_a_forward_pass,
        every_other_refusal,
        training_in_fp32,
        training_in_bf16,
        masters_take_what_the_file_has,
        masters_in_batches,
        again_after_training,
    ),
    4: (a_small_model, a_model_from_meta, one_rank_fails_and_all_are_told, secondary_partitions, groups_of_some_ranks),
}


def on_a_rank(_rank, world, folder, only):
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    found = {}
    for case in CASES[world]:
        if not only or case.__name__ in only:
            try:
                found[case.__name__] = case(Path(folder))
            except Exception as error:  # the others are run all the same
                traceback.print_exc()
                found[case.__name__] = [f"{type(error).__name__}: {error}"]
    return found


def main(only=()):
    """{"case on N ranks": what is wrong, of all ranks}"""
    import os
    import tempfile

    import transformers  # noqa: F401  (once, before ranks are forked)

    answers = {}
    for world in CASES:
        folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
        for rank, found in enumerate(run_ranks(world, on_a_rank, RANKS_DEADLINE_S, world, folder, list(only))):
            for case, problems in found.items():
                told = [f"rank {rank}: {problem}" for problem in problems]
                answers.setdefault(f"{case} on {world} ranks", []).extend(told)
    return answers
