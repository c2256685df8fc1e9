"""`lading.save` as a loader of the zoo's checkers: a checkpoint is loaded, and what is saved of the model on its ranks
must be that checkpoint again, byte for byte, as transformers wrote it in one process.

python zoo_ranks.py check --layout fsdp2,fsdp2x4,hsdp,tp,fsdp2tp,ddp --loader save_zoo:load_and_save --list dev40.txt
python zoo_ranks.py check --layout fsdp2 --loader save_zoo:load_and_save --list dev40.txt --dtype bfloat16
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE), str(HERE.parent / "save")]

import lading
import save_models
import torch.distributed as dist


def load_and_save(model, folder, ctx):
    report = lading.materialize(model, folder, device="cpu", progress=False)
    folder = Path(folder)
    for name, options in {"like": {"base": report}, "own": {}}.items():
        out = folder.with_name(f"{folder.name}-{ctx.layout}-{name}")
        lading.save(model, out, exist="replace", progress=False, **options)
        problems = differences(out, folder, is_exact=name == "like") if dist.get_rank() == 0 else []
        told = [problems]
        dist.broadcast_object_list(told)
        if told[0]:
            raise AssertionError(f"{name}: {told[0][:3]}")
    return model


def differences(out, folder, *, is_exact):
    """Of files; without a base, where they have other sizes, of keys."""
    if is_exact:
        return save_models.differences(out, folder, besides=(".complete", "spk_dict.pt"))
    found, wanted = save_models.tensors_in(out), save_models.tensors_in(folder)
    problems = [f"the keys {sorted(found.keys() ^ wanted.keys())[:6]}"] if found.keys() != wanted.keys() else []
    return problems + [key for key in found.keys() & wanted.keys() if found[key] != wanted[key]]
