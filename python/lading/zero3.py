"""DeepSpeed ZeRO-3: what a parameter that was partitioned says about itself, and what DeepSpeed must be told.

    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Model()
    lading.materialize(model, "path/to/checkpoint")     # before deepspeed.initialize, or after it

Such a parameter is an empty tensor; its values are in memories that hang on it. Each rank has a *partition* of the
flattened tensor (`ds_tensor`), padded to equal parts. ZeRO++ has a *secondary* one, shared out over fewer ranks. And
while it is *gathered*, for use or because it is small and stays so, the tensor itself is whole. All of them are
filled, straight from the files: nothing is gathered. After `deepspeed.initialize` an optimizer has copies in
another dtype, which are made from the partitions, as `initialize` makes them, or from the files where these have more
bits (zero3_masters.py).

DeepSpeed is never imported here: all facts are read off the tensors. docs/guides/zero3.md says what is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from .bits import same_bits
from .errors import LadingError, Problem
from .inventory import ATTRIBUTE, NON_PERSISTENT, Entry
from .inventory_json import dtype_name
from .patterns import Pattern, matches
from .private_names import check
from .recording import SkeletonError
from .watch import has_no_value

PARTITION, SECONDARY, GATHERED = "", "secondary", "gathered"  # names of slots (docs/schema/layout.md)

BEFORE = "Load before deepspeed.initialize."
BEFORE_WITHOUT_NVME = "Load before deepspeed.initialize, without offload to NVMe."
BEFORE_QUANTIZED = "Load before deepspeed.initialize, or do not quantize."
OUTSIDE = "Load outside forward passes and outside deepspeed.zero.GatheredParameters."


@dataclasses.dataclass(frozen=True)
class Memory:
    """One memory of a parameter. `ranks` share it out, in this order; None: it is whole."""

    slot: str
    ranks: tuple[int, ...] | None
    pad_multiple: int | None = None


def is_partitioned(value: Any) -> bool:
    """Whether ZeRO-3 has it."""
    return hasattr(value, "ds_tensor") and hasattr(value, "ds_shape")


def memory_of(value: Any, slot: str = PARTITION) -> torch.Tensor:
    """What there is to write to."""
    if slot == GATHERED:
        return value.data
    memory: torch.Tensor = value.ds_secondary_tensor if slot == SECONDARY else value.ds_tensor
    return memory


def memories(value: Any) -> Iterator[Memory]:
    """The memories of a parameter, the partition first."""
    ranks = _ranks_of(value.ds_process_group)
    yield Memory(PARTITION, ranks)
    if getattr(value, "ds_secondary_tensor", None) is not None:
        yield Memory(SECONDARY, _ranks_of(value.ds_zero_param_process_group), pad_multiple=len(ranks))
    if _status(value) == "AVAILABLE":
        yield Memory(GATHERED, None)


def is_offloaded(value: Any) -> bool:
    """Whether its partition is on the host while it is used elsewhere."""
    return value.ds_tensor.device.type == "cpu" and value.device.type != "cpu"


def refusal(value: Any) -> tuple[str, str]:
    """Why it cannot be filled, and what to do; "" if it can."""
    partition = value.ds_tensor
    if partition is None:
        return "ZeRO-3 has not partitioned this parameter yet", OUTSIDE
    if getattr(partition, "final_location", None) == "nvme":
        return "the ZeRO-3 partition is on NVMe, which lading does not write", BEFORE_WITHOUT_NVME
    if any(hasattr(one, "ds_quant_scale") for one in (partition, getattr(value, "ds_secondary_tensor", None))):
        return "the ZeRO-3 partition is quantized (ZeRO++), but no file has such values", BEFORE_QUANTIZED
    is_held = getattr(value, "_ds_z3_gathered_param_context_depth", 0) or getattr(value, "ds_active_sub_modules", ())
    if is_held or _status(value) == "INFLIGHT":
        return "ZeRO-3 has gathered this parameter, which is in use", OUTSIDE
    if len({memory_of(value, one.slot).device for one in memories(value)}) > 1:
        return "the ZeRO-3 memories of this parameter are on several devices", BEFORE
    if not _is_known_to_its_optimizer(value):
        return "DeepSpeed's optimizer does not expose its copy of this parameter", BEFORE
    return "", ""


def refuse_partitions_on_meta(entries: Iterable[Entry]) -> None:
    """Both contexts at once leave partitions without memory; that is one mistake, and not one of each parameter."""
    on_meta = [
        entry for entry in entries
        if is_partitioned(entry.value) and entry.value.ds_tensor is not None and entry.value.ds_tensor.is_meta
    ]  # fmt: skip
    if not on_meta:
        return
    message = (
        f"ZeRO-3 partitioned {len(on_meta)} parameters on meta, where they have no memory: the model was built under "
        "deepspeed.zero.Init and lading.skeleton() (or torch.device('meta')) at once"
    )
    remedy = "Build it under lading.skeleton() alone, and call lading.zero3_init(model, config) afterwards."
    raise LadingError(Problem("layout", message, rule="R56", remedy=remedy), stage="documents", exit_code=4)


def _ranks_of(group: Any) -> tuple[int, ...]:
    return tuple(torch.distributed.get_process_group_ranks(group))


def _status(value: Any) -> str:
    return getattr(getattr(value, "ds_status", None), "name", "")


# ---- the optimizer's copies


def tell_optimizers(entries: Iterable[Entry]) -> None:
    """The master weights of `deepspeed.initialize` are made from the partitions, and so they are made again. Where the
    files have more than the partitions, zero3_masters.py comes after this."""
    for value, optimizer in trained(entries):
        optimizer.set_local_hp_param(value.ds_tensor.detach(), value)


def trained(entries: Iterable[Entry]) -> Iterator[tuple[Any, Any]]:
    """Parameters that an optimizer of DeepSpeed has master weights of, each once whatever its names, and the optimizer.
    What is frozen, or was left out of the optimizer, has none."""
    left: dict[int, set[int]] = {}  # by optimizer, the parameters that it has
    for entry in entries:
        value = entry.value
        optimizer = getattr(value, "_z3_optimizer", None) if is_partitioned(value) else None
        if optimizer is None or not value.requires_grad:
            continue
        if id(optimizer) not in left:
            left[id(optimizer)] = {id(one) for group in optimizer.fp16_groups for one in group}
        if id(value) in left[id(optimizer)]:
            left[id(optimizer)].remove(id(value))
            yield value, optimizer


def _is_known_to_its_optimizer(value: Any) -> bool:
    optimizer = getattr(value, "_z3_optimizer", None)
    return optimizer is None or all(hasattr(optimizer, name) for name in ("fp16_groups", "set_local_hp_param"))


# ---- what has values already


def has_value_of_an_adapter(entry: Entry) -> bool:
    """Whether an adapter has one in its partition: PEFT initialises all that have memory when it makes them."""
    return is_partitioned(entry.value) and entry.recorded is None and not has_no_value(entry.value)


def say_what_has_values(
    tensors: Iterable[dict[str, Any]], entries: Iterable[Entry], keep: Sequence[Pattern], adapters: Iterable[str]
) -> None:
    """Of the skeleton's tensors. A partition counts as memory without a value, since transformers builds without
    initial values; not so what the user keeps, and adapters."""
    adapters = set(adapters)
    valued = set()
    for entry in entries:
        if is_partitioned(entry.value) and (
            any(matches(pattern, entry.name) for pattern in keep)
            or (entry.name in adapters and has_value_of_an_adapter(entry))
        ):
            valued.add(entry.name)
    for tensor in tensors:
        if tensor["name"] in valued:
            tensor["presence"] = "real"


# ---- what zero.Init rounded


class Recipes(Protocol):
    """The user's word on how to make a tensor that no file holds (host_values.py)."""

    def has_recipe(self, name: str) -> bool: ...

    def recipe_value(self, name: str) -> torch.Tensor | None: ...


@dataclasses.dataclass
class Restored:
    """What a constructor makes otherwise than it is, by name, and what to say about it."""

    values: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)  # of partitioned parameters, as constructed
    notes: list[str] = dataclasses.field(default_factory=list)


def restored(parts: Sequence[nn.Module], entries: Sequence[Entry], recipes: Recipes) -> Restored:
    """Tensors that no file holds and that `zero.Init` has rounded: it makes all floating tensors of a constructor its
    own dtype, RoPE tables too (R29).

    A model of transformers is built again from its config, on meta, and what comes out different counts. Of other
    models nothing is known: the current value is kept, and the notes say so. A recipe of the user's goes before both.
    """
    partitioned = [entry for entry in entries if is_partitioned(entry.value)]
    real = [entry for entry in entries if _could_be_rounded(entry)] if partitioned else []
    recorded = {entry.name: dtype_name(entry.recorded.dtype) for entry in partitioned if entry.recorded is not None}
    if not real and len(recorded) == len(partitioned):
        return Restored(dtypes=recorded)
    from .audit_twin import constructed  # with transformers' front, which most models do not need

    known = constructed(parts, entries, [])
    values: dict[str, torch.Tensor] = {}
    unknown: list[str] = []
    for entry in real:
        made = known.made.get(entry.name)
        value = _first_value(made.values) if made is not None else None
        if recipes.has_recipe(entry.name):
            value = recipes.recipe_value(entry.name)
        if value is None or tuple(value.shape) != entry.shape:
            is_doubtful = entry.dtype in (torch.float16, torch.bfloat16) and not recipes.has_recipe(entry.name)
            unknown += [entry.name] if is_doubtful else []
        elif not same_bits(value, entry.value):
            values[entry.name] = value
    made_dtypes = {entry.name: known.made[entry.name].dtype for entry in partitioned if entry.name in known.made}
    dtypes = {name: dtype_name(dtype) for name, dtype in made_dtypes.items()} | recorded
    return Restored(values, dtypes, [*_notes(values, unknown), *known.notes])


@contextlib.contextmanager
def transformers_without_zero3() -> Iterator[None]:
    """While an HfDeepSpeedConfig lives, transformers builds the parts of a model under a zero.Init of its own, which
    would round them again."""
    module: Any = sys.modules.get("transformers.integrations.deepspeed")
    if module is not None:
        check("transformers", "DeepSpeed")
    reference = None if module is None else module._hf_deepspeed_config_weak_ref
    config = None if reference is None else reference()
    if config is None:
        yield
        return
    module.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        module.set_hf_deepspeed_config(config)


def _could_be_rounded(entry: Entry) -> bool:
    return (
        entry.kind in (NON_PERSISTENT, ATTRIBUTE)
        and entry.is_tensor
        and entry.is_real
        and entry.view_of is None
        and entry.recorded is None
        and entry.value.is_floating_point()
    )


def _first_value(makers: Sequence[Any]) -> torch.Tensor | None:
    try:
        return makers[0]().detach().cpu() if makers else None
    except SkeletonError:  # what was recorded cannot be replayed
        return None


def _notes(values: dict[str, torch.Tensor], unknown: list[str]) -> Iterator[str]:
    if values:
        yield f"{_listed(values)}: zero.Init rounded the constructor's value, so that lading recomputed it (R29)"
    if unknown:
        yield f"{_listed(unknown)}: kept in half precision, possibly because of zero.Init; pass recipes= in that case"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
