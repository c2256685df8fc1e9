"""`lading.materialize`: fills a model in place from a checkpoint, every tensor of every kind, or says why not.

    with lading.skeleton():
        model = Model(config)
    fully_shard(model)                                  # or parallelize_module, PEFT, freezing, nothing at all
    report = lading.materialize(model, "path/to/checkpoint")

In this order: what the model holds and how it is shared out is read off the model; all ranks agree on it; the engine
plans and proves; all ranks agree on the plan; memory is made for what is on meta; the engine fills it; all ranks
agree that it is filled; only then does anything on meta change. Memory that was real before is written in place: if
a load fails after it began, the model is marked (`is_incomplete`), and the error says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import _engine, fsdp1, peft, zero3
from .agreement import TIMEOUT_S, VALUE, Agreement, agreed
from .allocate import IN_PLACE, Slot, attach, is_made_with, make_slots
from .bits import bits_digest
from .conversion import Conversion, conversion_of
from .devices import rank_device
from .dtypes import torch_dtype
from .emptied import emptied, kept_unwritten, mark_loaded
from .errors import LadingError, Problem
from .host_values import HostValues, Recipe
from .inventory import Entry, parts_of, take_inventory
from .inventory_json import dtype_name, skeleton_document
from .options import POLICY_FIELDS, Options
from .patterns import matches
from .placements import Layout, Placements, fsdp_states, is_elsewhere, is_foreign, read_placements
from .recording import SkeletonError
from .report import LoadedTensor, Report
from .skeleton_recorder import is_recording
from .stages import Origin, joined

_BAR_DELAY_S = 0.5

_INCOMPLETE = "_lading_incomplete"


@dataclasses.dataclass
class _Prepared:
    """What this rank knows before anybody agrees on anything."""

    entries: list[Entry]
    origin: Origin
    placements: Placements
    layout: Layout  # of all ranks, once they have agreed
    device: torch.device
    values: HostValues
    skeleton: dict[str, Any]
    conversion: Conversion
    notes: list[str]


def _outside_inference_mode(function: Callable[..., Report]) -> Callable[..., Report]:
    """What is made in that mode can never be trained, and nothing says so before the optimizer's first step."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Report:
        if not torch.is_inference_mode_enabled():
            return function(*arguments, **options)
        with torch.inference_mode(False), torch.no_grad():
            return function(*arguments, **options)

    return call


@_outside_inference_mode
def materialize(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: str | os.PathLike[str],
    *,
    device: Any = None,
    dtype: Any = "auto",
    cast: str = "promote",
    compute_dtype: Any = None,
    compute_record: str = "checkpoint",
    pins: Iterable[str | tuple[str, str]] = (),
    subtree_dtypes: Mapping[str, Any] | None = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    keep: Sequence[str] = (),
    external: Mapping[str, Any] | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    adapter: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None,
    whole: nn.Module | None = None,
    ties: str = "keep",
    seed: int = 0,
    verify: Any = "auto",
    budget: int | None = None,
    progress: bool = True,
    group: Any = None,
    timeout: float = TIMEOUT_S,
) -> Report:
    """Fills every parameter and buffer of `model` in place, on this rank, from `checkpoint`.

        with lading.skeleton():
            model = Model()
        report = lading.materialize(model, "path/to/checkpoint", device="cuda:0")
        print(report)                                       # 291 tensors, 16.1 GB, 0.4 s …

    Tensors keep their identity, `requires_grad`, hooks, attributes and ties; the process's random numbers are not
    touched. All ranks of the group must call it; all of them get the same error, or none.

    Args:
        model: built on meta, on a device, or partly; changed and sharded as one likes. A list of modules is a model in
            parts.
        checkpoint: a file, a directory, an index, or a repository in the Hugging Face cache.
        device: of this rank. None follows the sharding, or the parameters that are real.
        dtype: "auto" (as in the checkpoint), or a floating dtype to ask for; docs/dtypes.md says what comes out.
        cast: "promote" (a request never narrows), "exact" (as transformers means it), "destination" (memory decides).
        compute_dtype: the `param_dtype` of FSDP2's mixed-precision policy.
        compute_record, pins, subtree_dtypes: as in `lading.resolve_dtypes`.
        strict: refuse keys that nothing reads, rather than report them.
        allow_missing, allow_unexpected, allow_mismatch, keep: patterns of names; `*` stands for any characters.
        external: a tensor, or another model with a tensor of that name, by pattern. It wins over the checkpoint.
        recipes: a function of module and attribute name, by pattern, that gives the value of what no file has; or
            `lading.Computed`, from other tensors of this load.
        adapter: of a PeftModel: the file or directory of its adapter, or one for each adapter by name. Adapters
            without one are initialised as PEFT does it.
        whole: of a part, such as a pipeline stage: the model that it was cut from, on meta. Kinds, ties and
            conversions are then those of the whole.
        ties: "keep", or "untie": take ties apart whose members have keys of their own.
        seed: of initial values.
        verify: "auto" counts and digests every byte; "full" also reads the files again and compares; False does not
            digest.
        budget: host memory beside the model, per node, in bytes.
        progress: a bar on the first rank, if tqdm is there.
        group: the process group whose ranks load together; None is the default one, False is this process alone.
        timeout: seconds to wait for other ranks at each agreement.

    Raises:
        LadingError: everything that is wrong, in one message. Unless its `begun` is True the model is as it was.
    """
    began = time.perf_counter()
    ranks = Agreement.of(group, timeout)
    prepared: _Prepared | None = None
    with agreed(ranks, "the model") as step:
        options = Options.of(
            device=device,
            dtype=dtype,
            cast=cast,
            compute_dtype=compute_dtype,
            compute_record=compute_record,
            pins=pins,
            subtree_dtypes=subtree_dtypes,
            strict=strict,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            allow_mismatch=allow_mismatch,
            keep=keep,
            external=external,
            recipes=recipes,
            adapter=adapter,
            whole=whole,
            ties=ties,
            seed=seed,
            verify=verify,
            budget=budget,
        )
        if is_recording():
            raise RuntimeError(
                "materialize was called under lading.skeleton(), where nothing has memory: call it after the block"
            )
        parts = parts_of(model)
        location = os.fspath(checkpoint)
        prepared = _prepare(parts, location, options, ranks)
        step.message = _facts(prepared, options, location)
        step.must_match = ["version", *(f"policy: {name}" for name in POLICY_FIELDS), "mapping"]
    assert prepared is not None
    devices = [message["device"] for message in step.answers]

    prepared.skeleton, prepared.layout = joined(ranks, prepared.skeleton, prepared.layout)
    prepared.origin.complete(prepared)

    plan: _engine.Plan | None = None
    slots: list[Slot] = []
    with agreed(ranks, "the plan") as step:
        _refuse_idle_recipes(options, prepared.skeleton)
        plan = _planned(_request(prepared, options, location, devices, ranks.rank), prepared.conversion.problems)
        kept = [name for one in plan.destinations if one.provenance == "kept" for name in (one.name, *one.aliases)]
        if lost := kept_unwritten(parts, kept, prepared.entries, options.spoken_for()):
            raise LadingError(lost, stage="planning", exit_code=4)
        slots = _checked_slots(plan, prepared)
        step.message = {"plan digest": plan.answer["plan_digest"]}
        step.must_match = ["plan digest"]
    assert plan is not None

    loaded: _engine.Report | None = None
    writes = any(slot.how == IN_PLACE for slot in slots)
    try:
        with agreed(ranks, "what was loaded") as step:
            step.message = {"wrote": False}
            handed_in: dict[str, Any] | None = {} if ranks.size > 1 else None
            loaded = _load(plan, slots, prepared, handed_in, shows_progress=progress and ranks.rank == 0)
            step.message = {"wrote": writes, **(handed_in or {})}
            verification = _verified(loaded, location, options, has_written=writes)
            _wait(prepared.device)
    except BaseException as error:
        if writes and getattr(error, "begun", True):
            _mark(parts, str(error))
        raise
    assert loaded is not None

    try:
        attach(slots, prepared.entries, prepared.placements.units)
    except BaseException as error:
        _mark(parts, str(error))
        raise
    _mark(parts, None)
    mark_loaded(parts)
    mark_initialised(parts)
    return _report(plan, loaded, prepared, options, ranks, verification, time.perf_counter() - began)


def is_incomplete(model: nn.Module) -> str:
    """Why a model may not be used: a load into memory that was already there began and failed. "" if it may.

    if why := lading.is_incomplete(model):
        raise SystemExit(why)
    """
    return getattr(model, _INCOMPLETE, "")


# ---- before the plan


def _prepare(parts: list[nn.Module], location: str, options: Options, ranks: Agreement) -> _Prepared:
    modules = [module for part in parts for module in part.modules()]
    for module, groups in fsdp_states(modules):
        if groups:
            module.reshard()  # type: ignore[operator]  # after a forward pass its parameters may still be gathered
    fsdp1.reshard(modules)
    try:
        entries = take_inventory(parts)
        held = [entry for entry in entries if not is_elsewhere(entry.value) and not is_foreign(entry)]
        if lost := emptied(parts, held, options.spoken_for()):
            raise LadingError(lost, stage="documents", exit_code=4)
        origin = Origin.of(parts, held, options.whole)
        adapters = peft.prepare(parts, held, options.adapter, options.spoken_for())
        options.external |= adapters.values
        placements = read_placements(held, ranks.ranks, modules)
        if placements.problems:
            raise LadingError(placements.problems, stage="documents", exit_code=4)
        device, note = rank_device(options.device, placements, entries)
        conversion = conversion_of(origin.parts, location, origin.entries)
        given = {"external": options.external, "recipes": options.recipes, "seed": options.seed}
        values = HostValues(origin.parts, origin.held, **given)
        restored = zero3.restored(parts, held, values)
        values.hand_in(restored.values)
        conversion.constructed_dtypes |= restored.dtypes
        skeleton = _skeleton(held, conversion, values, with_all_inits=bool(options.allow_mismatch))
        zero3.say_what_has_values(skeleton["tensors"], held, [*options.keep, *conversion.adapters])
    except SkeletonError as error:
        problem = Problem("skeleton", error.reason, tensor=error.tensor or None)
        raise LadingError(problem, stage="documents", exit_code=4) from error
    return _Prepared(
        entries,
        origin,
        placements,
        placements.layout,
        device,
        values,
        skeleton,
        conversion,
        [note, *conversion.notes, *adapters.notes, *restored.notes],
    )


def _skeleton(
    entries: list[Entry], conversion: Conversion, values: HostValues, *, with_all_inits: bool
) -> dict[str, Any]:
    """docs/schema/skeleton.md, less the views of other tensors, which come with these."""
    own = [entry for entry in entries if not is_made_with(entry)]

    def is_adapter(name: str) -> bool:
        return any(matches(pattern, name) for pattern in conversion.adapters)

    document = skeleton_document(
        own,
        pins=conversion.pins,
        is_adapter=is_adapter,
        without_init=() if with_all_inits else conversion.with_key,
    )
    values.documents(document["tensors"])
    names = {tensor["name"] for tensor in document["tensors"]}
    document["ties"] += [known for tie in conversion.ties if len(known := [name for name in tie if name in names]) > 1]
    return document


def _facts(prepared: _Prepared, options: Options, location: str) -> dict[str, Any]:
    """What ranks must have in common, beside the model. The budget may differ, and where files are mounted."""
    policy = options.policy(prepared.conversion)
    return {
        "version": _engine.version(),
        "device": str(prepared.device),
        **{f"policy: {name}": _said(policy.get(name)) for name in POLICY_FIELDS},
        "mapping": _digest(prepared.conversion.mapping_document()),
        "checkpoint": location,
    }


def _said(value: Any) -> str:
    """As it is, or if that is long its digest."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 80 else _digest(value)


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def _kept_wide(plan: _engine.Plan, options: Options) -> list[str]:
    """A request that the files' own dtypes outdo is easily taken for one that was heard."""
    if options.dtype == "auto" or options.cast != "promote":
        return []
    wide = {one.dtype for one in plan.destinations if one.provenance == "file"} - {options.dtype}
    asked = torch_dtype(options.dtype)
    wide = {
        name for name in wide if torch_dtype(name).is_floating_point and torch_dtype(name).itemsize > asked.itemsize
    }
    kept = sum(one.dtype in wide for one in plan.destinations)
    if not kept:
        return []
    return [f'{options.dtype} was asked for; {kept} tensors stay {", ".join(sorted(wide))} (R23). cast="exact" rounds']


def _refuse_idle_recipes(options: Options, skeleton: dict[str, Any]) -> None:
    """A typo would leave the tensor that was meant as it is. Names of all ranks count: a stage may have none of them."""
    names = [tensor["name"] for tensor in skeleton["tensors"]]
    idle = [pattern for pattern in options.recipes if not any(matches(pattern, name) for name in names)]
    if idle:
        problems = [
            Problem("policy", f"recipes: {pattern!r} matches no tensor of the model", rule="R43") for pattern in idle
        ]
        raise LadingError(problems, stage="planning", exit_code=4)


def _request(prepared: _Prepared, options: Options, location: str, devices: list[str], rank: int) -> dict[str, Any]:
    """docs/schema/request.md"""
    return {
        "checkpoint": location,
        "skeleton": prepared.skeleton,
        "layout": prepared.layout.document(devices),
        "policy": options.policy(prepared.conversion),
        "mapping": prepared.conversion.mapping_document(),
        "ranks": [rank],
        "digests": options.verify is not False,
    }


def _planned(request: dict[str, Any], unconverted: Sequence[Problem]) -> _engine.Plan:
    """What a library could not convert is told together with all that the plan refuses (R39)."""
    try:
        plan = _engine.plan(request)
    except LadingError as error:
        if not unconverted:
            raise
        told = {problem.tensor for problem in unconverted}
        more = [problem for problem in error.problems if problem.tensor not in told]
        kept = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "not_listed")}
        raise LadingError([*unconverted, *more], **kept) from error
    if unconverted:
        raise LadingError(unconverted, stage="documents", exit_code=4)
    return plan


def _checked_slots(plan: _engine.Plan, prepared: _Prepared) -> list[Slot]:
    try:
        slots, problems = make_slots(plan.destinations, prepared.entries, prepared.placements.units)
    except (RuntimeError, AssertionError) as error:  # how torch says that there is no memory, or no such device
        text = str(error).splitlines()[0]
        code = "device_memory" if isinstance(error, torch.OutOfMemoryError) or "memory" in text else "no_device"
        message = f"memory could not be had on {prepared.device}: {text}"
        raise LadingError(Problem(code, message), stage="loading", exit_code=5) from error
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    return slots


# ---- the load


def _load(
    plan: _engine.Plan,
    slots: list[Slot],
    prepared: _Prepared,
    handed_in: dict[str, Any] | None,
    *,
    shows_progress: bool,
) -> _engine.Report:
    """`handed_in`: gets the digest of every value that is not the engine's."""
    names = {slot.destination.name: (slot.destination.name, *slot.destination.aliases) for slot in slots}

    def value(name: str, rank: int) -> _engine.HostValue:
        tensor = prepared.values.value(names[name])
        if handed_in is not None:
            handed_in[VALUE + name] = bits_digest(tensor)
        return _engine.HostValue(
            tensor.data_ptr(), tensor.numel() * tensor.element_size(), dtype_name(tensor.dtype), tensor
        )

    prepared.values.lend({name: slot.memory for slot in slots for name in names[slot.destination.name]})
    prepared.values.gather()
    try:
        with contextlib.closing(_Bar()) as bar:
            show = bar.show if shows_progress else None
            return plan.load([slot.for_engine() for slot in slots], value=value, progress=show)
    except LadingError as error:
        if not error.begun or any(slot.how == IN_PLACE for slot in slots):
            raise
        # What was written is memory of ours, which the model never sees: it is as it was.
        untouched = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "ledger", "not_listed")}
        raise LadingError(error.problems, **untouched) from error


def _verified(loaded: _engine.Report, location: str, options: Options, *, has_written: bool) -> dict[str, Any] | None:
    if options.verify not in (True, "full"):
        return None
    answer = _engine.verify(location, json.loads(loaded.ledger()))
    if not answer["ok"]:
        problems = [Problem.from_json(problem) for problem in answer["problems"]]
        raise LadingError(problems, stage="loading", begun=has_written, exit_code=6)
    return answer


def _wait(device: torch.device) -> None:
    """The engine's writes are done when it returns; torch's own, of values that moved, are waited for here."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize(device)


class _Bar:
    """A bar of tqdm, if it is there. It comes late, and so does the import: most loads are done before."""

    def __init__(self) -> None:
        self._begun, self._bar, self._is_known = time.monotonic(), None, False

    def show(self, progress: _engine.Progress) -> None:
        if not self._is_known and time.monotonic() - self._begun > _BAR_DELAY_S:
            self._bar, self._is_known = _new_bar(), True
        if self._bar is not None:
            self._bar.total = progress.total_bytes
            self._bar.update(progress.done_bytes - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _new_bar() -> Any:
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm(unit="B", unit_scale=True, desc="lading", leave=False)


# ---- afterwards


def _mark(parts: list[nn.Module], reason: str | None) -> None:
    for part in parts:
        for module in part.modules():
            if reason is not None:
                module.__dict__[_INCOMPLETE] = reason
                break
            module.__dict__.pop(_INCOMPLETE, None)


def mark_initialised(parts: list[nn.Module]) -> None:
    """transformers' own marks: its `initialize_weights()` then changes no bit."""
    for part in parts:
        modules = list(part.modules())
        if not any(hasattr(module, "_init_weights") for module in modules):
            continue
        for module in modules:
            module.__dict__["_is_hf_initialized"] = True
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    tensor._is_hf_initialized = True  # type: ignore[attr-defined]


def _report(
    plan: _engine.Plan,
    loaded: _engine.Report,
    prepared: _Prepared,
    options: Options,
    ranks: Agreement,
    verification: dict[str, Any] | None,
    seconds: float,
) -> Report:
    tensors = {
        name: LoadedTensor.of(name, destination, digest)
        for destination, digest in zip(loaded.destinations, loaded.digests, strict=True)
        if not destination.slot
        for name in (destination.name, *destination.aliases)
    }
    answer = loaded.answer
    return Report(
        tensors=dict(sorted(tensors.items())),
        rank=ranks.ranks[ranks.rank],
        ranks=ranks.size,
        device=str(prepared.device),
        plan_digest=plan.answer["plan_digest"],
        bytes=answer["bytes"],
        read_bytes=answer["read_bytes"],
        planning_seconds=answer["planning_seconds"],
        loading_seconds=answer["loading_seconds"],
        total_seconds=seconds,
        notes=(*prepared.notes, *_kept_wide(plan, options), *loaded.notes),
        warnings=(*plan.warnings, *(warning for warning in loaded.warnings if warning not in plan.warnings)),
        verification=verification,
        _engine_report=loaded,
    )
