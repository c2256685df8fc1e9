"""The expectation, in plain torch: built for real, filled by `load_state_dict`, shared out by the framework itself."""

from __future__ import annotations

import collections
import copy
import dataclasses
import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import files, snapshot
from .build import build
from .layouts import shard
from .pieces import FLOATS, Json, dtype_of
from .surgery import operate
from .wrap import run, wrap


_EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2)
_RANDOM_TRIES = 4


@dataclasses.dataclass
class Expectation:
    model: nn.Module
    facts: dict[str, snapshot.Fact]
    refusal: str  # why plain torch would not load this; "" if it does
    unknown: frozenset[str]  # names whose values are random
    computed: frozenset[str]  # names of tensors that a forward pass makes anew
    use: int  # what can be foretold: 0 no output, 1 that of a forward pass, 2 a step of training as well
    done: list[str]  # surgery in words


def state_of(spec: Json) -> dict[str, torch.Tensor]:
    """What the world's files hold."""
    model, _ = operate(build(spec), spec["surgery"])
    return files.state_for(model, spec)


def expect(spec: Json, folder: Path, rank: int) -> Expectation:
    """What this rank's model should be after the load."""
    spec = for_rank(spec, rank)
    model, done = operate(build(spec), spec["surgery"])
    state = files.read(folder)
    unknown, is_determined = _random_names(spec, state, folder)
    before = snapshot.facts(model) if _is_sharded_first(spec) else {}
    refusal = fill(model, state, spec)
    if before:
        after, named = snapshot.facts(model), {before[name].identity for name in state if name in before}
        unknown |= {
            name for name, fact in before.items() if fact.identity not in named and after[name].bits != fact.bits
        }
    model = wrap(model, spec, folder, is_subject=False)
    _as_partitioned(model, spec)
    computed = _computed_names(model)
    model = shard(model, spec["layout"], rank)
    facts = {name: fact for name, fact in snapshot.facts(model).items() if name not in computed}
    if spec["layout"]["kind"] in ("tp", "fsdp2_tp"):
        parted = _parted(before, facts, state)
        unknown, is_determined = unknown | parted, is_determined and not parted
    if spec["layout"]["kind"] == "fsdp1" and unknown:
        unknown |= {name for name, one in facts.items() if one.kind == "parameter"}  # they share flat buffers
    use = 0 if not is_determined else 1 if unknown - computed else 2
    return Expectation(model, facts, refusal, unknown - computed, computed, use, done)


def _parted(before: dict[str, snapshot.Fact], after: dict[str, snapshot.Fact], state: dict[str, Any]) -> frozenset[str]:
    """Names that no file has, of tensors that were tied until `parallelize_module` made two of them."""
    stored = {(before[name].identity, after[name].identity) for name in state if name in before and name in after}
    known = {was for was, _ in stored}
    return frozenset(
        name for name, fact in before.items()
        if name not in state and fact.identity in known and (fact.identity, after[name].identity) not in stored
    )  # fmt: skip


def for_rank(spec: Json, rank: int) -> Json:
    """Where ranks have different models: the document of this rank's."""
    if spec["layout"]["kind"] != "different" or rank == 0:
        return spec
    mine = copy.deepcopy(spec)
    model, how = mine["model"], mine["layout"]["how"]
    if how == "fewer" and len(model["nodes"]) > 1:
        model["nodes"].pop()
    elif how == "tie" and model["embed"]:
        model["embed"]["tie"] = not model["embed"]["tie"]
    elif how == "frozen":
        mine["surgery"].append({"kind": "freeze", "pick": 0, "swap": False, "how": "", "dtype": ""})
    return mine


def fill(model: nn.Module, state: dict[str, Any], spec: Json) -> str:
    """`load_state_dict`, and why it should have been refused."""
    load = spec["load"]
    _adopt_dtypes(model, state, spec)
    given = {name: _own(model, name) for name in resolve(model, load["external"])}
    together = _together(model)
    kept = {other for name in resolve(model, load["keep"]) for other in (name, *together.get(name, ()))}
    ours = {key: value for key, value in state.items() if key not in kept}
    versioned = collections.OrderedDict(ours)
    versioned._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]  # files of these very versions
    try:
        answer = model.load_state_dict(versioned, strict=False)
    except Exception as error:  # noqa: BLE001 - whatever torch says
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    with torch.no_grad():
        for name, tensor in given.items():
            tensor.copy_(files.noise(tensor, spec["seed"] + 5, name))
    loaded = set(ours) | kept | set(given)
    missing = [
        key for key in answer.missing_keys
        if key not in loaded and not key.endswith("_extra_state") and not any(other in loaded for other in together.get(key, ()))
        and not any(fnmatch.fnmatchcase(key, pattern) or key == pattern for pattern in load["allow_missing"])
    ]  # fmt: skip
    if missing:
        return f"missing {sorted(missing)[0]}"
    if answer.unexpected_keys and load["strict"] and spec["layout"]["kind"] != "different":
        return f"unexpected {sorted(answer.unexpected_keys)[0]}"
    return ""


def has_memory(spec: Json) -> bool:
    """Whether the model has memory before the load."""
    is_emptied = any(cut["kind"] == "to_empty" for cut in spec["surgery"])
    return spec["build"] == "real" or is_emptied


def _as_partitioned(model: nn.Module, spec: Json) -> None:
    """Partitions of a model on meta are made in the dtype of DeepSpeed's config."""
    if spec["layout"]["kind"] == "zero3" and not has_memory(spec):
        late = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("late")}
        for parameter in model.parameters():
            if parameter.is_floating_point() and id(parameter) not in late:
                parameter.data = parameter.data.to(dtype_of(spec["layout"]["dtype"]))


def resolve(model: nn.Module, picks: list[int]) -> list[str]:
    """Names of parameters, by number. Users name them by patterns, to which a `*` means more than itself."""
    names = sorted(name for name, value in model.named_parameters() if value.is_floating_point() and "*" not in name)
    return sorted({names[pick % len(names)] for pick in picks}) if names else []


def _is_sharded_first(spec: Json) -> bool:
    """Whether tensors are cut before the load. Then views that the file does not name are tensors of their own already,
    and keep their values; here the load comes first, and changes them."""
    return spec["layout"]["kind"] not in ("single", "replicas", "ddp", "stages", "different")


def _together(model: nn.Module) -> dict[str, list[str]]:
    """By name: the names of tensors that are one object or one memory, where they are several."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        key: tuple[Any, ...] = (id(tensor),)
        if not nn.parameter.is_lazy(tensor) and tensor.layout == torch.strided and tensor.numel() > 0:
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        groups.setdefault(key, []).append(name)
    return {name: group for group in groups.values() if len(group) > 1 for name in group}


def _own(model: nn.Module, name: str) -> torch.Tensor:
    return dict(model.named_parameters(remove_duplicate=False))[name]


def _adopt_dtypes(model: nn.Module, state: dict[str, Any], spec: Json) -> None:
    """A model without memory takes the dtype of its files, or the one asked for by `cast="exact"`."""
    load = spec["load"]
    if has_memory(spec):
        return  # memory that is there keeps its dtype
    is_fixed = spec["layout"]["kind"] in ("fsdp1", "zero3")  # that of parameters: they have memory without values
    floats = [dtype_of(name) for name in FLOATS]
    asked = dtype_of(load["dtype"]) if load["dtype"] != "auto" else None
    together = _together(model)
    given = {other for name in resolve(model, load["external"]) for other in (name, *together.get(name, ()))}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    late = {id(tensor) for name, tensor in every if name.endswith("late")}  # they have memory, whatever else they are called
    for name, tensor in every:
        if tensor.dtype not in (floats if asked is None else (*floats, *_EIGHTS)) or nn.parameter.is_lazy(tensor):
            continue
        if id(tensor) in late:
            continue
        if is_fixed and isinstance(tensor, nn.Parameter):
            continue
        # a value that is handed in takes the constructor's dtype
        in_file = name in state and name not in given and state[name].dtype in (*floats, *_EIGHTS)
        wanted = state[name].dtype if in_file else tensor.dtype
        if asked is not None and (in_file or isinstance(tensor, nn.Parameter)):
            wanted = asked
        if wanted != tensor.dtype:
            tensor.data = tensor.data.to(wanted)


def _computed_names(model: nn.Module) -> frozenset[str]:
    """Plain tensors that a forward pass computes anew; before it they may be out of date."""
    return frozenset(
        f"{prefix}.weight" if prefix else "weight"
        for prefix, module in model.named_modules(remove_duplicate=False)
        if "weight_g" in module._parameters or "weight_orig" in module._parameters
    )


def _random_names(spec: Json, state: dict[str, Any], folder: Path) -> tuple[frozenset[str], bool]:
    """Names whose values differ between seeds: nobody can say what they should be. And whether outputs agree, for more
    than two seeds, because a small random value often rounds to the same output."""
    if spec["build"] == "real" or not spec["random"]:
        return frozenset(), True
    seen, outputs = [], []
    for seed in range(spec["seed"], spec["seed"] + _RANDOM_TRIES):
        model, _ = operate(build(spec, seed=seed), spec["surgery"])
        fill(model, state, spec)
        model = wrap(model, spec, folder, is_subject=False)
        seen.append(snapshot.facts(model))
        try:
            outputs.append(snapshot.bits_of(run(model, spec)))
        except Exception:  # noqa: BLE001 - such as mixed dtypes, which a sharded model may bear
            outputs.append(len(outputs).to_bytes(1, "little"))
        if len(seen) > 1 and all(fact.bits == seen[0][name].bits for name, fact in seen[1].items() if name in seen[0]):
            break
    one, *others = seen
    names = frozenset(name for name in one for two in others if name in two and one[name].bits != two[name].bits)
    return names, len(set(outputs)) == 1
