"""`lading.save` of the zoo under wrappers that zoo_ranks.py does not have, on two CPU ranks. What is written must be what
transformers and PEFT write in one process, byte for byte, and load into the same model with transformers' own loader.

    python save_wrappers_zoo.py [--only llama,gemma4] [--ways fsdp1,pipeline] [--out table.md]

Ways: fsdp1, fsdp1_flat (with and without use_orig_params), pipeline (two stages that were loaded with `whole=`),
peft_unmerged (LoRA on all linears under FSDP2: the base, and the adapter), peft_merged (merge_and_unload, then FSDP2).
"""

import json
import sys
from pathlib import Path

import save_zoo
import wrappers_zoo
from wrappers_zoo import NotApplicable

import lading
import peft
import save_models
import torch
import wrappers_worker as wrappers
import zoo
from torch.distributed.device_mesh import init_device_mesh

RANKS = 2
LORA = {"target_modules": "all-linear", "r": 2}


def fsdp1(rank, model_type, folder, *, use_orig_params=True):
    loaded = []
    wrappers_zoo.flattened(model_type, folder, use_orig_params=use_orig_params, then=loaded.append)
    return saved(*loaded[0], model_type, folder, "fsdp1" if use_orig_params else "fsdp1_flat")


def fsdp1_flat(rank, model_type, folder):
    return fsdp1(rank, model_type, folder, use_orig_params=False)


def saved(model, report, model_type, folder, way):
    save_zoo.check_saved(model, zoo.build(model_type), report, Path(folder), way)
    return []


def pipeline(rank, model_type, folder):
    model = zoo.build(model_type, "meta")
    part = wrappers_zoo.part_of_modules(model, rank, RANKS)
    report = lading.materialize(part, folder, device="cpu", whole=model, timeout=120)
    out = Path(f"{folder}-pipeline")
    lading.save(part, out, base=report, progress=False, timeout=120)
    # Of stages that are no models of transformers, nobody has a config.
    beside = (*save_zoo.ASIDE, "config.json", "generation_config.json")
    same_as(out, Path(folder), beside=beside, cls=type(model))
    return []


def same_as(out, wanted, *, cls=None, beside=save_zoo.ASIDE):
    """On all ranks: nobody goes on before the first one has compared."""
    problems = []
    if save_zoo.is_first():
        for name in beside:
            if (wanted / name).exists() and not (out / name).exists():
                (out / name).write_bytes((wanted / name).read_bytes())
        problems = save_models.differences(out, wanted)
        problems += save_zoo.loaded_differently(cls, out, wanted) if cls is not None else []
    save_zoo.refuse_if(problems, out.name)


def with_adapters(model_type):
    """The zoo's values in the base, and others that no initialiser would choose in the adapters."""
    try:
        zoo.seed_all(1)
        model = peft.get_peft_model(zoo.build(model_type), peft.LoraConfig(**LORA))
    except (ValueError, KeyError, AttributeError) as error:
        raise NotApplicable(zoo.describe(error)) from error
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                generator = torch.Generator().manual_seed(zoo.seed_of(name))
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


def sharded(model):
    try:
        wrappers.shard_blocks(model, init_device_mesh("cpu", (RANKS,)))
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise NotApplicable(zoo.describe(error)) from error
    return model


def peft_unmerged(rank, model_type, folder):
    model, one = with_adapters(model_type), with_adapters(model_type)
    wanted = Path(f"{folder}-peft-theirs")
    if rank == 0:
        one.save_pretrained(wanted)
    model = sharded(model)
    base, adapter = Path(f"{folder}-peft-base"), Path(f"{folder}-peft-adapter")
    size = save_zoo.shard_bytes(zoo.build(model_type))
    lading.save(model, base, max_shard_size=size, progress=False, timeout=120)
    same_as(base, Path(folder), cls=type(one.get_base_model()))
    lading.save(model, adapter, adapter="default", progress=False, timeout=120)
    problems = adapter_differences(adapter, wanted) if rank == 0 else []
    save_zoo.refuse_if(problems, "adapter")
    return []


def adapter_differences(found, wanted):
    name, config = "adapter_model.safetensors", "adapter_config.json"
    problems = [] if (found / name).read_bytes() == (wanted / name).read_bytes() else [f"{name} differs"]
    one, other = (_sorted(json.loads((folder / config).read_text())) for folder in (found, wanted))
    return problems + ([] if one == other else [f"{config}: {one}, not {other}"])


def _sorted(config):
    """PEFT writes sets in the order that a process has them in."""
    return {key: sorted(value) if isinstance(value, list) else value for key, value in config.items()}


def peft_merged(rank, model_type, folder):
    model, one = (with_adapters(model_type).merge_and_unload() for _ in range(2))
    wanted, out = Path(f"{folder}-merged-theirs"), Path(f"{folder}-merged")
    size = save_zoo.shard_bytes(one)
    if rank == 0:
        one.save_pretrained(wanted, max_shard_size=size)
    lading.save(sharded(model), out, max_shard_size=size, progress=False, timeout=120)
    same_as(out, wanted, cls=type(one))
    return []


WAYS = (fsdp1, fsdp1_flat, pipeline, peft_unmerged, peft_merged)

if __name__ == "__main__":
    wrappers_zoo.WAYS = {way.__name__: way for way in WAYS}
    wrappers_zoo.DEADLINE_S = 400
    sys.exit(wrappers_zoo.main())
