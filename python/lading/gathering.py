"""Collectives of a load: tensors of which every rank has a part, put together.

A rank goes into a collective only when all ranks of the load have said that they have come, and while it is inside it
looks whether one of them has failed. Otherwise a rank that fails would leave the others waiting until the collective
times out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from .agreement import Agreement, OnThread, ranges
from .allocate import spec_of
from .errors import LadingError, Problem
from .exchange import refuse_failed, wait_for_failure

_PAUSE_S = 0.02
# All backends move these; some know neither float8 nor 16-bit integers. Bits are moved as they are.
_CARRIERS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int64}

_Result = TypeVar("_Result")


def watched(ranks: Agreement, collective: Callable[[], _Result]) -> _Result:
    """What a collective gives, on a thread, while this one looks whether a rank is gone: the collective would wait for
    it. All ranks must have agreed to go in."""
    work = OnThread(collective)
    while not work.wait(_PAUSE_S):
        refuse_failed(ranks)
    # A connection that broke is another rank's end, as a rule.
    if isinstance(work.error, RuntimeError) and ranks.size > 1:
        wait_for_failure(ranks)
    if work.error is not None:
        raise work.error
    result: _Result = work.result
    return result


def put_together(like: Any, local: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The whole of a DTensor, of which this rank, with this device, has `local`. A collective of its mesh."""
    if device.type != "cpu":  # a thread has a device of its own
        torch.get_device_module(device.type).set_device(device)
    if any(placement.is_partial() for placement in like.placements):  # to be added up, as what they are
        summed: torch.Tensor = like.detach().full_tensor()
        return summed
    carrier = _CARRIERS.get(local.element_size(), local.dtype)
    part = local.detach().view(carrier)
    if part.device.type != like.device_mesh.device_type:  # offloaded
        part = part.to(device)
    whole = type(like)(part, spec_of(like, carrier), requires_grad=False).full_tensor()
    return whole.to(local.device).view(local.dtype)


def whole_values(sharded: Mapping[str, Any], ranks: Agreement) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and whole value of each of these DTensors. All ranks of the load call it, also those that have none."""
    alike: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for name in sorted(sharded):
        alike.setdefault((_members(name, sharded[name]), _kind(sharded[name])), []).append(name)
    message = {"gathers": [[list(members), kind, names] for (members, kind), names in alike.items()]}
    answers = ranks.say("the sharded tensors in external=", message, while_alive=True)
    if problems := _differing([answer["gathers"] for answer in answers], ranks.ranks):
        raise LadingError(problems, stage="agreement", exit_code=7)
    for name in sorted(sharded):
        yield name, watched(ranks, _gather_of(sharded[name]))


def _gather_of(tensor: Any) -> Callable[[], torch.Tensor]:
    local = tensor.to_local()
    device, kind = local.device, tensor.device_mesh.device_type
    if device.type != kind and kind != "cpu":  # offloaded: it travels by this process's device
        device = torch.device(kind, torch.get_device_module(kind).current_device())
    return lambda: put_together(tensor, local, device)


def _members(name: str, tensor: Any) -> tuple[int, ...]:
    """The ranks that a gather of the tensor waits for: those along the dims of its mesh that share it out."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        problem = Problem(
            "ranks_differ",
            "external= gives it a tensor that other ranks share out, and this rank has no part of it",
            tensor=name,
            rule="R44",
            expected="a tensor of a mesh that this rank is in",
            found=f"a mesh of ranks {ranges(sorted(tensor.device_mesh.mesh.reshape(-1).tolist()))}",
            remedy="Give every rank of the load its part, or all ranks a whole tensor.",
        )
        raise LadingError(problem, stage="agreement", exit_code=7)
    places = zip(tensor.placements, coordinate, strict=True)
    chosen = tuple(place if placement.is_replicate() else slice(None) for placement, place in places)
    return tuple(sorted(tensor.device_mesh.mesh[chosen].reshape(-1).tolist()))


def _kind(tensor: Any) -> str:
    """What the parts of a tensor must have in common, so that they can be put together."""
    placements = ", ".join(map(repr, tensor.placements))
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} [{placements}]"


def _differing(gathers: Sequence[Sequence[Any]], ranks: Sequence[int]) -> list[Problem]:
    """Tensors that ranks cannot gather: some that have a part of them would not come, and the others wait in vain, or
    the parts are not parts of one tensor. Ranks of other loads are not asked."""
    given = {
        rank: {(name, tuple(members)): kind for members, kind, names in own for name in names}
        for rank, own in zip(ranks, gathers, strict=True)
    }
    problems = []
    for name, members in sorted(set(itertools.chain.from_iterable(given.values()))):
        kinds: dict[str | None, list[int]] = {}
        for rank in members:
            if rank in given:
                kinds.setdefault(given[rank].get((name, members)), []).append(rank)
        if absent := kinds.pop(None, []):
            what = f"external= gives it a tensor that ranks {ranges(members)} share out, and not on all of them"
            there = sorted(itertools.chain.from_iterable(kinds.values()))
            found = f"it on ranks {ranges(there)}, and not on ranks {ranges(absent)}"
        elif len(kinds) > 1:
            what = f"external= gives ranks {ranges(members)} parts of different tensors"
            found = ", ".join(f"{kind} on ranks {ranges(own)}" for kind, own in kinds.items())
        else:
            continue
        problems.append(
            Problem(
                "ranks_differ",
                what,
                tensor=name,
                rule="R44",
                expected=f"the same sharded tensor on ranks {ranges(members)}",
                found=found,
                remedy="Give every rank of the tensor's mesh its part, or all ranks a whole tensor.",
            )
        )
    return problems
