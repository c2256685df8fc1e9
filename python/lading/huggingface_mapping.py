"""transformers' table of conversions, of which only the rows that a model needs are made.

    transforms = model_conversions(model)      # what transformers' get_model_conversion_mapping answers

transformers makes the whole table at its first use: a thousand regular expressions for all of its models, 50 ms, of
which a model reads a handful. Here its own function makes the table, and its own function reads it; only the names of
the classes that rows are made of mean something else meanwhile: they note their arguments, and the row is made when
somebody looks at it. Nothing of transformers is changed. Where a version has no such functions, or the table is made
already, or users have added to it, its own way is taken.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable
from typing import Any


class _Deferred:
    """A row that is made, once, when it is looked at."""

    __slots__ = ("_args", "_cls", "_kwargs", "_made")

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        self._cls, self._args, self._kwargs, self._made = cls, args, kwargs, None

    def made(self) -> Any:
        if self._made is None:
            self._made = self._cls(*self._args, **self._kwargs)
        return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)


def model_conversions(model: Any) -> list[Any]:
    """The conversions of a model of transformers, by transformers' rules."""
    from transformers import conversion_mapping

    is_unmade = getattr(conversion_mapping, "_checkpoint_conversion_mapping_cache", ()) is None
    find = _finder() if is_unmade else None
    return (find or conversion_mapping.get_model_conversion_mapping)(model)


def prepare() -> None:
    """Makes the table of deferred rows now, if transformers is there, so that the first load need not."""
    if "transformers.conversion_mapping" in sys.modules:
        _finder()


@functools.cache
def _finder() -> Callable[..., list[Any]] | None:
    """`get_model_conversion_mapping` over a table of deferred rows. None where that cannot be had."""
    from transformers import conversion_mapping, core_model_loading

    names = vars(conversion_mapping)
    try:
        row = core_model_loading.WeightTransform
        classes = {name: one for name, one in names.items() if isinstance(one, type) and issubclass(one, row)}
        deferring = {name: functools.partial(_Deferred, one) for name, one in classes.items()}
        build = _with_names(names["_build_checkpoint_conversion_mapping"], names, deferring)
        table = build()
        if not all(isinstance(rows, list) for rows in table.values()):
            return None
    except Exception:  # whatever a table of another kind runs into: transformers then makes its own
        return None

    def rows_of(identifier: str) -> list[Any] | None:
        rows = table.get(identifier)
        return None if rows is None else copy.deepcopy([_made(one) for one in rows])

    changed = {"get_checkpoint_conversion_mapping": rows_of}
    return _with_names(names["get_model_conversion_mapping"], names, changed)


def _made(row: Any) -> Any:
    return row.made() if isinstance(row, _Deferred) else row


def _with_names(function: Any, names: dict[str, Any], changed: dict[str, Any]) -> Any:
    """The same function, to which some global names mean something else."""
    other = types.FunctionType(function.__code__, {**names, **changed}, function.__name__, function.__defaults__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other
