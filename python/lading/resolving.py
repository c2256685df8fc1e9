"""`lading.resolve_dtypes`: which dtype every tensor of a model will be stored and computed in, and by which rule.

    dtypes = lading.resolve_dtypes(model, "path/to/checkpoint", torch.bfloat16, compute_dtype=torch.bfloat16)
    print(dtypes)                                        # a line per tensor
    dtypes["layers.0.mixer.A_log"].storage               # torch.float32: a request never narrows (R23)

The engine decides (docs/guides/dtypes.md); it reads only file headers and leaves the model alone. Without a checkpoint
it is about the model as it is: real tensors as they are, others as they were constructed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import _engine
from .conversion import Conversion, conversion_of
from .dtypes import torch_dtype
from .errors import LadingError, Problem
from .host_values import HostValues, Recipe
from .inventory import Entry, parts_of, take_inventory
from .locating import located_if_any
from .options import Options
from .outcome import unfollowed
from .placements import is_elsewhere, is_foreign
from .preparing import model_skeleton
from .recording import SkeletonError
from .telling import speaks_here, warn
from .words import Cast, ComputeRecord, DType, External, Pins, Renaming, StrPath, Ties

_WIDTHS = (48, 22)


@dataclasses.dataclass(frozen=True)
class TensorDTypes:
    """What was decided for one name."""

    name: str
    kind: str
    checkpoint: torch.dtype | None  # None: no file has it, or none is known
    storage: torch.dtype
    compute: torch.dtype
    storage_rule: str
    compute_rule: str
    reason: str
    follows_tower: bool  # of a frozen subtree that is computed in one dtype (R28)
    cast: torch.dtype | None  # what memory of a frozen subtree is to be cast to (R28)

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> TensorDTypes:
        def dtype(name: str) -> torch.dtype | None:
            return torch_dtype(fields[name]) if name in fields else None

        return cls(
            fields["name"],
            fields["kind"],
            dtype("checkpoint_dtype"),
            torch_dtype(fields["storage_dtype"]),
            torch_dtype(fields["compute_dtype"]),
            fields["storage_rule"],
            fields["compute_rule"],
            fields["reason"],
            fields["follows_tower"],
            dtype("cast"),
        )


@dataclasses.dataclass(frozen=True)
class Unit:
    """One call of `fully_shard`. Modules of one unit are gathered together."""

    modules: tuple[str, ...]
    storage: torch.dtype  # of what trains in it
    compute: torch.dtype
    output: torch.dtype | None  # what is around it computes in another dtype
    is_wished: bool  # not only drawn for a dtype's sake
    parameters: tuple[str, ...]

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> Unit:
        output = fields.get("output_dtype")
        return cls(
            tuple(fields["modules"]),
            torch_dtype(fields["storage_dtype"]),
            torch_dtype(fields["compute_dtype"]),
            torch_dtype(output) if output else None,
            fields["wished"],
            tuple(fields["parameters"]),
        )


class DTypes(Mapping[str, TensorDTypes]):
    """The dtypes of a model's tensors, by name; `frozen_subtrees`, the outermost; `warnings` of the engine.

    dtypes = lading.resolve_dtypes(model, "path/to/checkpoint", compute_dtype=torch.bfloat16)
    dtypes["lm_head.weight"].storage
    """

    def __init__(self, request: dict[str, Any], entries: Sequence[Entry]) -> None:
        answer = _engine.dtypes(request)
        self._request = request
        self._entries = entries
        self._tensors = {fields["name"]: TensorDTypes._of(fields) for fields in answer["tensors"]}
        self.frozen_subtrees: tuple[str, ...] = tuple(answer["frozen_subtrees"])
        self.units: tuple[Unit, ...] = tuple(Unit._of(fields) for fields in answer["units"])
        self.warnings = tuple(Problem.from_json(warning) for warning in answer["warnings"])

    def __getitem__(self, name: str) -> TensorDTypes:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def with_units(self, units: Mapping[str, Sequence[str]], compute_dtype: str | None) -> DTypes:
        """The same question once more, with the units for FSDP2 (docs/schema/request.md)."""
        policy = {name: value for name, value in self._request["policy"].items() if name != "compute_dtype"}
        if compute_dtype is not None:
            policy["compute_dtype"] = compute_dtype
        return DTypes(self._request | {"policy": policy, "units": units}, self._entries)

    def __str__(self) -> str:
        lines = []
        for tensor in self.values():
            found = [str(dtype).removeprefix("torch.") for dtype in (tensor.checkpoint, tensor.storage, tensor.compute)]
            decided = f"{tensor.storage_rule}; compute {tensor.compute_rule}"
            lines.append(f"{tensor.name:{_WIDTHS[0]}} {' → '.join(found):{_WIDTHS[1]}}  ({decided})")
        lines += [f"frozen: {name or 'everything'}" for name in self.frozen_subtrees]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def resolve_dtypes(
    model: nn.Module | Sequence[nn.Module],
    checkpoint: StrPath | None = None,
    dtype: DType = "auto",
    *,
    revision: str | None = None,
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
    ties: Ties = "keep",
    mapping: Renaming | None = None,
    key_mapping: Mapping[str, str] | None = None,
) -> DTypes:
    """Checkpoint, storage and compute dtype of every tensor, with the rule that decided, as `materialize` will have it.

        dtypes = lading.resolve_dtypes(model, "path/to/checkpoint", compute_dtype=torch.bfloat16)
        dtypes["lm_head.weight"].storage

    Args:
        model: on meta, on a device, or partly; sharded or not.
        checkpoint: as in `materialize`. None: the dtypes of the model as it is.
        dtype: requested for every floating tensor of every part of the model (R32); "auto" is as in the checkpoint.
        compute_dtype: the `param_dtype` of FSDP2's mixed-precision policy.
        compute_record: "checkpoint": what the file has a parameter in goes before `compute_dtype`; "ignore": it does
            not, so that parameters stored in F32 compute in `compute_dtype`, pins excepted (R26). A record that
            goes before `compute_dtype` is a warning, on the first rank.
        pins: names that stay F32, beside the model's own: patterns, or (pattern, strength) (docs/schema/skeleton.md).
        subtree_dtypes: requested dtypes by module name, which go before `dtype`.
        revision, cast, strict, allow_missing, allow_unexpected, allow_mismatch, keep, external, recipes, ties, mapping,
            key_mapping: as in `lading.materialize`.

    Raises:
        LadingError: every problem, in one message.
    """
    options = Options.of(
        device=None,
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
        ties=ties,
        mapping=mapping,
        key_mapping=key_mapping,
    )
    dtypes = resolve(parts_of(model), located_if_any(checkpoint, revision), options)
    if speaks_here():
        warn(unfollowed(dtypes.warnings))
    return dtypes


def resolve(parts: list[nn.Module], location: str | None, options: Options, *, declared: Iterable[str] = ()) -> DTypes:
    """Of a model in parts. `declared`: buffers that are known to be made in their dtype on purpose (R29)."""
    try:
        entries = [e for e in take_inventory(parts) if not is_elsewhere(e.value) and not is_foreign(e)]
        if location is not None:
            conversion = conversion_of(
                parts, location, entries, naming=options.naming, quantized=options.quantized
            )
        else:
            conversion = _declarations(parts)
        recipes = options.recipes if location is not None else {}
        skeleton = model_skeleton(entries, conversion, HostValues(parts, entries, recipes=recipes))
    except SkeletonError as error:
        problem = Problem("skeleton", error.reason, tensor=error.tensor or None, remedy=error.remedy)
        raise LadingError(problem, stage="documents", exit_code=4) from error
    names = set(declared)
    for tensor in skeleton["tensors"]:
        if tensor["name"] in names:
            tensor.setdefault("derivation", {"kind": "host"})
    request = {
        "checkpoint": location,
        "skeleton": skeleton,
        "policy": options.policy(conversion),
        "mapping": conversion.mapping_document() if location is not None else None,
    }
    return DTypes(request, entries)


def _declarations(parts: list[nn.Module]) -> Conversion:
    """What the model alone declares: pins and ties."""
    from . import huggingface

    return huggingface.declarations(parts) or Conversion()
