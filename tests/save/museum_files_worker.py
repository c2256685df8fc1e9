"""Saves that report success, or fail half-way, beside `lading.save` of the same model: what is in the directory."""

import json
import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import deepspeed
import peft_models
import save_models as models
import torch
import torch.distributed as dist
import zero3_worker as zero3
from geometry.launch import run_ranks
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lading

RANKS_DEADLINE_S = 240
INDEX = "model.safetensors.index.json"


def main():
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    assert transformers.LlamaForCausalLM
    scratch = Path(os.environ["LADING_SCRATCH"])
    answers = {"stale": stale_index(scratch), "torn": torn(scratch)}
    peft_models.wrapped("llama").save_pretrained(scratch / "adapter")
    answers |= run_ranks(2, on_ranks, RANKS_DEADLINE_S, scratch)[0]
    return answers


def loadable(folder):
    """By the index, as inference engines read it; else the one file. What is wrong with it, or an empty text."""
    try:
        files = {"model.safetensors"}
        if (folder / INDEX).exists():
            files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
        found = {key: value for file in sorted(files) for key, value in load_file(folder / file).items()}
    except Exception as error:  # noqa: BLE001  # whatever is wrong with it
        return type(error).__name__
    want = models.original("llama").state_dict()
    return "" if all(torch.equal(found[key], value) for key, value in want.items()) else "other values"


def stale_index(scratch):
    """A checkpoint of several files, and then one file in the same directory."""
    answers = {}
    for who, save in {"theirs": by_transformers, "ours": by_lading}.items():
        folder = scratch / f"stale-{who}"
        save(models.original("llama"), folder, max_shard_size=models.SHARD_BYTES)
        save(models.original("llama"), folder)
        answers[who] = loadable(folder)
    return answers


def by_transformers(model, folder, **options):
    model.save_pretrained(folder, **options)


def by_lading(model, folder, **options):
    lading.save(model, folder, exist="replace", progress=False, **options)


def torn(scratch):
    """A trained model over the checkpoint of the step before, on a disk that refuses the largest file: by a limit."""
    answers = {}
    for who, save in {"theirs": by_transformers, "ours": by_lading}.items():
        folder = scratch / f"torn-{who}"
        save(models.original("llama"), folder, max_shard_size=models.SHARD_BYTES)
        limit = max(path.stat().st_size for path in folder.glob("*.safetensors")) - 1
        trained = models.original("llama")
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(1)
        answers[who] = {"raised": limited(save, trained, folder, limit), "left": loadable(folder)}
    return answers


def limited(save, model, folder, limit):
    """What the save raises, if no file may be larger."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, kept[1]))
    try:
        save(model, folder, max_shard_size=models.SHARD_BYTES)
    except Exception as error:  # noqa: BLE001  # which one differs
        return type(error).__name__
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    return ""


# ---- ranks


def on_ranks(rank, scratch):
    answers = {}
    cases = {"zero3": partitioned, "adapter under zero3": adapter_zero3, "adapter under fsdp2": adapter_fsdp2}
    for case, make in cases.items():
        model = make()
        is_adapter = case.startswith("adapter")
        theirs, ours = (scratch / f"{case.replace(' ', '-')}-{who}" for who in ("theirs", "ours"))
        raised = ""
        try:
            model.save_pretrained(theirs, is_main_process=rank == 0)
        except Exception as error:  # noqa: BLE001
            raised = type(error).__name__
        dist.barrier()
        lading.save(model, ours, adapter="default" if is_adapter else None, timeout=100)
        dist.barrier()
        if rank == 0:
            name = "adapter_model.safetensors" if is_adapter else "model.safetensors"
            wanted = load_file(scratch / "adapter" / name) if is_adapter else models.original("llama").state_dict()
            found = {who: compared(folder / name, wanted) for who, folder in (("theirs", theirs), ("ours", ours))}
            answers[case] = found | {"raised": raised}
        dist.barrier()
    return answers


def compared(file, wanted):
    """[keys that are missing, keys of another shape, keys of other values]"""
    found = load_file(file) if file.exists() else {}
    held = [key for key in wanted if key in found]
    shapes = [key for key in held if found[key].shape != wanted[key].shape]
    values = [key for key in held if key not in shapes and not torch.equal(found[key], wanted[key])]
    return [len(wanted) - len(held), len(shapes), len(values)]


def partitioned(model=None):
    """By ZeRO-3, with its values."""
    model = models.original("llama") if model is None else model
    deepspeed.zero.Init(module=model, config_dict_or_path=zero3.config(torch.float32))
    return model


def adapter_zero3():
    return partitioned(peft_models.wrapped("llama"))


def adapter_fsdp2():
    model = peft_models.wrapped("llama")
    mesh = init_device_mesh("cpu", (2,))
    for block in model.get_base_model().model.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
