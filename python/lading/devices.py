"""Where this rank's tensors go (R34): one device, with an index, and how it was found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from .errors import LadingError, Problem
from .inventory import PARAMETER, Entry
from .placements import Placements, is_dtensor

SEVERAL = "Pass device=: the whole model then goes there."
_REMEDY = 'Write the index ("cuda:0"), or start the ranks with torchrun, which sets LOCAL_RANK.'


def rank_device(
    device: Any, placements: Placements, entries: Iterable[Entry], *, in_place: bool = False
) -> tuple[torch.device, str]:
    """The device of this rank, and a note for the report. LadingError where nothing fixes it. `in_place`: tensors on the
    CPU stay there, and do not count if others are on an accelerator."""
    entries = [entry for entry in entries if entry.is_tensor]
    sharded = _mesh_device(placements, entries)
    if device is None:
        return _followed(sharded, entries, in_place=in_place)
    asked = asked_device(device)
    if sharded is not None and sharded.type != asked.type:
        raise _refused(
            f"device is {asked}, but the model is sharded over a mesh of {sharded.type} devices",
            "Omit device: it follows the mesh.",
        )
    if asked.type == "cpu":
        return torch.device("cpu"), "the device is cpu, as asked"
    if asked.index is not None:
        if sharded is not None and sharded.index is not None and sharded.index != asked.index:
            raise _refused(f"device is {asked}, but the model's mesh has this rank on {sharded}")
        return asked, f"the device is {asked}, as asked"
    if sharded is not None and sharded.index is not None:
        return sharded, f"the device is {sharded}: the model's mesh fixes the index"
    local_rank = os.environ.get("LOCAL_RANK", "")
    if local_rank.isdigit():
        found = torch.device(asked.type, int(local_rank))
        return found, f"the device is {found}: LOCAL_RANK fixes the index"
    raise _refused(f'"{asked.type}" has no index, and neither LOCAL_RANK nor a device mesh gives one', _REMEDY)


def asked_device(device: Any) -> torch.device:
    """What the user wrote. LadingError if it is not a device that can hold values."""
    try:
        asked = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _refused(f"device is {device!r}, which torch does not know: {str(error).splitlines()[0]}") from error
    if asked.type == "meta":
        raise _refused('the device "meta" holds no values')
    return asked


def nowhere() -> LadingError:
    message = "the model is on meta and not sharded, so that its device is unknown"
    return _refused(message, 'Pass device="cuda:0" or device="cpu".')


def _followed(sharded: torch.device | None, entries: list[Entry], *, in_place: bool) -> tuple[torch.device, str]:
    if sharded is not None:
        return sharded, f"the device is {sharded}, that of the model's mesh"
    parameters = [entry for entry in entries if entry.kind == PARAMETER]
    held = parameters or [entry for entry in entries if entry.is_tensor]
    if not held:
        return torch.device("cpu"), "the device is cpu: the model has no tensors"
    real = {entry.device for entry in held if not entry.is_meta}
    if in_place and len(real) > 1:
        real.discard(torch.device("cpu"))
    if len(real) == 1:
        (found,) = real
        what = "parameters" if parameters else "tensors"
        return found, f"the device is {found}, where the model's {what} are"
    if not real:
        raise nowhere()
    places = ", ".join(sorted(str(device) for device in real))
    message = f"the model's parameters are on several devices: {places}"
    raise _refused(message, SEVERAL)


def _mesh_device(placements: Placements, entries: list[Entry]) -> torch.device | None:
    """That of the tensors' meshes. FSDP2 says its own; DeviceMesh has set the current device of its type."""
    for unit in placements.units:
        if unit.device is not None:
            return _with_index(unit.device)
    for entry in entries:
        if is_dtensor(entry.value):
            return _with_index(torch.device(entry.value.device_mesh.device_type))
    return None


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu" or device.index is not None:
        return torch.device("cpu") if device.type == "cpu" else device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())


def own_device() -> torch.device:
    """This rank's accelerator, where neither a mesh nor the user names one (R34); the CPU if there is none.

    The current one counts if it was chosen. Number 0 is also the default: then LOCAL_RANK counts, if the
    process sees so many.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return torch.device("cpu")
    index = torch.accelerator.current_device_index()
    local_rank = os.environ.get("LOCAL_RANK", "")
    if index == 0 and local_rank.isdigit() and int(local_rank) < torch.accelerator.device_count():
        index = int(local_rank)
    return torch.device(found.type, index)


def _refused(message: str, remedy: str = "") -> LadingError:
    return LadingError(Problem("no_device", message, rule="R34", remedy=remedy), stage="request", exit_code=4)


def wait_for(device: torch.device) -> None:
    """What torch still does there: the engine reads and writes memory beside torch's streams."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize(device)
