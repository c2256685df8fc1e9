"""Seed 000, Automodel#2146: one device, Gemma4, PEFT. Parameters were moved to the device, buffers stayed on the CPU, and
the vision tower's clamp failed. Moving all buffers to meta first, the other way, lost those that are in no file: NaN.

On a machine with a GPU everything here is on it, and a third loader is shown as well: accelerate's, which leaves every
buffer on the CPU.
"""

import pytest

from geometry.launch import require, run_ranks, run_worker, wrong_in
from seeds import tiny_gemma4

require("torch", exactly=False)
DEADLINE_S = 200
STEPS, ROUNDING = 20, 2e-5
LORA_TARGETS = r".*language_model.*\.(q_proj|v_proj)"


@pytest.fixture(scope="module")
def found():
    return run_worker("test_000_buffers_stranded_on_the_cpu", DEADLINE_S, package="seeds")


@wrong_in("accelerate")
def test_buffers_on_meta_and_to_empty_lose_what_no_file_has(found):
    """`init_empty_weights(include_buffers=True)`, `to_empty`, accelerate's load: what the seed's author tried first."""
    lost = {name.rpartition(".")[2] for name in found["to_empty"]}
    assert {"softcap", "inv_timescales", "embed_scale", "inv_freq"} <= lost


@wrong_in("accelerate")
def test_parameters_on_meta_leave_buffers_on_the_cpu(found):
    if found["device"] == "cpu":
        pytest.skip("needs a GPU: on a CPU, every device is the right one")
    assert found["stranded by accelerate"]


@pytest.mark.parametrize("model", ("whole", "with adapters"))
def test_R8_R35_everything_is_right_and_on_the_device(found, model):
    assert found[model] == {"wrong": [], "elsewhere": []}


def test_exact_is_what_transformers_gives(found):
    """Buffers that its initialiser computes are rounded once, after it; those of a constructor as they are made."""
    assert found["exact"] == []


def test_R4_R65_sharded_with_adapters(found):
    if not found["sharded"]:
        pytest.skip("two ranks on GPUs want two of them")
    for rank in found["sharded"]:
        assert rank["wrong"] == [] and rank["elsewhere"] == []


def test_losses_are_those_of_the_reference_loader(found):
    """Twenty steps: one device against PEFT on a model of transformers', then sharded against one device."""
    assert len(found["losses"]) == STEPS
    assert found["losses"] == found["reference losses"]
    for rank in found["sharded"]:
        assert rank["losses"] == pytest.approx(found["losses"], abs=ROUNDING)


# ---- where the frameworks are


def main():
    import tempfile

    import torch
    import zoo

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    folder = tempfile.mkdtemp()
    original = tiny_gemma4.original()
    zoo.save(original, folder)
    found = {"device": device, "to_empty": lost_by_to_empty(original, folder)}
    found["stranded by accelerate"] = elsewhere(by_accelerate(folder, device), device)
    found["whole"] = judged(ours(folder, device), original, device)
    found["exact"] = exact(folder)
    adapted = ours(folder, device, with_adapters)
    found["with adapters"] = judged(adapted, original, device)
    adapters = {name: value.detach().clone() for name, value in adapted.state_dict().items() if "lora_" in name}
    found["losses"] = train(adapted, device)
    found["reference losses"] = train(reference(folder, device, adapters), device)
    found["sharded"] = run_ranks(2, on_a_rank, DEADLINE_S - 60, folder) if device == "cpu" else []
    return found


def with_adapters(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=LORA_TARGETS))


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model.get_base_model().model.language_model.layers:
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
    words = model.get_base_model().config.text_config.vocab_size
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    losses = []
    for _ in range(STEPS):
        ids = torch.randint(8, words, (2, 10), generator=generator).to(device)
        loss = model(input_ids=ids, labels=ids, mm_token_type_ids=torch.zeros_like(ids)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def on_a_rank(_rank, folder):
    model = ours(folder, None, with_adapters, sharded)
    return judged(model, tiny_gemma4.original(), "cpu") | {"losses": train(model, "cpu")}
