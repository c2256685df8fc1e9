"""Values that no file has and the engine cannot make: supplied by the user, recorded, or made by the model's own
initialiser.

For a tensor that needs one, in this order: `external` (the user's word), the user's recipe, what `lading.skeleton()`
recorded, and for a model that came on meta from elsewhere its own initialiser: transformers' `_init_weights`, or
`reset_parameters` and `init_weights` of the module (initialisers.py). Random numbers that a recipe draws are not the
process's (own_numbers.py).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .agreement import Agreement
from .computed import Computed
from .gathering import whole_values
from .handed_in import Offer, is_plain
from .initialisers import Initialised, initialised_values
from .inventory import ATTRIBUTE, NON_PERSISTENT, Entry, take_inventory
from .inventory_json import dtype_name
from .own_numbers import OnCpu, own_random_numbers
from .patterns import Pattern, matches
from .placements import is_dtensor
from .twin_values import twin_values

Recipe = Callable[[nn.Module, str], torch.Tensor] | Computed


class HostValues:
    """Which entries have such a value, and the values. Only initialisers run before they are asked for."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        entries: Sequence[Entry],
        *,
        external: Mapping[Pattern, Any] | None = None,
        recipes: Mapping[str, Recipe] | None = None,
        seed: int = 0,
    ) -> None:
        self._entries = {entry.name: entry for entry in entries if entry.is_tensor}
        self._external = dict(external or {})
        self._recipes = dict(recipes or {})
        self._seed = seed
        self._others: dict[int, dict[str, Entry]] = {}
        self._gathered: dict[str, torch.Tensor] = {}
        self.gathering_bytes = 0  # that torch took beside the gathered values: one of them once more
        self._settled: dict[str, torch.Tensor | Exception] = {}
        self._whole: Callable[[str, str], torch.Tensor] = _no_input
        self._computed: tuple[str, torch.Tensor | None] = ("", None)
        wanted = [entry for entry in entries if self._needs_initialiser(entry)]
        initialised = initialised_values(parts, wanted) if wanted else Initialised()
        self._initialised = initialised.values
        if unknown := [entry for entry in wanted if entry.name not in self._initialised]:
            self._initialised |= twin_values(parts, entries, unknown)
        self.failures = initialised.failures  # of initialisers, by the name of what then has no value

    def documents(self, tensors: list[dict[str, Any]]) -> None:
        """Says in the skeleton's tensors that a value will be supplied: what is derived, and the user's recipes."""
        for tensor in tensors:
            name, kind = tensor["name"], tensor["kind"]
            own = self._recipe(name)
            if own is None and name not in self._initialised:
                continue
            tensor.pop("derivation", None)
            recipe: dict[str, Any] = {"kind": "host"}
            if isinstance(own, Computed):
                recipe = {"kind": "call", "inputs": list(own.inputs)}
            elif name in self._initialised and tensor.get("presence", "meta") != "meta":
                tensor["declared_dtype"] = dtype_name(self._initialised[name].dtype)
            tensor["derivation" if kind in (NON_PERSISTENT, ATTRIBUTE) else "init"] = recipe

    def value(self, names: Sequence[str]) -> torch.Tensor:
        """The whole value of a tensor that has these names, on the CPU and contiguous."""
        settled = self._settled.get(names[0])
        if isinstance(settled, Exception):
            raise settled
        return settled if settled is not None else self._found(names)

    def _found(self, names: Sequence[str]) -> torch.Tensor:
        computed = next((own for name in names if isinstance(own := self._recipe(name), Computed)), None)
        if computed is not None and all(self._from_external(name) is None for name in names):
            return self._from_inputs(names[0], computed)
        for find in (self._from_external, self._from_recipe, self._from_initialiser, self._from_record):
            for name in names:
                found = find(name)
                if found is not None:
                    return self._checked(name, found)
        raise ValueError(f"no source has a value for {names[0]}")

    def offered(self, names: Sequence[str]) -> Offer:
        """What `value` will give, as far as it is known before anything is made."""
        settled = self._settled.get(names[0])
        if isinstance(settled, Exception):
            raise settled
        if settled is not None:
            return Offer(settled, is_ours=True)
        for name in names:
            if (given := self._from_external(name)) is not None:
                return Offer(self._fitting(name, given), is_ours=name in self._gathered)
        for name in names:
            if self._recipe(name) is not None:
                return Offer(_outline(self._entries[name].shape, self._entries[name].dtype))
        for name in names:
            if (value := self._from_initialiser(name)) is not None:
                return Offer(self._fitting(name, value), is_ours=True)
        for name in names:
            if name in self._entries and (recorded := self._entries[name].recorded) is not None:
                return Offer(_outline(self._entries[name].shape, recorded.dtype))
        raise ValueError(f"no source has a value for {names[0]}")

    def input_bytes(self, names: Sequence[str]) -> int:
        """Of the copies that the function of a `Computed` is given."""
        own = next((one for name in names if isinstance(one := self._recipe(name), Computed)), None)
        inputs = [self._entries[name] for name in own.inputs] if own is not None else []
        return sum(math.prod(one.shape) * one.dtype.itemsize for one in inputs)

    def release(self, names: Sequence[str]) -> None:
        """Lets go of a value that the engine has."""
        for name in names:
            for held in (self._settled, self._gathered, self._initialised):
                held.pop(name, None)

    def hand_in(self, values: Mapping[str, torch.Tensor]) -> None:
        """Further values, of tensors that have other ones."""
        self._initialised = {**self._initialised, **values}

    def has_recipe(self, name: str) -> bool:
        """Whether the user said how to make it."""
        return self._recipe(name) is not None

    def recipe_value(self, name: str) -> torch.Tensor | None:
        """What the user's recipe makes, if it needs no other tensors."""
        return None if isinstance(self._recipe(name), Computed) else self._from_recipe(name)

    def lend(self, whole: Callable[[str, str], torch.Tensor]) -> None:
        """What `Computed` values are computed from: a copy of a tensor of this load, for the value of a name."""
        self._whole = whole

    def gather(self, ranks: Agreement) -> None:
        """Puts together external values that are sharded: a collective of their ranks, which all ranks of the load
        agree to go into. It is before the load, where all come by, whichever values they need."""
        if not self._external:  # its patterns are the same on all ranks
            return
        values = {name: self._from_external(name) for name in self._entries}
        for name, found in whole_values({name: value for name, value in values.items() if is_dtensor(value)}, ranks):
            self._gathered[name] = found
            is_on_host = found.device.type == "cpu"
            self.gathering_bytes = max(self.gathering_bytes, found.nbytes if is_on_host else 0)

    def settle(self, asked: Iterable[Sequence[str]], written: Iterable[torch.Tensor]) -> None:
        """Takes what depends on memory that the load will write, before its first byte is written.

        `asked` are the names of each tensor that the engine will ask a value of. A value that lies in such memory is
        copied. Recipes may look at the model, and run now. What fails is raised when the engine asks.
        """
        spans = _Spans(written)
        if not spans:
            return
        for names in asked:
            try:
                given = next((value for name in names if (value := self._from_external(name)) is not None), None)
                if given is None and all(self._recipe(name) is None for name in names):
                    continue
                if given is None or spans.touch(given):
                    value = self._found(names)
                    self._settled[names[0]] = value.clone() if spans.touch(value) else value
            except Exception as error:
                self._settled[names[0]] = error

    def _needs_initialiser(self, entry: Entry) -> bool:
        if (
            entry.kind not in (NON_PERSISTENT, ATTRIBUTE)
            or not entry.is_tensor
            or not entry.is_meta
            or entry.view_of is not None
        ):
            return False
        return entry.recipe() is None and self._recipe(entry.name) is None

    def _recipe(self, name: str) -> Recipe | None:
        return next((function for pattern, function in self._recipes.items() if matches(pattern, name)), None)

    def _from_external(self, name: str) -> torch.Tensor | None:
        if name in self._gathered:
            return self._gathered[name]
        source = next((source for pattern, source in self._external.items() if matches(pattern, name)), None)
        if isinstance(source, nn.Module):
            known = self._others.setdefault(id(source), {entry.name: entry for entry in take_inventory(source)})
            if name not in known:
                raise ValueError(f"external= gives {name} another model, which has no tensor of that name")
            source = known[name].value
        return source

    def _from_recipe(self, name: str) -> torch.Tensor | None:
        function = self._recipe(name)
        if function is None or isinstance(function, Computed):
            return None
        entry = self._entries[name]
        with own_random_numbers(), torch.no_grad(), OnCpu():
            return function(entry.module, entry.attribute)

    def _from_inputs(self, name: str, function: Computed) -> torch.Tensor:
        """Once: of a value with several memories the engine asks for each of them, one after the other."""
        known, value = self._computed
        if known != name or value is None:
            value = self._checked(name, function.value(lambda needed: self._whole(name, needed)))
            if value.untyped_storage().nbytes() > value.numel() * value.element_size():
                value = value.clone()  # a part of an input would keep all of it
            self._computed = (name, value)
        return value

    def _from_initialiser(self, name: str) -> torch.Tensor | None:
        return self._initialised.get(name)

    def _from_record(self, name: str) -> torch.Tensor | None:
        entry = self._entries.get(name)
        return entry.derive(self._seed) if entry is not None and entry.recorded is not None else None

    def _checked(self, name: str, value: Any) -> torch.Tensor:
        value = self._fitting(name, value)
        # One copy at most: `resolve_conj().cpu().contiguous()` may make three.
        return value if is_plain(value) else torch.empty(value.shape, dtype=value.dtype, device="cpu").copy_(value)

    def _fitting(self, name: str, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"the value of {name} is a {type(value).__name__}, but should be a tensor")
        value = value.detach()
        if value.is_meta:
            raise ValueError(f"the value that was passed for {name} is on meta")
        if tuple(value.shape) != tuple(self._entries[name].shape):
            wanted = list(self._entries[name].shape)
            raise ValueError(f"the value of {name} has the shape {list(value.shape)}, but should have {wanted}")
        return value


def _outline(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _no_input(value: str, needed: str) -> torch.Tensor:
    raise ValueError(f"{value} is computed from {needed}, which is not loaded yet")


class _Spans:
    """Stretches of memory."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        sizes = ((one.data_ptr(), one.numel() * one.element_size()) for one in tensors)
        self._spans = sorted((begin, begin + size) for begin, size in sizes if size)
        self._begins = [begin for begin, _ in self._spans]

    def __bool__(self) -> bool:
        return bool(self._spans)

    def touch(self, tensor: torch.Tensor) -> bool:
        """Whether a byte of the tensor's storage lies in one. They do not overlap each other."""
        if tensor.is_meta or is_dtensor(tensor) or tensor.layout is not torch.strided:
            return False
        storage = tensor.untyped_storage()
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        place = bisect.bisect_left(self._begins, end)
        return place > 0 and self._spans[place - 1][1] > begin
