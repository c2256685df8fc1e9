"""`lading.save`: writes a model to a Hugging Face checkpoint, every byte of every file by one rank, or says why not.

    report = lading.save(model, "out")                      # on every rank
    report = lading.save(model, "out", base="org/base")     # keys, dtypes and files as in this checkpoint

In this order: what the model holds and how it is shared out is read off the model; all ranks agree on it; the engine
plans a load of the checkpoint that is to be written, proves it and turns it around; all ranks agree on the plan; one
rank makes a temporary directory beside the target; every rank writes; one rank adds the index and the small files and
syncs everything; all ranks agree that everything is there; one rank renames. Before that the target is as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

from torch import nn

from . import _engine
from .agreement import TIMEOUT_S, Agreement, agreed
from .devices import wait_for
from .dtypes import requested_dtype, torch_dtype
from .errors import LadingError, Problem
from .exiting import ending_before_python
from .inventory import parts_of
from .loading import is_incomplete
from .locating import located, revision_of
from .optimizer_document import FOLDER
from .report import Report
from .save_background import PendingSave, begin, wait_for_last_save
from .save_engine import SavePlan, commit, discard, save_plan
from .save_files import CONFIG, config_files, copy_beside, transformers_model
from .save_memory import Memories, memories_of
from .save_names import size_of
from .save_optimizer import DEVICE, StateSubject
from .save_report import SavedKey, SaveReport
from .save_shared import refuse_differences
from .save_snapshot import Snapshot, snapshot_of
from .save_stages import choose_keys
from .save_subject import Base, Subject, subject_of
from .showing import Display, StoppedByUser, checked, display_for, stopped
from .skeleton_recorder import is_recording
from .stages import joined
from .words import DType, Exist, Group, Showing, StrPath, Unmapped

logger = logging.getLogger("lading")

_LEDGER = "lading.ledger.json"
_OWN_FACTS = ("device", "path", "has_config", DEVICE)  # of one rank, about itself
_DROP = 'Pass unmapped="drop", or save without this base.'
_FILE_DTYPES = ("auto", "base", "memory")


@overload
def save(
    model: nn.Module | Sequence[nn.Module],
    directory: StrPath,
    *,
    base: StrPath | Report | None = None,
    revision: str | None = None,
    max_shard_size: int | str | None = None,
    dtype: DType = "auto",
    unmapped: Unmapped = "refuse",
    exist: Exist = "refuse",
    background: Literal[False] = False,
    adapter: str | None = None,
    optimizer: Any = None,
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> SaveReport: ...
@overload
def save(
    model: nn.Module | Sequence[nn.Module],
    directory: StrPath,
    *,
    base: StrPath | Report | None = None,
    revision: str | None = None,
    max_shard_size: int | str | None = None,
    dtype: DType = "auto",
    unmapped: Unmapped = "refuse",
    exist: Exist = "refuse",
    background: Literal[True],
    adapter: str | None = None,
    optimizer: Any = None,
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> PendingSave: ...
@ending_before_python
def save(
    model: nn.Module | Sequence[nn.Module],
    directory: StrPath,
    *,
    base: StrPath | Report | None = None,
    revision: str | None = None,
    max_shard_size: int | str | None = None,
    dtype: DType = "auto",
    unmapped: Unmapped = "refuse",
    exist: Exist = "refuse",
    background: bool = False,
    adapter: str | None = None,
    optimizer: Any = None,
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> SaveReport | PendingSave:
    """Writes the parameters and persistent buffers of `model` to safetensors files in `directory`, from all ranks.

        report = lading.save(model, "out", base="org/base")
        print(report)                                       # 291 keys in 4 files, 16.1 GB, 7.2 s …

    Nothing is gathered: each rank writes what it holds, and of what several ranks hold, one writes. The directory is
    complete when it appears. All ranks of the group must call this; either all of them raise the same error, or none.

    Args:
        model: a model in memory, sharded or not, or this rank's pipeline stage, or a list of its stages. Nothing of it
            may be on meta.
        directory: the directory of the new checkpoint. Its parent must exist.
        base: a checkpoint, or the report of the load that filled the model. Keys, shapes, dtypes, files and their names
            are then as in that checkpoint, and its tokenizer is copied. None: the keys that the `save_pretrained` of
            transformers writes in one process; of other models, the names of the state dict.
        revision: of a `base` in the Hugging Face cache.
        max_shard_size: bytes that a file may have at most, as a number or as a text such as "5GB"; a larger tensor has
            a file of its own. None: the files of `base`, or without one "5GB".
        dtype: of the floating tensors in the files. "auto": the base's, where no bit is lost by that, otherwise it is
            refused; without a base that of memory. "base": the base's, rounded if need be; "memory": that of memory; or
            a dtype, to which values are rounded.
        unmapped: what is done with keys of `base` that no tensor of the model makes: "refuse" lists them in an error,
            "keep" takes their bytes over from its files, "drop" leaves them out.
        exist: "refuse" raises if `directory` exists; "replace" exchanges it for the new one in one step.
        background: True copies the values, on the device if there is room and otherwise to host memory, and returns a
            `PendingSave`, a future of the report. The model may change at once. The next save waits for this one, and
            so does Python when it ends.
        adapter: the name of an adapter of a PeftModel, which is saved alone: adapter_model.safetensors and
            adapter_config.json as PEFT's `save_pretrained` writes them. None: the base, without adapters.
        optimizer: the model's optimizer, whose state, groups and options are saved too, in the directory "optimizer"
            beside the weights: `lading.materialize(…, optimizer=)` loads them, whatever the layout is then.
        progress: as in `lading.materialize`; in the background True shows no bar.
        group: the process group whose ranks save together; None means the default group, False this process alone.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.

    Raises:
        LadingError: lists every problem. The directory is as it was, unless the last step failed: the rename, or what follows it.
    """
    began = time.perf_counter()
    wait_for_last_save()
    with Agreement.of(group, timeout) as ranks:
        with agreed(ranks, "the model") as step:
            asked = Asked.of(directory, base, revision, max_shard_size, dtype, unmapped, exist, background)
            asked.choose_adapter(adapter)
            checked(progress)
            parts = parts_of(model)
            _refuse_unfit(parts)
            subject = subject_of(parts, ranks.ranks, asked.adapter)
            state = None if optimizer is None else StateSubject.of(optimizer, subject, ranks)
            step.message = asked.facts(subject) | ({"optimizer": "none"} if state is None else state.message())
            step.must_match = [name for name in step.message if name not in _OWN_FACTS]
        save_of = _Save(asked, subject, ranks, step.answers)
        save_of.plan_together()
        if state is not None and state.subject is not None:
            save_of.inside = _Save(asked.of_state(), state.subject, ranks, state.said(step.answers))
            save_of.inside.plan_together()
        path = step.answers[0]["path"]
        if background:
            save_of.take_snapshot()
        else:
            report = save_of.run(path, display_for(progress, is_first=ranks.rank == 0))
    if background:
        shown = display_for(progress is not True and progress, is_first=ranks.rank == 0)
        return _in_background(save_of, Agreement.of(group, timeout, beside_training=True), path, shown, began)
    return _finished(report, began, ranks)


def _in_background(save_of: _Save, ranks: Agreement, path: str, display: Display, began: float) -> PendingSave:
    pending = save_of.pending(path)

    def write() -> SaveReport:
        with save_of.releasing_snapshot(), ranks:
            report = save_of.run(path, display, ranks)
        return _finished(report, began, ranks)

    begin(pending, write, tells=ranks.rank == 0)
    return pending


def _finished(report: SaveReport, began: float, ranks: Agreement) -> SaveReport:
    report = dataclasses.replace(report, seconds=time.perf_counter() - began)
    if ranks.rank == 0:
        for line in str(report).splitlines():
            logger.info("%s", line.strip())
    return report


@dataclasses.dataclass
class Asked:
    """The arguments of `save`, checked one by one."""

    directory: str
    base: Base | None
    max_bytes: int | None
    dtype: str
    unmapped: str
    exist: str
    background: bool
    adapter: str | None = None

    @classmethod
    def of(
        cls,
        directory: StrPath,
        base: StrPath | Report | None,
        revision: str | None,
        max_shard_size: int | str | None,
        dtype: DType,
        unmapped: str,
        exist: str,
        background: bool,
    ) -> Asked:
        for name, value, words in (("unmapped", unmapped, Unmapped), ("exist", exist, Exist)):
            if value not in get_args(words):
                raise ValueError(f"{name} is {value!r}; it should be one of {', '.join(map(repr, get_args(words)))}")
        in_files = dtype if dtype in _FILE_DTYPES else requested_dtype(dtype)
        found = _base_of(base, revision)
        if found is not None and isinstance(base, Report):
            found.whole = base._whole
        if in_files == "base" and found is None:
            raise ValueError('dtype is "base", but there is no base: pass base= too')
        if unmapped == "keep" and found is None:
            raise ValueError('unmapped is "keep", but there is no base: pass base= too')
        max_bytes = None if max_shard_size is None else size_of(max_shard_size)
        return cls(_named(directory), found, max_bytes, str(in_files), unmapped, exist, background)

    def of_state(self) -> Asked:
        """The same of the optimizer's state, which is saved as it is, into a directory that is new."""
        return dataclasses.replace(self, base=None, dtype="memory", unmapped="refuse", exist="refuse", adapter=None)

    def choose_adapter(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"adapter is {name!r}; it should be the name of an adapter of the model")
        if name is not None and (self.base is not None or self.max_bytes is not None):
            given = "base" if self.base is not None else "max_shard_size"
            raise ValueError(f"{given} was passed with adapter, whose keys and only file are PEFT's: omit {given}")
        self.adapter = name

    @property
    def narrowed(self) -> str | None:
        return None if self.dtype in _FILE_DTYPES else self.dtype

    def facts(self, subject: Subject) -> dict[str, Any]:
        """What this rank says about itself; all but `_OWN_FACTS` must be the same on every rank."""
        return {
            "version": _engine.version(),
            "call": "save",
            "directory": self.directory,
            "base": None if self.base is None else str(self.base.named),
            "revision": None if self.base is None else revision_of(self.base.named),
            "dtype": self.dtype,
            "max_shard_size": self.max_bytes,
            "unmapped": self.unmapped,
            "exist": self.exist,
            "background": self.background,
            "adapter": self.adapter,
            "device": str(subject.device),
            "path": _absolute(self.directory),
            "has_config": subject.adapter is not None or transformers_model(subject.parts, subject.entries) is not None,
        }


def _named(directory: StrPath) -> str:
    """An empty path would mean the working directory, which "replace" would take away."""
    name = os.fsdecode(directory)
    if not name:
        raise ValueError("directory is empty: pass the path of the directory that is to be written")
    try:
        _absolute(name).encode()
    except UnicodeEncodeError:
        raise ValueError(f"directory is {_absolute(name)!r}; it should be a path in UTF-8") from None
    return name


def _absolute(name: str) -> str:
    """`link/..` stays as it is: the kernel follows the link first."""
    return str(Path(name).absolute())


def _base_of(base: StrPath | Report | None, revision: str | None) -> Base | None:
    if revision is not None and (base is None or isinstance(base, Report)):
        raise ValueError(f"revision is {revision!r}, but base names no repository: omit revision, or pass base too")
    if isinstance(base, Report):
        if base._source.location is None:
            raise ValueError("base is the report of a model that was initialised without a checkpoint; omit base")
        return Base(base._source.place, base._source.naming, base._source.quantized, base._source.location)
    if base is None:
        return None
    location = located(base, revision)
    return Base(location, None, "dequantize", location)


def _refuse_unfit(parts: list[nn.Module]) -> None:
    if is_recording():
        raise RuntimeError(
            "save was called under lading.skeleton(), where tensors have no memory: call it after the block"
        )
    for part in parts:
        if why := is_incomplete(part):
            message = f"the model is incomplete, because a load failed: {why.splitlines()[0]}"
            problem = Problem("incomplete", message, remedy="Load the model again, and save it then.")
            raise LadingError(problem, stage="documents", exit_code=4)


class _Save:
    """One save on one rank, once all ranks know what they are asked for."""

    def __init__(self, asked: Asked, subject: Subject, ranks: Agreement, said: list[dict[str, Any]]) -> None:
        self._asked, self._subject, self._ranks = asked, subject, ranks
        self._devices = [message["device"] for message in said]
        self._plan: SavePlan
        self._memories: Memories
        self.inside: _Save | None = None  # into a directory within this one's
        self._differences: tuple[Problem, ...] = ()  # that are no error
        self._snapshot: Snapshot | None = None
        self._snapshot_note = ""
        self._configs: dict[str, bytes] = {}  # by the name of the file
        # What one rank does for all, one does that has a config to write.
        self._writer = next((rank for rank, message in enumerate(said) if message["has_config"]), 0)
        self._is_writer = ranks.rank == self._writer

    def plan_together(self) -> None:
        subject, ranks, asked = self._subject, self._ranks, self._asked
        with agreed(ranks, "the plan") as step:
            subject.skeleton, subject.layout = joined(ranks, subject.skeleton, subject.layout)
            choose_keys(ranks, subject, asked.base, asked.narrowed, asked.max_bytes)
            wanted: dict[str, Any] = {"dtype": asked.dtype, "max_shard_bytes": asked.max_bytes}
            if subject.keys is None:
                wanted["unmapped"] = asked.unmapped
            elif asked.unmapped == "keep":
                problem = Problem("plan", "the base's keys are packed codes, and no keys of it can be kept", remedy=_DROP)
                raise LadingError(problem, stage="planning", exit_code=4)
            self._plan = save_plan(subject.request(ranks.rank, self._devices, asked.base, wanted))
            self._differences = refuse_differences(ranks, subject, self._devices, self._plan)
            self._memories = memories_of(self._plan.destinations, subject.entries, self._plan.kept_tensors)
            if self._is_writer:
                self._configs = self._config_files()
            wait_for(subject.device)
            step.message = {"plan": self._plan.answer["plan_digest"]}
        if len({message["plan"] for message in step.answers}) > 1:
            ranks.refuse_difference("the plan", self._records(), self._plan.answer["plan_digest"])

    def _records(self) -> dict[str, dict[str, str]]:
        """What an error can be named by if the ranks' plans differ (R30)."""
        return {one["key"]: {"shape": str(one["shape"]), "dtype": one["dtype"]} for one in self._plan.answer["keys"]}

    def take_snapshot(self) -> None:
        """The model is not looked at any more."""
        began = time.perf_counter()
        with agreed(self._ranks, "the snapshot"):
            self._snapshot = snapshot_of(self._memories, self._plan.writes, self._subject.device)
        self._memories = self._snapshot.memories
        size, seconds = f"{self._snapshot.size_bytes / 1e6:.1f} MB", time.perf_counter() - began
        self._snapshot_note = f"a snapshot of {size} was taken on {self._snapshot.device} in {seconds:.2f} s"
        self._subject = dataclasses.replace(
            self._subject, entries=[], parts=[], whole_parts=[], whole_entries=[], skeleton={}
        )
        if self.inside is not None:
            try:
                self.inside.take_snapshot()
            except BaseException:
                self._snapshot.release()
                raise

    def pending(self, path: str) -> PendingSave:
        assert self._snapshot is not None
        inside = self.inside and self.inside._snapshot
        size = self._snapshot.size_bytes + (inside.size_bytes if inside else 0)
        return PendingSave(Path(path), size, self._snapshot.device)

    @contextlib.contextmanager
    def releasing_snapshot(self) -> Iterator[None]:
        assert self._snapshot is not None
        try:
            with self.inside.releasing_snapshot() if self.inside else contextlib.nullcontext():
                yield
        finally:
            self._snapshot.release()

    def run(self, path: str, display: Display, ranks: Agreement | None = None) -> SaveReport:
        """`ranks`: others than those of the plan, in the background."""
        self._ranks = ranks or self._ranks
        within: SaveReport | None = None
        target = {"directory": path, "exist": self._asked.exist}
        with self._undone_on_failure(target):
            with agreed(self._ranks, "the directory") as step:
                if self._is_writer:
                    made = self._plan.prepare(target)
                    target["temporary"] = made["temporary"]
                    step.message = {"temporary": made["temporary"], "path": made["temporary_path"]}
            target["temporary"] = step.answers[self._writer]["temporary"]
            folder = Path(step.answers[self._writer]["path"])
            with agreed(self._ranks, "what was written", while_alive=True) as step:
                written = self._write(target, display)
                step.message = {"bytes": written["written_bytes"]}
            if self.inside is not None:
                quiet = display_for(False, is_first=False)
                within = self.inside.run(str(folder / FOLDER), quiet, ranks)
                within = dataclasses.replace(within, path=Path(path, FOLDER))
            with agreed(self._ranks, "the files", while_alive=True) as step:
                if self._is_writer:
                    step.message = {"beside": self._finish(target, folder)}
            beside = step.answers[self._writer]["beside"]
            with agreed(self._ranks, "the rename", while_alive=True) as step:
                if self._is_writer:
                    step.message = {"replaced": commit(target)["replaced"]}
        report = self._report(path, written, beside, replaced=step.answers[self._writer]["replaced"])
        return dataclasses.replace(report, optimizer=within)

    @contextlib.contextmanager
    def _undone_on_failure(self, target: dict[str, str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._is_writer and "temporary" in target:
                with contextlib.suppress(LadingError):  # the next save of this name cleans up what is left
                    discard({"directory": target["directory"], "temporary": target["temporary"]})
            raise

    def _write(self, target: dict[str, str], display: Display) -> dict[str, Any]:
        place = {"directory": target["directory"], "temporary": target["temporary"]}
        try:
            with contextlib.closing(display), self._ranks.progress() as tell:

                def show(progress: _engine.Progress) -> None:
                    tell(progress.done_bytes)
                    display.show(progress)

                addresses = self._memories.addresses
                return self._plan.write(
                    addresses,
                    place,
                    progress=show,
                    cancelled=self._ranks.has_failed,
                    is_host_copy=self._snapshot is not None and self._snapshot.is_on_host,
                )
        except StoppedByUser as stop:
            raise stopped(stop.error, begun=False, what="save") from stop.error

    def _finish(self, target: dict[str, str], folder: Path) -> list[str]:
        """On one rank: the names of the files beside the weights."""
        try:
            beside = self._small_files(folder)
        except OSError as error:
            message, file = f"could not write a file: {error.strerror}", str(error.filename or folder)
            remedy = "Free space on the disk, or choose another directory."
            problem = Problem("write_failed", message, file=file, remedy=remedy)
            raise LadingError(problem, stage="loading", exit_code=5) from error
        self._plan.finish({"directory": target["directory"], "temporary": target["temporary"]})
        index = self._plan.answer["index"]
        return sorted({*beside, *([index] if index else []), _LEDGER})

    def _config_files(self) -> dict[str, bytes]:
        """Made before anything is written: transformers refuses configs that are not valid."""
        subject = self._subject
        if subject.adapter is not None:
            return subject.adapter.config_files() | subject.beside
        model = transformers_model(subject.parts, subject.entries)
        if model is None:
            return {**subject.beside}
        dtype = subject.file_dtype(self._plan.answer["keys"])
        return config_files(model, torch_dtype(dtype) if dtype else model.dtype, subject.folder) | subject.beside

    def _small_files(self, folder: Path) -> list[str]:
        for name, content in self._configs.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        if self._subject.folder is None:
            return [*self._configs]
        has_code = bool(json.loads(self._configs.get(CONFIG, "{}")).get("auto_map"))
        copied = copy_beside(self._subject.folder, folder, self._plan.answer["beside_names"], has_code=has_code)
        return [*self._configs, *copied]

    def _report(self, path: str, written: dict[str, Any], beside: list[str], *, replaced: bool) -> SaveReport:
        answer = self._plan.answer
        return SaveReport(
            path=Path(path),
            rank=self._ranks.ranks[self._ranks.rank],
            ranks=self._ranks.size,
            files={one["name"]: one["size_bytes"] for one in answer["files"]},
            keys={
                one["key"]: SavedKey(
                    one["key"], one["dtype"], tuple(one["shape"]), one["file"], tuple(one["tensors"])
                )
                for one in answer["keys"]
            },
            bytes=answer["bytes"],
            written_bytes=written["written_bytes"],
            beside=tuple(beside),
            replaced=replaced,
            left_out=tuple([*answer["left_out"], *answer["not_saved"]]),
            dropped_keys=tuple(answer["dropped_keys"]),
            kept_keys=tuple(self._plan.kept_keys),
            plan_digest=answer["plan_digest"],
            planning_seconds=answer["planning_seconds"],
            writing_seconds=written["writing_seconds"] + written["sync_seconds"],
            seconds=0.0,
            snapshot_bytes=0 if self._snapshot is None else self._snapshot.size_bytes,
            notes=(*self._subject.notes, *self._memories.notes(), *filter(None, [self._snapshot_note])),
            warnings=(*self._plan.warnings, *self._differences),
        )
