"""Master weights of ZeRO-3 that hold more than the partitions do.

BF16 partitions hold the rounded values of an F32 checkpoint, and so would masters that are made from them (zero3.py).
Where the files have more bits than the partitions, this rank's part is read once more, in the file's dtype, a batch at
a time, and given to DeepSpeed's optimizer. Nothing is gathered, and no rank holds a whole parameter here either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from . import _engine, zero3
from .audit_values import _concerns, _without
from .dtypes import torch_dtype
from .holders_common import Refresh
from .inventory import Entry

BATCH_BYTES = 256 << 20
_OWN_WORDS = (
    "keep", "external", "subtree_dtypes", "constructed_dtypes", "compute_dtype", "compute_record", "pins",
)  # fmt: skip


def finer_masters(
    plan: _engine.Plan, entries: Sequence[Entry], request: dict[str, Any], notes: list[str]
) -> list[Refresh]:
    """What to call once everything is loaded; nothing where no file has more than its partition. To be asked of every
    plan: without a ZeRO-3 optimizer that has wider masters, it is done at once."""
    trained = {id(value): optimizer for value, optimizer in zero3.trained(entries) if _is_wider(value, optimizer)}
    if not trained:
        return []
    values = {entry.name: entry.value for entry in entries if id(entry.value) in trained}
    read = [
        one
        for one in plan.destinations
        if one.provenance == "file" and one.checkpoint == 0 and not one.slot and one.name in values
    ]
    asked = _engine.plan(_part(request, read)).destinations if read else []
    wider = [one for one in asked if _holds_more(torch_dtype(one.dtype), values[one.name].ds_tensor.dtype)]
    if not wider:
        return []
    dtypes = ", ".join(sorted({one.dtype for one in wider}))
    notes.append(f"{len(wider)} master weights of ZeRO-3 are the checkpoint's {dtypes}, which the partitions round")
    return [functools.partial(_fill, wider, values, trained, request)]


def _fill(wider: Sequence[Any], values: dict[str, Any], trained: dict[int, Any], request: dict[str, Any]) -> None:
    for batch in _batches(wider):
        plan = _engine.plan(_part(request, batch))
        memories = [
            torch.empty(one.local_shape, dtype=torch_dtype(one.dtype), device=one.device) for one in plan.destinations
        ]
        plan.load([(memory.data_ptr(), memory.numel() * memory.element_size()) for memory in memories])
        for one, memory in zip(plan.destinations, memories, strict=True):
            value = values[one.name]
            trained[id(value)].set_local_hp_param(memory, value)


def _batches(destinations: Iterable[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for destination in destinations:
        if batch and sum(one.size_bytes for one in batch) + destination.size_bytes > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(destination)
    if batch:
        yield batch


def _part(request: dict[str, Any], destinations: Iterable[Any]) -> dict[str, Any]:
    """A request for these tensors alone, partitions only, each in the dtype that the checkpoint has it in."""
    names = {name for one in destinations for name in (one.name, *one.aliases)}
    others = {tensor["name"] for tensor in request["skeleton"]["tensors"]} - names
    skeleton = _without(request["skeleton"], others)
    skeleton["tensors"] = [
        {key: field for key, field in tensor.items() if key != "device"} | {"presence": "meta"}
        for tensor in skeleton["tensors"]
    ]
    rules = [rule for rule in request["layout"]["rules"] if rule["name"] in names]
    rules = [{key: value for key, value in rule.items() if key != "slots"} for rule in rules]
    policy = {key: value for key, value in request["policy"].items() if key not in _OWN_WORDS}
    mapping = request["mapping"]
    if mapping is not None:
        concerned = [rule | {"optional": True} for rule in mapping["rules"] if _concerns(rule, names)]
        mapping = mapping | {"rules": concerned}
    return request | {
        "skeleton": skeleton,
        "layout": request["layout"] | {"rules": rules},
        "policy": policy | {"dtype": "auto", "cast": "promote", "unexpected": "report"},
        "mapping": mapping,
        "adapters": None,
        "part_of_model": True,
        "digests": False,
        "compare_ties": False,  # they were compared for the plan of the whole
    }


def _is_wider(value: Any, optimizer: Any) -> bool:
    held = getattr(optimizer, "master_weights_and_grads_dtype", torch.float32)
    return bool(held.itemsize > value.ds_tensor.itemsize)


def _holds_more(in_file: torch.dtype, partition: torch.dtype) -> bool:
    """BF16 in FP16 partitions is rounded too, and FP16 in BF16 ones; every value of a narrower format fits."""
    return in_file != partition and in_file.itemsize >= partition.itemsize
