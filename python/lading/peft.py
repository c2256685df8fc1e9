"""PEFT: which tensors of a wrapped model are the base checkpoint's, which are the adapters', and where those come from.

    with lading.skeleton():                                     # or torch.device("meta")
        model = get_peft_model(Model(config), LoraConfig(...))
    lading.materialize(model, "base", adapter="my_adapter")     # without adapter: initialised as PEFT does it

PEFT's classes say what is what: a tuner layer has one `base_layer`, and all else in it is adapters'; an auxiliary
wrapper (`modules_to_save`) has an `original_module`, and copies of it, which begin with the same values. Which keys an
adapter file has is asked of PEFT's own code for saving. Initial values are what PEFT's own initialisers wrote, recorded
when the model was built under `lading.skeleton()`, or here, on a stand-in of the layer. What PEFT computes from base
weights (DoRA, …) is refused, because the layer was built before they were loaded; so are methods that change base
weights (peft_base.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from . import zero3
from .conversion import Catalog, Conversion, braced, target_of
from .errors import LadingError, Problem
from .inventory import PARAMETER, Entry, is_wrapped
from .inventory_json import tie_classes
from .patterns import Pattern, matches
from .peft_base import changed_bases, configs_of, stale
from .peft_files import AdapterFile, adapter_files
from .private_names import check
from .placements import is_dtensor
from .recording import Operand, cell_of, operand_of
from .replay import slice_of
from .stand_ins import Copier


@dataclasses.dataclass(frozen=True)
class _Classes:
    """PEFT's classes that mean something here."""

    model: type
    tuner: type
    layer: type
    auxiliary: type

    @classmethod
    def find(cls) -> _Classes | None:
        """None if PEFT was not imported: then nothing is wrapped by it."""
        if "peft" not in sys.modules:
            return None
        check("peft")
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        return cls(PeftModel, BaseTuner, BaseTunerLayer, AuxiliaryTrainingWrapper)


@dataclasses.dataclass
class Wrapped:
    """A model that PEFT has wrapped: by names of the inventory."""

    plain: dict[str, str]  # of the base model's tensors, the names before PEFT
    adapters: list[str]  # of tensors that no base checkpoint has
    copies: dict[str, str]  # of these, the ones that begin as another tensor, and the name of that one before PEFT
    models: list[nn.Module]  # PEFT's
    layers: list[nn.Module]  # with adapters
    plain_modules: dict[str, str]


def unwrapped(parts: Sequence[nn.Module], entries: Sequence[Entry]) -> Wrapped | None:
    """What is what in these parts of a model; None where PEFT does not take part."""
    classes = _Classes.find()
    if classes is None:
        return None
    modules = [module for part in parts for module in part.modules()]
    layers = [module for module in modules if isinstance(module, (classes.layer, classes.auxiliary))]
    models = [module for module in modules if isinstance(module, classes.model)]
    if not layers and not models:
        return None
    found = Wrapped({}, [], {}, models, layers, {})
    places: dict[str, tuple[str, str]] = {}  # by a module's name: its name before, and what it is
    for part in parts:
        for prefix, plain, role in _walk(classes, part):
            places.setdefault(prefix, (plain, role))
            if role == _BASE:
                found.plain_modules.setdefault(prefix, plain)
    for entry in entries:
        module, dot, attribute = (entry.name[: -len(entry.attribute)].removesuffix("."), ".", entry.attribute)
        plain, role = places.get(module, (module, _BASE))
        before = f"{plain}{dot}{attribute}" if plain else attribute
        if role == _BASE:
            found.plain[entry.name] = before
            continue
        found.adapters.append(entry.name)
        if role == _COPY:
            found.copies[entry.name] = before
    _take_back_ties(found, entries)
    return found


def _take_back_ties(found: Wrapped, entries: Sequence[Entry]) -> None:
    """Another name of a base tensor is not an adapter: prompt tuning has the embedding a second time."""
    base = {
        entry.tie_class: found.plain[entry.name]
        for entry in entries
        if entry.tie_class is not None and entry.name in found.plain
    }
    for entry in entries:
        if entry.tie_class in base and entry.name not in found.plain:
            found.adapters.remove(entry.name)
            found.copies.pop(entry.name, None)
            found.plain[entry.name] = base[entry.tie_class]


_BASE, _ADAPTER, _COPY = "base", "adapter", "copy"


def _walk(classes: _Classes, root: nn.Module) -> Iterator[tuple[str, str, str]]:
    """Every module's name, its name before PEFT, and what it is."""

    def walk(prefix: str, plain: str, role: str, module: nn.Module) -> Iterator[tuple[str, str, str]]:
        yield prefix, plain, role
        for name, child in module._modules.items():
            if child is None:
                continue
            if is_wrapped(module, name):
                yield from walk(prefix, plain, role, child)
                continue
            inner_plain, inner_role = _inner(classes, module, name, plain, role)
            yield from walk(f"{prefix}.{name}" if prefix else name, inner_plain, inner_role, child)

    yield from walk("", "", _BASE, root)


def _inner(classes: _Classes, module: nn.Module, name: str, plain: str, role: str) -> tuple[str, str]:
    own = f"{plain}.{name}" if plain else name
    for cls, inside in (
        (classes.model, "base_model"),
        (classes.tuner, "model"),
        (classes.layer, "base_layer"),
        (classes.auxiliary, "original_module"),
    ):
        if isinstance(module, cls):
            if name == inside or (cls is classes.auxiliary and name == "token_adapter"):
                return plain, role  # trainable tokens: the wrapper has a tuner layer, and that the base
            return (plain, _COPIES) if cls is classes.auxiliary and name == "modules_to_save" else (own, _ADAPTER)
    if role == _COPIES:  # one copy for each adapter
        return plain, _COPY
    return own, role


_COPIES = "copies"


# ---- names


def conversion(wrapped: Wrapped, catalog: Catalog) -> Conversion:
    """For a model that no library knows: a key goes to the tensor that had this name before PEFT."""
    keys = catalog.shapes.keys()
    rules = [
        {"id": f"peft.rename:{plain}", "kind": "rename", "from": plain, "to": name}
        for name, plain in wrapped.plain.items()
        if plain in keys and plain != name and name not in keys
    ]
    mapping = {"schema": "lading.mapping/1", "rules": rules} if rules else None
    return Conversion(mapping=mapping, not_expected=sorted(wrapped.adapters))


def with_copies(described: Conversion, wrapped: Wrapped, entries: Sequence[Entry]) -> Conversion:
    """Copies of a module begin with the values of what they are copies of, or of what that is tied to, and so read the
    same keys."""
    if not wrapped.copies or described.mapping is None:
        return described
    names: dict[str, set[str]] = {}  # all names of the tensor that had this name before PEFT
    ties = [*tie_classes(entries), *described.ties]
    for name, plain in wrapped.plain.items():
        names.setdefault(plain, {name}).update(*(tie for tie in ties if name in tie))
    copies: dict[str, list[str]] = {}
    for copy, plain in wrapped.copies.items():
        for name in names.get(plain, ()):
            copies.setdefault(name, []).append(copy)
    rules = []
    for rule in described.mapping["rules"]:
        targets = copies.get(target_of(rule) or "")
        if not targets:
            rules.append(rule)
            continue
        expression = rule["expression"] if rule["kind"] == "build" else braced(rule["from"])
        for place, name in enumerate(
            [rule["to"] if rule["kind"] == "build" else braced(rule["to"]), *map(braced, targets)]
        ):
            rules.append({"id": f"{rule['id']}#{place}", "kind": "build", "to": name, "expression": expression})
    return dataclasses.replace(described, mapping=described.mapping | {"rules": rules})


# ---- initial values


def record_initial_values(wrapped: Wrapped, entries: Sequence[Entry]) -> dict[str, Exception]:
    """For adapters that were built on plain meta: PEFT's own initialiser runs on a stand-in, and is recorded. Returns
    what it raised, by the names of the tensors that then have no value."""
    adapters = set(wrapped.adapters)
    missing = {
        id(entry.module): entry
        for entry in entries
        if entry.name in adapters and _lacks_value(entry)
    }
    failures: dict[str, Exception] = {}
    if not missing:
        return failures
    own: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.is_tensor:
            own.setdefault(id(entry.module), []).append(entry)
    configs = {name: config for model in wrapped.models for name, config in model.peft_config.items()}  # type: ignore[union-attr, operator]
    for layer in wrapped.layers:
        if any(id(module) in missing for module in layer.modules()):
            for name, config in configs.items():
                try:
                    _record_layer(layer, name, config, own)
                except Exception as error:  # it needs more than the layer, such as base weights
                    inside = {id(module) for module in layer.modules()}
                    lost = [entry.name for entry in entries if entry.name in adapters and id(entry.module) in inside]
                    failures |= {name: error for name in lost if name not in failures}
    return failures


def _record_layer(layer: nn.Module, adapter: str, config: Any, own: dict[int, list[Entry]]) -> None:
    from .skeleton_recorder import skeleton

    initialise = _initialiser(layer, adapter, config)
    if initialise is None:
        return
    clones: dict[int, nn.Module] = {}
    with skeleton(), torch.no_grad():
        initialise(_stand_in(layer, own, clones))
    for key, clone in clones.items():
        for entry in own.get(key, ()):
            value = (
                getattr(clone, entry.attribute, None)
                if entry.kind != PARAMETER
                else clone._parameters.get(entry.attribute)
            )
            if _lacks_value(entry) and isinstance(value, torch.Tensor) and _is_written(value):
                entry.recorded = operand_of(value)


def _lacks_value(entry: Entry) -> bool:
    is_blank = entry.is_tensor and entry.recorded is None and not entry.is_real
    return is_blank and not zero3.has_value_of_an_adapter(entry)


def _is_written(tensor: torch.Tensor) -> bool:
    return cell_of(tensor) is not None and operand_of(tensor).version.op.kind != "blank"  # type: ignore[union-attr]


def _initialiser(layer: nn.Module, adapter: str, config: Any) -> Callable[[Any], Any] | None:
    """The layer's only method `reset_…(adapter_name, …)`, whose other arguments are fields of the config."""
    found = []
    for name in dir(type(layer)):
        method = getattr(type(layer), name)
        if name.startswith("reset_") and callable(method):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            if parameters and parameters[0].name == "adapter_name":
                found.append((name, parameters[1:]))
    if len(found) != 1:
        return None
    name, others = found[0]
    arguments = {one.name: getattr(config, one.name) for one in others if hasattr(config, one.name)}
    if any(one.name not in arguments and one.default is one.empty for one in others):
        return None
    return lambda clone: getattr(clone, name)(adapter, **arguments)


def _stand_in(
    module: nn.Module, own: dict[int, list[Entry]], clones: dict[int, nn.Module], fields: Copier | None = None
) -> nn.Module:
    """A module like this one, of whole tensors without values, that shares nothing with it which could be written."""
    if id(module) in clones:
        return clones[id(module)]
    copied = fields or Copier(lambda child: _stand_in(child, own, clones, copied), _tensor_like)
    clone = clones[id(module)] = object.__new__(type(module))
    # Without meshes nobody can think of talking to other ranks.
    kept = {
        name: value
        for name, value in vars(module).items()
        if type(value).__name__ != "DeviceMesh" and name not in ("_parameters", "_buffers", "_modules")
    }
    clone.__dict__.update({name: copied.of(value) for name, value in kept.items()})
    clone._parameters, clone._buffers = {}, dict.fromkeys(module._buffers)
    for entry in own.get(id(module), ()):
        blank = torch.empty(entry.shape, dtype=entry.dtype)
        if entry.kind == PARAMETER:
            clone._parameters[entry.attribute] = nn.Parameter(blank, requires_grad=entry.requires_grad)
        elif entry.attribute in module._buffers:
            clone._buffers[entry.attribute] = blank
    clone._modules = {
        name: None if child is None else _stand_in(child, own, clones, copied)
        for name, child in module._modules.items()
    }
    return clone


def _tensor_like(tensor: torch.Tensor) -> torch.Tensor:
    """Of one that hangs on a module: what is real may be read."""
    is_real = not tensor.is_meta and not zero3.is_partitioned(tensor) and not is_dtensor(tensor)
    return tensor.detach().clone() if is_real else torch.empty(tuple(tensor.shape), dtype=tensor.dtype)


def computed_from_base(wrapped: Wrapped, entries: Sequence[Entry], spoken_for: Iterable[str]) -> list[Problem]:
    """Adapters whose recorded value was computed from base weights, of which there were only initial ones."""
    adapters = set(wrapped.adapters) - set(wrapped.copies) - set(spoken_for)
    base: dict[int, str] = {}
    for entry in entries:
        if entry.name in wrapped.plain and entry.kind == PARAMETER:
            for cell in _cells(entry):
                base.setdefault(cell, entry.name)
    problems = []
    for entry in entries:
        source = next((base[cell] for cell in _cells(entry) if cell in base), "") if entry.name in adapters else ""
        if source:
            text = f"PEFT computes its first value from {source}, which had no value when the model was built"
            remedy = "Pass adapter=, a file that has it, or a lading.Computed in recipes=."
            problems.append(Problem("adapter", text, tensor=entry.name, rule="R66", remedy=remedy))
    return problems


def _cells(entry: Entry) -> list[int]:
    """The storages that the recorded value was made of, in the order of their making."""
    if entry.recorded is None or entry.recorded.version is None:
        return []
    reads = [read for op in slice_of(entry.recorded.version) for read in op.reads()]
    return sorted({entry.recorded.cell, *(read.cell for read in reads if isinstance(read, Operand))})


# ---- all of it


@dataclasses.dataclass
class Adapters:
    """What a load has to know: the files of adapters, and notes for the report."""

    files: list[AdapterFile] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    failures: dict[str, Exception] = dataclasses.field(default_factory=dict)  # of initialisers, by name


def prepare(
    parts: Sequence[nn.Module], entries: Sequence[Entry], adapter: Any, spoken_for: Sequence[Pattern]
) -> Adapters:
    """Finds out where the adapters of these parts come from. `spoken_for`: patterns of names with a value."""
    wrapped = unwrapped(parts, entries)
    found = (
        Adapters(*adapter_files(wrapped.models if wrapped is not None else [], adapter, entries))
        if adapter is not None
        else Adapters()
    )
    if wrapped is None:
        return found
    found.failures = record_initial_values(wrapped, entries)

    def is_given(name: str) -> bool:
        return any(name in file.held for file in found.files) or any(matches(pattern, name) for pattern in spoken_for)

    configs = configs_of(module for part in parts for module in part.modules())
    problems = [
        *changed_bases(configs, wrapped.layers, entries, is_given),
        *computed_from_base(wrapped, entries, filter(is_given, wrapped.adapters)),
        *stale(configs, set(wrapped.adapters) - set(wrapped.copies), entries, is_given),
    ]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
    return found
