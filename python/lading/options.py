"""What the user of `materialize` asked for, checked, and the policy document of it (docs/schema/policy.md)."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, get_args

import torch

from .computed import Computed
from .conversion import Conversion
from .dtypes import requested_dtype
from .naming import Naming
from .patterns import Name, Pattern, list_json
from .words import Arithmetic, Cast, ComputeRecord, ExchangeScope, Quantized, Ties

# What not every call asks about.
_UNASKED = {
    "keep": (), "external": None, "recipes": None, "ties": "keep", "seed": 0, "verify": False, "budget": None,
    "compute_record": "checkpoint", "pins": (), "subtree_dtypes": None,
}  # fmt: skip
_UNASKED |= {"mapping": None, "key_mapping": None}
_UNASKED |= {"adapter": None, "whole": None, "exchange": "never", "quantized": "dequantize"}
_UNASKED |= {"arithmetic": "exact", "in_place": False}
# Of the policy document: what must be the same on every rank. The budget may differ.
POLICY_FIELDS = (
    "dtype", "cast", "ties", "seed", "unexpected", "compute_dtype", "compute_record", "pins", "allow_missing",
    "not_expected", "allow_unexpected", "allow_mismatch", "may_untie", "keep", "external", "subtree_dtypes",
    "constructed_dtypes", "quantized", "arithmetic",
)  # fmt: skip
_WORDS = {
    "cast": Cast, "compute_record": ComputeRecord, "ties": Ties, "quantized": Quantized, "arithmetic": Arithmetic,
    "exchange": ExchangeScope,
}  # fmt: skip
_STRONG = "float16_and_bfloat16"
_VERIFY = ("auto", True, False, "full")


def _is_pin(pin: Any) -> bool:
    is_pair = isinstance(pin, tuple | list) and len(pin) == 2 and all(isinstance(part, str) for part in pin)
    return isinstance(pin, str) or is_pair


def _whole(name: str, value: Any) -> int:
    """Also of numpy's types, which JSON does not take. Whether it is in range is for the engine to say."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} should be a whole number, but is {value!r}")
    return operator.index(value)


@dataclasses.dataclass
class Options:
    """The arguments of `materialize`, checked one by one."""

    device: Any
    dtype: str
    cast: str
    compute_dtype: str | None
    compute_record: str
    pins: list[tuple[str, str]]
    subtree_dtypes: dict[str, str]
    strict: bool
    allow_missing: list[str]
    allow_unexpected: list[str]
    allow_mismatch: list[str]
    keep: list[str]
    external: dict[Pattern, Any]
    recipes: dict[str, Any]
    naming: Naming | None
    adapter: Any
    whole: Any
    ties: str
    quantized: str
    arithmetic: str
    seed: int
    verify: Any
    budget: int | None
    exchange: str
    in_place: bool  # every tensor is filled in the memory that it has, or the load is refused

    @classmethod
    def of(cls, **given: Any) -> Options:
        """As the user wrote them: patterns may be one string, dtypes have several names. Or ValueError."""
        given = _UNASKED | given
        checked = {"verify": _VERIFY} | {name: get_args(words) for name, words in _WORDS.items()}
        for name, words in checked.items():
            if given[name] not in words:
                raise ValueError(f"{name} is {given[name]!r}; it should be one of {', '.join(map(repr, words))}")
        for name in ("allow_missing", "allow_unexpected", "allow_mismatch", "keep"):
            value = given[name]
            given[name] = [value] if isinstance(value, str) else list(value)
        given["seed"] = _whole("seed", given["seed"])
        given["budget"] = None if given["budget"] is None else _whole("budget", given["budget"])
        given["dtype"] = requested_dtype(given["dtype"])
        given["compute_dtype"] = None if given["compute_dtype"] is None else requested_dtype(given["compute_dtype"])
        pins = [given["pins"]] if isinstance(given["pins"], str) else given["pins"]
        pins = pins if isinstance(pins, Mapping) else list(pins)
        if isinstance(pins, Mapping) or not all(map(_is_pin, pins)):
            raise TypeError(f"pins should be patterns, or pairs of a pattern and a strength, but are {pins!r}")
        given["pins"] = [(pin, _STRONG) if isinstance(pin, str) else (pin[0], pin[1]) for pin in pins]
        subtrees = given["subtree_dtypes"] or {}
        given["subtree_dtypes"] = {module: requested_dtype(dtype) for module, dtype in subtrees.items()}
        given["external"], given["recipes"] = dict(given["external"] or {}), dict(given["recipes"] or {})
        for pattern, source in given["external"].items():
            if not isinstance(source, torch.Tensor | torch.nn.Module):
                raise TypeError(
                    f"external[{pattern!r}] should be a tensor or a model, but is a {type(source).__name__}"
                )
        for pattern, recipe in given["recipes"].items():
            if not callable(recipe) and not isinstance(recipe, Computed):
                raise TypeError(f"the recipe of {pattern!r} should be a function of module and name, or Computed")
        given["naming"] = Naming.of(given.pop("mapping"), given.pop("key_mapping"))
        return cls(**given)

    def spoken_for(self) -> list[Pattern]:
        """Patterns of tensors whose value the user gives."""
        return [*self.keep, *self.external, *self.recipes]

    def policy(self, conversion: Conversion) -> dict[str, Any]:
        """docs/schema/policy.md"""
        document: dict[str, Any] = {
            "schema": "lading.policy/1",
            "dtype": self.dtype,
            "cast": self.cast,
            "ties": self.ties,
            "seed": self.seed,
        }
        document["unexpected"] = "strict" if self.strict else "report"
        optional = {
            "compute_dtype": self.compute_dtype,
            "compute_record": self.compute_record if self.compute_record != "checkpoint" else None,
            "pins": [{"pattern": pattern, "strength": strength} for pattern, strength in self.pins],
            "budget_bytes": self.budget,
            "allow_missing": self.allow_missing,
            "not_expected": [list_json(Name(name)) for name in conversion.not_expected],
            "allow_unexpected": self.allow_unexpected,
            "allow_mismatch": self.allow_mismatch,
            "may_untie": [list_json(Name(name)) for name in conversion.may_untie],
            "keep": self.keep,
            "external": list(map(list_json, self.external)),
            "subtree_dtypes": self.subtree_dtypes,
            "quantized": self.quantized if self.quantized != "dequantize" else None,
            "arithmetic": self.arithmetic if self.arithmetic != "exact" else None,
            # Nothing else looks at them, and they are many.
            "constructed_dtypes": conversion.constructed_dtypes if self.cast == "exact" else None,
        }
        return document | {name: value for name, value in optional.items() if value or value == 0}
