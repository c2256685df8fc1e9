"""The model of an audit: its tensors, of the kinds that its constructor makes, and what is known of each beside its
values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from .agreement import Agreement
from .audit_adapters import AdapterFacts, adapter_facts
from .audit_config import compare_configs, config_of_checkpoint
from .audit_offload import offloaded
from .audit_parts import is_flat
from .audit_report import Findings
from .audit_structure import absent, as_constructed
from .audit_twin import Constructed, constructed
from .huggingface_view import Library, View
from .inventory import Entry, take_inventory
from .options import Options
from .placements import is_elsewhere, is_foreign, local_of
from .quantized import why_wrapped
from .recording import SkeletonError


class Subject:
    """What there is to look at. What is wrong with the tensors at first sight goes to the findings.

    Attributes:
        entries: the tensors of this rank; `whole`: those that are not shared out flattened; `everything`: all names.
        known: what the constructor makes.
        offloaded: by name, the values that accelerate's hooks hold.
        absent: names that the constructor makes and the model does not have, with their kinds.
        is_complete: the model has every module that the constructor makes; a pipeline stage has not.
        wrapped: tensors that another library keeps in a form of its own, with the reason why they cannot be judged.
        unjudged: tensors that no file is expected to have and that could not be judged, with the reason.
    """

    def __init__(
        self,
        parts: list[nn.Module],
        options: Options,
        ranks: Agreement,
        findings: Findings,
        location: str | None,
        twins: Sequence[nn.Module],
    ) -> None:
        self.parts, self.options, self.ranks, self.findings = parts, options, ranks, findings
        unlisted: list[SkeletonError] = []
        taken = take_inventory(parts, unlisted)
        for error in unlisted:
            findings.problem("skeleton", error.tensor, error.reason)
        self.wrapped = {entry.name: why for entry in taken if entry.is_tensor and (why := why_wrapped(entry.value))}
        for name, why in self.wrapped.items():
            findings.problem("skeleton", name, why, rule="R48")
        taken = [entry for entry in taken if entry.name not in self.wrapped]
        found = [entry for entry in taken if entry.is_tensor]
        self.known = self._constructed(found, location, twins)
        findings.notes += self.known.notes
        found = as_constructed(found, self.known.made, findings)
        self.everything = [*found, *(entry for entry in taken if not entry.is_tensor)]
        self.entries = [entry for entry in found if not is_elsewhere(entry.value) and not is_foreign(entry)]
        self.whole = [entry for entry in self.entries if not is_flat(entry.value)]
        self.by_name = {entry.name: entry for entry in self.entries}
        self.adapters: AdapterFacts = adapter_facts(parts, found, options.adapter)
        findings.problems += self.adapters.problems
        findings.notes += self.adapters.notes
        self.absent, self.is_complete = absent(parts, found, self.known.made, self.adapters.plain_modules)
        self.unjudged: dict[str, str] = {}
        held = offloaded(parts)
        places = {entry.name: (id(entry.module), entry.attribute) for entry in self.entries}
        self.offloaded: dict[str, Callable[[], torch.Tensor]] = {
            name: held[place] for name, place in places.items() if place in held
        }

    def held(self, entry: Entry) -> torch.Tensor:
        """This rank's part of a tensor: of an offloaded one what its hook holds."""
        return self.offloaded[entry.name]() if entry.name in self.offloaded else local_of(entry.value)

    def has_value(self, entry: Entry) -> bool:
        return entry.name in self.offloaded or not entry.is_meta

    def _constructed(self, entries: list[Entry], location: str | None, twins: Sequence[nn.Module]) -> Constructed:
        """A model of transformers is built from the checkpoint's config, with which its own is compared."""
        library = Library.find()
        view = View.of(self.parts, library, entries) if library is not None else None
        if view is None or location is None:
            return constructed(self.parts, entries, twins)
        config, reason = config_of_checkpoint(view.config, location)
        known = constructed(self.parts, entries, twins, config)
        if config is None:
            self.findings.notes.append(f"the model's config was not judged: {reason}")
        else:
            compare_configs(known.config or config, view.config, self.findings, rope_is_wrong=not twins)
        return known
