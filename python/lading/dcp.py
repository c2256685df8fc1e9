"""lading for torch.distributed.checkpoint (DCP): `dcp.load` reads Hugging Face checkpoints through lading.

    import torch.distributed.checkpoint as dcp

    state = model.state_dict()
    dcp.load(state, storage_reader=lading.dcp.Reader("path/to/checkpoint"))

`import lading` does not import this module, nor DCP; the first use of `lading.dcp` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

from . import _engine
from .agreement import TIMEOUT_S
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .loading import load_together
from .locating import located
from .patterns import matches
from .report import Report
from .state_dicts import StateDict
from .words import Arithmetic, ExchangeScope, Group, Quantized, Renaming, Showing, StrPath, Verify

__all__ = ["Reader"]

# What DCP's planners may do with each tensor. lading fills all tensors of a rank at once, and calls none of these.
_HOOKS = ("resolve_tensor", "commit_tensor", "lookup_tensor", "transform_tensor")


class Reader(HuggingFaceStorageReader):
    """Reads a Hugging Face checkpoint for `torch.distributed.checkpoint.load`.

        reader = lading.dcp.Reader("path/to/checkpoint")
        dcp.load(state, storage_reader=reader)
        print(reader.report)                            # 291 tensors, 16.1 GB, 0.4 s …

    It may be passed wherever a `HuggingFaceStorageReader` is expected. Each rank's tensors, plain ones and DTensors, are
    filled in place by one load, planned and proved as in `lading.materialize`. A tensor keeps its dtype: values of another
    dtype are cast, rounded where the tensor's is narrower. All ranks of `group` must call `dcp.load`.

    Args:
        path: a file, a directory, an index, or a repository in the Hugging Face cache. `checkpoint_id` of `dcp.load`
            replaces it.
        revision: a branch, a tag or a commit of a cached repository. None means "main".
        strict: True refuses checkpoint keys that the state dict does not have; False, which is DCP's way, ignores them
            and lists them in the report.
        allow_missing: patterns of tensors that the checkpoint may lack; they keep their values. A planner with
            `allow_partial_load=True` means all of them.
        allow_unexpected: patterns of keys that `strict` does not refuse.
        allow_mismatch: patterns of tensors that may have another shape in the checkpoint; they keep their values.
        keep: patterns of tensors that keep their values whatever the checkpoint has. Only these may differ between ranks.
        mapping, key_mapping: other names, and conversions, as in `lading.materialize`.
        quantized, arithmetic, verify, budget, exchange, progress: as in `lading.materialize`.
        group: the `process_group` of `dcp.load`; False with `no_dist=True`.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.

    Attributes:
        report: the `lading.Report` of the last load; None before it.

    `dcp.load` raises a `CheckpointException`, on all ranks, whose `failures` has a `LadingError` by rank.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        revision: str | None = None,
        strict: bool = False,
        allow_missing: Sequence[str] = (),
        allow_unexpected: Sequence[str] = (),
        allow_mismatch: Sequence[str] = (),
        keep: Sequence[str] = (),
        mapping: Renaming | None = None,
        key_mapping: Mapping[str, str] | None = None,
        quantized: Quantized = "dequantize",
        arithmetic: Arithmetic = "exact",
        verify: Verify = "auto",
        budget: int | None = None,
        exchange: ExchangeScope = "never",
        progress: Showing = True,
        group: Group = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        super().__init__(path)  # type: ignore[arg-type]  # a str, it says, and passes it on to what takes both
        self.report: Report | None = None
        self._revision = revision
        self._allow_missing = [allow_missing] if isinstance(allow_missing, str) else list(allow_missing)
        self._keep = [keep] if isinstance(keep, str) else list(keep)
        self._together: dict[str, Any] = {"progress": progress, "group": group, "timeout": timeout}
        self._options: dict[str, Any] = {
            "strict": strict,
            "allow_unexpected": allow_unexpected,
            "allow_mismatch": allow_mismatch,
            "mapping": mapping,
            "key_mapping": key_mapping,
            "quantized": quantized,
            "arithmetic": arithmetic,
            "verify": verify,
            "budget": budget,
            "exchange": exchange,
        }

    def read_metadata(self) -> Metadata:
        """Names, dtypes and shapes of the checkpoint's tensors. The files are opened when something of it is used."""
        return Metadata(_Lazily(self._tensors))  # type: ignore[arg-type]  # a mapping that is not a dict

    def _tensors(self) -> dict[str, TensorStorageMetadata]:
        answer = _engine.inspect(located(self.path, self._revision))
        return {tensor["name"]: _described(tensor) for tensor in answer["tensors"]}

    # DCP looks for the word "kwargs" before it tells the rank.
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **kwargs: Any) -> None:
        """From here on the planner finds every name that it looks for, and plans nothing itself: which keys are missing, or
        of another shape, lading says, of all names and all ranks at once."""
        self._refuse_other_group(kwargs.get("rank"))
        metadata.state_dict_metadata = _EveryName()  # type: ignore[assignment]

    def _refuse_other_group(self, rank: int | None) -> None:
        group = self._together["group"]
        own = 0 if group is False or not dist.is_available() or not dist.is_initialized() else dist.get_rank(group)
        if rank is not None and rank != own:
            message = f"dcp.load has this process as rank {rank}, and lading.dcp.Reader as rank {own}"
            raise _refused(
                message,
                "Pass the process_group of dcp.load as group= of the reader too, and group=False with no_dist=True.",
            )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        missing = ["*"] if getattr(planner, "allow_partial_load", False) else self._allow_missing
        self.report = load_together(
            StateDict(lambda: _asked_for(plan, planner, [*missing, *self._keep])),
            self.path,
            self._revision,
            "dcp.load",
            device=None,
            dtype="auto",
            cast="destination",
            compute_dtype=None,
            allow_missing=missing,
            keep=self._keep,
            in_place=True,
            **self._options,
            **self._together,
        )
        future: Future[None] = Future()
        future.set_result(None)
        return future


def _asked_for(plan: LoadPlan, planner: LoadPlanner, may_lack: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors that a planner wants filled. LadingError if it wants anything else."""
    if not isinstance(planner, DefaultLoadPlanner):
        raise _refused(f"the planner, a {type(planner).__name__}, has no state dict to fill", _PLANNER)
    overridden = [name for name in _HOOKS if getattr(type(planner), name) is not getattr(DefaultLoadPlanner, name)]
    if overridden:
        raise _refused(
            f"the planner, a {type(planner).__name__}, has its own {', '.join(overridden)}, which lading would not call", _PLANNER
        )
    if any(item.type != LoadItemType.BYTE_IO or item.dest_index.fqn != item.storage_index.fqn for item in plan.items):
        raise _refused(f"the planner, a {type(planner).__name__}, plans reads of its own", _PLANNER)
    wanted = {item.dest_index.fqn: planner.state_dict[item.dest_index.fqn] for item in plan.items}
    tensors = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    problems = [
        Problem(
            "usage",
            f"the state dict's value has the type {type(value).__name__}; a safetensors file has tensors only",
            tensor=name,
            remedy="Remove it from the state dict, or list it in allow_missing= to leave it as it is.",
        )
        for name, value in wanted.items()
        if name not in tensors and not any(matches(pattern, name) for pattern in may_lack)
    ]
    if problems:
        raise LadingError(problems, stage="request", exit_code=2)
    return tensors


_PLANNER = "Use DefaultLoadPlanner; lading.dcp.Reader has mapping= for other names and shapes."


def _refused(message: str, remedy: str) -> LadingError:
    return LadingError(Problem("usage", message, remedy=remedy), stage="request", exit_code=2)


def _described(tensor: Mapping[str, Any]) -> TensorStorageMetadata:
    """A tensor of `inspect`, in DCP's words."""
    shape = torch.Size(tensor["shape"])
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
    return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(tensor["dtype"])), shape, [whole])


class _Lazily(Mapping[str, TensorStorageMetadata]):
    """A mapping that is read on first use. DCP hides an error of `read_metadata` itself behind one of its own."""

    def __init__(self, read: Callable[[], dict[str, TensorStorageMetadata]]) -> None:
        self._read = read

    @functools.cached_property
    def _entries(self) -> dict[str, TensorStorageMetadata]:
        return self._read()

    def __getitem__(self, name: str) -> TensorStorageMetadata:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _EveryName(Mapping[str, BytesStorageMetadata]):
    """Has every name that is looked for, as an entry of which DCP plans no parts; lists none."""

    def __getitem__(self, name: str) -> BytesStorageMetadata:
        return BytesStorageMetadata()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
