"""`lading.save` as a loader of the zoo's checkers: a checkpoint is loaded, and what is saved of the model on its ranks
must be that checkpoint again, byte for byte, as transformers wrote it in one process: weights, index and configs. Then
transformers' own loader must make the same model of both.

python zoo.py check --loader save_zoo:in_one_process --list dev40.txt
python zoo_ranks.py check --layout ddp,fsdp2,fsdp2x4,hsdp,tp,fsdp2tp,zero3 --loader save_zoo:load_and_save --list dev40.txt
python three_ranks.py check --layout fsdp2 --loader save_zoo:load_and_save --list dev40.txt

FSDP1, pipeline stages and PEFT: save_wrappers_zoo.py.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE), str(HERE.parent / "save")]

import lading
import save_models
import torch.distributed as dist
import zoo

ASIDE = (".complete", "spk_dict.pt")  # files of the zoo's own


def load_and_save(model, folder, ctx):
    report = lading.materialize(model, folder, device="cpu", progress=False)
    check_saved(model, ctx.reference, report, Path(folder), ctx.layout)
    return model


def in_one_process(model, folder):
    """The model that `lading` loads of what it saved."""
    report = lading.materialize(model, folder, device="cpu", progress=False)
    check_saved(model, model, report, Path(folder), "one")
    return model


def check_saved(model, reference, report, folder, layout):
    """On all ranks: saves with the report as base, and without a base. Raises what the first rank finds."""
    for name, options in {"like": {"base": report}, "own": {"max_shard_size": shard_bytes(reference)}}.items():
        out = folder.with_name(f"{folder.name}-{layout}-{name}")
        lading.save(model, out, exist="replace", progress=False, **options)
        problems = []
        if is_first():
            problems = differences(out, folder)
            problems += loaded_differently(type_of(reference), out, folder) if name == "own" else []
        refuse_if(problems, name)


def refuse_if(problems, name):
    told = [problems]
    if dist.is_initialized():
        dist.broadcast_object_list(told)
    if told[0]:
        raise AssertionError(f"{name}: {told[0][:3]}")


def is_first():
    return not dist.is_initialized() or dist.get_rank() == 0


def type_of(model):
    from lading.huggingface_view import original_class

    return original_class(model)


def shard_bytes(model):
    """As zoo.save asks save_pretrained for."""
    size = sum(v.numel() * v.element_size() for k, v in zoo.tensors(model).values() if k != "nonpersistent")
    return max(1024, int(size * 0.4))


def differences(out, folder):
    return save_models.differences(out, folder, besides=ASIDE)


def loaded_differently(cls, out, folder):
    """What transformers makes of both checkpoints, in this process alone: it would partition models for ZeRO-3."""
    from transformers.integrations import deepspeed

    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        return _loaded_differently(cls, out, folder)
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


def _loaded_differently(cls, out, folder):
    for name in ASIDE:
        if (folder / name).exists():
            (out / name).write_bytes((folder / name).read_bytes())
    try:
        wanted = cls.from_pretrained(folder)
    except Exception as error:  # noqa: BLE001  # it cannot read what it wrote
        return [f"transformers cannot load its own files: {zoo.describe(error)}"]
    found = zoo.differences(wanted, cls.from_pretrained(out))
    return [f"transformers loads another model: {zoo.summary(found)}"] if found else []
