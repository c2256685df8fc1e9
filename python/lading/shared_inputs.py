"""Inputs of computed values (`lading.Computed`) of which every rank has a part only: put together for the function.

The ranks of an input's mesh gather it when the engine asks for the value, in the plan's order of values, which is the
same on all ranks. A rank that does not ask for a value takes part all the same. Before each gather all ranks of the
load say that they have come: if one has failed, none goes in, and all get its error.

Memory, on each rank: the whole inputs of one value at a time, on the input's device, and what gathering them takes.
They are dropped when the function has returned.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _engine
from .agreement import Agreement
from .errors import LadingError
from .gathering import put_together, watched
from .placements import Layout, layout_problem
from .preparing import Prepared


class SharedInputs:
    """For one load. `loaded` is the memory that it fills, by name."""

    def __init__(
        self, plan: _engine.Plan, prepared: Prepared, loaded: Mapping[str, torch.Tensor], ranks: Agreement
    ) -> None:
        self._ranks, self._loaded = ranks, loaded
        self._tensors = {entry.name: entry.value for entry in prepared.entries if entry.is_tensor}
        self._device = prepared.device
        self._tell: Callable[[int | None], None] = lambda done: None
        self._is_stopped: Callable[[], bool] = lambda: False
        self._shared = {name for name in _inputs(prepared.skeleton["tensors"]) if _is_shared(prepared.layout, name)}
        self._steps = collections.deque(_checked_steps(plan, prepared.layout, self._shared) if self._shared else ())

    def whole(self, value: str, needed: str) -> torch.Tensor:
        """A copy of an input, for the value of this name. The engine asks for values in the plan's order."""
        if needed not in self._shared:
            return self._loaded[needed].detach().clone()
        while self._steps:
            step = self._steps.popleft()
            if step == (value, needed):
                gathered = self._gather(*step)
                assert gathered is not None
                return gathered
            self._gather(*step)
        raise AssertionError(f"{value} was computed before, or is in no plan")

    @contextlib.contextmanager
    def during(self, tell: Callable[[int | None], None]) -> Iterator[None]:
        """The load. `tell` hears that this rank waits for others, which is not a stall. After it, this rank takes
        part in what the others still gather."""
        self._tell = tell
        yield
        while self._steps:
            self._gather(*self._steps.popleft())

    def stopped_by(self, is_stopped: Callable[[], bool]) -> None:
        """How to find out that the load was stopped while this rank waits."""
        self._is_stopped = is_stopped

    def _gather(self, value: str, needed: str) -> torch.Tensor | None:
        self._tell(None)
        self._ranks.is_stopped = self._is_stopped
        try:
            self._ranks.say(f"{needed}, which {value} is computed from", {}, while_alive=True)
            if needed not in self._loaded:
                return None
            like, local = self._tensors[needed], self._loaded[needed]
            return watched(self._ranks, lambda: put_together(like, local, self._device))
        finally:
            self._ranks.is_stopped = lambda: False


def _inputs(tensors: list[dict[str, Any]]) -> set[str]:
    recipes = [tensor[kind] for tensor in tensors for kind in ("derivation", "init") if kind in tensor]
    return set(itertools.chain.from_iterable(one["inputs"] for one in recipes if one["kind"] == "call"))


def _is_shared(layout: Layout, name: str) -> bool:
    cuts = layout.spots[name].cuts if name in layout.spots else ()
    return any(cut.dim is None or layout.axes.names_of(cut.spans) for cut in cuts)


def _checked_steps(plan: _engine.Plan, layout: Layout, shared: set[str]) -> list[tuple[str, str]]:
    """(value, input) of all ranks, in order; every rank finds the same. LadingError: what is not gathered here."""
    document = json.loads(plan.document())
    recipes = {one["name"]: one["recipe"] for one in document["tensors"] if one["provenance"] == "call"}
    steps = [(value, one) for value in document["call_order"] for one in recipes[value]["inputs"] if one in shared]
    text = "the tensor is computed from {}, which FSDP1 or ZeRO-3 flattened and sharded"
    remedy = "Leave the input whole, or let the function use a whole tensor of yours."
    problems = [
        layout_problem(value, text.format(needed), "R66", remedy)
        for value, needed in steps
        if any(cut.dim is None for cut in layout.spots[needed].cuts)
    ]
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    return steps
