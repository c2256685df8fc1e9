"""`optimizer.json` of a saved optimizer: options of its groups, steps and other numbers, and which tensors the files
beside it hold. docs/schema/optimizer.md has the schema `lading.optimizer/1`.

    document = Document("AdamW", [Group(["w"], {"lr": 0.001})], {"w": Saved((4, 2), {"exp_avg": ("F32", (4, 2))}, {})})
    read_document(Path("out/optimizer")) == document        # once its to_json() was written there

Values are numbers, booleans, texts, None, tuples of them, and tensors without dims. Nothing else is written, and nothing
that is read is ever run.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .inventory_json import dtype_name

SCHEMA = "lading.optimizer/1"
FOLDER, FILE = "optimizer", "optimizer.json"
_MAX_BYTES = 1 << 30
_MAX_DEPTH = 8  # of tuples in an option
_DAMAGED = "Save the checkpoint again, or load without optimizer=."


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of parameters, by name, and its options: the learning rate, …"""

    parameters: list[str]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Saved:
    """What was kept of one parameter: its own shape, tensors (dtype and shape), which are in files, and numbers."""

    shape: tuple[int, ...]
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Document:
    """A whole optimizer. `kind` is the name of its class."""

    kind: str
    groups: list[Group]
    parameters: dict[str, Saved]

    def to_json(self) -> str:
        """ValueError does not happen: values were encoded before (`encoded`)."""
        groups = [{"parameters": one.parameters, "options": _encoded_all(one.options)} for one in self.groups]
        parameters = {
            name: {
                "shape": list(one.shape),
                "tensors": {key: {"dtype": dtype, "shape": list(shape)} for key, (dtype, shape) in one.tensors.items()},
                "values": _encoded_all(one.values),
            }
            for name, one in sorted(self.parameters.items())
        }
        whole = {"schema": SCHEMA, "class": self.kind, "groups": groups, "parameters": parameters}
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def keys(self) -> dict[str, tuple[str, str]]:
        """Of the files: the parameter and the name of the state, by key."""
        return {key_of(name, state): (name, state) for name, one in self.parameters.items() for state in one.tensors}


def key_of(parameter: str, state: str) -> str:
    """Of a state tensor in the files."""
    return f"{parameter}.{state}"


# ---- values


def _encoded_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encoded(value) for name, value in values.items()}


def encoded(value: Any, depth: int = 0) -> Any:
    """As JSON has it. ValueError for anything but a plain value."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) is tuple and depth < _MAX_DEPTH:
        return [encoded(one, depth + 1) for one in value]
    if is_scalar(value):
        return {"tensor": dtype_name(value.dtype), "value": encoded(value.item())}
    raise ValueError(f"a value of type {type(value).__name__}")


def is_scalar(value: Any) -> bool:
    """A plain tensor without dims, such as a step."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.dim() == 0 and not value.is_complex()


def decoded(value: Any) -> Any:
    """The value again. ValueError for what `encoded` does not make."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return tuple(decoded(one) for one in value)
    if isinstance(value, dict) and value.keys() == {"float"} and value["float"] in ("nan", "inf", "-inf"):
        return float(value["float"])
    if isinstance(value, dict) and value.keys() == {"tensor", "value"} and isinstance(value["tensor"], str):
        number = decoded(value["value"])
        if isinstance(number, bool | int | float):
            return _scalar(number, _known_dtype(value["tensor"]))
    raise ValueError("a value of no known form")


def _scalar(number: float, dtype: torch.dtype) -> torch.Tensor:
    try:
        made = torch.tensor(number, dtype=dtype)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{number!r} does not fit {dtype}") from error
    if made.item() != number and number == number:  # noqa: PLR0124 - not a NaN
        raise ValueError(f"{number!r} does not fit {dtype}")
    return made


def _known_dtype(name: Any) -> torch.dtype:
    try:
        return torch_dtype(name)
    except (KeyError, TypeError, ValueError, LadingError):
        raise ValueError(f"unknown dtype {str(name)[:40]!r}") from None


# ---- reading


def read_document(folder: Path) -> Document:
    """LadingError if there is none, or if no save has written it."""
    path = folder / FILE
    try:
        text = _text_of(path)
    except FileNotFoundError:
        message = "the checkpoint has no optimizer state"
        remedy = "Omit optimizer=, or load a checkpoint that lading.save(…, optimizer=…) wrote."
        raise _refused(path, message, remedy) from None
    except OSError as error:
        raise _refused(path, f"could not read the optimizer state: {error.strerror}") from error
    try:
        return parsed(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"the optimizer state is damaged: {error}") from error


def _refused(path: Path, message: str, remedy: str = _DAMAGED) -> LadingError:
    problem = Problem("optimizer_state", message, file=str(path), rule="R69", remedy=remedy)
    return LadingError(problem, stage="checkpoint", exit_code=3)


def _text_of(path: Path) -> str:
    """A regular file, and no pipe that would block. In the Hugging Face cache it is a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise _refused(path, f"the optimizer state should be a regular file of at most {_MAX_BYTES} bytes")
        try:
            return file.read(_MAX_BYTES + 1).decode()
        except UnicodeDecodeError:
            raise _refused(path, "the optimizer state is damaged: it is not UTF-8") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the member {twice[:80]!r} occurs twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def parsed(text: str) -> Document:
    """ValueError or RecursionError for what no save writes."""
    whole = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    fields = _object(whole, "the document", {"schema", "class", "groups", "parameters"})
    if fields["schema"] != SCHEMA:
        raise ValueError(f"the schema is {str(fields['schema'])[:80]!r}, not {SCHEMA!r}")
    kind = fields["class"]
    if not isinstance(kind, str) or not isinstance(fields["groups"], list):
        raise ValueError("class should be a text, and groups an array")
    groups = [_group(one, f"groups[{place}]") for place, one in enumerate(fields["groups"])]
    named = [name for group in groups for name in group.parameters]
    if len(named) != len(set(named)):
        raise ValueError("a parameter is in two groups")
    if not isinstance(fields["parameters"], dict):
        raise ValueError("parameters should be an object")
    parameters = {name: _saved(one, f"parameters[{name[:80]!r}]") for name, one in fields["parameters"].items()}
    if strange := sorted(set(parameters) - set(named)):
        raise ValueError(f"{strange[0][:80]!r} is in no group")
    document = Document(kind, groups, parameters)
    if len(document.keys()) != sum(len(one.tensors) for one in parameters.values()):
        raise ValueError("two tensors have one key")
    return document


def _object(value: Any, where: str, members: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != members:
        raise ValueError(f"{where} should be an object of {', '.join(sorted(members))}")
    return value


def _group(value: Any, where: str) -> Group:
    fields = _object(value, where, {"parameters", "options"})
    names = fields["parameters"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}.parameters should be an array of texts")
    options = _values(fields["options"], f"{where}.options")
    if taken := {"params", "param_names"} & options.keys():
        raise ValueError(f"{where}.options should not have {', '.join(sorted(taken))}")
    return Group(names, options)


def _saved(value: Any, where: str) -> Saved:
    fields = _object(value, where, {"shape", "tensors", "values"})
    if not isinstance(fields["tensors"], dict):
        raise ValueError(f"{where}.tensors should be an object")
    tensors = {}
    for name, one in fields["tensors"].items():
        inner = _object(one, f"{where}.tensors[{name[:80]!r}]", {"dtype", "shape"})
        _known_dtype(inner["dtype"])
        tensors[name] = (inner["dtype"], _shape(inner["shape"], where))
    values = _values(fields["values"], f"{where}.values")
    if both := tensors.keys() & values.keys():
        raise ValueError(f"{where} has {sorted(both)[0][:80]!r} as a tensor and as a value")
    return Saved(_shape(fields["shape"], where), tensors, values)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    is_shape = isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)
    if not is_shape or len(value) > 64:
        raise ValueError(f"{where} has a shape that is none")
    return tuple(value)


def _values(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} should be an object")
    try:
        return {name: decoded(one) for name, one in value.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
