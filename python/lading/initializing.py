"""`lading.initialize`: a model that starts without a checkpoint, the same bits in every layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast as cast_to

from torch import nn

from .agreement import TIMEOUT_S
from .conversion import NO_CHECKPOINT
from .host_values import Recipe
from .loading import materialize
from .report import Report
from .words import Cast, Device, DType, External, Group, Showing, StrPath


def initialize(
    model: nn.Module | Sequence[nn.Module],
    *,
    seed: int = 0,
    device: Device | None = None,
    dtype: DType = "auto",
    cast: Cast = "promote",
    keep: Sequence[str] = (),
    external: External | None = None,
    recipes: Mapping[str, Recipe] | None = None,
    whole: nn.Module | None = None,
    budget: int | None = None,
    progress: Showing = True,
    group: Group = None,
    timeout: float = TIMEOUT_S,
) -> Report:
    """Gives every parameter and buffer of `model` its initial value, in place, on this rank, without a checkpoint.

        with lading.skeleton():
            model = Model(config)
        fully_shard(model)                                  # or parallelize_module, zero3_init, nothing at all
        lading.initialize(model, seed=17)

    A value is what the model's own constructor makes: the same distribution with the same parameters, the same
    constants, buffers and ties. Its bits depend on the seed, the tensor's name and the element's place in the whole
    tensor, and on nothing else: they are the same on one rank and on a thousand, in every layout (R16). Each rank makes
    its own part. Only what is not elementwise, such as an orthogonal matrix, is made whole on every rank that has a part
    of it, one tensor at a time; the report says how large the largest is. No rank sends anything to another, and the
    process's random numbers are not touched (R18).

    A tensor that has memory and a value already keeps it.

    Args:
        model: built under `lading.skeleton()`, in any state and sharding. A list of modules is a model in parts.
        seed: seed of all random values.
        device: this rank's device. None uses the device of the sharding, or of the parameters that have memory.
        dtype: "auto" (as the constructor made it), or a floating dtype to request. Values are drawn in float32 and
            rounded once (R19).
        cast: "promote" (a request never narrows), "exact" (everything floating becomes `dtype`, pins excepted).
        keep: patterns of tensors that must have a value already; it is an error if one has none.
        external: a tensor, or another model with a tensor of that name, by pattern.
        recipes: values by pattern, instead of the constructor's: a function of module and attribute name, or
            `lading.Computed`.
        whole: of a part, such as a pipeline stage: the model that it was cut from, on meta.
        budget: limit for host memory besides the model, per node, in bytes.
        progress: as in `lading.materialize`.
        group: the process group whose ranks initialise together; None means the default group, False this process.
        timeout: seconds to wait for ranks that have not yet reached an agreement step.

    Raises:
        LadingError: every problem, in one message. Unless its `begun` is True, the model is unchanged.
    """
    return materialize(
        model,
        cast_to(StrPath, NO_CHECKPOINT),
        seed=seed,
        device=device,
        dtype=dtype,
        cast=cast,
        keep=keep,
        external=external,
        recipes=recipes,
        whole=whole,
        budget=budget,
        progress=progress,
        group=group,
        timeout=timeout,
    )
