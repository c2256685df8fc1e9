"""What an optimizer holds, by the names of the model's parameters: read off for a save, made anew for a load.

    held = optimizer_of(optimizer, entries)         # LadingError if it is of a kind that is not known here
    state = read_state(held)                        # state.document, state.tensors: of this rank, by key
    filled = BlankState.of(held, document)          # memory for a load; filled.tensors by key
    filled.attach()                                 # the optimizer has it

A state tensor of its parameter's shape is shared out like the parameter: the framework made it so, and it says so
itself (placements.py). Nothing here computes which elements a rank has. Other tensors are whole on every rank.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .inventory import PARAMETER, Entry, is_sharded
from .inventory_json import dtype_name
from .optimizer_document import Document, Group, Saved, encoded, is_scalar, key_of, parsed
from .placements import is_dtensor
from .recording import SkeletonError

_STEP = "step"  # as torch calls it: a number of the optimizer's, even of a parameter without dims
OWN_FIELDS = ("params", "param_names")  # of a group, beside its options
_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}  # of a step, which depends on the layout
MASTER = "__master__"  # a state of this name is the parameter itself, with more bits than the model has
_SHARDED_BY_ITSELF = {"ZeroRedundancyOptimizer"}
_PLAIN = "Keep it as a tensor, a number, a text, None or a tuple of them, or save the optimizer's state_dict yourself."
_OTHER_MODEL = (
    "Pass the model that the optimizer was made for; for an adapter, an optimizer over the parameters that are trained."
)


class Held(Protocol):
    """An optimizer, whoever made it.

    Attributes:
        kind: the name of its class.
        shapes: of its parameters, by name.
        groups: the names of each group's parameters, and its options.
        is_partial: whether a rank may lack the state of some parameters.
    """

    kind: str
    is_partial: bool
    shapes: dict[str, tuple[int, ...]]
    groups: list[Group]

    def is_cut(self, name: str) -> bool:
        """Whether ranks hold different parts of the parameter."""

    def states(self) -> dict[str, dict[str, Any]]:
        """What it keeps of each parameter, by name. Tensors that are cut are DTensors, or say otherwise how they are."""

    def blank(self, name: str, state: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of such a tensor, as the optimizer would make it."""

    def refuse_uneven(self, kept: dict[str, dict[str, Any]], shaped: dict[str, set[str]]) -> None:
        """LadingError if it cannot keep these numbers, and tensors of these names, of its parameters."""

    def attach(self, states: dict[str, dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
        """Takes all states, and the options of each of `groups`. The model has been loaded."""


def problem_of(message: str, tensor: str | None = None, remedy: str = "", **more: str) -> Problem:
    return Problem("optimizer_state", message, tensor=tensor, rule="R69", remedy=remedy, **more)


def refusal_of(problems: Problem | list[Problem]) -> LadingError:
    return LadingError(problems, stage="documents", exit_code=4)


def optimizer_of(optimizer: Any, entries: Sequence[Entry], device: torch.device | None = None) -> Held:
    """`device`: of parameters on meta, once they are loaded."""
    kinds = {base.__name__ for base in type(optimizer).__mro__}
    from .optimizer_fsdp1 import Fsdp1Optimizer, has_flat_members
    from .optimizer_zero3 import Zero3Optimizer, is_zero3

    if is_zero3(optimizer):
        return Zero3Optimizer(optimizer, entries)
    if isinstance(optimizer, torch.optim.Optimizer) and not kinds & _SHARDED_BY_ITSELF:
        if has_flat_members(entries):
            return Fsdp1Optimizer(optimizer, entries)
        known = [(entry.name, entry.value) for entry in entries if entry.kind == PARAMETER]
        return TorchOptimizer(optimizer, known, device)
    message = f"the optimizer state of a {type(optimizer).__name__} is not supported"
    raise refusal_of(problem_of(message, remedy="Pass an optimizer of torch.optim, or omit optimizer=."))


class TorchOptimizer:
    """`torch.optim.Optimizer`, over plain parameters or DTensors."""

    is_partial = False

    def __init__(
        self, optimizer: torch.optim.Optimizer, known: Iterable[tuple[str, Any]], device: torch.device | None
    ) -> None:
        """`known`: parameters of the model by name, of a tie each name."""
        self._optimizer, self._device = optimizer, device
        self.kind = type(optimizer).__name__
        names: dict[int, str] = {}
        for name, parameter in known:
            names.setdefault(id(parameter), name)
        self._parameters: dict[str, Any] = {}
        self.groups = []
        strangers = 0
        for group in optimizer.param_groups:
            own = {names[id(one)]: one for one in group["params"] if id(one) in names}
            strangers += len(group["params"]) - len(own)
            self._parameters |= own
            self.groups.append(Group([*own], {name: one for name, one in group.items() if name not in OWN_FIELDS}))
        self.shapes = {name: tuple(one.shape) for name, one in self._parameters.items()}
        own_ids = {id(one) for group in optimizer.param_groups for one in group["params"]}
        problems = []
        if strangers:
            message = f"{strangers} parameters of the optimizer are not parameters of the model"
            problems.append(problem_of(message, remedy=_OTHER_MODEL))
        problems += [
            problem_of(f"the optimizer has state of {str(key)[:80]!r}, which is none of its parameters", remedy=_PLAIN)
            for key in optimizer.state
            if id(key) not in own_ids
        ]
        if problems:
            raise refusal_of(problems)

    def is_cut(self, name: str) -> bool:
        parameter = self._parameters[name]
        return is_dtensor(parameter) and not all(one.is_replicate() for one in parameter.placements)

    def states(self) -> dict[str, dict[str, Any]]:
        held = self._optimizer.state
        return {name: dict(held[one]) for name, one in self._parameters.items() if held.get(one)}

    def blank(self, name: str, state: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        parameter = self._parameters[name].detach()
        like = self._optimizer.state.get(self._parameters[name], {}).get(state)
        if not isinstance(like, torch.Tensor) or tuple(like.shape) != shape:
            like = parameter if tuple(parameter.shape) == shape else None
        device = self._device if parameter.is_meta else parameter.device
        if like is not None:
            return torch.empty_like(like.detach(), dtype=dtype, device=device)
        whole = torch.empty(shape, dtype=dtype, device=device)
        if not is_dtensor(parameter):
            return whole
        from torch.distributed.tensor import DTensor, Replicate

        mesh = parameter.device_mesh
        return DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)

    def refuse_uneven(self, kept: dict[str, dict[str, Any]], shaped: dict[str, set[str]]) -> None:
        """Every parameter has a state of its own."""

    def attach(self, states: dict[str, dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
        """Through `load_state_dict`, so that hooks run, and steps go to the device where they are wanted. It casts to
        the parameter's dtype: what the optimizer had made in another one is put back."""
        number = {name: place for place, name in enumerate(self._parameters)}
        groups = []
        for group, saved, own in zip(self.groups, options, self._optimizer.param_groups, strict=True):
            kept = {name: one for name, one in own.items() if name != "params"}
            groups.append(kept | saved | {"params": [number[name] for name in group.parameters]})
        for name, saved in states.items():
            self._take_master(name, saved.pop(MASTER, None))
        state = {number[name]: dict(one) for name, one in states.items() if one}
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        for name, saved in states.items():
            for key, value in saved.items():
                held = self._optimizer.state[self._parameters[name]]
                if isinstance(value, torch.Tensor) and not is_scalar(value) and held[key].dtype != value.dtype:
                    held[key] = value.to(held[key].device)

    def _take_master(self, name: str, master: torch.Tensor | None) -> None:
        """A parameter with fewer bits has the rounded value already."""
        parameter = self._parameters[name].detach()
        if master is not None and master.dtype == parameter.dtype:
            parameter.copy_(master)


# ---- a save


@dataclasses.dataclass(frozen=True)
class State:
    """An optimizer's, on this rank. `tensors` by key of the files."""

    document: Document
    tensors: dict[str, torch.Tensor]

    @property
    def facts(self) -> str:
        """The same on every rank, or the ranks do not have one optimizer."""
        text = self.document.to_json()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.document.kind} of {len(self.document.parameters)} parameters with state, {digest}"


def read_state(held: Held) -> State:
    """LadingError with everything that cannot be saved."""
    problems: list[Problem] = []
    for place, group in enumerate(held.groups):
        for name, value in group.options.items():
            if (why := _unfit(name, value)) is not None:
                message = f"the option {name!r} of the optimizer's group {place} is {why}, which lading does not save"
                problems.append(problem_of(message, remedy="Set it to a number, a text, None or a tuple of them."))
    tensors: dict[str, torch.Tensor] = {}
    parameters: dict[str, Saved] = {}
    for name, states in held.states().items():
        saved = Saved(held.shapes[name], {}, {})
        for state, value in states.items():
            if _is_value(state, value, held.shapes[name]):
                if (why := _unfit(state, value)) is not None or isinstance(value, str):
                    message = f"the optimizer's {state!r} of it is {why or 'a text'}, which lading does not save"
                    problems.append(problem_of(message, name, _PLAIN))
                else:
                    saved.values[str(state)] = value
                continue
            key = key_of(name, state)
            if (refused := _refused(held, name, state, value)) or key in tensors:
                refused = refused or f"the optimizer's {state!r} of it has the key of another tensor"
                problems.append(problem_of(refused, name, _PLAIN))
                continue
            tensors[key] = value
            saved.tensors[state] = (dtype_name(value.dtype), _shape_of(value))
        parameters[name] = saved
    if problems:
        raise refusal_of(problems)
    return State(Document(held.kind, held.groups, parameters), tensors)


def completed(held: Held, state: State, texts: Sequence[str]) -> State:
    """With the parameters of which only other ranks have state: their documents are `texts`. LadingError if two ranks
    differ about a parameter that both have."""
    whole: dict[str, Saved] = {}
    documents = [parsed(text) for text in dict.fromkeys(texts)]
    for name, saved in ((name, one) for document in documents for name, one in document.parameters.items()):
        if whole.setdefault(name, saved) != saved:
            message = "the ranks have other steps, or other state, of it"
            raise refusal_of(problem_of(message, name, "Let all ranks step together, and save then."))
    parameters = {name: whole[name] for name in sorted(whole)}
    tensors = dict(state.tensors)
    for name, saved in parameters.items():
        for kind, (dtype, shape) in saved.tensors.items():
            if key_of(name, kind) not in tensors:
                tensors[key_of(name, kind)] = held.blank(name, kind, shape, torch_dtype(dtype))
    return State(Document(state.document.kind, state.document.groups, parameters), tensors)


def _shape_of(value: Any) -> tuple[int, ...]:
    """The whole one."""
    return tuple(getattr(value, "ds_shape", value.shape))


def _is_value(state: str, value: Any, shape: tuple[int, ...]) -> bool:
    """Whether it goes to the document: numbers and the like, and plain tensors without dims, but for those of a parameter
    that has none either, which are like it."""
    if not isinstance(value, torch.Tensor):
        return True
    return is_scalar(value) and (bool(shape) or state == _STEP)


def _unfit(name: Any, value: Any) -> str | None:
    try:
        encoded(value)
    except (ValueError, SkeletonError) as error:
        return str(error)
    return None if isinstance(name, str) else f"under a name of type {type(name).__name__}"


def _refused(held: Held, name: str, state: str, value: torch.Tensor) -> str:
    """Why this tensor cannot be placed; "" if it can."""
    try:
        dtype_name(value.dtype)
    except SkeletonError as error:
        return f"the optimizer's {state!r} of it cannot be saved: {error.reason}"
    if held.is_cut(name) and not is_sharded(value):
        return f"the optimizer's {state!r} of it is a tensor of this rank alone, and nothing says how it is shared out"
    return ""


# ---- a load


@dataclasses.dataclass
class BlankState:
    """What a document says, as memory that a load fills. `tensors` by key of the files."""

    held: Held
    document: Document
    options: list[dict[str, Any]]
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, held: Held, document: Document) -> BlankState:
        """LadingError with everything in which the optimizer is not the one that was saved."""
        if problems := [*_differences(held, document)]:
            raise refusal_of(problems)
        kept = {name: saved.values for name, saved in document.parameters.items()}
        held.refuse_uneven(kept, {name: set(saved.tensors) for name, saved in document.parameters.items()})
        options = [_options(_saved_group(group, document)) for group in held.groups]
        tensors = {}
        for name, saved in document.parameters.items():
            for state, (dtype, shape) in saved.tensors.items():
                tensors[key_of(name, state)] = held.blank(name, state, shape, torch_dtype(dtype))
        return cls(held, document, options, tensors)

    def attach(self) -> None:
        states = {
            name: one.values | {state: self.tensors[key_of(name, state)] for state in one.tensors}
            for name, one in self.document.parameters.items()
        }
        self.held.attach(states, self.options)


def _options(saved: Group) -> dict[str, Any]:
    return {name: value for name, value in saved.options.items() if name not in _IMPLEMENTATION}


def _saved_group(group: Group, document: Document) -> Group:
    return next(one for one in document.groups if set(one.parameters) == set(group.parameters))


def _differences(held: Held, document: Document) -> Iterable[Problem]:
    if held.kind != document.kind:
        message = "the saved state is that of an optimizer of another class"
        remedy = f"Make a {document.kind}, or omit optimizer=."
        yield problem_of(message, remedy=remedy, expected=held.kind, found=document.kind)
    saved = {name for group in document.groups for name in group.parameters}
    own = {name for group in held.groups for name in group.parameters}
    remedy = "Give the optimizer the parameters that it had when it was saved."
    for name in sorted(own - saved):
        yield problem_of("the optimizer has this parameter, and the saved one had not", name, remedy)
    for name in sorted(saved - own):
        yield problem_of("the saved optimizer had this parameter, and the optimizer has not", name, remedy)
    if own == saved:
        moved = _moved(held.groups, document.groups)
        if moved or len(held.groups) != len(document.groups):
            message = "the groups of the optimizer's parameters are not those that were saved"
            found = f"{len(document.groups)} groups, in which {len(moved)} parameters have other companions"
            expected = f"{len(held.groups)} groups"
            remedy = "Make the groups that the optimizer had when it was saved."
            yield problem_of(message, moved[0] if moved else None, remedy, expected=expected, found=found)
    for name, one in document.parameters.items():
        if name in held.shapes and held.shapes[name] != one.shape:
            expected, found = str(list(held.shapes[name])), str(list(one.shape))
            message = "the parameter had another shape when the optimizer was saved"
            yield problem_of(message, name, "Build the model that was saved.", expected=expected, found=found)


def _moved(own: Sequence[Group], saved: Sequence[Group]) -> list[str]:
    """Parameters whose companions are others."""
    theirs = {name: set(group.parameters) for group in saved for name in group.parameters}
    return sorted(name for group in own for name in group.parameters if theirs[name] != set(group.parameters))
