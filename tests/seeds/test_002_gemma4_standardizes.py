"""Seed 002, on the seed's own model: Gemma4 with `standardize`, whose vision tower subtracts `std_bias` and multiplies
with `std_scale`. The file has both in F32, and everything else in BF16; the tower is frozen and computes in BF16.

The transformers that the seed is about computed `(hidden - std_bias) * std_scale`, as in `promotes` here: F32 buffers
made F32 of every activation, and the BF16 projector behind them failed. Since 5.18 at the latest it computes in F32
there and casts back. So these tests ask that the buffers are what the contract says, that the projector gets BF16, and
that a step with a picture is right.
"""

import pytest
from geometry.launch import require, run_ranks, run_worker

require("torch")
pytest.importorskip("transformers")
DEADLINE_S = 180
PICTURE = 150  # the word that stands for a piece of a picture
STATISTICS = ("model.vision_tower.std_bias", "model.vision_tower.std_scale")


@pytest.fixture(scope="module")
def found():
    return run_worker("test_002_gemma4_standardizes", DEADLINE_S, package="seeds")


def test_the_files_statistics_would_promote(found):
    wanted = {"dtype": "torch.float32", "promotes": True, "is exact in BF16": False}
    assert all(rank["in the file"] == wanted for rank in found)


@pytest.mark.parametrize("how", ("allocated", "cast afterwards"))
def test_R24_R28_statistics_of_a_frozen_tower(found, how):
    """In the compute dtype, one rounding away from the file's bits; and with them the whole tower."""
    assert all(rank[how] == [] for rank in found)


def test_R25_R28_a_pin_keeps_the_statistics(found):
    """Newer transformers compute with them in F32: who wants the file's bits there pins them."""
    assert all(rank["pinned"] == [] for rank in found)


def test_R28_a_subtree_in_another_dtype(found):
    """The encoder in F16, the rest of the tower in BF16."""
    assert all(rank["two dtypes"] == [] for rank in found)


def test_a_step_with_a_picture(found):
    for rank in found:
        assert rank["step"] == []


# ---- on the ranks


def small_config():
    from transformers.models.gemma4.configuration_gemma4 import Gemma4Config, Gemma4TextConfig, Gemma4VisionConfig

    small = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    text = Gemma4TextConfig(
        num_hidden_layers=2, intermediate_size=48, global_head_dim=16, vocab_size=160, vocab_size_per_layer_input=160,
        hidden_size_per_layer_input=8, pad_token_id=0, layer_types=["sliding_attention", "full_attention"], **small,
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        num_hidden_layers=1, intermediate_size=40, use_clipped_linears=True, standardize=True, patch_size=4,
        pooling_kernel_size=2, **small,
    )  # fmt: skip
    return Gemma4Config(text_config=text, vision_config=vision, audio_config=None, image_token_id=PICTURE)


def main():
    import os
    import tempfile

    import torch
    from safetensors.torch import save_file
    from transformers import Gemma4ForConditionalGeneration

    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    config = small_config()
    config.architectures, config.dtype = ["Gemma4ForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)
    torch.manual_seed(4)
    model = Gemma4ForConditionalGeneration(config)
    state = {}
    for name, tensor in model.state_dict().items():
        value = torch.randn(tensor.shape) * 0.2
        if name.endswith(("_min", "_max")):
            value = torch.tensor(3.0 if name.endswith("_max") else -3.0)
        elif name.endswith(("norm.weight", "layer_scalar", "std_scale")):
            value = torch.rand(tensor.shape) + 0.5
        elif name.endswith("std_bias"):
            value = torch.randn(tensor.shape) * 4
        state[name] = value if name in STATISTICS else value.bfloat16()
    state.pop("lm_head.weight")  # tied
    save_file(state, f"{folder}/model.safetensors", metadata={"format": "pt"})
    return run_ranks(2, on_a_rank, DEADLINE_S - 25, folder)


def on_a_rank(rank, folder):
    import torch
    from safetensors.torch import load_file
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    file = load_file(f"{folder}/model.safetensors")
    bias = file[STATISTICS[0]]
    found = {"in the file": {"dtype": str(bias.dtype), "promotes": promotes(bias), "is exact in BF16": is_exact(bias)}}
    model = sharded(folder, mesh)
    found["allocated"] = wrong(model, file, dict.fromkeys(STATISTICS, torch.bfloat16))
    pinned = sharded(folder, mesh, pins=("std_bias", "std_scale"))
    found["pinned"] = wrong(pinned, file, dict.fromkeys(STATISTICS, torch.float32))
    found["cast afterwards"] = cast(folder, file)
    found["two dtypes"] = two_dtypes(folder, file)
    found["step"] = step(model, folder)
    return found


def promotes(statistics):
    import torch

    hidden = torch.ones(statistics.shape, dtype=torch.bfloat16)
    return ((hidden - statistics) * statistics).dtype != torch.bfloat16


def is_exact(tensor):
    return bool((tensor == tensor.bfloat16()).all())


def alone(folder):
    """As one process has it, with the file's dtypes, before anybody froze anything."""
    import lading

    return lading.from_pretrained(folder, device="cpu", group=False, progress=False)


def sharded(folder, mesh, pins=()):
    import lading
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    def shard(model):
        model.model.vision_tower.requires_grad_(False)
        known = lading.resolve_dtypes(model, folder, pins=pins)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        lading.shard_by_dtype(model, mesh, policy, dtypes=known, timeout=60)

    options = {"parallelize": shard, "pins": pins, "progress": False, "timeout": 60}
    return lading.from_pretrained(folder, compute_dtype=torch.bfloat16, **options)


def wrong(model, file, dtypes):
    """Tensors of the file that are not, in one rounding, what it has; BF16 unless `dtypes` has another word."""
    import torch

    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    problems = []
    for name, value in file.items():
        got = tensors[name].full_tensor() if hasattr(tensors[name], "full_tensor") else tensors[name]
        dtype = dtypes.get(name, torch.bfloat16)
        if got.dtype != dtype or not torch.equal(got, value.to(dtype)):
            problems.append(f"{name}: {got.dtype} for {dtype}, or other bits")
    tower = model.model.vision_tower
    if promotes(tower.std_bias) != (dtypes.get(STATISTICS[0]) == torch.float32):
        problems.append("what the tower's statistics promote to")
    return problems


def cast(folder, file):
    """A model that is there already, and then frozen."""
    import lading
    import torch

    model = alone(folder)
    problems = wrong(model, file, dict.fromkeys(STATISTICS, torch.float32))
    model.model.vision_tower.requires_grad_(False)
    done = lading.cast_frozen(model, torch.bfloat16)
    problems += [] if set(done) == set(STATISTICS) else [f"cast: {sorted(done)}"]
    return problems + wrong(model, file, {})


def two_dtypes(folder, file):
    import lading
    import torch

    model = alone(folder)
    model.model.vision_tower.requires_grad_(False)
    encoder = "model.vision_tower.encoder"
    lading.cast_frozen(model, torch.bfloat16, subtree_dtypes={encoder: torch.float16})
    wanted = {name: torch.float16 for name in file if name.startswith(encoder)}
    return wrong(model, file, wanted) if wanted else ["the encoder has no tensors"]


def step(model, folder):
    """The loss beside that of transformers' own model in BF16, in one process, and the same gradients, finite. The
    statistics matter: without `std_bias` the loss is another one."""
    import torch
    from transformers import Gemma4ForConditionalGeneration

    plain = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    plain.model.vision_tower.requires_grad_(False)
    seen = []

    def look(module, given, named):
        seen.append((*given, *named.values())[0].dtype)

    model.model.embed_vision.register_forward_pre_hook(look, with_kwargs=True)
    losses = [loss_of(one) for one in (model, plain)]
    for loss in losses:
        loss.backward()
    problems = [] if seen == [torch.bfloat16] else [f"the projector got {seen}"]
    trains = {name for name, one in plain.named_parameters() if one.grad is not None}
    for name, parameter in model.named_parameters():
        if (parameter.grad is not None) != (name in trains):
            problems.append(f"{name} has {'no' if parameter.grad is None else 'a'} gradient")
        elif parameter.grad is not None and not parameter.grad.full_tensor().isfinite().all():
            problems.append(f"the gradient of {name} is not finite")
    with torch.no_grad():
        plain.model.vision_tower.std_bias.zero_()
        lost = (loss_of(plain).float() - losses[1].float()).abs().item()
    off = (losses[0].float() - losses[1].float()).abs().item()
    return problems + ([] if 3 * off < lost else [f"the loss is off by {off}; without std_bias by {lost}"])


def loss_of(model):
    import torch

    ids = torch.tensor([[5, PICTURE, PICTURE, PICTURE, PICTURE, 7, 9, 11, 21, 35]])
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1).reshape(1, 16, 2)
    pixels = torch.rand(1, 16, 48, generator=torch.Generator().manual_seed(6))
    image = {"pixel_values": pixels, "image_position_ids": places, "mm_token_type_ids": (ids == PICTURE).long()}
    return model(input_ids=ids, labels=ids.masked_fill(ids == PICTURE, -100), **image).loss
