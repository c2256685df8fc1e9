"""Loaders of others on real ranks, and what `lading.audit` says of the models that they return.

Each case loads as its users would, and answers on every rank what is wrong with the model (audit_models.wrong, which
knows nothing of lading), what the audit found, and whether it raises.
"""

import contextlib
import gc
import importlib
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import audit_models as models
import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard

import lading

RANKS_DEADLINE_S = 80


def main(groups):
    """{case: [what each rank answers]} of these groups of cases."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # its lock is shared by all processes that are forked
    folder = Path(os.environ["LADING_SCRATCH"]) / "checkpoints"
    save_all(folder)
    if "zero3" in groups:
        prepare_zero3(folder)
    answers = {}
    for group in groups:
        ranks, cases = GROUPS[group]
        by_rank = run_ranks(ranks, run, RANKS_DEADLINE_S, cases, folder)
        answers |= {case.__name__: [answer[case.__name__] for answer in by_rank] for case in cases}
    return answers


def run(rank, cases, folder):
    found = {}
    for case in cases:
        try:
            found[case.__name__] = case(rank, folder)
        except BaseException:  # torch's CheckpointException is no Exception
            found[case.__name__] = {"failed": traceback.format_exc()[-3000:]}
        dist.barrier()
        gc.collect()
    return found


def judged(model, checkpoint, want, like=None, **options):
    report = lading.audit(model, checkpoint, like=like, timeout=60, **options)
    try:
        lading.audit(model, checkpoint, like=like, timeout=60, raise_on="error", **options)
        raised = ""
    except lading.LadingError as error:
        raised = error.full_text()
    return {
        "wrong": models.wrong(model, want) if want is not None else None,
        "found": sorted({(one.code, one.tensor) for one in report.problems}),
        "messages": {one.tensor: str(one) for one in report.problems},
        "warnings": [str(one) for one in report.warnings],
        "checked": report.checked,
        "raised": raised,
    }


def state_of(folder):
    return load_file(folder / "model.safetensors")


def ours(model, checkpoint, want=None, **options):
    """Of `Model`: its twin says what its constructor makes."""
    return judged(model, checkpoint, want or models.original(), models.twin(), **options)


# ---- torch.distributed.checkpoint, on FSDP2


def sharded(is_emptied=True, dtype=None, **options):
    model = models.meta(**options)
    fully_shard(model if dtype is None else model.to(dtype))
    return models.emptied(model) if is_emptied else model


def set_full(model, state, **options):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    with models.unwritten_is_nan():
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, **options))
    return model


def read(model, folder, names=None, is_assigned=False):
    """By DCP's reader of Hugging Face checkpoints."""
    import torch.distributed.checkpoint as dcp

    state = {name: value for name, value in model.state_dict().items() if names is None or name in names}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    model.load_state_dict(state, strict=False, assign=is_assigned)
    return model


def c_dcp_full(rank, folder):
    return ours(set_full(sharded(), state_of(folder / "plain")), folder / "plain")


def c_dcp_broadcast(rank, folder):
    """Untied: it refuses a legal checkpoint that has a tie once."""
    state = state_of(folder / "untied") if rank == 0 else {}
    model = set_full(sharded(is_tied=False), state, broadcast_from_rank0=True)
    want = models.original(is_tied=False)
    return judged(model, folder / "untied", want, models.twin(is_tied=False))


def c_dcp_reader(rank, folder):
    model = read(sharded(is_tied=False), folder / "untied")
    return judged(model, folder / "untied", models.original(is_tied=False), models.twin(is_tied=False))


def d_dcp_to_empty(rank, folder):
    """A model in bf16, as one asks for it: what the file has in fp32 is rounded."""
    model = set_full(sharded(dtype=torch.bfloat16), state_of(folder / "mixed"))
    return ours(model, folder / "mixed", models.original(is_mixed=True), dtype="bf16")


def d_dcp_reader(rank, folder):
    model = read(sharded(dtype=torch.bfloat16, is_tied=False), folder / "mixed_untied")
    want = models.original(is_mixed=True, is_tied=False)
    return judged(model, folder / "mixed_untied", want, models.twin(is_tied=False), dtype="bf16")


def d_dcp_on_meta(rank, folder):
    """Asked for fp32 by the model's dtype; it takes the file's."""
    options = {"is_tied": False, "has_derived": False}
    model = set_full(sharded(is_emptied=False, **options), state_of(folder / "mixed_untied"))
    return judged(
        model, folder / "mixed_untied", models.original(**options, is_mixed=True).float(), models.twin(**options),
        dtype="fp32",
    )  # fmt: skip


def f_dcp_reader_on_meta(rank, folder):
    model = read(sharded(is_emptied=False, is_tied=False), folder / "untied", is_assigned=True)
    return judged(model, folder / "untied", models.original(is_tied=False), models.twin(is_tied=False))


def f_dcp_reader_and_set_on_meta(rank, folder):
    """set_model_state_dict of what was read: nothing arrives."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    options = {"is_tied": False, "has_derived": False}
    model = sharded(is_emptied=False, **options)
    state = model.state_dict()
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "untied")))
    set_model_state_dict(model, state)
    return judged(model, folder / "untied", models.original(**options), models.twin(**options))


def g_dcp_full_on_meta(rank, folder):
    options = {"has_derived": False}
    model = set_full(sharded(is_emptied=False, **options), state_of(folder / "plain"))
    return judged(model, folder / "plain", models.original(**options), models.twin(**options))


def h_dcp_strict(rank, folder):
    """A key is missing, and strict=True says that all matched."""
    options = {"has_derived": False}
    model = set_full(sharded(**options), state_of(folder / "lacking"), strict=True)
    return judged(model, folder / "lacking", models.original(**options), models.twin(**options))


def h_dcp_strict_on_meta(rank, folder):
    options = {"has_derived": False}
    model = set_full(sharded(is_emptied=False, **options), state_of(folder / "lacking"), strict=True)
    return judged(model, folder / "lacking", models.original(**options), models.twin(**options))


def right_dcp_full(rank, folder):
    """Cases f, g and m: 0-dim buffers, a tie that the file has once, and a frozen parameter."""
    options = {"has_derived": False}
    model = set_full(sharded(**options), state_of(folder / "plain"))
    return judged(model, folder / "plain", models.original(**options), models.twin(**options))


def right_lading(rank, folder):
    return ours(loaded(folder), folder / "plain")


# ---- one rank


def loaded(folder):
    model = models.twin()
    fully_shard(model)
    lading.materialize(model, folder / "plain", progress=False, timeout=60)
    return model


def a_row_of_one_rank(rank, folder):
    model = loaded(folder)
    if rank == 1:
        with torch.no_grad():
            model.lin.weight._local_tensor[1, 2] += 1
    return ours(model, folder / "plain")


def a_copy_that_differs(rank, folder):
    """Without a checkpoint nothing says which of them is right (R17)."""
    model = loaded(folder)
    if rank == 1:
        model.layer_scalar += 1
    return ours(model, None)


def a_dtype_of_one_rank(rank, folder):
    """Without a twin only the other ranks say that it is wrong."""
    with torch.device("meta"):
        model = models.Model(has_derived=False)
    fully_shard(model)
    lading.materialize(model, folder / "plain", progress=False, timeout=60)
    if rank == 1:
        model.layer_scalar = model.layer_scalar.double()
    return judged(model, folder / "plain", models.original(has_derived=False))


def a_file_of_one_rank(rank, folder):
    """Case k: the file is cut short where one rank reads it. It says so, and nobody waits."""
    model = loaded(folder)
    return ours(model, folder / ("short" if rank == 1 else "plain"))


def an_element_of_fsdp1(rank, folder):
    """Parameters lie in a flat buffer that is shared out as a whole. The last rank's last element is changed."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        models.twin(), param_init_fn=lading.empty_parameters, device_id=torch.device("cpu"), use_orig_params=True
    )
    lading.materialize(model, folder / "plain", progress=False, timeout=60)
    right = judged(model, folder / "plain", None, models.twin())
    flat = model._handle.flat_param
    held = [(name, info) for name, info in zip(flat._fqns, flat._shard_param_infos, strict=True) if info.in_shard]
    name, info = held[-1]
    if rank == 1:
        flat.detach()[info.offset_in_shard + info.numel_in_shard - 1] += 1
    changed = name.removeprefix("_fsdp_wrapped_module.")
    return judged(model, folder / "plain", None, models.twin()) | {"right": right, "changed": changed}


def a_failure_of_one_rank(rank, folder):
    """What the audit cannot do on one rank is told to all."""
    model, twin = loaded(folder), models.twin()
    if rank == 1:
        twin.late = torch.nn.LazyLinear(3)  # an inventory of it cannot be taken
    try:
        judged(model, folder / "plain", None, twin)
    except Exception as error:
        return {"raised": str(error)}
    return {"raised": ""}


# ---- transformers


def b_transformers_rank0_only(rank, folder):
    """Rank 0 reads, and its weights go to the others, as accelerate does next; what no file holds does not."""
    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    os.environ |= variables
    try:
        with models.unwritten_is_nan():
            model = models.out_of_tree()[1].from_pretrained(folder / "outsider")
    finally:
        for name in variables:
            del os.environ[name]
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    return judged(model, folder / "outsider", models.outsider())


def by_transformers(folder, ranks, **options):
    from transformers.distributed.configuration_utils import DistributedConfig

    with models.unwritten_is_nan():
        return models.out_of_tree()[1].from_pretrained(
            folder, distributed_config=DistributedConfig(fsdp_size=ranks), **options
        )


def c_transformers_fsdp(rank, folder):
    return judged(by_transformers(folder / "outsider", 2), folder / "outsider", models.outsider())


TWO = (
    c_dcp_full, c_dcp_broadcast, c_dcp_reader, d_dcp_to_empty, d_dcp_reader, d_dcp_on_meta, f_dcp_reader_on_meta,
    f_dcp_reader_and_set_on_meta, g_dcp_full_on_meta, h_dcp_strict, h_dcp_strict_on_meta, right_dcp_full,
    right_lading, b_transformers_rank0_only, c_transformers_fsdp, a_row_of_one_rank, a_copy_that_differs,
    a_dtype_of_one_rank, a_file_of_one_rank, an_element_of_fsdp1, a_failure_of_one_rank,
)  # fmt: skip


# ---- case i: 13 rows into 14, on 4 ranks


def i_transformers_ignores(rank, folder):
    """One tensor, two sources: the last rank's rows are made up."""
    config = models.outsider(rows=14).config
    model = by_transformers(folder / "outsider13", 4, config=config, ignore_mismatched_sizes=True)
    held = model.embed.weight._local_tensor
    rows = state_of(folder / "outsider13")["embed.weight"][4 * rank :][: len(held)]
    is_from_file = torch.equal(held[: len(rows)], rows)
    return judged(model, folder / "outsider13", None) | {"from_file": is_from_file}


def i_accelerate(rank, folder):
    """Rank 0 raises, the others return; nobody wrote the last one's last row."""
    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict

    def build():
        with lading.skeleton():
            return torch.nn.Sequential(torch.nn.Embedding(14, 4), torch.nn.Linear(4, 4))

    model = build()
    fully_shard(model)
    state = state_of(folder / "rows13") if rank == 0 else {}
    try:
        with models.unwritten_is_nan():
            fsdp2_load_full_state_dict(SimpleNamespace(is_main_process=rank == 0), model, state)
        refused = ""
    except Exception as error:
        refused = str(error)
    return judged(model, folder / "rows13", None, build()) | {"refused": refused}


FOUR = (i_transformers_ignores, i_accelerate)


# ---- case l: 25 elements over 4 by 2 ranks


def l_dtensor_metadata(rank, folder):
    """What DTensor's metadata says of FSDP2 over tensor parallelism is not what FSDP2 stores (R54)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))

    def build():
        with lading.skeleton():
            model = torch.nn.Linear(1, 25)
        for name, old in list(model._parameters.items()):
            spread = distribute_tensor(old.detach(), mesh["tp"], [Shard(0)], src_data_rank=None)
            model._parameters[name] = torch.nn.Parameter(spread)
        fully_shard(model, mesh=mesh["dp"])
        return model

    right = build()
    lading.materialize(right, folder / "rows25", progress=False, timeout=60)
    by_metadata = {
        name: distribute_tensor(tensor, mesh, right.state_dict()[name].placements, src_data_rank=None)
        for name, tensor in state_of(folder / "rows25").items()
    }
    model = build()
    model.load_state_dict(by_metadata, assign=True)
    return judged(model, folder / "rows25", None) | {"right": judged(right, folder / "rows25", None)}


EIGHT = (l_dtensor_metadata,)


# ---- ZeRO-3


@contextlib.contextmanager
def zero3(dtype):
    from transformers.integrations import HfDeepSpeedConfig

    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    if dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
    kept = HfDeepSpeedConfig(config)  # transformers asks for it by a weak reference
    try:
        yield
    finally:
        del kept
        gc.collect()


def gemma4(folder, dtype):
    """What ZeRO-3 leaves, and what the same call gives in one process."""
    import zoo

    config, name = zoo.build_config("gemma4")
    cls = zoo.model_class(name, config)
    with zero3(dtype), models.unwritten_is_nan():
        model = cls.from_pretrained(folder / "gemma4", dtype=dtype)
    return model, cls.from_pretrained(folder / "gemma4", dtype=dtype)


def a_zero3_bf16(rank, folder):
    """RoPE tables are rounded with everything else."""
    model, want = gemma4(folder, torch.bfloat16)
    return judged(model, folder / "gemma4", want, dtype="bf16", cast="exact")


def right_zero3_fp32(rank, folder):
    model, want = gemma4(folder, torch.float32)
    return judged(model, folder / "gemma4", want)


def d_zero3(rank, folder):
    """Also the parameter that the model pins to fp32 is rounded, which cast="exact" would not do either."""
    with zero3(torch.bfloat16), models.unwritten_is_nan():
        model = models.out_of_tree()[1].from_pretrained(folder / "outsider", dtype=torch.bfloat16)
    want = models.outsider()
    want.softcap = want.softcap.bfloat16()  # as its constructor makes it where bf16 is the default
    exact = judged(model, folder / "outsider", None, dtype="bf16", cast="exact")
    return judged(model, folder / "outsider", want, dtype="bf16") | {"exact": exact["found"]}


def j_zero3(rank, folder):
    """A buffer of one element into one of four, and a key that nobody reads: it says that all is well."""
    with zero3(torch.float32), models.unwritten_is_nan():
        model, info = models.out_of_tree()[1].from_pretrained(
            folder / "narrow", config=models.outsider(wide=4).config, output_loading_info=True
        )
    told = {name: list(map(str, value)) for name, value in info.items()}
    return judged(model, folder / "narrow", models.outsider(wide=4)) | {
        "told": told,
        "scale": model.gain.scale.tolist(),
    }


ZERO3 = (right_zero3_fp32, a_zero3_bf16, d_zero3, j_zero3)


def save_all(folder):
    models.save(folder / "plain")
    models.save(folder / "untied", is_tied=False)
    models.save(folder / "mixed", is_mixed=True)
    models.save(folder / "mixed_untied", is_mixed=True, is_tied=False)
    models.save(folder / "lacking", without=("norm.weight",))
    short = models.save(folder / "short") / "model.safetensors"
    short.write_bytes(short.read_bytes()[:-40])
    models.outsider().save_pretrained(folder / "outsider")
    models.outsider(rows=13).save_pretrained(folder / "outsider13")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        linear = torch.nn.Linear(1, 25)
        rows13 = torch.nn.Sequential(torch.nn.Embedding(13, 4), torch.nn.Linear(4, 4))
    for name, model in (("rows25", linear), ("rows13", rows13)):
        (folder / name).mkdir()
        save_file(model.state_dict(), folder / name / "model.safetensors")


def prepare_zero3(folder):
    """Before ranks are forked: imports, and what would be compiled."""
    import deepspeed  # noqa: F401
    import zoo

    # Otherwise it compiles a shared-memory operator first, for a minute, in the user's home.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    zoo.make("gemma4", str(folder / "gemma4"))
    models.outsider().save_pretrained(folder / "narrow")
    state = state_of(folder / "narrow")
    save_file(
        state | {"gain.scale": torch.tensor([7.0]), "surplus": torch.zeros(2)}, folder / "narrow" / "model.safetensors"
    )


GROUPS = {"two": (2, TWO), "four": (4, FOUR), "eight": (8, EIGHT), "zero3": (2, ZERO3)}
