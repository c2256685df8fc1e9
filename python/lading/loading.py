"""`lading.materialize`: fills a model in place from a checkpoint, every tensor of every kind, or says why not.

    with lading.skeleton():
        model = Model(config)
    fully_shard(model)                                  # or parallelize_module, PEFT, freezing, nothing at all
    report = lading.materialize(model, "path/to/checkpoint")

In this order: what the model holds and how it is shared out is read off the model; all ranks agree on it; the engine
plans and proves; all ranks agree on the plan; memory is made for what is on meta; the engine fills it; the model is
looked at once more; all ranks agree that it is filled; only then does anything on meta change. Memory that was real before is written in place: if
a load fails after it began, the model is marked (`is_incomplete`), and the error says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from . import _engine
from .agreement import TIMEOUT_S, Agreement, agreed
from .allocate import KEEP, Slot, attach, elsewhere, make_slots, settle
from .conversion import Conversion, NoCheckpoint
from .devices import wait_for
from .emptied import kept_unwritten, mark_loaded
from .errors import LadingError, Problem
from .exchange import Exchange, agreed_exchange
from .exiting import ending_before_python
from .handed_in import HandedIn
from .host_values import Recipe
from .huggingface import forget_untied
from .inventory import EXTRA_STATE, NON_PERSISTENT, parts_of
from .last_look import LastLook
from .locating import Location, located, resolved
from .optimizer_load import with_state
from .options import POLICY_FIELDS, Options
from .outcome import dtype_notes, passed_over, unexpected_keys, unfollowed
from .patterns import matches
from .peft_files import AdapterFile
from .preparing import Prepared, prepare, rank_facts
from .quantized import forget_quantization, notes_of, refuse_transposed
from .report import HostMemory, LoadedFrom, LoadedTensor, OfWhole, Report
from .shared_inputs import SharedInputs
from .showing import Display, StoppedByUser, checked, display_for, stopped
from .skeleton_recorder import is_recording
from .stages import joined
from .state_dicts import StateDict
from .telling import folded, tell
from .watch import release
from .words import Adapter, Arithmetic, Cast, ComputeRecord, Device, DType, ExchangeScope, External, Group, Pins
from .words import Quantized, Renaming, Showing, StrPath, Ties, Verify
from .zero3_masters import finer_masters

_INCOMPLETE = "_lading_incomplete"

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _outside_inference_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """What is made in that mode can never be trained, and nothing says so before the optimizer's first step."""

    @functools.wraps(function)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if not torch.is_inference_mode_enabled():
            return function(*arguments, **options)
        with torch.inference_mode(False), torch.no_grad():
            return function(*arguments, **options)

    return call


def materialize(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: StrPath,
    *,
    revision: str | None = None,
    device: Device | None = None,
    dtype: DType = "auto",
    cast: Cast = "promote",
    compute_dtype: DType | None = None,
    compute_record: ComputeRecord = "checkpoint",
    pins: Pins = (),
    subtree_dtypes: Mapping[str, DType] | None = None,
    strict: bool = True,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_mismatch: Sequence[str] = (),
    keep: Sequence[str] = (),
    external: External | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    mapping: Renaming | None = None,
    key_mapping: Mapping[str, str] | None = None,
    adapter: Adapter | None = None,
    whole: nn.Module | None = None,
    ties: Ties = "keep",
    quantized: Quantized = "dequantize",
    arithmetic: Arithmetic = "exact",
    seed: int = 0,
    verify: Verify = "auto",
    budget: int | None = None,
    exchange: ExchangeScope = "never",
    optimizer: Any = None,
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> Report:
    """Fills every parameter and buffer of `model` in place, on this rank, from `checkpoint`.

        with lading.skeleton():
            model = Model()
        report = lading.materialize(model, "path/to/checkpoint", device="cuda:0")
        print(report)                                       # 291 tensors, 16.1 GB, 0.4 s …

    Tensors keep their identity, `requires_grad`, hooks, attributes and ties. The process's random generators do
    not change. All ranks of the group must call it; either all of them raise the same error, or none does.

    Args:
        model: a model on meta, on a device, or partly on each, sharded or not. A list of modules is a model in parts.
        checkpoint: a file, a directory, an index, or a repository in the Hugging Face cache.
        revision: a branch, a tag or a commit of a cached repository. None means "main".
        device: this rank's device. None uses the device of the sharding, or of the parameters that have memory.
        dtype: "auto" (as in the checkpoint), or a floating dtype to request; docs/guides/dtypes.md explains the result.
        cast: what `dtype` does to values: "promote" never rounds them, "exact" rounds as transformers does;
            "destination" takes the dtype of the memory that the model already has.
        compute_dtype: the `param_dtype` of FSDP2's mixed-precision policy.
        compute_record, pins, subtree_dtypes: as in `lading.resolve_dtypes`.
        strict: True refuses checkpoint keys that no tensor reads; False lists them in the report.
        allow_missing, allow_unexpected, allow_mismatch, keep: patterns of names; `*` stands for any characters.
        external: values that you pass in, by pattern of names: a tensor, or a model that has a tensor of that name.
            They take precedence over the checkpoint.
        recipes: values for tensors that no file has, by pattern: a function of module and attribute name, or
            `lading.Computed`, from other tensors of this load.
        mapping: the model's names for keys of the checkpoint: {"transformer.h.*": "blocks.*"}, where each `*`
            stands for the same characters in both, dots included, and None as a name ignores a key; or a document
            of docs/schema/mapping.md, or its path.
        key_mapping: renames keys by regular expressions, each applied wherever it matches, as in transformers.
        adapter: the file or directory of a PeftModel's adapter, or a dict of them by adapter name. Adapters without a
            file get PEFT's own initial values.
        whole: if `model` is a part, such as a pipeline stage: the model that it was cut from, on meta. Kinds, ties and
            conversions are then those of the whole model.
        ties: "keep", or "untie", which separates tied tensors that have different keys.
        quantized: "dequantize" multiplies quantized tensors of the checkpoint by their scales, if the model's tensor
            is an ordinary float (docs/guides/quantized.md lists the schemes). "keep" never dequantizes, and refuses a
            model that has no tensors for the scales. A model that has them needs neither.
        arithmetic: how dequantized values are rounded: "exact" once, to the tensor's dtype; "reference" as the scheme's
            own implementation does.
        seed: seed for initial values.
        verify: "auto" counts and digests every byte; "full" also reads the files again and compares; False does not
            digest.
        budget: limit for the host memory that reading takes besides the model, per node, in bytes; `report.memory`
            says what a load needs in total.
        exchange: "never": each rank reads everything that it holds. Otherwise one rank reads the bytes that several
            ranks hold, and sends them to the others: "node" within a machine, "job" everywhere, "auto" if a
            measurement shows that it is clearly faster (docs/guides/exchange.md).
        optimizer: the model's optimizer, which gets the state, the groups' options and the steps that
            `lading.save(…, optimizer=)` wrote beside the weights, whatever the layout was then. It must be of the same
            class, with the same groups of parameters.
        progress: True shows a tqdm bar on a terminal; without a terminal, a long load logs a line every ten seconds
            (level INFO). A function is called several times a second with `done_bytes` and `total_bytes` of this
            rank; an exception in it stops the load on all ranks. Only the group's first rank shows progress.
        group: the process group whose ranks load together; None means the default group, False this process alone.
        timeout: seconds to wait for ranks that have not yet reached an agreement step. Once all ranks have begun, a
            killed or stopped rank is noticed within ten seconds.

    Raises:
        LadingError: lists every problem. The model is unchanged, unless `begun` of the error is True.
    """
    load = functools.partial(
        load_together,
        model,
        checkpoint,
        revision,
        "initialize" if isinstance(checkpoint, NoCheckpoint) else "materialize",
        progress=progress,
        group=group,
        timeout=timeout,
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
        mapping=mapping,
        key_mapping=key_mapping,
        adapter=adapter,
        whole=whole,
        ties=ties,
        quantized=quantized,
        arithmetic=arithmetic,
        seed=seed,
        verify=verify,
        budget=budget,
        exchange=exchange,
    )
    if optimizer is None:
        return load()
    again: dict[str, Any] = {"progress": progress, "group": group, "timeout": timeout, "verify": verify, "exchange": exchange}
    load_state = functools.partial(_load_state, **again, device=device, budget=budget)
    asked = {"device": device, "group": group, "timeout": timeout}
    return _outside_inference_mode(with_state)(
        load, load_state, model, located(checkpoint, revision), adapter, optimizer, asked
    )


def _load_state(tensors: StateDict, folder: Path, **asked: Any) -> Report:
    """An optimizer's, into memory that was made for it: as it was saved, or not at all."""
    asked |= {"dtype": "auto", "cast": "destination", "compute_dtype": None, "in_place": True}
    asked |= {"strict": True, "allow_missing": (), "allow_unexpected": (), "allow_mismatch": ()}
    return load_together(tensors, folder, None, "materialize", **asked)


@ending_before_python
@_outside_inference_mode
def load_together(
    model: nn.Module | Sequence[nn.Module] | StateDict,
    checkpoint: StrPath | NoCheckpoint,
    revision: str | None,
    call: str,
    *,
    progress: Showing,
    group: Group,
    timeout: float,
    **asked: Any,
) -> Report:
    """The load of one `call`, such as "materialize". `asked`: the fields of `Options`."""
    began = time.perf_counter()
    with Agreement.of(group, timeout) as ranks:
        ready = plan_together(model, checkpoint, revision, ranks, call, progress=progress, **asked)
        parts, location, options, prepared = ready.parts, ready.location, ready.options, ready.prepared
        plan, slots = ready.plan, ready.slots
        exchanged: Exchange | None = None
        if options.exchange != "never":
            facts = {"exchange": options.exchange, "nodes": [message["node"] for message in ready.everybody]}
            exchanged, notes = agreed_exchange(plan, slots, facts, ranks, group, prepared.device)
            prepared.notes += notes
        try:
            last_look = LastLook(parts, prepared.entries, prepared.left_on_meta)
            load = _Load(plan, slots, prepared, ranks, exchanged, last_look)
            display = display_for(progress, is_first=ranks.rank == 0)
            loaded, verification = _agreed_load(load, location, options, display)
            runs_code = _runs_code_of_others(slots, prepared)
            if runs_code:  # which may fail on one rank, so all must still be waiting
                ranks.begun = True
                _finish(slots, prepared, last_look)
            ranks.commit()
            if not runs_code:
                _finish(slots, prepared, last_look)
        except BaseException as error:
            _mark_after(ranks.tell(error), parts, slots, ranks)
            raise
        if exchanged is not None:
            exchanged.wires.close()  # not before the commit: another rank may still be receiving
    _mark(parts, None)
    release(module for part in parts for module in part.modules())
    mark_loaded(parts)
    mark_initialised(parts)
    if prepared.conversion.may_untie:
        forget_untied(parts)
    prepared.notes += [*notes_of(plan), *forget_quantization(plan, parts)]
    prepared.notes += [*_kept_as_assigned(plan, prepared.skeleton, options.keep), *load.memory.notes(options.budget)]
    report = _report(plan, loaded, prepared, options, ranks, verification, time.perf_counter() - began)
    report.memory = load.memory
    report._has_checkpoint = location is not None
    report._whole = _of_whole(prepared) if options.whole is not None else None
    place = None if location is None else resolved(location, plan.answer["path"])
    report._source = LoadedFrom(location, options.naming, options.quantized, place)
    ignored = passed_over(plan, report)
    tell(parts, report, unfollowed(report.warnings), passed_over=ignored, is_first=ranks.rank == 0)
    return report


def _of_whole(prepared: Prepared) -> OfWhole:
    known = prepared.conversion
    tables = [entry.name for entry in prepared.origin.entries if entry.kind == NON_PERSISTENT]
    conversion = Conversion(known.mapping, known.ignore, with_key=known.with_key)
    return OfWhole(conversion, prepared.skeleton["ties"], tables)


def is_incomplete(model: nn.Module) -> str:
    """Why the model must not be used: a load into its existing memory began and failed. Returns "" if it can be used.

    if why := lading.is_incomplete(model):
        raise SystemExit(why)
    """
    return getattr(model, _INCOMPLETE, "")


# ---- the plan


@dataclasses.dataclass
class Ready:
    """What a rank knows once all ranks have the same plan."""

    parts: list[nn.Module]
    location: Location | None  # None: the model starts without a checkpoint
    options: Options
    prepared: Prepared
    everybody: list[dict[str, Any]]  # what each rank said about itself
    plan: _engine.Plan
    slots: list[Slot]
    totals: list[dict[str, Any]]  # of the plan, for each rank


def plan_together(
    model: nn.Module | Sequence[nn.Module] | StateDict,
    checkpoint: StrPath | NoCheckpoint,
    revision: str | None,
    ranks: Agreement,
    call: str,
    *,
    allocates: bool = True,
    progress: Any = False,
    **asked: Any,
) -> Ready:
    """Everything up to the plan that all ranks agree on. `asked`: the fields of `Options`. Without `allocates` the
    slots have no memory, and are only good for what they refuse."""
    prepared: Prepared | None = None
    with agreed(ranks, "the model") as step:
        options = Options.of(**asked)
        checked(progress)
        if is_recording():
            raise RuntimeError(
                f"{call} was called under lading.skeleton(), where tensors have no memory: call it after the block"
            )
        parts = [model.part()] if isinstance(model, StateDict) else parts_of(model)
        location = None if isinstance(checkpoint, NoCheckpoint) else located(checkpoint, revision)
        prepared = prepare(parts, location, options, ranks)
        step.message = rank_facts(prepared, options, location) | {"call": call, "revision": revision}
        policy = (f"policy: {name}" for name in POLICY_FIELDS)
        step.must_match = ["version", "call", "revision", *policy, "mapping", "exchange"]
    assert prepared is not None
    plan, slots, totals = _agreed_plan(location, options, prepared, step.answers, ranks, allocates=allocates)
    return Ready(parts, location, options, prepared, step.answers, plan, slots, totals)


def _agreed_plan(
    location: str | None,
    options: Options,
    prepared: Prepared,
    everybody: list[dict[str, Any]],
    ranks: Agreement,
    *,
    allocates: bool,
) -> tuple[_engine.Plan, list[Slot], list[dict[str, Any]]]:
    """The plan of this rank, the memory that it fills, and each rank's totals; all ranks have the same plan."""
    plan: _engine.Plan | None = None
    devices = [message["device"] for message in everybody]
    slots: list[Slot] = []
    with agreed(ranks, "the plan") as step:
        prepared.skeleton, prepared.layout = joined(ranks, prepared.skeleton, prepared.layout)
        prepared.origin.complete(prepared)
        _refuse_idle_recipes(options, prepared.skeleton)
        request = _request(prepared, options, location, devices, ranks.rank)
        plan = _planned(request, prepared)
        refuse_transposed(plan, prepared.entries)
        prepared.refreshes += finer_masters(plan, prepared.entries, request, prepared.notes)
        kept = [name for one in plan.destinations if one.provenance == "kept" for name in (one.name, *one.aliases)]
        if lost := kept_unwritten(kept, prepared.entries, options.spoken_for()):
            raise LadingError(lost, stage="planning", exit_code=4)
        slots = _checked_slots(plan, prepared, allocates=allocates, in_place=options.in_place)
        digest = plan.answer["plan_digest"]
        totals = {"bytes": plan.answer["bytes"]} | plan.answer["ranks"][0]
        step.message = {"plan": digest, "writes": any(slot.writes for slot in slots), "totals": totals}
        if ranks.size > 1 and location is not None:
            step.message["contents of the checkpoint's files"] = plan.sampled_contents()
            step.must_match = ["contents of the checkpoint's files"]
    assert plan is not None
    if len({message["plan"] for message in step.answers}) > 1:
        ranks.refuse_difference("the plan", _records(plan), digest)
    ranks.begun = allocates and ranks.size > 1 and any(message["writes"] for message in step.answers)
    return plan, slots, [message["totals"] for message in step.answers]


def _records(plan: _engine.Plan) -> dict[str, dict[str, str]]:
    """What an error can be named by if the ranks' plans differ (R30); the plan's digest covers the rest."""
    return {
        destination.name: {
            "shape": str(list(destination.shape)),
            "dtype": destination.dtype,
            "source": destination.provenance,
        }
        for destination in plan.destinations
        if not destination.slot
    }


def _kept_as_assigned(plan: _engine.Plan, skeleton: dict[str, Any], keep: list[str]) -> list[str]:
    """Values that survive although `keep` does not list them (R14)."""
    assigned = {tensor["name"] for tensor in skeleton["tensors"] if tensor.get("assigned")}
    kept = [
        one.name
        for one in plan.destinations
        if one.provenance == "kept" and one.name in assigned
        if not any(matches(pattern, name) for pattern in keep for name in (one.name, *one.aliases))
    ]
    return [f"kept as assigned after the model was built, because no file has it: {folded(kept)}"] if kept else []


def _refuse_idle_recipes(options: Options, skeleton: dict[str, Any]) -> None:
    """A typo would leave the tensor that was meant as it is. Names of all ranks count: a stage may have none."""
    names = [tensor["name"] for tensor in skeleton["tensors"]]
    idle = [pattern for pattern in options.recipes if not any(matches(pattern, name) for name in names)]
    if idle:
        problems = [
            Problem("policy", f"recipes: {pattern!r} matches no tensor of the model", rule="R43",
                    remedy="Correct the pattern; lading.take_inventory(model) lists the names.")
            for pattern in idle
        ]
        raise LadingError(problems, stage="planning", exit_code=4)


def _request(prepared: Prepared, options: Options, location: str | None, devices: list[str], rank: int) -> dict[str, Any]:
    """docs/schema/request.md"""
    return {
        "checkpoint": location,
        "start": "checkpoint" if location is not None else "nothing",
        "skeleton": prepared.skeleton,
        "layout": prepared.layout.document(devices),
        "policy": options.policy(prepared.conversion),
        "mapping": prepared.conversion.mapping_document(),
        "adapters": [file.request() for file in prepared.adapters] or None,
        "ranks": [rank],
        "digests": options.verify is not False,
    }


def _planned(request: dict[str, Any], prepared: Prepared) -> _engine.Plan:
    """Reports what a library could not convert together with all problems of the plan (R39)."""
    unconverted = prepared.conversion.problems
    lost = {entry.name: entry.problem for entry in prepared.entries if entry.problem}
    failures = prepared.values.failures
    lost |= {name: f"the initialiser raised {type(error).__name__}: {error}" for name, error in failures.items()}
    try:
        plan = _engine.plan(request)
    except LadingError as error:
        if not unconverted and not lost:
            raise
        told = {problem.tensor for problem in unconverted}
        more = [_explained(problem, lost) for problem in error.problems if problem.tensor not in told]
        kept = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "not_listed")}
        raised = next((failures[problem.tensor] for problem in more if problem.tensor in failures), error)
        raise LadingError([*unconverted, *more], **kept) from raised
    if unconverted:
        raise LadingError(unconverted, stage="documents", exit_code=4)
    return plan


def _explained(problem: Problem, lost: Mapping[str, str]) -> Problem:
    """The engine knows that a tensor has no value; why its record does not count, only the front knows."""
    why = lost.get(problem.tensor or "")
    return dataclasses.replace(problem, message=f"{problem.message}: {why}") if why else problem


def _checked_slots(plan: _engine.Plan, prepared: Prepared, *, allocates: bool, in_place: bool) -> list[Slot]:
    try:
        units = prepared.placements.units
        slots, problems = make_slots(plan.destinations, prepared.entries, units, allocates=allocates)
    except (RuntimeError, AssertionError) as error:  # how torch says that there is no memory, or no such device
        text = str(error).splitlines()[0]
        code = "device_memory" if isinstance(error, torch.OutOfMemoryError) or "memory" in text else "no_device"
        message = f"could not allocate memory on {prepared.device}: {text}"
        remedy = (
            "Free memory on the device, or shard the model over more ranks."
            if code == "device_memory"
            else "Pass a device that this process has."
        )
        raise LadingError(Problem(code, message, remedy=remedy), stage="loading", exit_code=5) from error
    if in_place:
        problems += elsewhere(slots)
    if problems:
        raise LadingError(problems, stage="planning", exit_code=4)
    return slots


# ---- the load


def _agreed_load(
    load: _Load, location: str | None, options: Options, display: Display
) -> tuple[_engine.Report, dict[str, Any] | None]:
    """Every rank has filled its memory, and replicas are the same bits (R17). Failures are reported at once, and not
    when all have come: others may be waiting for bytes of this rank."""
    loaded = load.run(display)
    settle(load.slots)
    load.last_look.refuse_changes(has_written=load.writes)
    verification = _verified(loaded, location, load.prepared.adapters, options, has_written=load.writes)
    wait_for(load.prepared.device)  # where values may have moved; the engine's own writes are done
    load.ranks.say("what was loaded", load.handed_in.digests, while_alive=True)
    load.ranks.agree_replicas(loaded)
    return loaded, verification


class _Load:
    """This rank's own part of a load."""

    def __init__(
        self,
        plan: _engine.Plan,
        slots: list[Slot],
        prepared: Prepared,
        ranks: Agreement,
        exchanged: Exchange | None,
        last_look: LastLook,
    ) -> None:
        self.plan, self.slots, self.prepared, self.ranks, self.exchanged = plan, slots, prepared, ranks, exchanged
        self.last_look = last_look
        self.writes = any(slot.writes for slot in slots)
        self._names = {slot.destination.name: (slot.destination.name, *slot.destination.aliases) for slot in slots}
        self.handed_in = HandedIn(prepared.values, slots, self._names, is_compared=ranks.size > 1)
        self.memory = HostMemory()

    def run(self, display: Display) -> _engine.Report:
        values = self.prepared.values
        loaded = {name: slot.memory for slot in self.slots for name in self._names[slot.destination.name]}
        shared = SharedInputs(self.plan, self.prepared, loaded, self.ranks)
        values.lend(shared.whole)
        values.gather(self.ranks)
        asked = [self._names[slot.destination.name] for slot in self.slots if slot.destination.provenance == "host"]
        values.settle(asked, [slot.memory for slot in self.slots if slot.writes])
        self.memory = HostMemory(
            staging=sum(rank["staging_bytes"] for rank in self.plan.answer["ranks"]),
            handed_in=self.handed_in.planned_bytes(),
            exchange=self.exchanged.planned_bytes() if self.exchanged is not None else 0,
        )
        try:
            with contextlib.closing(display), self.ranks.progress() as tell, shared.during(tell):

                def show(progress: _engine.Progress) -> None:
                    tell(progress.done_bytes)
                    display.show(progress)

                exchanged = self.exchanged
                return self.plan.load(
                    [slot.for_engine() for slot in self.slots],
                    value=self.handed_in.value,
                    deferred_value=self.handed_in.deferred_value,
                    progress=show,
                    cancelled=self.ranks.has_failed,
                    stopping=shared.stopped_by,
                    owners=exchanged.owners if exchanged is not None else None,
                    receive=(lambda is_stopped: exchanged.run(tell, is_stopped)) if exchanged is not None else None,
                )
        except StoppedByUser as stop:
            raise stopped(stop.error, begun=self.writes) from stop.error
        except LadingError as error:
            if not error.begun or self.writes:
                raise
            # What was written is memory of ours, which the model never sees: it is as it was.
            kept = {name: getattr(error, name) for name in ("stage", "exit_code", "report", "ledger", "not_listed")}
            raise LadingError(error.problems, **kept) from error


def _verified(
    loaded: _engine.Report,
    location: str | None,
    adapters: Sequence[AdapterFile],
    options: Options,
    *,
    has_written: bool,
) -> dict[str, Any] | None:
    if options.verify not in (True, "full") or location is None:
        return None
    ledger = json.loads(loaded.ledger())
    if not any(tensor.get("sources") for tensor in ledger["tensors"]):
        return None  # nothing came from files, such as on a pipeline stage without weights
    answer = _engine.verify(location, ledger, adapters=[{"checkpoint": file.path} for file in adapters] or None)
    if not answer["ok"]:
        problems = [Problem.from_json(problem) for problem in answer["problems"]]
        raise LadingError(problems, stage="loading", begun=has_written, exit_code=6)
    return answer


# ---- afterwards


def _runs_code_of_others(slots: Sequence[Slot], prepared: Prepared) -> bool:
    return bool(prepared.refreshes) or any(
        entry.kind == EXTRA_STATE and slot.how != KEEP for slot in slots for entry in slot.entries
    )


def _finish(slots: list[Slot], prepared: Prepared, last_look: LastLook) -> None:
    """Everything is loaded: the model gets it, and those that keep copies of it are updated."""
    try:
        attach(slots, prepared.entries, prepared.placements.units)
        last_look.refuse_meta()
        for refresh in prepared.refreshes:
            refresh()
    except LadingError:
        raise
    except Exception as error:
        message = (
            "code that runs after the load (set_extra_state, or a library that keeps copies of weights) failed: "
            f"{type(error).__name__}: {error}"
        )
        problem = Problem("incomplete", message, remedy="Correct that code, and load again.")
        raise LadingError(problem, stage="loading", begun=True, exit_code=5) from error


def _mark_after(error: BaseException, parts: list[nn.Module], slots: list[Slot], ranks: Agreement) -> None:
    """A model is marked if memory that it had before may be incomplete, or if it has a part of its new memory."""
    writes = any(slot.writes or slot.is_attached for slot in slots)
    if ranks.is_committed or (writes and (ranks.begun or getattr(error, "begun", True))):
        _mark(parts, str(error))


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
    prepared: Prepared,
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
        notes=(*dtype_notes(plan, prepared, options), *prepared.notes, *loaded.notes),
        warnings=tuple(dict.fromkeys([*plan.warnings, *loaded.warnings])),
        missing_keys=plan.answer["missing_keys"],
        unexpected_keys=unexpected_keys(plan, prepared),
        mismatched_keys=plan.answer["mismatched_keys"],
        initialized=plan.answer["initialized"],
        verification=verification,
        _engine_report=loaded,
    )
