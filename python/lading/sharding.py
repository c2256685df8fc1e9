"""`lading.shard_by_dtype`: FSDP2 for models of several dtypes.

    with lading.skeleton():
        model = Model(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    lading.shard_by_dtype(model, mesh, policy, checkpoint="path/to/checkpoint")
    lading.materialize(model, "path/to/checkpoint", compute_dtype=torch.bfloat16)

A unit of FSDP2 has one storage dtype and one compute dtype, or its first forward pass fails. Which units there have to
be, and what each computes in, is the engine's word (docs/guides/dtypes.md); here `fully_shard` is called as it says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from .agreement import TIMEOUT_S, Agreement, agreed
from .dtypes import requested_dtype
from .errors import LadingError, Problem
from .inventory import PARAMETER, canonical_modules, parts_of, take_inventory
from .outcome import unfollowed
from .patterns import matches
from .placements import fsdp_states
from .resolving import DTypes, Unit, resolve_dtypes
from .telling import folded, logger, speaks_here, warn
from .words import ComputeRecord, Group, StrPath

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

_Wish = str | Iterable[str] | Callable[[str, nn.Module], bool]


@dataclasses.dataclass(frozen=True)
class Sharding:
    """What `shard_by_dtype` did: its calls of `fully_shard`, in order, and the dtypes that asked for them.

    sharding = lading.shard_by_dtype(model, mesh, checkpoint="path/to/checkpoint")
    for unit in sharding.units:
        print(unit)
    """

    units: tuple[Unit, ...]
    dtypes: DTypes
    warnings: tuple[Problem, ...]


def shard_by_dtype(
    model: nn.Module | Sequence[nn.Module],
    mesh: DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    *,
    checkpoint: StrPath | None = None,
    revision: str | None = None,
    dtypes: DTypes | None = None,
    compute_record: ComputeRecord = "checkpoint",
    units: _Wish | None = None,
    group: Group = None,
    timeout: float = TIMEOUT_S,
    **options: Any,
) -> Sharding:
    """Calls `fully_shard` so that every unit has one storage and one compute dtype (R27), even in mixed models.

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        lading.shard_by_dtype(model, mesh, policy, checkpoint="path/to/checkpoint")
        lading.materialize(model, "path/to/checkpoint", compute_dtype=torch.bfloat16)

    Units are the modules that `units` names, and the root; inside them, modules of another dtype become further units,
    which compute in their own dtype and hand on what is around them. All ranks must call it.

    Args:
        model: on meta, before `materialize`, or real. Parts of it may be sharded already. A list of modules is a model
            in parts, such as the pipeline stages of this rank: each part has units and a root of its own.
        mesh: as `fully_shard` takes it.
        mp_policy: FSDP2's `MixedPrecisionPolicy`. `param_dtype` is what parameters compute in unless a pin or the
            checkpoint's record says otherwise (R26); everything else is kept.
        checkpoint: the checkpoint to load later. None: the model as it is. Its keys are not checked here, because a
            stage reads only some of them.
        revision: of a repository in the Hugging Face cache, as in `lading.materialize`.
        dtypes: the result of `resolve_dtypes` instead, for requests that need its arguments.
        compute_record: as in `resolve_dtypes`: "ignore" lets parameters that the checkpoint has in F32 compute in
            `param_dtype`. Pass the same to `materialize`. With `dtypes`, give it there.
        units: patterns of module names, in which `*` stands for any characters, as everywhere in lading; of the modules
            that a pattern matches, the outermost. Or a function of name and module. None: what a model of transformers
            must not be split in, else the elements of the outermost lists.
        group: of the ranks that shard together. None: those of the mesh.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.
        options: for `fully_shard`: reshard_after_forward, offload_policy, shard_placement_fn, ignored_params.

    Raises:
        LadingError: parameters of one module that would have to be in different units, all of them by name; and those
            that two parts share.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if dtypes is not None and compute_record != "checkpoint":
        raise ValueError("compute_record cannot be combined with dtypes: pass it to resolve_dtypes instead")
    mp_policy = mp_policy if mp_policy is not None else MixedPrecisionPolicy()
    parts = parts_of(model)
    modules = [_modules(part) for part in parts]
    wishes = _wishes(parts, modules, units, set(options.get("ignored_params") or ()))
    compute = None if mp_policy.param_dtype is None else requested_dtype(mp_policy.param_dtype)
    found: list[DTypes] = []
    together = Agreement.of(_group(mesh) if group is None else group, timeout)
    with together as ranks, agreed(ranks, "units by dtype") as step:
        _refuse_shared(parts)
        known = dtypes
        if known is None:
            known = resolve_dtypes(parts, checkpoint, revision=revision, strict=False, compute_record=compute_record)
        found = [known.with_units(wish, compute) for wish in wishes]
        units_digest = hashlib.sha256(repr([one.units for one in found]).encode()).hexdigest()[:32]
        step.message = {"units": units_digest, "revision": revision}
        step.must_match = ["units", "revision"]
    if ranks.rank == 0:
        warn(one for one in unfollowed(found[0].warnings) if dtypes is None or one not in dtypes.warnings)
    for of_part, decided in zip(modules, found, strict=True):
        for unit in decided.units:
            policy = dataclasses.replace(mp_policy, **_precision(unit, mp_policy))
            for targets in _calls(unit, of_part):
                taken = [of_part[name] for name in targets]
                fully_shard(taken if len(taken) > 1 else taken[0], mesh=mesh, mp_policy=policy, **options)
    found[0].units = tuple(unit for decided in found for unit in decided.units)
    return Sharding(found[0].units, found[0], found[0].warnings)


def _modules(part: nn.Module) -> dict[str, nn.Module]:
    modules: dict[str, nn.Module] = {}
    for name, module in canonical_modules(part):
        modules.setdefault(name, module)  # of a wrapper and what it wraps, the wrapper
    return modules


# ---- parts


def _wishes(
    parts: Sequence[nn.Module], modules: Sequence[dict[str, nn.Module]], units: _Wish | None, ignored: set[Any]
) -> list[dict[str, Any]]:
    """A wish for each part, in which the parameters of the others are left alone."""
    names = {name for of_part in modules for name in of_part}
    wishes = [_wish(part, of_part, units, ignored, names) for part, of_part in zip(parts, modules, strict=True)]
    held = [{entry.name for entry in take_inventory(part) if entry.kind == PARAMETER} for part in parts]
    everything = set().union(*held)
    for wish, own in zip(wishes, held, strict=True):
        wish["ignored"] = sorted({*wish["ignored"], *(everything - own)})
    return wishes


def _refuse_shared(parts: Sequence[nn.Module]) -> None:
    """A parameter of two parts: `fully_shard` would take it from one of them, and the other would keep what it was."""
    holders: dict[Any, dict[str, set[int]]] = {}
    if len(parts) < 2:
        return
    held = [{entry.name for entry in take_inventory(part)} for part in parts]
    for entry in take_inventory(parts):
        if entry.kind == PARAMETER:
            key = entry.name if entry.tie_class is None else ("tie", entry.tie_class)
            places = {place for place, names in enumerate(held) if entry.name in names}
            holders.setdefault(key, {})[entry.name] = places
    problems = []
    for names in holders.values():
        if len(set().union(*names.values())) > 1:
            found = "; ".join(f"{name} in part {', '.join(map(str, sorted(names[name])))}" for name in sorted(names))
            remedy = "Put the modules that share it into one part, or give each part a separate tensor."
            problems.append(Problem("layout", "parts of the model share it, but FSDP2 can shard it in only one of them",
                                    tensor=min(names), rule="R27", found=found, remedy=remedy))
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)


# ---- where units shall be


def _wish(
    model: nn.Module, modules: dict[str, nn.Module], units: _Wish | None, ignored: set[Any], names: Iterable[str] = ()
) -> dict[str, Any]:
    """The `units` of docs/schema/request.md: facts about the modules, and which of them the user wants. `names`: what
    `units` may mean beside these modules, in other parts."""
    first: dict[int, str] = {}
    duplicates = []
    for name, module in canonical_modules(model):
        if first.setdefault(id(module), name) != name:
            duplicates.append(name)
    there = {name: module for name, module in modules.items() if name and name not in set(duplicates)}
    sharded = {id(inner) for module, _ in fsdp_states(modules.values()) for inner in module.modules()}
    left = [
        f"{name}.{key}" if name else key
        for name, module in canonical_modules(model)
        for key, parameter in module._parameters.items()
        if parameter is not None and (id(module) in sharded or parameter in ignored)
    ]
    return {
        "modules": [name for name in _wanted(model, there, units, names) if id(there[name]) not in sharded],
        "containers": [name for name, module in there.items() if _is_never_called(module)],
        "duplicates": duplicates,
        "ignored": sorted(set(left)),
    }


def _wanted(
    model: nn.Module, modules: dict[str, nn.Module], units: _Wish | None, names: Iterable[str]
) -> list[str]:
    if units is None:
        return list(_usual_units(model, modules))
    if callable(units):
        return [name for name, module in modules.items() if units(name, module)]
    found: list[str] = []
    for pattern in [units] if isinstance(units, str) else units:
        matched = outermost(name for name in modules if matches(pattern, name))
        if not matched and not any(matches(pattern, name) for name in names):
            raise ValueError(f"units names {pattern!r}, but the model has no module of that name")
        deeper = [name for name in matched if name.count(".") > pattern.count(".")]
        if deeper and speaks_here():
            logger.info("units: %r also means %s, because * stands for dots too", pattern, folded(deeper))
        found += [name for name in matched if name not in found]
    return found


def outermost(names: Iterable[str]) -> list[str]:
    """Of modules that a pattern matches: those that are in no other. "layers.*" means each layer, and nothing in it."""
    matched = list(names)
    known = set(matched)

    def is_inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in known for end in range(1, len(parts)))

    return [name for name in matched if not is_inside(name)]


def _usual_units(model: nn.Module, modules: dict[str, nn.Module]) -> Iterator[str]:
    """Blocks: what transformers says must not be split; of other models, the elements of the outermost lists."""
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    lists: list[str] = []
    for name, module in modules.items():
        if blocks:
            if type(module).__name__ in blocks:
                yield name
        elif isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in lists):
            lists.append(name)
            yield from (f"{name}.{key}" for key in module._modules if f"{name}.{key}" in modules)


def _is_never_called(module: nn.Module) -> bool:
    """Lists of modules or parameters, and other holders: FSDP2 gathers a unit when its forward is called."""
    return type(module).forward is nn.Module.forward and "forward" not in module.__dict__


# ---- the calls


def _precision(unit: Unit, mp_policy: Any) -> dict[str, Any]:
    if mp_policy.param_dtype is None:
        return {}
    is_users = unit.is_wished and mp_policy.output_dtype is not None
    return {"param_dtype": unit.compute, "output_dtype": mp_policy.output_dtype if is_users else unit.output}


def _calls(unit: Unit, modules: dict[str, nn.Module]) -> list[tuple[str, ...]]:
    """Before torch 2.13, of the modules of one call only the first had its inputs cast, and the last its outputs: so each
    gets a call of its own, unless they share a parameter, which FSDP2 would make two of."""
    from torch.distributed.fsdp._fully_shard import _fsdp_state

    register = getattr(_fsdp_state, "_register_group_forward_hooks", None)
    if register is not None and "cast_output_dtype" in inspect.signature(register).parameters:
        return [unit.modules]
    calls: list[tuple[tuple[str, ...], set[int]]] = []  # names, and the parameters that they hold
    for name in unit.modules:
        names, held = (name,), {id(parameter) for parameter in modules[name].parameters()}
        for call in [call for call in calls if call[1] & held]:
            calls.remove(call)
            names, held = (*call[0], *names), call[1] | held
        calls.append((names, held))
    return [names for names, _ in calls]


def _group(mesh: Any) -> Any:
    """The ranks of a mesh, where they are a process group; else only this process."""
    import torch.distributed as dist

    if mesh is None or mesh.size() == dist.get_world_size():
        return None
    return mesh.get_group() if mesh.ndim == 1 else False
