"""What transformers knows about its own models and checkpoints, in the engine's words.

    conversion = describe(model, "path/to/checkpoint")      # a Conversion; None for a model of another library

Names: transformers' own code renames the checkpoint's keys and runs its conversions, on tensors without memory
(huggingface_trace.py), and what comes out is an explicit list: this tensor is that key, or made of those by this
expression. Pins, ties, and which keys may be missing or are of no use come from the model's own declarations, resolved
to names by transformers' rules. Nothing is executed that comes with a checkpoint, and pickles are not read.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .conversion import Catalog, Conversion, braced, ignored_key, unbraced
from .errors import LadingError, Problem
from .huggingface_build import REQUESTABLE
from .huggingface_build import build as build
from .huggingface_build import construction as construction
from .huggingface_trace import NotMoving, Trace
from .huggingface_view import Library, View, original_class, original_classes
from .inventory import NON_PERSISTENT, Entry, parts_of
from .inventory_json import dtype_name
from .patterns import Name, Pattern

_CHECK_FILE = "Check that the checkpoint belongs to this model and to this version of transformers."
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
_SAFETENSORS = (".safetensors", ".safetensors.index.json")


# ---- describe


def describe(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: str | os.PathLike[str] | None,
    entries: Sequence[Entry] | None = None,
    catalog: Catalog | None = None,
) -> Conversion | None:
    """What transformers knows of this model and checkpoint. None if it is not a model of transformers.

    `entries` is the model's inventory, if it was taken before; `catalog` is the checkpoint's, if it was read before:
    the user may have given its keys other names. `checkpoint` is None for one that is still to be written.
    """
    library = Library.find()
    if library is None:
        return None
    parts = parts_of(model)
    view = View.of(parts, library, entries)
    if view is None:
        return None
    if checkpoint is not None:
        refuse_pickles(os.fspath(checkpoint))
        catalog = catalog or Catalog.of(os.fspath(checkpoint), view.entries)
    assert catalog is not None
    shapes = catalog.shapes
    rules, notes = _mapping_rules(view, shapes, library)
    config = _config_fields(catalog.folder) if catalog.folder is not None else {}
    architecture = _other_architecture(view, config)
    if catalog.folder is not None and architecture and (view.state.keys() - rules.targets or shapes.keys() - rules.used):
        whole = _whole_model(view, architecture, catalog.folder, library)
        if whole is not None:
            found, of_whole = _mapping_rules(whole, shapes, library)
            if len(found.made) >= len(rules.made):
                view, rules = whole, found
                notes = [*of_whole, f"the model is a part of the checkpoint's {architecture}"]
    unread = sorted(key for key in shapes if key not in rules.used)
    ignored = [rule for key in unread if (rule := _ignore_rule(view, key, rules.renamed[key]))]
    passed_over = {rule["from"] for rule in ignored}
    others = [key for key in unread if key not in passed_over and _is_of_another_part(view, rules.renamed[key])]
    if others:
        notes.append(f"{len(others)} keys belong to parts of the checkpoint's model that this one does not have")
    own = view.part or view
    return Conversion(
        mapping={"schema": "lading.mapping/1", "rules": rules.documents} if rules.documents else None,
        ignore=[*ignored, *rules.ignored, *(ignored_key("transformers.other_part", key) for key in others)],
        pins=pins_of(own, library),
        ties=_ties(own),
        may_untie=_may_untie(own, config),
        constructed_dtypes=_constructed_dtypes(own),
        not_expected=_may_be_missing(own),
        other_parts=others,
        with_key=rules.made,
        problems=rules.problems,
        notes=notes,
    )


def declarations(
    model: nn.Module | Sequence[nn.Module], entries: Sequence[Entry] | None = None
) -> Conversion | None:
    """What the model alone declares, without a checkpoint: pins and ties."""
    library = Library.find()
    view = View.of(parts_of(model), library, entries) if library is not None else None
    if library is None or view is None:
        return None
    return Conversion(pins=pins_of(view, library), ties=_ties(view))


def refuse_pickles(location: str) -> None:
    """`.bin` files and pickled adapters run code when they are read, so lading does not read them."""
    path = Path(location)
    if path.is_dir():
        names = sorted(item.name for item in path.iterdir())
        pickles = [name for name in names if name in _PICKLES or re.fullmatch(r"pytorch_model-.*\.bin", name)]
        if not pickles or any(name.endswith(_SAFETENSORS) for name in names):
            return
    elif path.suffix in (".bin", ".pt", ".pth", ".ckpt"):
        pickles = [path.name]
    else:
        return
    problem = Problem(
        "unsupported_format",
        f"{', '.join(pickles[:4])}: reading a pickle runs its code",
        file=location,
        remedy="Convert it to safetensors in a safe environment: load it once and call save_pretrained.",
    )
    raise LadingError(problem, stage="checkpoint", exit_code=3)


# ---- names and conversions


class _Rules:
    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.used: set[str] = set()
        self.made: set[str] = set()  # names of the model's tensors that have a key
        self.targets: set[str] = set()  # the same, by transformers' names
        self.renamed: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.ignored: list[dict[str, Any]] = []  # keys of what could not be converted, which is told once

    def rename(self, key: str, names: Sequence[str]) -> None:
        if not names:
            return
        self.used.add(key)
        self.made |= set(names)
        if list(names) != [key]:
            self.documents.append({"id": f"transformers.rename:{key}", "kind": "rename", "from": key, "to": names[0]})

    def build(self, expression: Any, target: str, names: Sequence[str]) -> None:
        if isinstance(expression, str):
            self.rename(unbraced(expression), names)
            return
        if not names:
            return
        self.made |= set(names)
        document = {"id": f"transformers.convert:{target}", "kind": "build", "to": braced(names[0])}
        self.documents.append(document | {"expression": expression})


def _mapping_rules(view: View, shapes: dict[str, tuple[int, ...]], library: Library) -> tuple[_Rules, list[str]]:
    """One rule for each tensor that is not simply the key of its own name.

    As transformers loads: keys in natural order; all renamings, then at most one converter; then the base model's
    prefix, on or off; and a key that the model knows as it is stays as it is.
    """
    with original_classes(view.model):
        transforms = library.mapping_of(view.model)
    renamings = [one for one in transforms if isinstance(one, library.renaming)]
    converters = [one for one in transforms if isinstance(one, library.converter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    rules = _Rules()
    jobs: dict[str, tuple[Any, list[tuple[str, str]]]] = {}
    for key in sorted(shapes, key=library.natural_order):
        touching = (renamings, converters) if any(_may_match(one, key) for one in transforms) else ([], [])
        renamed, pattern = library.rename(key, *touching, view.base_model_prefix, view.state)
        if renamed not in view.state and key in view.state:
            renamed, pattern = library.rename(key, [], [], view.base_model_prefix, view.state)
        rules.renamed[key] = renamed
        if renamed not in view.state:
            continue
        if pattern is None:
            rules.targets.add(renamed)
            rules.rename(key, view.names[renamed])
        else:
            jobs.setdefault(renamed, (by_pattern[pattern], []))[1].append((pattern, key))
    for target, (converter, sources) in jobs.items():
        try:
            _convert(view, shapes, rules, copy.deepcopy(converter), target, sources)
        except Exception as error:  # whatever transformers' code raises: it would log it and leave the tensor out
            text = f"{type(error).__name__}: {error}" if not isinstance(error, NotMoving) else str(error)
            operations = ", ".join(type(one).__name__ for one in converter.operations)
            message = f"transformers' conversion of this tensor ({operations}) failed: {text}"
            name = next(iter(view.names[target]), target)
            rules.problems.append(Problem("conversion", message, tensor=name, remedy=_CHECK_FILE))
            rules.made |= set(view.names[target])
            keys = [key for _, key in sources]
            rules.used |= set(keys)
            rules.ignored += [ignored_key("transformers.unconverted", key) for key in keys]
    notes = [f"{len(jobs)} conversions of transformers {library.version}"] if jobs else []
    return rules, notes


def _may_match(transform: Any, key: str) -> bool:
    """False where transformers' own walk through its transforms, which takes far longer, would leave the key alone."""
    pattern = getattr(transform, "compiled_sources", None)
    return pattern is None or transform.scope_prefix is not None or pattern.search(key) is not None


def _convert(
    view: View,
    shapes: dict[str, tuple[int, ...]],
    rules: _Rules,
    converter: Any,
    target: str,
    sources: Sequence[tuple[str, str]],
) -> None:
    with Trace() as trace:
        for pattern, key in sources:
            converter.add_tensor(target, key, pattern, trace.source(key, shapes[key]))
        made = converter.convert(target, model=view, config=view.config)
    for name, tensor in made.items():
        tensor = tensor[0] if isinstance(tensor, list) else tensor
        if name not in view.state:
            raise NotMoving(f"it makes {name}, which the model does not have")
        rules.targets.add(name)
        rules.build(trace.expression(tensor), name, view.names[name])
        if view.names[name]:
            rules.used |= {key for _, key in sources}


# ---- keys that are of no use, tensors that need no key


def _ignore_rule(view: View, key: str, renamed: str) -> dict[str, Any] | None:
    """A rule by name for a key that transformers itself passes over."""
    for rule, pattern in _useless_patterns(view):
        if pattern.search(renamed):
            return ignored_key(f"transformers.{rule}", key)
    entry = view.entries.get(renamed)
    if entry is not None and entry.kind == NON_PERSISTENT:
        return ignored_key("transformers.non_persistent_buffer", key)
    return None


def _is_of_another_part(view: View, renamed: str) -> bool:
    """Whether the checkpoint's whole model would read the key, and this part of it does not."""
    return view.part is not None and renamed in view.state and not view.names[renamed]


def _useless_patterns(view: View) -> list[tuple[str, re.Pattern[str]]]:
    found = [
        ("keys_to_ignore_on_load_unexpected", re.compile(pattern))
        for pattern in sorted(getattr(view.model, "_keys_to_ignore_on_load_unexpected", None) or ())
    ]
    # transformers adds these two where the model has a buffer of that name.
    if any(name.endswith("rotary_emb.inv_freq") for name in view.entries):
        found.append(("rotary_emb_inv_freq", re.compile(r"rotary_emb\.inv_freq")))
    if any(name.endswith("position_ids") for name in view.entries):
        found.append(("position_ids", re.compile(r"(^|\.)position_ids$")))
    return found


def _config_fields(folder: Path) -> dict[str, Any]:
    """The checkpoint's config as it stands in the file: classes of transformers change some fields as they read it."""
    try:
        fields = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _other_architecture(view: View, config: dict[str, Any]) -> str:
    """The class that the checkpoint's config names, if it is another than the model's, or ""."""
    names = config.get("architectures") or []
    return names[0] if names and original_class(view.model).__name__ not in names else ""


# ---- a part of a composite


def _whole_model(view: View, architecture: str, folder: Path, library: Library) -> View | None:
    """The checkpoint's own model, built on meta, in which the tensors of this model have this model's names, and the
    others none. None if this model is not in it, or more than once."""
    import transformers

    cls = getattr(transformers, architecture, None)
    if cls is None:
        return None
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    with torch.device("meta"):
        model = cls(config)
    pairs = _pairs(view, model)
    if not pairs:
        return None
    whole = View.of([model], library)
    assert whole is not None
    whole.names = {name: view.names.get(pairs.get(name, ""), []) for name in whole.names}
    whole.part = view
    return whole


def _pairs(view: View, whole: Any) -> dict[str, str]:
    """Names in the whole model and in this one, of the same tensors: the module that both have, and beside it what has
    the same name and shape, such as a head."""
    base = getattr(view.model, view.base_model_prefix, None) if view.base_model_prefix else None
    for inner, prefix in ((view.model, ""), (base, f"{view.base_model_prefix}.")):
        if inner is None:
            continue
        places = [name for name, module in whole.named_modules() if type(module) is original_class(inner)]
        if len(places) != 1:
            continue
        outer = f"{places[0]}." if places[0] else ""
        shapes = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
        found = {outer + name.removeprefix(prefix): name for name in view.state if name.startswith(prefix)}
        beside = [name for name in view.state if not name.startswith(prefix)]
        found |= {name: name for name in beside if shapes.get(name) == view.state[name]}
        return {name: own for name, own in found.items() if name in shapes}
    return {}


def _may_be_missing(view: View) -> list[str]:
    patterns = [re.compile(pattern) for pattern in getattr(view.model, "_keys_to_ignore_on_load_missing", None) or ()]
    found = [name for plain in view.state if any(p.search(plain) for p in patterns) for name in view.names[plain]]
    return sorted([*found, *view.adapters])


# ---- ties and pins


def _ties(view: View) -> list[list[str]]:
    """Classes of names that the model declares to be one tensor, and that the constructor left as one."""
    declared = getattr(view.model, "all_tied_weights_keys", None) or {}
    classes: dict[str, list[str]] = {}
    for target, source in declared.items():
        if target in view.entries and source in view.entries:
            members = classes.setdefault(source, list(view.names[source]))
            members += [name for name in view.names[target] if name not in members]
    return sorted(sorted(members) for members in classes.values() if len(members) > 1)


def _may_untie(view: View, config: dict[str, Any]) -> list[str]:
    """Names that the model's class ties although the checkpoint was saved by one that did not. T5's config sets
    `tie_word_embeddings` whatever the file says; a composite asks the config of its text model."""
    configs = [config, *(value for value in config.values() if isinstance(value, dict))]
    if not any(one.get("tie_word_embeddings") is False for one in configs):
        return []
    expand = getattr(view.model, "get_expanded_tied_weights_keys", None)
    declared = expand(all_submodels=True) if callable(expand) else {}
    return sorted(name for target in declared if target in view.entries for name in view.names[target])


def forget_untied(parts: Sequence[nn.Module]) -> None:
    """transformers saves one name of what it believes to be tied."""
    for module in (module for part in parts for module in part.modules()):
        tied = vars(module).get("all_tied_weights_keys")
        for target, source in list(tied.items()) if isinstance(tied, dict) else ():
            try:
                is_tied = module.get_parameter_or_buffer(target) is module.get_parameter_or_buffer(source)
            except AttributeError:  # FSDP1 has flattened it: the name is of nothing
                continue
            if not is_tied:
                del tied[target]


def _constructed_dtypes(view: View) -> dict[str, str]:
    return {
        name: dtype_name(view.entries[plain].dtype)
        for plain in view.state
        if view.entries[plain].is_meta and view.entries[plain].dtype in REQUESTABLE
        for name in view.names[plain]
    }


def pins_of(view: View, library: Library) -> list[tuple[Pattern, str]]:
    """The names that transformers' own patterns match, each a pin of its own."""
    found: list[tuple[Pattern, str]] = []
    for attribute, strength in (
        ("_keep_in_fp32_modules", "float16"),
        ("_keep_in_fp32_modules_strict", "float16_and_bfloat16"),
    ):
        patterns = sorted(getattr(view.model, attribute, None) or ())
        theirs = library.alternation(patterns)[0] if patterns else None
        names = {
            name
            for plain in view.state
            if theirs is not None and theirs.search(plain) and view.entries[plain].dtype.is_floating_point
            for name in view.names[plain]
        }
        found += [(Name(name), strength) for name in sorted(names)]
    return found
