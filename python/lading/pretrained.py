"""`lading.from_pretrained`: config → skeleton → the user's `parallelize` → materialize.

    model = lading.from_pretrained("org/name", device="cuda:0")
    model = lading.from_pretrained("org/name", parallelize=fully_shard)

The model is built on meta by its own class, and what its constructor computes is recorded, so that `parallelize` may
do as it likes: shard, freeze, wrap with PEFT, or return another module. Weights are read afterwards, each rank its
own part.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .checkpoint_class import class_of, folder_of, read_config
from .errors import LadingError, Problem
from .exiting import ending_before_python
from .host_values import Recipe
from .huggingface_build import build
from .loading import materialize
from .locating import located, pinned
from .options import Options
from .pretrained_arguments import chosen_device, chosen_dtype, refuse, set_attention, split_fields, with_fields
from .words import Adapter, Arithmetic, Cast, ComputeRecord, Device, DType, ExchangeScope, External, Group, Pins
from .words import Quantized, Renaming, Showing, StrPath, Ties, Verify


@ending_before_python
def from_pretrained(
    path_or_id: StrPath,
    *,
    revision: str | None = None,
    cls: type[nn.Module] | None = None,
    config: Any = None,
    attn_implementation: str | Mapping[str, str] | None = None,
    experts_implementation: str | Mapping[str, str] | None = None,
    parallelize: Callable[[nn.Module], nn.Module | None] | None = None,
    trust_remote_code: bool = False,
    device: Device | None = None,
    device_map: Device | Mapping[str, Device] | None = None,
    dtype: DType = "auto",
    torch_dtype: DType | None = None,
    cast: Cast = "promote",
    compute_dtype: DType | None = None,
    compute_record: ComputeRecord = "checkpoint",
    pins: Pins = (),
    subtree_dtypes: Mapping[str, DType] | None = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    keep: Sequence[str] = (),
    external: External | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    mapping: Renaming | None = None,
    key_mapping: Mapping[str, str] | None = None,
    adapter: Adapter | None = None,
    whole: nn.Module | None = None,
    ties: Ties = "keep",
    quantized: Quantized = "dequantize",
    arithmetic: Arithmetic = "exact",
    seed: int = 0,
    verify: Verify = "auto",
    budget: int | None = None,
    exchange: ExchangeScope = "never",
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
    **config_fields: Any,
) -> nn.Module:
    """Builds a transformers model and loads its weights. The model is in evaluation mode before `parallelize` runs.

        model = lading.from_pretrained("org/name", device="cuda:0")
        model = lading.from_pretrained("org/name", parallelize=shard)    # shard(model) calls fully_shard, or anything
        model = lading.from_pretrained("org/name", revision="v1.0", device="cuda:0", use_cache=False)

    lading does not download. All arguments are checked before the model is built. A quantized checkpoint is loaded as
    an ordinary model: `quantized` and docs/guides/quantized.md say how.

    Args:
        path_or_id: a directory with `config.json` and safetensors files, or a repository in the Hugging Face cache.
        revision: a branch, a tag or a commit of a cached repository. None means "main".
        cls: the class to build. None means the class that the config names.
        config: a config, or the path of one, to use instead of the checkpoint's own.
        attn_implementation: "eager", "sdpa", "flash_attention_2", …, as in transformers; or a dict of them by the
            names of the configs inside the config.
        experts_implementation: the same for experts: "eager", "grouped_mm", …
        parallelize: a function that gets the model on meta and shards or wraps it in place, or returns another model,
            such as a PeftModel. If it raises on one rank, the call fails on all ranks with that error, on each rank as
            soon as its own `parallelize` has returned. A rank that waits for the failed rank in a collective waits
            until that collective times out; within seconds it logs an error that names the failed rank.
        trust_remote_code: build the classes whose code comes with the checkpoint (`auto_map` in its config). They then
            win over classes of transformers that have the same name. Off by default, and never downloaded.
        device_map: the same as `device`, for one device: "cuda:0", 0, or {"": "cuda:0"}.
        torch_dtype: the older name of `dtype`. `cast="exact"` rounds as transformers does.
        seed: seed for initial values, and for constructors that look at their own random numbers.
        device, dtype, cast, compute_dtype, compute_record, pins, subtree_dtypes, strict, allow_missing,
            allow_unexpected, allow_mismatch, keep, external, recipes, mapping, key_mapping, adapter, whole, ties,
            quantized, arithmetic, verify, budget, exchange, progress, group, timeout: as in `lading.materialize`.
        config_fields: values for fields of the config, such as `use_cache=False` or `num_labels=3`.

    Raises:
        LadingError: every problem, in one message. Arguments of transformers that lading does not take
            (`quantization_config`, `token`, a `device_map` over several devices, …) say what to do instead.
        TypeError: a name is neither an argument nor a field of the config.

    `lading.report_of(model)` is the report of the load.
    """
    asked: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "cast": cast,
        "compute_dtype": compute_dtype,
        "compute_record": compute_record,
        "pins": pins,
        "subtree_dtypes": subtree_dtypes,
        "strict": strict,
        "allow_missing": allow_missing,
        "allow_unexpected": allow_unexpected,
        "allow_mismatch": allow_mismatch,
        "keep": keep,
        "external": external,
        "recipes": recipes,
        "mapping": mapping,
        "key_mapping": key_mapping,
        "adapter": adapter,
        "whole": whole,
        "ties": ties,
        "quantized": quantized,
        "arithmetic": arithmetic,
        "seed": seed,
        "verify": verify,
        "budget": budget,
        "exchange": exchange,
    }
    with _scope() as scope, Agreement.of(group, timeout, scope=scope) as ranks:
        with agreed(ranks, "the configuration") as step:
            for name in ("pins", "allow_missing", "allow_unexpected", "allow_mismatch", "keep"):  # which are read twice
                asked[name] = asked[name] if isinstance(asked[name], str | Mapping) else list(asked[name])
            Options.of(**asked)
            location = located(path_or_id, revision)
            fields, problems = split_fields(config_fields, location)
            asked["device"], wrong_device = chosen_device(device, device_map, is_needed=parallelize is None)
            asked["dtype"], wrong_dtype = chosen_dtype(dtype, torch_dtype)
            refuse([*problems, *wrong_device, *wrong_dtype])
            location = pinned(location, folder_of(location))
            if config is None or isinstance(config, str | os.PathLike):
                config = read_config(location if config is None else located(config), trust_remote_code, cls)
            config = with_fields(config, fields, from_pretrained)
            if attn_implementation is not None:
                refuse(set_attention(config, attn_implementation))
            if experts_implementation is not None:  # which the constructor checks
                config._experts_implementation = experts_implementation
            chosen = cls if cls is not None else class_of(location, config, trust_remote_code)
            model = build(chosen, config, dtype=asked["dtype"], cast=cast, seed=seed)
            step.message = {"revision": revision}
            step.must_match = ["revision"]
        model.eval()
        if parallelize is not None:
            model = _parallelized(model, parallelize, ranks)
    materialize(model, location, **asked, progress=progress, group=group, timeout=timeout)
    _load_generation_config(model, location, trust_remote_code)
    return model


_of_thread = threading.local()


@contextlib.contextmanager
def _scope() -> Iterator[str]:
    """The ranks are in the agreement of this call while `parallelize` runs, which may load another model."""
    outer = getattr(_of_thread, "depth", 0)
    _of_thread.depth = outer + 1
    try:
        yield f"from_pretrained/{outer}"
    finally:
        _of_thread.depth = outer


def _parallelized(model: nn.Module, parallelize: Callable[[nn.Module], Any], ranks: Agreement) -> nn.Module:
    """Sends what one rank raises to the others, who get it when their own function returns, and log it until then."""
    try:
        with ranks.naming_the_failed("parallelize"):
            changed = parallelize(model)
    except LadingError:
        raise
    except Exception as error:
        if ranks.size == 1:
            raise
        message = f"parallelize raised {type(error).__name__}: {error}"
        problem = Problem("parallelize", message, rank=ranks.ranks[ranks.rank], remedy="Correct that function.")
        raise LadingError(problem, stage="request", exit_code=2) from error
    return changed if isinstance(changed, nn.Module) else model


def _load_generation_config(model: Any, location: str, trust_remote_code: bool) -> None:
    """Gives a model that can generate the generation config of its checkpoint, and its way to generate if the code is
    trusted, as transformers does it. Only from files that are on this machine."""
    can_generate = getattr(model, "can_generate", None)
    folder = folder_of(location)
    if not callable(can_generate) or not can_generate() or folder is None:
        return
    from transformers import GenerationConfig

    try:
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:  # the checkpoint has none: what its config says about generating
        with contextlib.suppress(OSError):  # a checkpoint without a config, for a model that was given one
            model.generation_config = GenerationConfig.from_pretrained(
                folder, config_file_name="config.json", local_files_only=True, _from_model_config=True
            )
    if trust_remote_code and hasattr(model, "load_custom_generate"):
        with contextlib.suppress(OSError):  # it has none
            custom = model.load_custom_generate(folder, trust_remote_code=True, local_files_only=True)
            model.generate = functools.partial(custom, model=model)
