"""zoo_ranks.py with ZeRO-3 on four ranks instead of two, and loaders for ZeRO-3 on any number of ranks.

python zero3_four.py check --layout zero3 --loader zero3_four:load --list dev40.txt
python zoo_ranks.py check --layout zero3 --loader zero3_four:load,zero3_four:init_and_load --list dev40.txt
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import zoo
import zoo_ranks


def load(model, folder, ctx):
    """A model that zero.Init has partitioned. In bf16 it is asked for what the checker's reference is."""
    import lading  # not before ranks are forked: it may start threads

    asked = {} if ctx.dtype == zoo_ranks.DTYPES["float32"] else {"dtype": ctx.dtype, "cast": "exact"}
    try:
        lading.materialize(model, folder, progress=False, **asked)
    except lading.LadingError as error:
        if all(problem.code == "dtype" for problem in error.problems):
            raise zoo_ranks.NotApplicable(f"ZeRO-3 has one dtype, the reference several: {error}") from error
        raise
    return model


def init_and_load(_model, folder, ctx):
    """A model that is built on meta, and partitioned by `lading.zero3_init`."""
    import deepspeed
    import lading
    from lading.huggingface import construction

    deepspeed.init_distributed(dist_backend="gloo")
    config, name = zoo.build_config(ctx.model_type)
    zoo.seed_all(zoo.seed_of(ctx.model_type))
    with construction(config, ctx.dtype, cast="exact") as built, lading.skeleton():
        model = zoo.model_class(name, config)(built)
    return load(lading.zero3_init(model, ctx.ds_config), folder, ctx)


init_and_load.own_model = True

if __name__ == "__main__":
    zoo_ranks.LAYOUTS["zero3"] = (4,)
    sys.exit(zoo_ranks.main())
