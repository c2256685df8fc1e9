"""A model's own initialisers, as a source of values that no file has: `_init_weights` of transformers, and
`reset_parameters`, `reset_buffers` and `init_weights` of modules.

An initialiser never runs on the model itself. It gets a stand-in of the module (stand_ins.py), in which every parameter
is on meta and only the tensors that are asked for are real; they are filled with two patterns in turn, and what comes
out different was not written. Random numbers that it draws are not the process's (own_numbers.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .bits import same_bits
from .fsdp1 import FlatMember, flat_members
from .inventory import ATTRIBUTE, Entry, canonical_modules
from .own_numbers import OnCpu, own_random_numbers
from .placements import is_dtensor
from .stand_ins import Copier

_PATTERNS = (0xA5, 0x3C)


@dataclasses.dataclass
class Initialised:
    """By name: the values, on the CPU; and for a tensor that got none what its initialisers raised, if they did."""

    values: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    failures: dict[str, Exception] = dataclasses.field(default_factory=dict)


def initialised_values(parts: Sequence[nn.Module], wanted: Sequence[Entry]) -> Initialised:
    """What the model's own initialisers write to these tensors, as far as they do."""
    found = Initialised()
    for part in parts:
        chains = _chains(part, {id(entry.module) for entry in wanted})
        flat = flat_members(canonical_modules(part))
        for entry in wanted:
            if entry.name not in found.values and id(entry.module) in chains:
                failures: list[Exception] = []
                found.values |= _from_chain(chains[id(entry.module)], entry, wanted, flat, failures)
                if failures and entry.name not in found.values:
                    found.failures[entry.name] = failures[0]
    return found


def _chains(root: nn.Module, wanted: set[int]) -> dict[int, list[nn.Module]]:
    """The wanted modules, by id, each with those above it, nearest first, itself included."""
    found: dict[int, list[nn.Module]] = {}
    names: dict[str, nn.Module] = {}
    for name, module in canonical_modules(root):
        names[name] = module
        if id(module) in wanted and id(module) not in found:
            chain = [module]
            while name:
                name = name.rpartition(".")[0]
                chain += [one for one in (names.get(name),) if one is not None and one is not chain[-1]]
            found[id(module)] = chain
    return found


def _from_chain(
    chain: list[nn.Module],
    entry: Entry,
    wanted: Sequence[Entry],
    flat: dict[tuple[int, str], FlatMember],
    failures: list[Exception],
) -> dict[str, torch.Tensor]:
    """The tensor's own module first, then those above it: some initialise their children's buffers."""
    for module in chain:
        for run in _initialisers(module, chain):
            try:
                found = _run_twice(module, run, wanted, flat)
            except Exception as error:  # it needs more than these tensors; told if nothing else has the value
                failures.append(error)
                continue
            if entry.name in found:
                return found
    return {}


def _initialisers(module: nn.Module, chain: list[nn.Module]) -> Iterator[Callable[[nn.Module], Any]]:
    place = next(index for index, one in enumerate(chain) if one is module)
    for owner in chain[place:]:
        if callable(getattr(owner, "_init_weights", None)):
            yield owner._init_weights
            break
    for name in ("reset_parameters", "reset_buffers"):
        if callable(getattr(module, name, None)):
            yield lambda clone, name=name: getattr(clone, name)()
    if callable(getattr(module, "init_weights", None)) and not hasattr(module, "_init_weights"):
        yield lambda clone: clone.init_weights(buffer_device=torch.device("cpu"))
        yield lambda clone: clone.init_weights()


def _run_twice(
    module: nn.Module,
    run: Callable[[nn.Module], Any],
    wanted: Sequence[Entry],
    flat: dict[tuple[int, str], FlatMember],
) -> dict[str, torch.Tensor]:
    runs = []
    for pattern in _PATTERNS:  # also another seed each: random values are nobody's to guess
        stand_in = _StandIn(wanted, pattern, flat)
        clone = stand_in.of(module)
        with own_random_numbers(seed=pattern), torch.no_grad(), OnCpu():
            run(clone)
        runs.append(stand_in.values())
    first, second = runs
    return {name: value for name, value in first.items() if name in second and same_bits(value, second[name])}


class _StandIn:
    """Modules like the given ones, that share nothing with them which an initialiser could write to."""

    def __init__(self, wanted: Sequence[Entry], pattern: int, flat: dict[tuple[int, str], FlatMember]) -> None:
        self._pattern = pattern
        self._flat: dict[int, dict[str, FlatMember]] = {}  # parameters that FSDP1 has taken away
        for (owner, name), member in flat.items():
            self._flat.setdefault(owner, {})[name] = member
        self._wanted: dict[int, dict[str, Entry]] = {}
        for entry in wanted:
            self._wanted.setdefault(id(entry.module), {})[entry.attribute] = entry
        self._made: dict[int, nn.Module] = {}
        self._fields = Copier(self.of, self._tensor)
        self._places: list[tuple[str, nn.Module, str]] = []

    def of(self, module: nn.Module) -> nn.Module:
        if id(module) in self._made:
            return self._made[id(module)]
        clone = self._made[id(module)] = object.__new__(type(module))
        flat = self._flat.get(id(module), {})
        tables: dict[str, Any] = {"_parameters": module._parameters | flat}
        tables |= {"_buffers": module._buffers, "_modules": module._modules}
        fields = {name: self._fields.of(dict(table)) for name, table in tables.items()}
        fields |= {
            name: self._fields.of(value)
            for name, value in module.__dict__.items()
            if name not in tables and name not in flat
        }
        fields.pop("_is_hf_initialized", None)
        clone.__dict__.update(fields)
        for attribute, entry in self._wanted.get(id(module), {}).items():
            blank = self._blank(entry)
            if entry.kind == ATTRIBUTE:
                if "[" in attribute:
                    continue
                clone.__dict__[attribute] = blank
            else:
                fields["_buffers"][attribute] = blank
            self._places.append((entry.name, clone, attribute))
        return clone

    def values(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, clone, attribute in self._places:
            value = getattr(clone, attribute, None)
            if isinstance(value, torch.Tensor) and not value.is_meta:
                found[name] = value.detach()
        return found

    def _blank(self, entry: Entry) -> torch.Tensor:
        blank = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        blank.view(-1).view(torch.uint8).fill_(self._pattern)
        return blank

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        return self._parameter(value) if isinstance(value, (nn.Parameter, FlatMember)) else self._buffer(value)

    @staticmethod
    def _parameter(value: torch.Tensor) -> nn.Parameter:
        fresh = nn.Parameter(
            torch.empty(tuple(value.shape), dtype=value.dtype, device="meta"), requires_grad=value.requires_grad
        )
        fresh._is_hf_initialized = True  # type: ignore[attr-defined]
        return fresh

    @staticmethod
    def _buffer(value: torch.Tensor) -> torch.Tensor:
        if value.is_meta or is_dtensor(value):
            return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
        return value.detach().cpu().clone()
