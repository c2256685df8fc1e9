"""Seed 001, transformers#45402: under ZeRO-3 `from_pretrained` walked over parameters only. Buffers of the checkpoint,
Gemma4's clamps and scalars, kept what the constructor had put there, and were called missing.

On two real ranks: with that bug planted again, transformers' loader is wrong; as it is today, it is right but for the RoPE
tables, which `zero.Init` rounds to bf16; lading is right everywhere, and so is the first step of all three towers.
"""

import pytest

from geometry.launch import require, run_ranks, run_worker, wrong_in

require("torch", "deepspeed", exactly=False)
pytest.importorskip("transformers")
DEADLINE_S = 280
ROUNDING = 2e-5  # of a loss of about 5, and of weights after a step


@pytest.fixture(scope="module")
def found():
    return run_worker("test_001_zero3_ignores_buffers", DEADLINE_S, package="seeds")


def endings(names):
    return {name.rpartition(".")[2] for name in names}


def test_the_bug_planted_again(found):
    for rank in found:
        assert {"input_max", "output_min", "layer_scalar"} <= endings(rank["planted"])


@wrong_in("transformers", "deepspeed")
def test_transformers_today_rounds_what_no_file_has(found):
    """DeepSpeed#4932: wrong on every rank, in every table that zero.Init saw as bf16."""
    for rank in found:
        assert "inv_freq" in endings(rank["transformers"])
        assert not {"input_max", "output_min", "layer_scalar"} & endings(rank["transformers"])


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
def test_R4_R5_R29_every_rank_has_every_buffer_and_its_partitions(found, dtype):
    for rank in found:
        assert rank[dtype]["wrong"] == []
        assert rank[dtype]["clamps"] == [-42.0, 0.5, 42.0]


def test_R38_R39_keys_that_do_not_fit_are_all_named(found):
    """One missing, one too many, a scalar [1] that is [4] in the file: on every rank, before anything is written."""
    for rank in found:
        assert rank["keys"] == {"not named": [], "written": []}


def test_the_documented_call(found):
    """docs/guides/zero3.md: `from_pretrained` with `zero3_init`, in bf16, as transformers gives it without ZeRO-3."""
    for rank in found:
        assert rank["documented"]["wrong"] == [] and rank["documented"]["partitioned"] > 0


def test_a_later_initialisation_changes_nothing(found):
    """transformers' own, over gathered parameters. Without lading's marks it changes nearly everything."""
    for rank in found:
        assert rank["initialised again"] == []
        assert {"input_max", "layer_scalar", "weight"} <= endings(rank["initialised again without marks"])


@pytest.mark.parametrize("tower", ("Gemma4VisionModel", "Gemma4AudioModel"))
def test_a_tower_out_of_the_whole_checkpoint(found, tower):
    for rank in found:
        assert rank[tower] == []


def test_masters_are_the_files_bits(found):
    """bf16 partitions of an F32 file, loaded after deepspeed.initialize."""
    for rank in found:
        assert rank["masters"]["wrong"] == []
        assert rank["masters"]["finer"] > 0


def test_the_first_step_is_that_of_one_process(found):
    for rank in found:
        step = rank["step"]
        assert abs(step["loss"] - step["loss in one process"]) < ROUNDING
        assert step["largest difference"] < ROUNDING < step["largest change"]
        assert rank["step in bfloat16 is finite"]


# ---- on the ranks


def main():
    import os
    import tempfile

    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import zoo
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    from seeds import tiny_gemma4

    folder = tempfile.mkdtemp()
    zoo.save(tiny_gemma4.original(), folder)
    want = {
        dtype: zoo.tensors(Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32)
    }
    spoil(folder)
    return run_ranks(2, on_a_rank, DEADLINE_S - 40, folder, want)


SPOILT = {"missing": "model.vision_tower.std_bias", "unexpected": "stranger",
          "another shape": "model.language_model.layers.1.layer_scalar"}  # fmt: skip


def spoil(folder):
    """A second checkpoint, whose keys are wrong in three ways."""
    from pathlib import Path

    import torch
    from safetensors.torch import load_file, save_file

    Path(folder, "spoilt").mkdir()
    Path(folder, "spoilt/config.json").write_bytes(Path(folder, "config.json").read_bytes())
    state = {name: value for path in Path(folder).glob("*.safetensors") for name, value in load_file(path).items()}
    state["stranger"] = state.pop(SPOILT["missing"])
    state[SPOILT["another shape"]] = torch.zeros(4)
    save_file(state, f"{folder}/spoilt/model.safetensors", {"format": "pt"})


def on_a_rank(_rank, folder, want):
    import importlib
    import logging

    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    logging.disable(logging.WARNING)
    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    get_accelerator().is_fp16_supported = lambda: True  # or zero.Init makes everything bf16 on a CPU, asked or not
    found = {"planted": wrong(by_transformers(folder, is_planted=True), want[torch.bfloat16])}
    found["transformers"] = wrong(by_transformers(folder), want[torch.bfloat16])
    for dtype, tensors in want.items():
        model = ours(folder, dtype)
        clamps = [float(one) for name, one in model.named_buffers() if name.endswith(("input_max", "output_min", "scalar"))]
        found[str(dtype).removeprefix("torch.")] = {"wrong": wrong(model, tensors), "clamps": sorted(set(clamps))}
    found |= {"step": one_step(model), "keys": keys(folder)}
    found["documented"] = documented(folder, want[torch.bfloat16])
    model = ours(folder, torch.float32)
    initialise(model)
    found["initialised again"] = wrong(model, want[torch.float32])
    initialise(model, marked=False)
    found["initialised again without marks"] = wrong(model, want[torch.float32])
    found |= {cls: tower(folder, cls) for cls in ("Gemma4VisionModel", "Gemma4AudioModel")}
    found["masters"], engine = masters(folder, want[torch.float32])
    loss = first_loss(engine)
    engine.backward(loss)
    engine.step()
    partitions = [parameter.ds_tensor for parameter in engine.module.parameters()]
    is_finite = all(bool(one.isfinite().all()) for one in (loss, *partitions))
    return found | {"step in bfloat16 is finite": is_finite}


def settings(dtype):
    fields = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2, "zero_optimization": {"stage": 3}}
    return fields | {"bf16": {"enabled": dtype.itemsize == 2}, "zero_allow_untested_optimizer": True}


def by_transformers(folder, *, is_planted=False):
    from unittest import mock

    import torch
    from transformers import modeling_utils
    from transformers.integrations import HfDeepSpeedConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4ForConditionalGeneration

    kept = HfDeepSpeedConfig(settings(torch.bfloat16))  # it counts as long as it lives
    real = modeling_utils._load_state_dict_into_zero3_model

    def parameters_only(model, state, *arguments, **options):
        buffers = dict(model.named_buffers())
        return real(model, {name: value for name, value in state.items() if name not in buffers}, *arguments, **options)

    load = parameters_only if is_planted else real
    with mock.patch.object(modeling_utils, "_load_state_dict_into_zero3_model", load):
        model = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    del kept
    return model


def ours(folder, dtype, *, fill=None):
    import deepspeed
    from transformers import initialization
    from transformers.modeling_utils import set_zero3_state

    import lading
    from seeds import tiny_gemma4

    init = deepspeed.zero.Init(config_dict_or_path=settings(dtype))
    with initialization.no_init_weights(), set_zero3_state(), init:  # transformers' initialisers know no partitions
        model = tiny_gemma4.build()
    model.tie_weights()
    for parameter in model.parameters() if fill is not None else ():
        parameter.ds_tensor.fill_(fill)
    lading.materialize(model, folder, cast="destination", progress=False, timeout=100)
    return model


def wrong(model, want):
    """Parameters as ZeRO-3 gathers them, buffers as they are, against transformers in one process, without ZeRO-3."""
    import deepspeed
    import zoo

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return [
            name
            for name, (_, tensor) in zoo.tensors(model).items()
            if not zoo.same_bits(want[name][1].detach(), tensor.detach())
        ]


def keys(folder):
    import torch

    import lading

    try:
        ours(f"{folder}/spoilt", torch.float32, fill=float("nan"))
    except lading.LadingError as error:
        text = error.full_text()
        return {"not named": [name for name in SPOILT.values() if name not in text], "written": ["begun"] * error.begun}
    return {"not named": sorted(SPOILT.values()), "written": ["all of it"]}


def documented(folder, want):
    import torch

    import lading

    model = lading.from_pretrained(
        folder, parallelize=lambda model: lading.zero3_init(model, settings(torch.bfloat16)),
        dtype=torch.bfloat16, cast="exact", progress=False, timeout=100,
    )  # fmt: skip
    partitioned = sum(hasattr(parameter, "ds_tensor") for parameter in model.parameters())
    return {"wrong": wrong(model, want), "partitioned": partitioned}


def initialise(model, *, marked=True):
    """As transformers does it for ZeRO-3: gathered, and the first rank's values count."""
    import deepspeed

    if not marked:
        for module in model.modules():
            module._is_hf_initialized = False
        for tensor in (*model.parameters(), *model.buffers()):
            tensor._is_hf_initialized = False
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        model.initialize_weights()
        for module in model.modules():
            model._init_weights(module)


def tower(folder, name):
    """One of the model's parts alone, under ZeRO-3, out of the checkpoint of all."""
    import torch
    import zoo
    from transformers.models.gemma4 import modeling_gemma4

    import lading
    from seeds import tiny_gemma4

    cls = getattr(modeling_gemma4, name)
    parts = {"Gemma4VisionModel": "vision", "Gemma4AudioModel": "audio"}
    model = lading.from_pretrained(
        folder, cls=cls, config=getattr(tiny_gemma4.config(), f"{parts[name]}_config"),
        parallelize=lambda model: lading.zero3_init(model, settings(torch.float32)), progress=False, timeout=100,
    )  # fmt: skip
    return wrong(model, zoo.tensors(getattr(tiny_gemma4.original().model, f"{parts[name]}_tower")))


def masters(folder, want):
    """The optimizer's copies on this rank, against the file's own bits."""
    import deepspeed
    import torch
    import torch.distributed as dist

    import lading

    model = ours(folder, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(torch.bfloat16))
    lading.materialize(engine, folder, cast="destination", progress=False, timeout=100)
    found = {"wrong": [], "finer": 0}
    for name, parameter in model.named_parameters():
        flat = want[name][1].detach().reshape(-1)
        part = torch.zeros(parameter.ds_tensor.numel() * dist.get_world_size())
        part[: flat.numel()] = flat
        part = part.chunk(dist.get_world_size())[dist.get_rank()]
        master = deepspeed.utils.safe_get_local_fp32_param(parameter).detach().reshape(-1)
        found["wrong"] += [] if torch.equal(master, part) else [name]
        found["finer"] += not torch.equal(master, parameter.ds_tensor.float())
    return found, engine


def first_loss(model):
    import torch

    from seeds import tiny_gemma4

    return model(**tiny_gemma4.batch(torch.Generator().manual_seed(4))).loss


def one_step(model):
    """All three towers run and are trained. Both ranks have the same batch, so that a step is that of one process."""
    import deepspeed
    import torch

    from seeds import tiny_gemma4

    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=settings(torch.float32)
    )
    loss = first_loss(engine)
    engine.backward(loss)
    engine.step()
    reference = tiny_gemma4.original()
    before = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    expected = first_loss(reference)
    expected.backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    after = dict(reference.named_parameters())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        apart = [float((one.data - after[name].detach()).abs().max()) for name, one in model.named_parameters()]
    moved = [float((one.detach() - before[name]).abs().max()) for name, one in after.items()]
    return {
        "loss": float(loss), "loss in one process": float(expected),
        "largest difference": max(apart), "largest change": max(moved),
    }  # fmt: skip
