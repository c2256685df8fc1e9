"""Seed 000, Automodel#2146: one device, Gemma4, PEFT. Parameters were moved to the device, buffers stayed on the CPU, and
the vision tower's clamp failed. Moving all buffers to meta first, the other way, lost those that are in no file: NaN.

On a machine with a GPU everything here is on it: the peer then crashes in the clamp, as it did for the seed's author.
`tools/gpu_check` runs this file there, and counts the tests that say that their device was a GPU.
"""

import importlib.util
import re

import pytest

from geometry.launch import require, run_ranks, run_worker, wrong_in
from seeds import tiny_gemma4

require("torch", exactly=False)
pytest.importorskip("transformers")
DEADLINE_S = 280
STEPS = 20
ROUNDING = 2e-5  # of a loss of about 5: FSDP2 adds up in another order
ROUNDING_ON_A_GPU = 1e-4  # where kernels add up in the order in which they come
LORA_TARGETS = r".*language_model.*\.(q_proj|v_proj)"
STRANDED = "model.vision_tower.encoder.layers.1.mlp.up_proj.input_max"


@pytest.fixture(scope="module")
def answers():
    return run_worker("test_000_buffers_stranded_on_the_cpu", DEADLINE_S, package="seeds")


@pytest.fixture
def found(answers, record_property):
    record_property("device", answers["device"])
    record_property("adapters", "PEFT's" if has("peft") else "none, PEFT is not installed: two projections are trained")
    return answers


def has(package):
    return importlib.util.find_spec(package) is not None


def needs_accelerate():
    if not has("accelerate"):
        pytest.skip("accelerate is not installed")


def needs_a_gpu(found):
    if found["device"] == "cpu":
        pytest.skip("needs a GPU: on a CPU, every device is the right one")


def same_losses(found, one, two):
    return one == (two if found["device"] == "cpu" else pytest.approx(two, abs=ROUNDING_ON_A_GPU))


@wrong_in("accelerate")
def test_buffers_on_meta_and_to_empty_lose_what_no_file_has(found):
    """`init_empty_weights(include_buffers=True)`, `to_empty`, accelerate's load: what the seed's author tried first."""
    needs_accelerate()
    lost = {name.rpartition(".")[2] for name in found["to_empty"]}
    assert {"softcap", "inv_timescales", "embed_scale", "inv_freq"} <= lost


def test_parameters_on_the_device_and_buffers_on_the_cpu(found):
    """The seed itself: only parameters were on meta and got memory on the device; then the clamp."""
    needs_a_gpu(found)
    stranded = {name.rpartition(".")[2] for name in found["stranded"]}
    assert {*tiny_gemma4.CLAMPS, "layer_scalar", "std_bias", "std_scale"} <= stranded
    assert "same device" in found["crash"]


@wrong_in("accelerate")
def test_accelerate_leaves_buffers_on_the_cpu(found):
    """Those that no file has."""
    needs_a_gpu(found)
    needs_accelerate()
    assert found["stranded by accelerate"]


def test_the_model_has_all_that_the_seed_lists(found):
    """Or the other tests could not miss it."""
    listed = {*tiny_gemma4.CLAMPS, "layer_scalar", "std_bias", "std_scale", "softcap", "inv_timescales", "embed_scale"}
    assert listed <= set(found["kinds"]["buffers"])
    assert {"router.scale", "router.per_expert_scale", "experts.gate_up_proj"} <= set(found["kinds"]["parameters"])


@pytest.mark.parametrize("model", ("whole", "with adapters", "moved"))
def test_R8_R35_everything_is_right_and_on_the_device(found, model):
    """From meta; from meta with adapters; and a model that was real on the CPU."""
    assert found[model] == {"wrong": [], "elsewhere": []}


def test_exact_is_what_transformers_gives(found):
    """Buffers that its initialiser computes are rounded once, after it; those of a constructor as they are made."""
    assert found["exact"] == []


def test_R4_R65_sharded_with_adapters(found):
    for rank in found["sharded"]:
        assert rank["wrong"] == [] and rank["elsewhere"] == []


def test_every_clamp_runs(found):
    """In the vision tower and in the audio tower, at every step."""
    assert found["clamps"]["that ran"] == found["clamps"]["all"]
    assert {name.split(".")[1] for name in found["clamps"]["all"]} == {"vision_tower", "audio_tower"}


def test_losses_are_those_of_the_reference_loader(found):
    """Twenty steps: one device against PEFT on a model of transformers', then sharded against one device."""
    assert len(found["losses"]) == STEPS
    assert same_losses(found, found["losses"], found["reference losses"])
    for rank in found["sharded"]:
        limit = ROUNDING if rank["device"] == "cpu" else ROUNDING_ON_A_GPU
        assert rank["losses"] == pytest.approx(found["losses"], abs=limit)


def test_losses_tell_a_model_without_its_clamps(found):
    """With the constructor's bounds instead of the file's they differ by far more than any rounding."""
    different = max(abs(one - two) for one, two in zip(found["losses"], found["losses without clamps"], strict=True))
    assert different > 10 * (ROUNDING if found["device"] == "cpu" else ROUNDING_ON_A_GPU)


def test_R35_one_stranded_buffer_is_audited(found):
    """Silent for the model that was loaded; of the buffer it says what it is."""
    assert found["audited"]["right"] == []
    assert found["audited"]["left on meta"] == [["meta", STRANDED]]
    assert found["audited"]["as constructed"] == [["value", STRANDED]]


def test_R35_one_stranded_buffer_is_audited_on_a_gpu(found):
    needs_a_gpu(found)
    assert found["audited"]["on the CPU"] == [["device", STRANDED]]


@pytest.mark.parametrize("layout", ("fsdp2", "tp"))
def test_R37_R49_a_real_tied_sharded_parameter(found, layout):
    """It is filled where it is, and stays one tensor: nobody calls `.to`, and nothing is attached anew."""
    for rank in found["tied"]:
        assert rank[layout] == []


# ---- where the frameworks are


def main():
    import tempfile

    import torch
    import zoo

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    folder = tempfile.mkdtemp()
    original = tiny_gemma4.original()
    zoo.save(original, folder)
    torch.backends.cudnn.allow_tf32 = False  # the losses of a GPU are compared with those of a CPU
    found = {"device": device, "kinds": kinds(original)}
    if has("accelerate"):
        found["to_empty"] = lost_by_to_empty(original, folder)
        found["stranded by accelerate"] = elsewhere(by_accelerate(folder, device), device)
    seed = as_the_seed_does_it(original, device)
    found["stranded"], found["crash"] = elsewhere(seed, device), crash(seed, device)
    loaded = ours(folder, device)
    found["whole"] = judged(loaded, original, device)
    found["audited"] = audited(loaded, folder, device)
    found["moved"] = judged(moved(folder, device), original, device)
    found["exact"] = exact(folder)
    adapted = ours(folder, device, with_adapters)
    found["with adapters"] = judged(adapted, original, device)
    adapters = {name: value.detach().clone() for name, value in adapted.state_dict().items() if "lora_" in name}
    found["clamps"], found["losses"] = watched_clamps(adapted, lambda: train(adapted, device))
    found["reference losses"] = train(reference(folder, device, adapters), device)
    found["losses without clamps"] = train(without_clamps(reference(folder, device, adapters)), device)
    if device == "cpu":
        by_rank = run_ranks(2, on_a_rank, DEADLINE_S - 60, folder, "cpu")
    else:  # a process that has used CUDA cannot be forked
        by_rank = [alone_in_a_group(folder)]
    found["sharded"], found["tied"] = ([rank[key] for rank in by_rank] for key in ("sharded", "tied"))
    return found


def kinds(model):
    """The last names of its buffers; the last two of its parameters."""
    return {
        "buffers": sorted({name.rpartition(".")[2] for name, _ in model.named_buffers()}),
        "parameters": sorted({".".join(name.split(".")[-2:]) for name, _ in model.named_parameters()}),
    }


def as_the_seed_does_it(original, device):
    """Parameters get memory on the device, everything is loaded in place, and nobody calls `model.to(device)`."""
    model = tiny_gemma4.build()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device)
    model.load_state_dict(original.state_dict())
    return model


def crash(model, device):
    """What a forward pass of all towers says, if it fails."""
    import torch

    try:
        with torch.no_grad():
            model(**tiny_gemma4.batch(torch.Generator().manual_seed(4), device))
    except RuntimeError as error:
        return str(error)
    return ""


def moved(folder, device):
    """A model that is real on the CPU, with other values, and belongs on the device."""
    import lading

    model = tiny_gemma4.build()
    lading.materialize(model, folder, device=device, progress=False, timeout=60)
    return model


def audited(model, folder, device):
    """One buffer of a right model, made wrong in each way, and put back."""
    import torch

    import lading

    module = model.get_submodule(STRANDED.rpartition(".")[0])
    right = module.input_max
    planted = {"left on meta": right.to("meta"), "as constructed": torch.full_like(right, float("inf"))}
    if device != "cpu":
        planted["on the CPU"] = right.cpu()
    found = {}
    for how, value in {**planted, "right": right}.items():
        module.input_max = value
        report = lading.audit(model, folder, timeout=60)
        found[how] = sorted({(one.code, one.tensor) for one in report.problems})
    return found


def watched_clamps(model, run):
    """Which of the modules that clamp were run."""
    modules, ran = tiny_gemma4.clamping(base_of(model)), set()
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.add(name) or None) for name, module in modules.items()
    ]
    result = run()
    for handle in handles:
        handle.remove()
    return {"all": sorted(modules), "that ran": sorted(ran)}, result


def without_clamps(model):
    """As the constructor makes them, and as they are where a loader forgets buffers."""
    for module in tiny_gemma4.clamping(model).values():
        for name in tiny_gemma4.CLAMPS:
            getattr(module, name).fill_(float("-inf" if name.endswith("min") else "inf"))
    return model


def base_of(model):
    return model.get_base_model() if has("peft") else model


def with_adapters(model):
    """Of PEFT; where it is not installed, their targets themselves are trained."""
    if not has("peft"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(re.fullmatch(LORA_TARGETS + r"\.weight", name) is not None)
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=LORA_TARGETS))


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    for layer in base_of(model).model.language_model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def ours(folder, device, *changes):
    import lading

    with lading.skeleton():
        model = tiny_gemma4.build()
        for change in changes:
            model = change(model) if change is not sharded else model
    if sharded in changes:
        model, device = sharded(model), None
    lading.materialize(model, folder, device=device, progress=False, timeout=60)
    return model


def reference(folder, device, adapters):
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    model = with_adapters(Gemma4ForConditionalGeneration.from_pretrained(folder).to(device))
    model.load_state_dict(adapters, strict=False)
    return model


def exact(folder):
    import torch
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    import lading

    model = lading.from_pretrained(folder, device="cpu", dtype=torch.bfloat16, cast="exact", progress=False)
    return wrong(model, Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16))


def by_accelerate(folder, device):
    """The seed's path: parameters on meta, accelerate's load, and no `model.to(device)` at the end."""
    from accelerate import init_empty_weights, load_checkpoint_in_model

    with init_empty_weights():
        model = tiny_gemma4.build()
    model.tie_weights()
    load_checkpoint_in_model(model, folder, device_map={"": device})
    return model


def lost_by_to_empty(original, folder):
    import zoo
    from accelerate import init_empty_weights, load_checkpoint_in_model

    with init_empty_weights(include_buffers=True):
        model = tiny_gemma4.build()
    with zoo.poisoned_memory():
        model.to_empty(device="cpu")
        load_checkpoint_in_model(model, folder)
    model.tie_weights()
    return wrong(model, original)


def named(model):
    """Every tensor, under the names of the model that PEFT wrapped."""
    import zoo

    found = {}
    for name, (_, tensor) in zoo.tensors(model).items():
        found[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return found


def whole(tensor):
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def wrong(model, original):
    import zoo

    want, got = named(original), named(model)
    return [
        name
        for name, tensor in want.items()
        if name not in got or got[name].is_meta or not zoo.same_bits(tensor.detach(), whole(got[name]).cpu())
    ]


def elsewhere(model, device):
    return [name for name, tensor in named(model).items() if str(tensor.device) != device]


def judged(model, original, device):
    lora = {name: whole(tensor) for name, tensor in named(model).items() if "lora_" in name}
    bad = [name for name, value in lora.items() if bool(value.any()) == ("lora_B" in name) or not value.isfinite().all()]
    return {"wrong": wrong(model, original) + bad, "elsewhere": elsewhere(model, device)}


def train(model, device):
    import torch

    generator = torch.Generator().manual_seed(4)
    model.train()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = model(**tiny_gemma4.batch(generator, device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def on_a_rank(_rank, folder, device):
    model = ours(folder, None, with_adapters, sharded)
    found = judged(model, tiny_gemma4.original(), device) | {"losses": train(model, device), "device": device}
    return {"sharded": found, "tied": {"fsdp2": tied_under_fsdp2(folder, device), "tp": tied_under_tp(folder, device)}}


def alone_in_a_group(folder):
    """One GPU is one rank; its collectives are NCCL's all the same."""
    import os
    import tempfile

    import torch.distributed as dist

    os.environ |= {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    store = f"file://{tempfile.mkdtemp()}/store"
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=store, rank=0, world_size=1)
    try:
        return on_a_rank(0, folder, "cuda:0")
    finally:
        dist.destroy_process_group()


def tied_under_fsdp2(folder, device):
    """A real model, sharded with its tie, and then filled."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    model = tiny_gemma4.build()
    for layer in model.model.language_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    problems = filled_in_place(model, folder, device)
    batch = tiny_gemma4.batch(torch.Generator().manual_seed(4))
    with torch.no_grad():
        expected = float(tiny_gemma4.original()(**batch).loss)
        loss = float(model(**{name: value.to(device) for name, value in batch.items()}).loss)
    limit = ROUNDING if device == "cpu" else ROUNDING_ON_A_GPU
    return problems + ([] if abs(loss - expected) < limit else [f"the loss is {loss}, not {expected}"])


def tied_under_tp(folder, device):
    """The tied parameter alone is cut over a mesh, by hand, as tensor parallelism does it."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    model = tiny_gemma4.build().to(device)
    cut = nn.Parameter(distribute_tensor(model.lm_head.weight.detach(), mesh, [Shard(0)]))
    model.lm_head.weight = model.model.language_model.embed_tokens.weight = cut
    return filled_in_place(model, folder, device)


def filled_in_place(model, folder, device):
    import lading

    tied = model.lm_head.weight
    before = (id(tied), tied._local_tensor.data_ptr(), str(tied._local_tensor.device))
    lading.materialize(model, folder, progress=False, timeout=60)
    embed = model.model.language_model.embed_tokens.weight
    problems = [f"{name} is wrong" for name in wrong(model, tiny_gemma4.original())]
    problems += [f"{name} is elsewhere" for name in elsewhere(model, device)]
    if model.lm_head.weight is not embed:
        problems.append("the tie is gone")
    if (id(embed), embed._local_tensor.data_ptr(), str(embed._local_tensor.device)) != before:
        problems.append("it is another tensor, or has other memory")
    return problems
