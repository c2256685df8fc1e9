"""What is done to a model between its constructor and the load. The same calls on the oracle and on the subject."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .pieces import FLOATS, Json, dtype_of

Place = tuple[nn.Module, str, str]  # module, attribute, full name
_SKIPPED = (nn.RNNBase, nn.utils.parametrize.ParametrizationList)


def places(model: nn.Module) -> list[Place]:
    """Every registered parameter under every name, but those whose modules watch over them."""
    found = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _SKIPPED) or nn.utils.parametrize.is_parametrized(module):
            continue
        for name, value in module._parameters.items():
            if value is not None and not nn.parameter.is_lazy(value):
                found.append((module, name, f"{prefix}.{name}" if prefix else name))
    return sorted(found, key=lambda place: place[2])


def _value(place: Place) -> nn.Parameter:
    value = place[0]._parameters[place[1]]
    assert value is not None
    return value


def _floating(model: nn.Module) -> list[Place]:
    floats = [dtype_of(name) for name in FLOATS]
    return [place for place in places(model) if _value(place).dtype in floats]


def _tie(model: nn.Module, cut: Json) -> str:
    every = _floating(model)
    pairs = [
        (one, two)
        for one in every
        for two in every
        if one[2] < two[2]
        and _value(one) is not _value(two)
        and _value(one).shape == _value(two).shape
        and _value(one).dtype == _value(two).dtype
    ]
    if not pairs:
        return ""
    one, two = pairs[cut["pick"] % len(pairs)]
    if cut["swap"]:
        one, two = two, one
    two[0]._parameters[two[1]] = _value(one)
    return f"tie {two[2]} to {one[2]}"


def _untie(model: nn.Module, cut: Json) -> str:
    every = _floating(model)
    names: dict[int, list[Place]] = {}
    for place in every:
        names.setdefault(id(_value(place)), []).append(place)
    # one module under two names is not taken apart by a new parameter
    tied = [group for group in names.values() if len({id(place[0]) for place in group}) > 1]
    if not tied:
        return ""
    group = tied[cut["pick"] % len(tied)]
    place = group[-1] if cut["swap"] else group[0]
    old = _value(place)
    new = torch.empty_like(old) if old.is_meta else torch.zeros_like(old)
    setattr(place[0], place[1], nn.Parameter(new, requires_grad=old.requires_grad))
    return f"untie {place[2]}"


def _replace(model: nn.Module, cut: Json) -> str:
    every = _floating(model)
    if not every:
        return ""
    place = every[cut["pick"] % len(every)]
    old = _value(place)
    new = torch.full_like(old, 0.25) if cut["swap"] else torch.zeros_like(old).add_(0.5)
    place[0].register_parameter(place[1], nn.Parameter(new.detach(), requires_grad=old.requires_grad))
    return f"replace {place[2]}"


def _init(model: nn.Module, cut: Json) -> str:
    every = _floating(model)
    if not every:
        return ""
    place = every[cut["pick"] % len(every)]
    value, how = _value(place), cut["how"]
    if how == "constant":
        nn.init.constant_(value, 3.0)
    elif how == "data":
        value.data.fill_(7.0)
    elif how == "copy":
        with torch.no_grad():
            value.copy_(torch.full_like(value, 0.75))
    elif how == "buffer":
        buffers = [one for one in model.buffers() if one.is_floating_point() and one.dtype in (torch.float32,)]
        if not buffers:
            return ""
        buffers[cut["pick"] % len(buffers)].fill_(2.0)
        return "fill a buffer"
    else:
        value.data = torch.full_like(value, 5.0)
    return f"init {place[2]} by {how}"


def _freeze(model: nn.Module, cut: Json) -> str:
    every = places(model)
    if not every:
        return ""
    start = cut["pick"] % len(every)
    for place in every[start : start + 1 + cut["pick"] % 3]:
        _value(place).requires_grad_(False)
    return f"freeze from {every[start][2]}"


def _cast(model: nn.Module, cut: Json) -> str:
    model.to(dtype_of(cut["dtype"]))
    return f"cast to {cut['dtype']}"


def _body(model: nn.Module) -> nn.Module:
    body = model._modules[model.names["body"]]  # type: ignore[union-attr,index]
    assert body is not None
    return body


def _delete(model: nn.Module, cut: Json) -> str:
    body = _body(model)
    names = list(body._modules)
    if len(names) < 2:
        return ""
    name = names[cut["pick"] % len(names)]
    if isinstance(body, nn.ModuleList | nn.Sequential):
        del body[int(name)]
    else:
        del body._modules[name]
    return f"delete module {name}"


def _rename(model: nn.Module, cut: Json) -> str:
    body = _body(model)
    names = list(body._modules)
    if not names or isinstance(body, nn.ModuleList | nn.Sequential):
        key = model.names["body"]  # type: ignore[union-attr,index]
        new = key + "_new"
        model._modules[new] = model._modules.pop(key)  # type: ignore[index,arg-type]
        model.names = {**model.names, "body": new}  # type: ignore[dict-item,operator,assignment]
        return f"rename {key} to {new}"
    name = names[cut["pick"] % len(names)]
    body._modules[name + "_new"] = body._modules.pop(name)
    return f"rename {name}"


def _register(model: nn.Module, cut: Json) -> str:
    """Something that the constructor did not make, on the device that new tensors have by default: real."""
    target = [module for module in model.modules()][cut["pick"] % len(list(model.modules()))]
    if isinstance(target, nn.ModuleList | nn.ModuleDict) or hasattr(target, "late"):
        return ""
    value = torch.arange(4.0)
    if cut["how"] == "constant":
        target.register_buffer("late", value, persistent=False)
    elif cut["how"] == "copy":
        target.register_buffer("late", value)
    else:
        target.register_parameter("late", nn.Parameter(value))
    return f"register a late tensor ({cut['how']})"


def _deepcopy(model: nn.Module, cut: Json) -> nn.Module:
    return copy.deepcopy(model)


def _pickle(model: nn.Module, cut: Json) -> nn.Module:
    if cut["swap"]:
        memory = io.BytesIO()
        torch.save(model, memory)
        memory.seek(0)
        loaded: nn.Module = torch.load(memory, weights_only=False)
        return loaded
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


def _to_empty(model: nn.Module, cut: Json) -> nn.Module:
    """On meta `to_empty` gives every name memory of its own, so ties are lost; that alone is done to a real model."""
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model.to_empty(device="cpu")
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not nn.parameter.is_lazy(parameter):
                module._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.clone()
        if isinstance(module, nn.RNNBase):  # as its own _apply does
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
    return model


EDITS: dict[str, Callable[[nn.Module, Json], str]] = {
    "tie": _tie, "untie": _untie, "replace": _replace, "init": _init, "freeze": _freeze, "cast": _cast,
    "delete": _delete, "rename": _rename, "register": _register,
}  # fmt: skip
COPIES: dict[str, Callable[[nn.Module, Json], nn.Module]] = {
    "deepcopy": _deepcopy, "pickle": _pickle, "to_empty": _to_empty,
}  # fmt: skip


def operate(model: nn.Module, cuts: list[Json]) -> tuple[nn.Module, list[str]]:
    """The model after its surgery, and what was done in words. "" is an operation that found nothing to work on."""
    said = []
    for cut in cuts:
        if cut["kind"] in EDITS:
            with torch.no_grad() if cut["kind"] != "tie" else torch.enable_grad():
                said.append(EDITS[cut["kind"]](model, cut))
        elif cut["kind"] in COPIES:
            model = COPIES[cut["kind"]](model, cut)
            said.append(cut["kind"])
    return model, said


def has_ties(model: nn.Module) -> bool:
    values: list[Any] = [_value(place) for place in places(model)]
    return len({id(value) for value in values}) < len(values)
