"""FSDP1: parameters that lie side by side in a flat one, which is shared out as a whole.

    with lading.skeleton():
        model = Model()
    model = FullyShardedDataParallel(model, param_init_fn=lading.empty_parameters, device_id=device)
    lading.materialize(model, "checkpoint")

Where a parameter begins in its unit's buffer, alignment gaps counted, is FSDP1's own record; which elements this rank
has of it is worked out by the engine. They are written into the local shard, in place. Gaps and the padded end are
not touched: they hold what FSDP1 put there.

`param_init_fn` is needed on meta, because FSDP1 makes its buffers when it wraps. `to_empty` would do, but breaks ties
and gives buffers memory without values, which look like values: `empty_parameters` leaves them on meta.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .words import Device

EMPTY, _FILLED = "_lading_empty", "_lading_filled"


@dataclasses.dataclass(eq=False)
class FlatUnit:
    """What FSDP1 gathers by one call: one buffer, of which each rank has a part."""

    wrapper: nn.Module
    handle: Any  # torch's FlatParamHandle
    name: str  # the same on all ranks: that of its first parameter
    elems: int  # gaps counted

    @property
    def memory(self) -> torch.Tensor:
        """This rank's part, whether FSDP1 has it in use or put aside while the whole is gathered."""
        flat = self.handle.flat_param
        local: torch.Tensor = getattr(flat, "_local_shard", flat).detach()
        return local

    @property
    def is_filled(self) -> bool:
        """Whether it was loaded before."""
        return _FILLED in vars(self.wrapper)

    @property
    def is_offloaded(self) -> bool:
        return bool(self.handle._offload_params)

    def ranks(self, known: Iterable[int]) -> list[int]:
        """Global numbers of the ranks that share the buffer out; any one of the known ones where it is not cut."""
        import torch.distributed as dist

        if not self.handle.uses_sharded_strategy:
            return list(known)[:1]
        return dist.get_process_group_ranks(self.handle.process_group)


class FlatMember(torch.Tensor):
    """A parameter of a unit as it was before: its whole shape, and no memory of its own."""

    unit: FlatUnit
    offset: int  # in the unit's buffer, in elements
    problem: str
    is_empty: bool  # its memory was given no value

    @staticmethod
    def __new__(cls, shape: torch.Size, like: torch.Tensor, requires_grad: bool) -> FlatMember:
        made: FlatMember = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=like.dtype, device=like.device, requires_grad=requires_grad
        )
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{function} was called on a parameter that lies in a flat one")


def flat_members(modules: Iterable[tuple[str, nn.Module]]) -> dict[tuple[int, str], FlatMember]:
    """The parameters of all units, by the id of the module that has it and its name there. Names of one tensor have
    one member."""
    found: dict[tuple[int, str], FlatMember] = {}
    seen: set[int] = set()
    for prefix, module in modules:
        handle = vars(module).get("_handle")
        if handle is None or id(handle) in seen or not hasattr(handle, "flat_param"):
            continue
        seen.add(id(handle))
        flat = handle.flat_param
        if not hasattr(flat, "_numels_with_padding"):
            continue
        dot = f"{prefix}." if prefix else ""
        unit = FlatUnit(module, handle, dot + clean_name(flat._fqns[0]), sum(flat._numels_with_padding))
        originals = flat._params or [flat] * len(flat._param_infos)
        for (name, owner, _), shape, offset, original, extension in zip(
            flat._param_infos, flat._shapes, _offsets(flat), originals, flat._param_extensions, strict=True
        ):
            member = FlatMember(shape, unit.memory, original.requires_grad)
            member.unit, member.offset = unit, offset
            member.problem = "FSDP1 cut it out of another distributed tensor" if extension is not None else ""
            member.is_empty = name in vars(owner).get(EMPTY, ())
            found[id(owner), name] = member
        for name, owner, _, first_name, first_owner, _ in flat._shared_param_infos:
            found[id(owner), name] = found[id(first_owner), first_name]
    return found


def is_flat_buffer(parameter: torch.Tensor) -> bool:
    """Whether it is a unit's buffer itself, which stands for its members."""
    return hasattr(parameter, "_numels_with_padding") and getattr(parameter, "_param_infos", None) is not None


def _offsets(flat: Any) -> Iterator[int]:
    """Where each parameter begins."""
    ends = itertools.accumulate(flat._numels_with_padding)
    for end, elems, is_padding in zip(ends, flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            yield end - elems


def clean_name(name: str) -> str:
    """Without the names that wrappers give to what they wrap."""
    wrapped = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
    return ".".join(part for part in name.split(".") if part not in wrapped)


def reshard(modules: Iterable[nn.Module]) -> None:
    """After a forward pass a unit may still be gathered; what is written to its shard would not be seen."""
    for module in modules:
        handle = vars(module).get("_handle")
        flat = getattr(handle, "flat_param", None)
        if handle is None or flat is None or not handle.uses_sharded_strategy:
            continue
        if handle.is_sharded(flat) and not _is_gathered(flat):
            continue
        from torch.distributed.fsdp._runtime_utils import _reshard

        _reshard(module, handle, True)  # type: ignore[arg-type]


def _is_gathered(flat: Any) -> bool:
    """After a forward pass FSDP1 may show the shard and keep the whole, which it then uses again."""
    whole = (getattr(flat, name, None) for name in ("_full_param_padded", "_full_prec_full_param_padded"))
    return any(one is not None and one.untyped_storage().size() for one in whole)


def mark_filled(modules: Iterable[nn.Module]) -> None:
    """From now on what units hold are values."""
    for module in modules:
        module.__dict__.pop(EMPTY, None)
        if getattr(getattr(module, "_handle", None), "flat_param", None) is not None:
            module.__dict__[_FILLED] = True


def empty_parameters(module: nn.Module, device: Device | None = None) -> None:
    """Gives a module's own parameters that are on meta memory without values, each object once: a `param_init_fn` of
    FSDP1. Buffers stay on meta until `materialize`. Without `device`: this rank's accelerator, which is the current
    one, or that of LOCAL_RANK if none was chosen; the CPU where there is no accelerator.

        model = FullyShardedDataParallel(model, param_init_fn=lading.empty_parameters, use_orig_params=True)
        lading.materialize(model, "path/to/checkpoint")
    """
    from .allocate import put
    from .devices import own_device
    from .watch import keep_record

    if device is None:
        device = own_device()
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_meta:
            module.__dict__.setdefault(EMPTY, set()).add(name)
            keep_record(parameter)
            put(
                parameter,
                torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype, device=device),
            )
