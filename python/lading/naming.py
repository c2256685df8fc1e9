"""The user's own word on names: which tensor of the model a key of the checkpoint is.

    lading.materialize(model, path, mapping={"transformer.h.*": "blocks.*", "wte.weight": "embed.weight"})
    lading.materialize(model, path, key_mapping={r"^transformer\\.h\\.": "blocks."})      # as transformers has it
    lading.materialize(model, path, mapping=document)                                     # docs/schema/mapping.md

Names are changed before anybody else looks at them: what transformers or PEFT knows about a checkpoint is asked with
the new names, and the rules that come out speak of the checkpoint's own keys again. The engine then checks all of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .conversion import Catalog, Conversion, braced, ignored_key, unbraced
from .errors import LadingError, Problem

_SHOWN = 3
_ONE_NAME = "Give each key one name of its own, or None to ignore it."


@dataclasses.dataclass
class Naming:
    """`mapping` and `key_mapping`, checked. Not more than one of the three is there."""

    wildcards: dict[str, str | None] = dataclasses.field(default_factory=dict)
    expressions: dict[str, str] = dataclasses.field(default_factory=dict)
    document: dict[str, Any] | None = None

    @classmethod
    def of(cls, mapping: Any, key_mapping: Mapping[str, str] | None) -> Naming | None:
        """None if there is neither. Or TypeError or ValueError."""
        if mapping is not None and key_mapping is not None:
            raise ValueError("mapping and key_mapping both rename keys; pass only one of them")
        if key_mapping is not None:
            return cls(expressions=_checked_expressions(key_mapping))
        if mapping is None:
            return None
        if isinstance(mapping, str | os.PathLike):
            mapping = json.loads(Path(mapping).read_text())
        if not isinstance(mapping, Mapping):
            raise TypeError(f"mapping should be a dict, or the path of a document, but is a {type(mapping).__name__}")
        if "schema" in mapping and "rules" in mapping:
            return cls(document=dict(mapping))
        return cls(wildcards=_checked_wildcards(mapping))

    def read(self, checkpoint: str, tensors: Iterable[str] | None = None) -> Named:
        """The new names of the checkpoint's keys, of which only headers are read. `tensors`: as for `Catalog.of`."""
        catalog = Catalog.of(checkpoint, tensors)
        keys = list(catalog.shapes)
        names, problems = self._names(keys) if self.document is None else ({key: key for key in keys}, [])
        owners: dict[str, list[str]] = {}
        for key, name in names.items():
            if name is not None:
                owners.setdefault(name, []).append(key)
        for name, own in owners.items():
            if len(own) > 1:
                listed = ", ".join(map(repr, own[:_SHOWN]))
                text = f"{len(own)} keys would get this name: {listed}"
                problems.append(Problem("mapping", text, tensor=name, remedy=_ONE_NAME))
        if problems:
            raise LadingError(problems, stage="documents", exit_code=4)
        return Named(names, catalog, self.document)

    def _names(self, keys: list[str]) -> tuple[dict[str, str | None], list[Problem]]:
        if self.expressions:
            return {key: _substituted(key, self.expressions) for key in keys}, []
        exact = {pattern: name for pattern, name in self.wildcards.items() if "*" not in pattern}
        patterns = [(pattern, _compiled(pattern), name) for pattern, name in self.wildcards.items() if "*" in pattern]
        names: dict[str, str | None] = {}
        used: set[str] = set()
        problems: list[Problem] = []
        for key in keys:
            if key in exact:
                names[key] = exact[key]
                used.add(key)
                continue
            found = {pattern: _filled(name, match) for pattern, compiled, name in patterns
                     if (match := compiled.fullmatch(key))}  # fmt: skip
            used |= set(found)
            if None in found.values():  # a key that is passed over is named by no other pattern
                names[key] = None
                continue
            if len(set(found.values())) > 1:
                said = ", ".join(f"{pattern!r} says {name!r}" for pattern, name in found.items())
                text = f"mapping gives the key {key!r} several names: {said}"
                problems.append(Problem("mapping", text, remedy=_ONE_NAME))
            names[key] = next(iter(found.values()), key)
        for pattern in self.wildcards.keys() - used:
            remedy = f"The checkpoint has keys such as {', '.join(map(repr, sorted(keys)[:_SHOWN]))}."
            problems.append(Problem("mapping", f"mapping: {pattern!r} matches no key of the checkpoint", remedy=remedy))
        return names, problems


@dataclasses.dataclass
class Named:
    """A checkpoint whose keys have other names. `names`: None is a key that is ignored."""

    names: dict[str, str | None]
    own: Catalog
    document: dict[str, Any] | None

    @property
    def catalog(self) -> Catalog:
        """The same by the new names."""
        shapes = {name: self.own.shapes[key] for key, name in self.names.items() if name is not None}
        return Catalog(shapes, self.own.folder)

    def applied(self, conversion: Conversion) -> Conversion:
        """The conversion, which speaks of new names, in the checkpoint's own keys."""
        if self.document is not None:  # it says everything about names
            conversion.mapping, conversion.ignore, conversion.with_key = dict(self.document), [], set()
            conversion.other_parts = []
            return conversion
        keys = {name: key for key, name in self.names.items() if name is not None}
        read: set[str] = set()

        def own(name: str) -> str:
            read.add(name)
            return keys.get(name, name)

        rules = [_with_keys(rule, own) for rule in (conversion.mapping or {}).get("rules", [])]
        conversion.ignore = [_with_keys(rule, own) for rule in conversion.ignore]
        conversion.other_parts = [own(name) for name in conversion.other_parts]
        for key, name in self.names.items():
            if name is None:
                rules.append(ignored_key("mapping", key))
            elif name != key and name not in read:
                rules.append({"id": f"mapping:{key}", "kind": "rename", "from": key, "to": name})
        conversion.mapping = {"schema": "lading.mapping/1", "rules": rules} if rules else None
        return conversion


def _with_keys(rule: dict[str, Any], own: Callable[[str], str]) -> dict[str, Any]:
    if rule["kind"] == "build":
        return rule | {"expression": _expression(rule["expression"], own)}
    return rule | {"from": own(rule["from"])}


def _expression(expression: Any, own: Callable[[str], str]) -> Any:
    if isinstance(expression, str):
        return braced(own(unbraced(expression)))
    if isinstance(expression, list):
        return [_expression(part, own) for part in expression]
    inner = {"of", "parts"}
    return {
        operation: {name: _expression(value, own) if name in inner else value for name, value in members.items()}
        for operation, members in expression.items()
    }


# ---- patterns


def _checked_wildcards(mapping: Mapping[Any, Any]) -> dict[str, str | None]:
    for pattern, name in mapping.items():
        if not isinstance(pattern, str) or not (name is None or isinstance(name, str)):
            said = "keys and names are strings, or None to ignore a key"
            raise TypeError(f"mapping has {pattern!r}: {name!r}; {said}")
        if name is not None and pattern.count("*") != name.count("*"):
            raise ValueError(f"mapping has {pattern!r}: {name!r}; both should have the same number of *")
    return dict(mapping)


def _checked_expressions(key_mapping: Any) -> dict[str, str]:
    if not isinstance(key_mapping, Mapping):
        raise TypeError(f"key_mapping should be a dict of regular expressions, but is a {type(key_mapping).__name__}")
    for pattern in key_mapping:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"key_mapping: {pattern!r} is not a regular expression: {error}") from error
    return dict(key_mapping)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*)".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def _filled(name: str | None, match: re.Match[str]) -> str | None:
    """The first `*` of the name is what the first `*` of the pattern stood for, and so on."""
    if name is None:
        return None
    parts = name.split("*")
    return parts[0] + "".join(part + rest for part, rest in zip(match.groups(), parts[1:], strict=True))


def _substituted(key: str, expressions: Mapping[str, str]) -> str:
    for pattern, replacement in expressions.items():
        key = re.sub(pattern, replacement, key)
    return key
