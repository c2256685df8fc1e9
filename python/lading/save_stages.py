"""Saving a model of which ranks hold different parts, such as pipeline stages: the checkpoint is that of the whole.

    choose_keys(ranks, subject, base, dtype, max_bytes)     # once subject.skeleton is that of all ranks

Which keys the whole model has, how they are converted and which names are one tensor, its class knows: the whole is
built on meta from the class and the config that the stages have. The report of a load that was given `whole=` knows it
too. Stages that are no models of a library have the names of their state dicts.

A tensor that several stages hold has one key. Their values are compared before anything is written.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .agreement import Agreement
from .conversion import Catalog, Conversion
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .huggingface import declarations
from .huggingface_view import original_class
from .inventory import BUFFER, NON_PERSISTENT, PARAMETER, Entry, canonical_modules, take_inventory, tensors_of
from .inventory_json import tie_classes
from .placements import Layout
from .save_adapters import refuse_stages
from .save_files import transformers_model
from .save_names import SavedTensor
from .save_subject import Base, Subject
from .stages import joined_classes

_IN_FILES = (PARAMETER, BUFFER)
_BASE = "Pass base=, the checkpoint that the stages were loaded from: then its keys are written."
_REPORT = "Pass as base= the report of the load that filled the stages, with whole=: it knows conversions and ties."
_SAME = "Give the stages of every rank the class and the config of the whole model."


@dataclasses.dataclass
class Whole:
    """What is known of the model that the parts were cut from.

    Attributes:
        module: on meta; an empty one if no library knows the model.
        entries: its inventory.
        ties: classes of names that are one tensor in it.
        conversion, not_in_files: of the keys of the base, and non-persistent buffers, where the load of the stages
            knew them.
    """

    module: nn.Module
    entries: list[Entry]
    ties: list[list[str]]
    conversion: Conversion | None = None
    not_in_files: frozenset[str] = frozenset()


def choose_keys(ranks: Agreement, subject: Subject, base: Base | None, dtype: str | None, max_bytes: int | None) -> None:
    """The keys of the whole, which the subject's skeleton describes, and its ties; the same on every rank."""
    if not subject.layout.holders and len(subject.parts) == 1:
        subject.choose_keys(base, dtype, max_bytes)
        return
    refuse_stages(subject.is_wrapped)
    model = transformers_model(subject.parts, subject.entries)
    identities = ranks.documents("the models of the stages", _identity(model))
    modules = ranks.documents("the modules of the stages", json.dumps(_names_by_part(subject)))
    known = {text for text in identities if text}
    if len(known) > 1:
        raise LadingError(_different_models(sorted(known)), stage="agreement", exit_code=4)
    facts = ""
    if model is not None or not known:
        parts = [set(names) for text in modules for names in json.loads(text)]
        facts = json.dumps(_facts(subject, _whole_of(model, base), parts, base, dtype, max_bytes))
    told = [text for text in ranks.documents("the keys of the whole", facts) if text]
    if len(set(told)) > 1:
        message = "the ranks know different keys of the whole model"
        raise LadingError(Problem("ranks_differ", message, rule="R30", remedy=_SAME), stage="agreement", exit_code=4)
    _adopt(subject, json.loads(told[0]))


def _identity(model: Any | None) -> str:
    if model is None:
        return ""
    cls = original_class(model)
    return json.dumps([cls.__module__, cls.__qualname__, model.config.to_dict()], sort_keys=True, default=str)


def _names_by_part(subject: Subject) -> list[list[str]]:
    held = {entry.name for entry in subject.entries}
    return [sorted({name for name, _ in tensors_of(canonical_modules(part))} & held) for part in subject.parts]


# ---- the whole


def _whole_of(model: Any | None, base: Base | None) -> Whole:
    known = base.whole if base is not None else None
    try:
        module = nn.Module() if model is None else _built(model)
    except LadingError:
        if known is None:
            raise
        module = nn.Module()
    entries = take_inventory(module)
    if known is not None:
        return Whole(module, entries, known.ties, known.conversion, frozenset(known.not_in_files))
    declared = declarations(module, entries)
    ties = [*tie_classes(entries), *(declared.ties if declared is not None else ())]
    return Whole(module, entries, joined_classes(ties))


def _built(model: Any) -> nn.Module:
    """The whole model on meta, as its class makes it of its config."""
    cls = original_class(model)
    random_state = torch.random.get_rng_state()
    try:
        with torch.device("meta"):
            whole: nn.Module = cls(copy.deepcopy(model.config))
    except Exception as error:  # whatever the class's code raises
        message = f"the whole model could not be built of the stage's config: {type(error).__name__}: {error}"
        problem = Problem("conversion", message, remedy=_REPORT)
        raise LadingError(problem, stage="documents", exit_code=4) from error
    finally:
        torch.random.set_rng_state(random_state)
    if (loaded_with := getattr(model, "_weight_conversions", None)) is not None:
        whole._weight_conversions = loaded_with  # by transformers itself
    return whole


def _facts(
    subject: Subject, whole: Whole, parts: list[set[str]], base: Base | None, dtype: str | None, max_bytes: int | None
) -> dict[str, Any]:
    """What the ranks have to agree on, for JSON. `parts`: the names of each part of each rank."""
    tables = sorted(tensor["name"] for tensor in subject.skeleton["tensors"] if tensor["name"] in whole.not_in_files)
    _leave_out(subject, tables)
    _refuse_other_tensors(subject, whole)
    names = {tensor["name"] for tensor in subject.skeleton["tensors"]}
    declared = [tie for tie in whole.ties if _is_one(tie, subject.skeleton, parts)]
    ties = [[name for name in tie if name in names] for tie in declared]
    _describe(subject, whole.module, joined_classes([*subject.skeleton["ties"], *ties]))
    subject.choose_keys(base, dtype, max_bytes, whole.conversion)
    if subject.keys is not None:
        _refuse_uncertain(subject, whole)
    else:
        assert base is not None
        keyed = subject.conversion.with_key | Catalog.of(base.location).shapes.keys()
        # Names that have a key each are no tie of this checkpoint; and the key's name may be one that no rank has.
        wanted = [[name for name in tie if name in names or name in keyed] for tie in declared if names & {*tie}]
        ties = [tie for tie in wanted if not names >= {*tie} or not keyed >= {*tie}]
        if not whole.entries and subject.conversion.mapping_document() is None:
            _refuse_without_key(subject, keyed, [*subject.skeleton["ties"], *ties])
    files = subject.keys
    return {
        "keys": files and {file: [[one.key, one.dtype, one.shape] for one in keys] for file, keys in files.items()},
        "mapping": subject.conversion.mapping_document(),
        "ties": [tie for tie in joined_classes([*subject.skeleton["ties"], *ties]) if len(tie) > 1],
        "not_in_files": tables,
        "notes": subject.notes,
    }


def _leave_out(subject: Subject, tables: Collection[str]) -> None:
    """Cutting may have lost that these buffers are non-persistent."""
    for tensor in subject.skeleton["tensors"]:
        if tensor["name"] in tables and tensor["kind"] == BUFFER:
            tensor["kind"] = NON_PERSISTENT


def _is_one(tie: Sequence[str], skeleton: Mapping[str, Any], parts: Iterable[set[str]]) -> bool:
    """Two names that one part has apart in memory are two tensors, whatever the class declares."""
    classes = {name: place for place, names in enumerate(skeleton["ties"]) for name in names}
    return all(len({classes.get(name, name) for name in tie if name in part}) < 2 for part in parts)


def _describe(subject: Subject, module: nn.Module, ties: Sequence[Sequence[str]]) -> None:
    """The whole model on meta, in the shapes and dtypes that the ranks hold."""
    classes = {name: place for place, names in enumerate(ties) for name in names}
    subject.whole_parts, subject.whole_entries = [module], []
    for tensor in subject.skeleton["tensors"]:
        name, dtype = tensor["name"], torch_dtype(tensor["dtype"])
        value = torch.empty(tensor["shape"], dtype=dtype, device="meta")
        subject.whole_entries.append(Entry(name, tensor["kind"], module, name, value, classes.get(name)))


def _adopt(subject: Subject, facts: Mapping[str, Any]) -> None:
    """What one rank knows, all know."""
    _leave_out(subject, facts["not_in_files"])
    known = {tensor["name"]: tensor for tensor in subject.skeleton["tensors"]}
    layout = subject.layout
    spots, holders = dict(layout.spots), dict(layout.holders)
    for tie in facts["ties"]:
        first = next(name for name in tie if name in known)
        for name in tie:
            if name not in known:  # another name of a tensor that a rank holds, for its key
                known[name] = known[first] | {"name": name}
                spots[name], holders[name] = spots[first], holders.get(first, tuple(range(layout.size)))
    subject.layout = Layout(layout.size, spots, layout.names, holders)
    subject.skeleton = subject.skeleton | {"tensors": [known[name] for name in sorted(known)], "ties": facts["ties"]}
    _describe(subject, subject.whole_parts[0], facts["ties"])
    subject.conversion, subject.notes = Conversion(mapping=facts["mapping"]), facts["notes"]
    subject.keys = facts["keys"] and {
        file: [SavedTensor(key, dtype, tuple(shape)) for key, dtype, shape in keys]
        for file, keys in facts["keys"].items()
    }


# ---- refusals


def _different_models(identities: Sequence[str]) -> Problem:
    one, other = map(json.loads, identities[:2])
    fields = sorted(name for name in one[2].keys() | other[2].keys() if one[2].get(name) != other[2].get(name))
    if one[:2] != other[:2]:
        message, found = "the stages are of models of different classes", f"{one[1]}, {other[1]}"
    else:
        message, found = "the stages of one model have different configs", f"other values of {', '.join(fields)}"
    return Problem("ranks_differ", message, found=found, rule="R30", remedy=_SAME)


def _refuse_without_key(subject: Subject, keyed: Collection[str], ties: Iterable[Sequence[str]]) -> None:
    """Where names are all that is known. The tensor may be tied to another stage's, or made of keys of other names."""
    found = {name for tie in ties if any(name in keyed for name in tie) for name in tie}.union(keyed)
    message = "the base has no key of this tensor's name, and whether it is made of other keys is not known"
    problems = [
        Problem("layout", message, tensor["name"], rule="R69", remedy=_REPORT)
        for tensor in subject.skeleton["tensors"]
        if tensor["kind"] in _IN_FILES and tensor["name"] not in found
    ]
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)


def _refuse_other_tensors(subject: Subject, whole: Whole) -> None:
    """A config of less than the whole, such as one of this stage's layers, would be that of the new checkpoint."""
    shapes = {entry.name: list(entry.shape) for entry in whole.entries if entry.is_tensor}
    problems = []
    for tensor in subject.skeleton["tensors"] if whole.entries else ():
        name, shape = tensor["name"], tensor["shape"]
        if tensor["kind"] in _IN_FILES and shapes.get(name) != shape:
            message = "the model that the stages' config describes has this tensor in another shape"
            message = message if name in shapes else "the model that the stages' config describes has no such tensor"
            found = str(shapes[name]) if name in shapes else ""
            expected = str(shape) if found else ""
            problems.append(Problem("layout", message, name, expected=expected, found=found, remedy=_SAME))
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)


def _refuse_uncertain(subject: Subject, whole: Whole) -> None:
    """Without a base: parts of a model whose keys are not known, and tensors that no rank has."""
    names = {tensor["name"] for tensor in subject.skeleton["tensors"]}
    missing = [entry.name for entry in whole.entries if entry.kind in _IN_FILES and entry.name not in names]
    message = "the model that the stages' config describes has this tensor, but no rank holds it"
    problems = [Problem("layout", message, name, remedy="Save all stages, or pass base=.") for name in missing]
    for part in subject.parts if not whole.entries else ():
        for name, module in part.named_modules():
            cls = original_class(module)
            if isinstance(module, torch.fx.GraphModule) or cls.__module__.startswith("transformers."):
                where = f"the module {name!r}" if name else "the stage"
                message = f"the keys of the whole model are not known: {where} is a part of it, of the class {cls.__name__}"
                problems.append(Problem("conversion", message, remedy=_BASE))
                break
    if problems:
        raise LadingError(problems, stage="documents", exit_code=4)
