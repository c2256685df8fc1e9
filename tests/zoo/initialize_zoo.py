"""`lading.initialize` on the zoo's models: the same bits in every layout, and the distributions of the constructors.

    python initialize_zoo.py check --layout ddp,fsdp2,hsdp,tp,fsdp2tp,zero3 --loader initialize_zoo:initialize --list dev40.txt
    python initialize_zoo.py check --world 3 --layout fsdp2 --loader initialize_zoo:initialize --list dev40.txt
    python initialize_zoo.py moments --list dev40.txt

check is zoo_ranks.py's, which compares every rank's bits with a slice of the reference; the reference is the model that
`initialize` makes in one process. moments compares that model with one that the constructor made under torch's own
random numbers: constants and computed buffers bit for bit, mean and standard deviation of what is random within six
standard errors.
"""

import argparse
import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE)]

import torch
import zoo
import zoo_ranks

SEED = 7
STANDARD_ERRORS = 6
LEAST_ELEMS = 64  # of fewer, mean and deviation say little


# ---- in one process


def built(model_type):
    """Under lading.skeleton(), with transformers' own initialisation recorded."""
    import lading

    config, name = zoo.build_config(model_type)
    with lading.skeleton():
        return zoo.model_class(name, config)(config)


def alone(model_type):
    import lading

    model = built(model_type)
    lading.initialize(model, seed=SEED, device="cpu", group=False, progress=False)
    return model


def reference(model_type, folder, _dtype):
    """By another process: the engine's threads must not be there when ranks are forked from this one."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / "initialized.pt"
    if not file.exists():
        subprocess.run([sys.executable, __file__, "write", model_type, file], check=True, timeout=120)
    values = torch.load(file)
    model = zoo.build(model_type)
    for name, (_, value) in zoo.tensors(model).items():
        with torch.no_grad():
            value.copy_(values[name])
    return model


# ---- on ranks: the loader


def initialize(_model, _folder, ctx):
    import lading

    model = built(ctx.model_type)
    if ctx.layout == "zero3":
        import deepspeed

        importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # it would compile for minutes
        deepspeed.init_distributed(dist_backend="gloo")
        model = lading.zero3_init(model, ctx.ds_config)
    else:
        zoo_ranks.apply_layout(model, ctx.layout, ctx.mesh)
        for name, (_, value) in zoo.tensors(model).items():
            if zoo_ranks.is_dtensor(value):
                ctx.spec[name] = tuple(map(str, value.placements))
    lading.initialize(model, seed=SEED, device="cpu", progress=False)
    return model


initialize.own_model = True


# ---- moments


def odd_tensors(model_type):
    """[(name, what is odd about it)], and how many were compared by their moments."""
    import lading

    config, name = zoo.build_config(model_type)
    torch.manual_seed(3)
    own = zoo.model_class(name, config)(config)
    model = built(model_type)
    report = lading.initialize(model, seed=SEED, device="cpu", group=False, progress=False)
    found, compared = [], 0
    drawn = {name for name, one in report.tensors.items() if one.provenance == "random"}
    values = {name: value for name, (_, value) in zoo.tensors(model).items()}
    for name, (_, theirs) in zoo.tensors(own).items():
        ours = values[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            found.append((name, f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"))
        elif name in drawn or not zoo.same_bits(ours, theirs):
            compared += 1
            found += [(name, text) for text in _odd_moments(ours, theirs)]
    return found, compared


def _odd_moments(ours, theirs):
    ours, theirs = ours.detach().double().flatten(), theirs.detach().double().flatten()
    if theirs.numel() < LEAST_ELEMS:
        return
    spread, n = theirs.std().item(), theirs.numel()
    if spread == 0:
        yield f"the constructor makes it {theirs[0].item()} everywhere"
        return
    if abs(ours.mean() - theirs.mean()) > STANDARD_ERRORS * spread * math.sqrt(2 / n):
        yield f"mean {ours.mean():.4g}, not {theirs.mean():.4g} (n = {n})"
    if abs(ours.std() / spread - 1) > STANDARD_ERRORS / math.sqrt(n):
        yield f"standard deviation {ours.std():.4g}, not {spread:.4g} (n = {n})"
    if (ours == 0).sum() != (theirs == 0).sum():
        yield f"{int((ours == 0).sum())} zeros, not {int((theirs == 0).sum())}"


def moments(types):
    failed = 0
    for model_type in types:
        try:
            odd, compared = odd_tensors(model_type)
            text = f"{compared} compared by moments" if not odd else "; ".join(f"{name}: {what}" for name, what in odd[:4])
        except Exception as error:  # of one model: the others are looked at all the same
            odd, text = [error], zoo.describe(error)
        failed += bool(odd)
        print(f"{'right' if not odd else 'WRONG':6} {model_type:24} {text}", flush=True)
    print(f"{len(types)} types: {len(types) - failed} right, {failed} wrong")
    return 1 if failed else 0


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "write":
        values = {name: value.detach() for name, (_, value) in zoo.tensors(alone(sys.argv[2])).items()}
        partial = f"{sys.argv[3]}.{os.getpid()}"
        torch.save(values, partial)
        os.replace(partial, sys.argv[3])
        return 0
    if command == "moments":
        parser = argparse.ArgumentParser()
        parser.add_argument("--list")
        parser.add_argument("--only")
        return moments(zoo.chosen(parser.parse_args(sys.argv[2:])))
    if "--world" in sys.argv:
        place = sys.argv.index("--world")
        zoo_ranks.LAYOUTS["fsdp2"] = (int(sys.argv[place + 1]),)
        del sys.argv[place : place + 2]
    zoo_ranks.reference = reference
    return zoo_ranks.main()


if __name__ == "__main__":
    sys.exit(main())
