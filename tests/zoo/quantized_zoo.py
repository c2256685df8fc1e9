"""zoo_ranks.py with checkpoints that are quantized (quantize.py), and with its arguments. The model that they must
become is made of the oracle's values, which transformers loads as an ordinary checkpoint, in one process.

python quantized_zoo.py check --layout fsdp2,fsdp2x4,tp,fsdp2tp --loader lading_loader:load_every_build --list dev40.txt
python quantized_zoo.py check --layout zero3 --loader zero3_four:load --list dev40.txt
python quantized_zoo.py check --layout fsdp2,tp --dtype bfloat16 --loader quantized_zoo:build_and_load --list dev40.txt
python quantized_zoo.py --three check --layout fsdp2 --loader lading_loader:load_every_build --list dev40.txt

python quantized_zoo.py --packed check --layout fsdp2,tp --loader lading_loader:load_every_build --list dev40.txt

Blocks are small, so that the tiny models have several, ragged ones at both edges, and cuts that meet no edge. Each
model has one of SCHEMES, by its name; `--scheme NAME` is that one for all. `--packed`: those of packed.py, and for each
model one that fits its weights.
"""

import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of numpy: no threads before ranks are forked
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import packed
import quantize
import torch
import zoo
import zoo_ranks

SCHEMES = {
    "f32": quantize.Scheme((12, 20)),
    "bf16": quantize.Scheme((20, 12), scales="BF16"),
    "e8m0": quantize.Scheme((16, 16), scales="E8M0"),
    "e5m2": quantize.Scheme((7, 48), payload="E5M2"),
    "blocks of 128": quantize.Scheme(),
    "channel": quantize.PER_CHANNEL,
    "channel in bf16": dataclasses.replace(quantize.PER_CHANNEL, scales="BF16"),
    "tensor": quantize.PER_TENSOR,
}
_asked = {"scheme": "", "packed": ""}


def schemes_of(model_type):
    """The model's own, and then the others, for a model that has no weight which it fits."""
    schemes = packed.SCHEMES if _asked["packed"] else SCHEMES
    if _asked["scheme"]:
        return [schemes[_asked["scheme"]]]
    names, own = list(schemes), zoo.seed_of(model_type) % len(schemes)
    return [schemes[name] for name in (*names[own:], *names[:own])]


def quantized(model_type, plain, folder):
    """The scheme in which `folder` was written. A model that none fits has an ordinary checkpoint."""
    for scheme in schemes_of(model_type):
        shutil.rmtree(folder, ignore_errors=True)
        if quantize.quantize(plain, folder, scheme):
            break
    return scheme


def build_and_load(_model, folder, ctx):
    """A model that is built as transformers builds for a dtype, and sharded like the checker's."""
    import lading  # not before ranks are forked: it may start threads
    from lading.huggingface import construction

    config, name = zoo.build_config(ctx.model_type)
    with construction(config, ctx.dtype, cast="exact") as built, lading.skeleton():
        model = zoo.model_class(name, config)(built)
    try:
        zoo_ranks.apply_layout(model, ctx.layout, ctx.mesh)
        lading.materialize(model, folder, device="cpu", dtype=ctx.dtype, cast="exact", progress=False)
    except ValueError as error:  # of FSDP2
        raise zoo_ranks.NotApplicable(str(error)) from error
    except lading.LadingError as error:
        if "mixes trainable parameters" in str(error):  # FSDP2 would refuse it at the first forward pass (R27)
            raise zoo_ranks.NotApplicable(str(error)) from error
        raise
    return model


build_and_load.own_model = True


def reference(model_type, folder, dtype):
    """Writes the quantized checkpoint to `folder`, unless it is complete, and returns the model that it must become."""
    folder = Path(folder)
    plain = folder.with_name(folder.name + ".plain")
    want = zoo.build(model_type)
    if not (folder / ".complete").exists():
        zoo.make(model_type, plain)
        scheme = quantized(model_type, plain, folder)
        quantize.unquantize(folder, folder.with_name(folder.name + ".float32"), scheme, torch.float32)
        quantize.unquantize(folder, folder.with_name(folder.name + ".bfloat16"), scheme, torch.bfloat16)
        (folder / ".complete").touch()
    exact = _loaded(type(want), folder.with_name(folder.name + ".float32"), torch.float32)
    if dtype == "float32":
        return _with_values(want, exact)
    narrow = _loaded(type(want), folder.with_name(folder.name + ".bfloat16"), torch.bfloat16)
    for name, (_, tensor) in zoo.tensors(narrow).items():
        if tensor.dtype == torch.float32:  # pinned: rounded to F32 and to nothing else
            with torch.no_grad():
                tensor.copy_(zoo.tensors(exact)[name][1])
    frozen = {name: not tensor.requires_grad for name, (_, tensor) in zoo.tensors(want).items()}
    for name, parameter in narrow.named_parameters():
        parameter.requires_grad_(not frozen[name])
    return narrow.train(want.training)


def _loaded(cls, folder, dtype):
    return cls.from_pretrained(folder, dtype=dtype)


def _with_values(model, other):
    """Only values: transformers' loading un-freezes parameters."""
    values = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    return model


def main():
    if "--three" in sys.argv:
        sys.argv.remove("--three")
        zoo_ranks.LAYOUTS["fsdp2"] = (3,)
    if "--packed" in sys.argv:
        sys.argv.remove("--packed")
        _asked["packed"] = "yes"
    if "--scheme" in sys.argv:
        place = sys.argv.index("--scheme")
        _, _asked["scheme"] = sys.argv[place : place + 2]
        del sys.argv[place : place + 2]
    zoo_ranks.reference = reference
    if "--cache" not in sys.argv and "check" in sys.argv:  # zoo_ranks.py has other checkpoints of the same names in its own
        name = "_".join(["zoo_quantized_cache", *filter(None, _asked.values())]).replace(" ", "_")
        place = sys.argv.index("check") + 1
        sys.argv[place:place] = ["--cache", os.path.join(tempfile.gettempdir(), name)]
    return zoo_ranks.main()


if __name__ == "__main__":
    sys.modules.setdefault("quantized_zoo", sys.modules["__main__"])
    sys.exit(main())
