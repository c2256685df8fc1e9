"""`lading.fingerprint`: a digest of every tensor, the same however the model is sharded.

    before = lading.fingerprint(model)                   # on all ranks
    print(before.differences(lading.fingerprint("path/to/checkpoint")))

The digests are those of reports and ledgers (docs/how-it-works/digests.md): each rank digests its own parts where they
are, and the parts of all ranks add up. No tensor is gathered or copied; ranks exchange a few bytes for each tensor.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _engine
from .agreement import TIMEOUT_S, Agreement
from .conversion import NO_CHECKPOINT
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .fsdp1 import FlatMember
from .inventory import BUFFER, PARAMETER, Entry, parts_of, take_inventory
from .inventory_json import SCHEMA
from .loading import load_together
from .locating import located, resolved
from .placements import is_elsewhere
from .preparing import resharded
from .state_dicts import StateDict
from .words import Group, StrPath
from .zero3 import is_partitioned

_BATCH_BYTES = 512 << 20
_LANE = 1 << 64


class TensorFingerprint(NamedTuple):
    """One tensor, whole."""

    dtype: str  # named as in safetensors
    shape: tuple[int, ...]
    digest: str  # 32 hexadecimal digits
    aliases: tuple[str, ...]  # its other names


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """What `lading.fingerprint` returns: of a model the same on every rank.

        one, two = lading.fingerprint(model), lading.fingerprint("path/to/checkpoint")
        assert one.differences(two) == {}

    Attributes:
        tensors: by name, aliases too.
    """

    tensors: dict[str, TensorFingerprint]

    def differences(self, other: Fingerprint) -> dict[str, str]:
        """What differs, by name: "dtype", "shape", "values", "missing" (the other one lacks it) or "unexpected" (only the
        other one has it). A name that is another name of a tensor that both have is not missing."""
        found = {}
        for name in sorted(self.tensors.keys() | other.tensors.keys()):
            ours, theirs = self.tensors.get(name), other.tensors.get(name)
            if ours is None or theirs is None:
                there, without = (ours, other) if theirs is None else (theirs, self)
                if there is not None and not any(alias in without.tensors for alias in there.aliases):
                    found[name] = "missing" if theirs is None else "unexpected"
            elif ours.dtype != theirs.dtype:
                found[name] = "dtype"
            elif ours.shape != theirs.shape:
                found[name] = "shape"
            elif ours.digest != theirs.digest:
                found[name] = "values"
        return found


def fingerprint(
    source: nn.Module | Sequence[nn.Module] | StrPath,
    *,
    revision: str | None = None,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> Fingerprint:
    """Digests of the parameters and persistent buffers of a model, or of the tensors of a checkpoint.

        print(lading.fingerprint(model).differences(lading.fingerprint("path/to/checkpoint")))

    They are equal if dtype, shape and every bit are. docs/how-it-works/digests.md says how unlikely equal digests of
    different values are.

    Args:
        source: a model, sharded or not, or a list of its parts; all ranks must call it. Or the path of a checkpoint, as
            in `lading.materialize`, which this process reads alone; quantized tensors count as they are stored.
        revision: of a checkpoint: a branch, a tag or a commit of a cached repository. None means "main".
        group: the ranks of the model; None means the default group, False this process alone.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.

    Raises:
        LadingError: replicas of a tensor differ, a tensor has no value, or the model is under FSDP1 or ZeRO-3.
    """
    if isinstance(source, str | os.PathLike):
        return Fingerprint(dict(_of_files(source, revision)))
    if revision is not None:
        raise ValueError(f"revision is {revision!r}, but a model has none: pass the name of a repository, or no revision")
    report = load_together(
        StateDict(lambda: _tensors(source)),
        NO_CHECKPOINT,
        None,
        "fingerprint",
        progress=False,
        group=group,
        timeout=timeout,
        device=None,
        dtype="auto",
        cast="destination",
        compute_dtype=None,
        strict=True,
        allow_missing=(),
        allow_unexpected=(),
        allow_mismatch=(),
        keep=["*"],
        verify="auto",
        in_place=True,
    )
    loaded = report._engine_report
    own = {
        one.name: [one.dtype, list(one.shape), digest, min(one.replicas), list(one.aliases)]
        for one, digest in zip(loaded.destinations, loaded.digests, strict=True)
    }
    with Agreement.of(group, timeout) as ranks:
        return Fingerprint(_by_name(ranks.say("the digests", own)))


def _tensors(source: Any) -> dict[str, torch.Tensor]:
    parts = parts_of(source)
    resharded(parts)
    entries = [one for one in take_inventory(parts) if one.kind in (PARAMETER, BUFFER) and not is_elsewhere(one.value)]
    if problems := [problem for entry in entries if (problem := _refusal(entry)) is not None]:
        raise LadingError(problems, stage="documents", exit_code=4)
    return {entry.name: entry.value for entry in entries}


def _refusal(entry: Entry) -> Problem | None:
    if entry.is_meta:
        message, remedy = "the tensor is on meta and has no value", "Load the model first."
    elif isinstance(entry.value, FlatMember) or is_partitioned(entry.value):
        message = "lading.fingerprint does not support FSDP1 and ZeRO-3"
        remedy = "Compare the ledgers of two loads with `lading diff`."
    else:
        return None
    return Problem("layout", message, tensor=entry.name, remedy=remedy)


def _by_name(said: Sequence[Mapping[str, Any]]) -> dict[str, TensorFingerprint]:
    """Each part counts once, whichever ranks have it; ranks that have it must have the same bits (R17)."""
    parts: dict[str, dict[int, str]] = {}
    facts: dict[str, Any] = {}
    differ: dict[str, list[int]] = {}
    for rank, own in enumerate(said):
        for name, (dtype, shape, digest, first, aliases) in own.items():
            facts.setdefault(name, (dtype, tuple(shape), tuple(aliases)))
            if parts.setdefault(name, {}).setdefault(first, digest) != digest:
                differ.setdefault(name, [first]).append(rank)
    if differ:
        problems = [
            Problem(
                "values_differ",
                f"replicas of the tensor have different bytes on ranks {', '.join(map(str, ranks))}",
                tensor=name,
                rule="R17",
                remedy="Load the model again.",
            )
            for name, ranks in sorted(differ.items())
        ]
        raise LadingError(problems, stage="agreement", exit_code=7)
    found = {}
    for name, (dtype, shape, aliases) in facts.items():
        digest = added_up(parts[name].values())
        names = (name, *aliases)
        for one in names:
            found[one] = TensorFingerprint(dtype, shape, digest, tuple(other for other in names if other != one))
    return dict(sorted(found.items()))


def added_up(digests: Iterable[str]) -> str:
    """The digest of a tensor, of those of its parts."""
    lanes = [0, 0]
    for digest in digests:
        for lane in (0, 1):
            lanes[lane] = (lanes[lane] + int(digest[16 * lane : 16 * lane + 16], 16)) % _LANE
    return "".join(f"{lane:016x}" for lane in lanes)


def _of_files(path: StrPath, revision: str | None) -> Iterator[tuple[str, TensorFingerprint]]:
    """A part at a time: no more than that, or the largest tensor, is in memory."""
    location = located(path, revision)
    listing = _engine.inspect(location)
    location = resolved(location, listing["path"])  # a branch may move between two parts
    batch: list[dict[str, Any]] = []
    size = 0
    for tensor in listing["tensors"]:
        begin, end = tensor["bytes"]
        if batch and size + end - begin > _BATCH_BYTES:
            yield from _read(location, batch)
            batch, size = [], 0
        batch.append(tensor)
        size += end - begin
    if batch:
        yield from _read(location, batch)


def _read(location: str, tensors: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, TensorFingerprint]]:
    listed = [{key: one[key] for key in ("name", "shape", "dtype")} | {"kind": "parameter"} for one in tensors]
    request = {
        "checkpoint": location,
        "skeleton": {"schema": SCHEMA, "tensors": listed, "ties": [], "pins": []},
        "policy": {"schema": "lading.policy/1", "dtype": "auto", "quantized": "keep", "unexpected": "report"},
        "part_of_model": True,
        "ranks": [0],
    }
    plan = _engine.plan(request)
    memories = [torch.empty(one.local_shape, dtype=torch_dtype(one.dtype)) for one in plan.destinations]
    loaded = plan.load([(memory.data_ptr(), memory.numel() * memory.element_size()) for memory in memories])
    for one, digest in zip(loaded.destinations, loaded.digests, strict=True):
        yield one.name, TensorFingerprint(one.dtype, tuple(one.shape), digest, ())
