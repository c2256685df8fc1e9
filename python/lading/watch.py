"""What happens to recorded tensors between the end of `lading.skeleton()` and the load.

The record of a constructor is worthless if the model changed afterwards unnoticed. Three things
can happen, and each is noticed in its own way:

- A tensor is *written* on meta, where no recorder sees it. Its version counter tells (`seal`, `was_written`).
  `.data` gives a tensor with a counter of its own, so the tensors that `.data` gives away are kept and asked as well,
  whatever view they were given away by. A sharded tensor on meta has counters too, from when it was sharded on.
- A tensor is *replaced* in its module. The module's dicts of parameters and buffers note it (`Watched`).
- A tensor is *sharded*: replaced by a DTensor, taken into a flat parameter, or given other insides. The record is then
  the one of the tensor that was sharded, taken at that moment, whatever stood there when the recording ended.

All of it ends with the load (`release`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .fsdp1 import FlatMember
from .recording import Operand, Recording, Version, cell_of, operand_of, unknown_op

_SEALED, _ALIASES, _RECORD = "_lading_sealed", "_lading_aliases", "_lading_record"
_NO_VALUE = "_lading_no_value"  # on tensors that got memory of us, and nothing was put into it yet
_LOST = "_lading_lost"  # on tensors on meta that replaced recorded ones: why nothing is known of their value
_EMPTIED = "_lading_emptied"  # on tensors that `to_empty` gave memory: the count of writes at that time
_WAS_RECORDED = "_lading_was_recorded"  # on modules; copies and pickles have it too, and no record
_AFTER = "after the lading.skeleton() block, so its recorded value is out of date"
_WRITTEN, _REPLACED = f"the tensor was written on meta {_AFTER}", f"the tensor's memory on meta was replaced {_AFTER}"
GIVEN_MEMORY = (
    "the tensor was given memory after the lading.skeleton() block, so lading cannot know whether its value is intended"
)


def _why_lost(old: torch.Tensor, new: torch.Tensor) -> str:
    if old.dtype == new.dtype:
        return _REPLACED
    advice = "convert it inside the block, or not at all and pass dtype= to the load"
    return f"the tensor was converted from {old.dtype} to {new.dtype} {_AFTER}; {advice}"


class Record:
    """What was recorded of one tensor, as it was when it was sharded. `problem` says why it does not count."""

    __slots__ = ("operand", "problem")

    def __init__(self, operand: Operand, problem: str) -> None:
        self.operand, self.problem = operand, problem

    def __deepcopy__(self, memo: Any) -> Record:
        return self

    def but(self, problem: str) -> Record:
        """The same, which does not count any more."""
        return Record(self.operand, self.problem or problem)


def record_of(tensor: torch.Tensor) -> Record | None:
    """The record of a tensor that has its recorded storage."""
    if cell_of(tensor) is None:
        return None
    return Record(operand_of(tensor), _WRITTEN if was_written(tensor) else "")


def keep_record(tensor: torch.Tensor) -> None:
    """To be called before sharding gives a tensor object other insides: its record stays with the object."""
    if (record := record_of(tensor)) is not None:
        vars(tensor)[_RECORD] = record


def _last_record(tensor: torch.Tensor) -> Record | None:
    """The record of a tensor, or the one that it had before it got other insides."""
    return record_of(tensor) or vars(tensor).get(_RECORD)


def record_of_sharded(module: nn.Module, name: str, value: torch.Tensor) -> Record | None:
    """The record of what a sharded tensor was made of, or None. What FSDP1 took away, its module remembers."""
    if isinstance(value, FlatMember):
        held = module._parameters
        return held.taken.get(name) if isinstance(held, Watched) else None
    record: Record | None = vars(value).get(_RECORD)
    if record is not None and is_dtensor(value) and value._local_tensor.is_meta:  # memory is there to be written
        known = [(value, vars(value).get(_SEALED, _counts(value))), *vars(value).get(_ALIASES, ())]
        if any(_counts(one) != counts for one, counts in known):
            return record.but(_WRITTEN)
    return record


def why_lost(tensor: torch.Tensor) -> str:
    """Why nothing is known of the value of a tensor on meta in a place that was recorded; "" of any other tensor."""
    lost: str = vars(tensor).get(_LOST, "")
    return lost


def _counts(tensor: Any) -> tuple[int, int]:
    """How often a DTensor was written, by itself and by its local tensor."""
    return _write_count(tensor), _write_count(tensor._local_tensor)


# ---- writes


def seal(tensor: torch.Tensor) -> None:
    """Notes how often a recorded tensor was written so far."""
    cell = cell_of(tensor)
    if cell is not None:
        for one in (tensor, *cell.aliases):
            count = _write_count(one)
            vars(one)[_SEALED] = cell.epoch, count
            cell.sealed.add(count)


def was_written(tensor: torch.Tensor) -> bool:
    """Whether a recorded tensor was written in place since its recording ended."""
    cell = cell_of(tensor)
    if cell is None or not cell.sealed:
        return False
    epoch, sealed = vars(tensor).get(_SEALED, (None, None))
    # A tensor without a seal is another name of a sealed one: `detach()` and `Parameter(…)` share its counter.
    known = {sealed} if epoch == cell.epoch else {0, *cell.sealed}
    return _write_count(tensor) not in known or any(
        vars(alias).get(_SEALED) != (cell.epoch, _write_count(alias)) for alias in cell.aliases
    )


def reopen(tensor: torch.Tensor, recording: Recording) -> None:
    """Before a recording touches a tensor of an earlier one. What was written in between is not known."""
    cell = cell_of(tensor)
    if cell is None or not cell.sealed:
        return
    if was_written(tensor):
        cell.head = Version(unknown_op(_WRITTEN), cell.ident)
    cell.sealed, cell.epoch = set(), cell.epoch + 1
    recording.reopened.append(weakref.ref(tensor))


def _write_count(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors do not count


_data = torch._C.TensorBase.data


def _get_data(tensor: torch.Tensor) -> torch.Tensor:
    alias: torch.Tensor = _data.__get__(tensor)
    if is_dtensor(alias) and _RECORD in vars(tensor):
        vars(tensor).setdefault(_ALIASES, []).append((alias, _counts(alias)))
        return alias
    cell = cell_of(alias) if alias.is_meta else None
    if cell is not None:
        if cell.sealed:
            vars(alias)[_SEALED] = cell.epoch, _write_count(alias)
        cell.aliases.append(alias)  # one that is given away before the end is sealed with the others
    return alias


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if _SEALED in vars(tensor) and (record := record_of(tensor)) is not None:
        vars(tensor)[_RECORD] = record.but(_why_lost(tensor, new)) if new.is_meta else record
        if new.is_meta and cell_of(new) is None:
            vars(tensor)[_LOST] = _why_lost(tensor, new)
    _data.__set__(tensor, new)


def watch_data() -> None:
    """From the first `lading.skeleton()` on, `.data` of a recorded tensor is noted. For all others it stays as it was."""
    if torch.Tensor.data is _data:
        torch.Tensor.data = property(_get_data, _set_data, _data.__delete__, _data.__doc__)  # type: ignore[assignment]


_to_empty = nn.Module.to_empty


@functools.wraps(_to_empty)
def _note_emptied(module: nn.Module, *, device: Any, recurse: bool = True) -> nn.Module:
    _to_empty(module, device=device, recurse=recurse)
    for part in module.modules() if recurse else (module,):
        for tensor in (*part._parameters.values(), *part._buffers.values()):
            if tensor is not None:
                vars(tensor)[_EMPTIED] = _write_count(tensor)
    return module


def watch_to_empty() -> None:
    """From the first `lading.skeleton()` on, `to_empty` marks what it gave memory: even a tensor that had a value has none
    then, and its count of writes does not tell."""
    if nn.Module.to_empty is _to_empty:
        nn.Module.to_empty = _note_emptied  # type: ignore[method-assign]


def is_emptied(tensor: torch.Tensor) -> bool:
    """Whether `to_empty` gave a tensor its memory, and it has not been written since."""
    return vars(tensor).get(_EMPTIED) == _write_count(tensor)


# ---- replacements


class Watched(dict[str, Any]):
    """The parameters or buffers of a recorded module. A tensor that replaces a recorded one gets its record, as the
    record of what it was made of."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__(tensors)
        self.taken: dict[str, Record | None] = {}  # of the last tensor that left, by name

    def _note(self, name: str, new: Any) -> None:
        old = self.get(name)
        if not isinstance(old, torch.Tensor) or old is new or nn.parameter.is_lazy(old):
            return
        self.taken[name] = record = _last_record(old)
        if not isinstance(new, torch.Tensor):
            return
        if lost := why_lost(old):
            vars(new)[_LOST] = lost
        if record is None:
            return
        if is_dtensor(new):
            vars(new).setdefault(_RECORD, record)  # one that has a record already is a tensor of another name
            vars(new).setdefault(_SEALED, _counts(new))
        elif not new.is_meta:
            vars(new)[_RECORD] = record.but(GIVEN_MEMORY)  # `to_empty`, or a value of the user's
        elif cell_of(new) is None:
            vars(new)[_LOST] = _why_lost(old, new)

    def __setitem__(self, name: str, value: Any) -> None:
        self._note(name, value)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._note(name, None)
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self._note(name, None)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        name, value = super().popitem()
        super().__setitem__(name, value)
        del self[name]
        return name, value

    def clear(self) -> None:
        for name in list(self):
            del self[name]

    def update(self, *others: Any, **more: Any) -> None:
        for name, value in dict(*others, **more).items():
            self[name] = value

    def __ior__(self, other: Any) -> Watched:  # type: ignore[override,misc]
        self.update(other)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are plain dicts: what they hold was not made by a recorded constructor."""
        return dict, (dict(self),)


def watch(modules: Iterable[nn.Module]) -> None:
    """Seals what these modules hold, and notes from now on what replaces it."""
    for module in modules:
        vars(module)[_WAS_RECORDED] = True
        for field in ("_parameters", "_buffers"):
            held = vars(module).get(field)
            if type(held) is dict and any(_is_recorded(tensor) for tensor in held.values()):
                vars(module)[field] = Watched(held)
        for tensor in _own_tensors(module):
            seal(tensor)


def release(modules: Iterable[nn.Module]) -> None:
    """After a load: modules are as torch made them."""
    for module in modules:
        vars(module).pop(_WAS_RECORDED, None)
        for field in ("_parameters", "_buffers"):
            if isinstance(vars(module).get(field), Watched):
                vars(module)[field] = dict(vars(module)[field])
        for tensor in _own_tensors(module):
            for mark in (_SEALED, _ALIASES, _RECORD, _NO_VALUE, _LOST):
                vars(tensor).pop(mark, None)


def was_recorded(module: nn.Module) -> bool:
    """Whether a module, or the one that it is a copy of, was built under `lading.skeleton()` and not loaded since."""
    return _WAS_RECORDED in vars(module)


def note_no_value(tensor: torch.Tensor) -> None:
    """To be called when a tensor on meta gets memory: until a load, what lies there means nothing."""
    vars(tensor)[_NO_VALUE] = True


def has_no_value(tensor: torch.Tensor) -> bool:
    """Whether a tensor got its memory from us, and was not loaded since."""
    return _NO_VALUE in vars(tensor)


def is_dtensor(value: Any) -> bool:
    return hasattr(value, "_local_tensor") and hasattr(value, "device_mesh")


def _own_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    from .reach import attributes

    for held in (module._parameters, module._buffers):
        yield from (tensor for tensor in held.values() if tensor is not None and not nn.parameter.is_lazy(tensor))
    yield from (tensor for _, tensor in attributes(module))


def _is_recorded(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not nn.parameter.is_lazy(tensor) and cell_of(tensor) is not None
