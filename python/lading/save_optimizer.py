"""The part of `lading.save` that is about an optimizer: its state is a save of its own, within the model's directory.

    state = StateSubject.of(optimizer, subject, ranks)      # what a rank knows, before anybody agrees on anything

State tensors are planned, proved, written and verified as a model's tensors are, with a layout, files and a ledger of
their own. The directory is complete before the model's appears, and so the two appear together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .agreement import Agreement
from .optimizer_document import FILE, FOLDER
from .optimizer_state import completed, optimizer_of, read_state
from .save_subject import Subject, subject_of
from .state_dicts import StateDict

DEVICE = "optimizer_device"


@dataclasses.dataclass
class StateSubject:
    """`subject`: the state tensors as a model; None if there are none, as before the first step. `facts` must be the
    same on every rank."""

    subject: Subject | None
    facts: str
    device: str

    @classmethod
    def of(cls, optimizer: Any, model: Subject, ranks: Agreement) -> StateSubject:
        """LadingError with everything that cannot be saved. The document becomes a file beside the model's weights."""
        held = optimizer_of(optimizer, model.entries)
        state = read_state(held)
        if held.is_partial:
            state = completed(held, state, ranks.documents("the optimizer's state", state.document.to_json()))
        subject = subject_of([StateDict(lambda: state.tensors).part()], ranks.ranks) if state.tensors else None
        model.beside = {f"{FOLDER}/{FILE}": state.document.to_json().encode()}
        return cls(subject, state.facts, str(model.device if subject is None else subject.device))

    def message(self) -> dict[str, Any]:
        """What this rank says about itself."""
        return {"optimizer": self.facts, DEVICE: self.device}

    @staticmethod
    def said(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same of all ranks, as a save of a model has it."""
        return [{"device": message[DEVICE], "has_config": False} for message in messages]
