"""The part of `lading.materialize` that is about an optimizer: its state from a directory that `lading.save` wrote.

    with_state(load, model, checkpoint, optimizer, …)       # `load` fills the model

In this order: what the optimizer holds is compared with what was saved, on all ranks; new memory is filled with the
state tensors, a load of its own, planned and proved as one of a model; then the model is loaded; and only then does the
optimizer get the new memory. What fails before that leaves the optimizer as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _engine
from .agreement import Agreement, agreed
from .devices import rank_device
from .errors import LadingError
from .inventory import parts_of, take_inventory
from .locating import Location, located
from .optimizer_document import FOLDER, read_document
from .optimizer_state import BlankState, optimizer_of, problem_of, refusal_of
from .placements import read_placements
from .preparing import resharded
from .report import Report
from .state_dicts import StateDict
from .words import Adapter


def with_state(
    load: Callable[[], Report],
    load_tensors: Callable[[StateDict, Path], Report],
    model: nn.Module | Sequence[nn.Module],
    checkpoint: Location,
    adapter: Adapter | None,
    optimizer: Any,
    asked: dict[str, Any],
) -> Report:
    """The report of `load`, with that of the state. `asked`: device, group and timeout of the call."""
    group, timeout = asked["group"], asked["timeout"]
    with Agreement.of(group, timeout) as ranks, agreed(ranks, "the optimizer") as step:
        folder = _folder_of(checkpoint, adapter)
        document = read_document(folder)
        parts = parts_of(model)
        modules = resharded(parts)
        entries = take_inventory(parts)
        device = rank_device(asked["device"], read_placements(entries, ranks.ranks, modules), entries)[0]
        state = BlankState.of(optimizer_of(optimizer, entries, device), document)
        step.message = {"optimizer state": hashlib.sha256(document.to_json().encode()).hexdigest()[:16]}
        step.must_match = ["optimizer state"]
    filled = load_tensors(StateDict(lambda: state.tensors), folder) if state.tensors else None
    report = load()
    with Agreement.of(group, timeout) as ranks, agreed(ranks, "the optimizer's state"):
        _attach(state)
    report.optimizer = filled
    report.notes = (*report.notes, _note(state))
    return report


def _folder_of(checkpoint: Location, adapter: Adapter | None) -> Path:
    """An adapter that was trained has its optimizer's state beside it; the base was not trained."""
    named = list(adapter.values()) if isinstance(adapter, Mapping) else [adapter] if adapter is not None else []
    folders = [Path(one) if Path(one).is_dir() else Path(one).parent for one in named]
    found = [folder / FOLDER for folder in folders if (folder / FOLDER).is_dir()]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        remedy = "Load the adapters without optimizer=, or move the directories away that are not of this training."
        raise refusal_of(problem_of("several adapters have the state of an optimizer", remedy=remedy, found=listed))
    return found[0] if found else Path(_engine.inspect(checkpoint)["path"]).parent / FOLDER


def _attach(state: BlankState) -> None:
    try:
        state.attach()
    except LadingError:
        raise
    except Exception as error:  # whatever the optimizer's hooks raise
        message = f"the optimizer did not take its state: {type(error).__name__}: {error}"
        problem = problem_of(message, remedy="Correct its load_state_dict or the hooks of it, and load again.")
        raise LadingError(problem, stage="loading", begun=True, exit_code=5) from error


def _note(state: BlankState) -> str:
    count = len(state.document.parameters)
    return f"{state.document.kind}: the state of {count} parameter{'s' if count != 1 else ''} was loaded"
