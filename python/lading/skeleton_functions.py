"""What a constructor does with tensors that never reaches an operator, under `lading.skeleton()`.

Values that leave as Python or numpy objects, assignments to `.data`, questions about the device, and the one
initialiser of PyTorch that is a loop over its own random values (`trunc_normal_`), which becomes one recorded op."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from . import recording as rec
from .own_default_dtype import own_default
from .recording import Cell, Op, Recording, SkeletonError, Version, unrecorded
from .replay import Seeds, early_value, value_of, view
from .torch_names import DeviceContext, _device_constructors, _get_current_function_mode_stack
from .watch import reopen
from .while_used import WhileUsed

Handler = Callable[[Recording, Any, Any, Any], Any]


class FunctionMode(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recording.autocast = {kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
        own, kwargs = own_default(), kwargs or {}
        if own is None or getattr(func, "__name__", "") == "__get__":  # a property
            return self._answer(func, args, kwargs)
        with own.calling(func, args, kwargs) as with_dtype:
            out = self._answer(func, args, with_dtype)
        own.answered(func, args, kwargs, out)
        return out

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        handler = _handlers().get(func)
        if handler is not None and args and isinstance(args[0], torch.Tensor):
            return handler(self.recording, func, args, kwargs)
        device = kwargs.get("device")
        if device is None and func in _device_constructors():
            device = _outer_device()
        if device is None or torch.device(device).type == "cpu":
            return _call(func, args, kwargs)
        # torch looks for the device, which may not be there, before it comes to us; and on meta it drops numbers.
        with _claiming(self.recording, torch.device(device)):
            out = func(*args, **{**kwargs, "device": "cpu"})
            if (
                isinstance(out, torch.Tensor) and not out.is_meta and out.numel()
            ):  # on another device it would be a copy
                out = rec.constant(out, self.recording, owned=False)
            return out


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "data is not allocated" not in str(error):
            raise
        name = resolve_name(func) or getattr(func, "__name__", str(func))
        why = f"{name} accesses memory without operators, which cannot be recorded"
        raise SkeletonError("unrecordable", why, op=name) from error


def _outer_device() -> torch.device | None:
    """The device of a `with torch.device(…)` that was entered before the skeleton."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


@contextlib.contextmanager
def _claiming(recording: Recording, device: torch.device) -> Iterator[None]:
    before, recording.claim = recording.claim, device
    try:
        yield
    finally:
        recording.claim = before


def _recorded(tensor: Any) -> Cell | None:
    return rec.cell_of(tensor) if isinstance(tensor, torch.Tensor) and tensor.is_meta else None


def _by_value(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`.tolist()` and others that only look."""
    if _recorded(args[0]) is None:
        return func(*args, **kwargs)
    value = early_value(args[0], recording)
    with unrecorded():
        return func(value, *args[1:], **kwargs)


def _deep_copy(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """Of a real tensor: storages are copied past the operators, by helpers that would be put on meta."""
    if _recorded(args[0]) is not None or args[0].is_meta:
        return func(*args, **kwargs)
    with unrecorded():
        return func(*args, **kwargs)


def _as_array(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`.numpy()` shares memory with its tensor, both ways: the storage keeps a shadow that the array is a view of."""
    cell = _recorded(args[0])
    if cell is None:
        return func(*args, **kwargs)
    operand = rec.operand_of(args[0])
    if cell.shadow is None:
        recording.early_reads += 1
        shadow = value_of(operand.whole_storage(), Seeds(recording.seed, freeze_for=recording))
        cell.shadow, cell.shadow_checksum = shadow, rec.checksum(shadow)
    with unrecorded():
        return func(view(cell.shadow.untyped_storage(), operand), *args[1:], **kwargs)


def _in_place_on_cpu(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`apply_` and `map_`: Python functions over elements, which only the CPU has."""
    cell = _recorded(args[0])
    if cell is None:
        return func(*args, **kwargs)
    values = [early_value(arg, recording) if _recorded(arg) is not None else arg for arg in args]
    with unrecorded():
        func(*values, **kwargs)
    args[0].copy_(values[0])
    return args[0]


def _set_data(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """`t.data = other`: t takes over other's storage, which must be of its own kind."""
    tensor, other = args[0], args[1]
    if isinstance(other, torch.Tensor) and tensor.is_meta != other.is_meta:
        is_meta = other.is_meta
        other = early_value(other, recording) if is_meta else rec.constant(other, recording, owned=False)
    return func(tensor, other, *args[2:], **kwargs)


def _device(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    cell = _recorded(args[0])
    return func(*args, **kwargs) if cell is None else cell.device


def _is_device(kind: str) -> Handler:
    def handler(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
        cell = _recorded(args[0])
        return func(*args, **kwargs) if cell is None else cell.device.type == kind

    return handler


def _to(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A move to the device where a tensor claims to be does nothing, and must return the same tensor."""
    tensor = args[0]
    cell = _recorded(tensor)
    if cell is None or kwargs.get("copy"):
        return func(*args, **kwargs)
    dtype, options = None, {}
    if func is torch.Tensor.to:
        other = _recorded(args[1]) if len(args) > 1 else None
        try:
            device, dtype, _, memory_format = torch._C._nn._parse_to(*args[1:], **kwargs)
        except (RuntimeError, TypeError):
            return func(*args, **kwargs)
        device = other.device if other is not None else device
        options = {} if memory_format is None else {"memory_format": memory_format}
    elif func is torch.Tensor.cpu:
        device = torch.device("cpu")
    else:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    if device is None:
        return func(*args, **kwargs)
    if device.type == cell.device.type and device.index in (None, cell.device.index):
        return tensor.to(dtype or tensor.dtype, **options)
    with _claiming(recording, device):
        return tensor.to(dtype or tensor.dtype, copy=True, **options)


def _pinned(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs) if _recorded(args[0]) is None else args[0].clone()


def _indexed(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """torch makes a tensor of a list in an index without an operator, which would be on meta and without values."""
    index = args[1]
    if isinstance(index, tuple):
        index = tuple(_index_tensor(one) if isinstance(one, list | tuple | range) else one for one in index)
    elif isinstance(index, range) or isinstance(index, list) and all(map(_is_number, index)):
        index = _index_tensor(index)
    return _call(func, (args[0], index, *args[2:]), kwargs)


def _is_number(one: Any) -> bool:
    """In a list of others torch may see a tuple, or not, by its version."""
    return hasattr(one, "__index__") and not isinstance(one, torch.Tensor)


def _index_tensor(index: Any) -> torch.Tensor:
    return torch.tensor(index, device="cpu") if len(index) else torch.tensor(index, device="cpu", dtype=torch.int64)


_table: dict[Any, Handler] = {}


def _handlers() -> dict[Any, Handler]:
    if not _table:
        tensor = torch.Tensor
        _table.update(
            {
                tensor.__deepcopy__: _deep_copy,
                tensor.tolist: _by_value,
                tensor.__dlpack__: _by_value,
                tensor.numpy: _as_array,
                tensor.__array__: _as_array,
                tensor.apply_: _in_place_on_cpu,
                tensor.map_: _in_place_on_cpu,
                tensor.map2_: _in_place_on_cpu,
                tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
                tensor.device.__get__: _device,
                tensor.is_meta.__get__: _is_device("meta"),  # type: ignore[attr-defined]
                tensor.is_cpu.__get__: _is_device("cpu"),  # type: ignore[attr-defined]
                tensor.is_cuda.__get__: _is_device("cuda"),  # type: ignore[attr-defined]
                tensor.to: _to,
                tensor.cpu: _to,
                tensor.cuda: _to,
                tensor.pin_memory: _pinned,
                tensor.__getitem__: _indexed,
                tensor.__setitem__: _indexed,
            }
        )
    return _table


_of_thread = threading.local()


@contextlib.contextmanager
def recorded_truncated_normal(recording: Recording) -> Iterator[None]:
    """While it lasts, `torch.nn.init.trunc_normal_` of a recorded tensor is one op, on this thread."""
    _of_thread.recording = recording
    try:
        with _truncated_normal_replaced:
            yield
    finally:
        _of_thread.recording = None


def _replace_truncated_normal() -> Callable[[], None]:
    from torch.nn import init

    original = init._no_grad_trunc_normal_

    def truncated_normal(tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None) -> Any:
        recording = getattr(_of_thread, "recording", None)
        with torch._C.DisableTorchFunction():
            plain = recording is not None and _recorded(tensor) is not None and generator is None
        if not plain:
            return original(tensor, mean, std, a, b, generator=generator)
        with torch._C.DisableTorchFunction():
            reopen(tensor, recording)
            operand = rec.operand_of(tensor)
            if operand.covers_storage():
                operand.version = None
            op = Op(original, "trunc_normal_", (operand, float(mean), float(std), float(a), float(b)))
            op.random = True
            cell = rec.cell_of(tensor)
            assert cell is not None
            cell.head = Version(op, cell.ident)
            recording.op_count += 1
        return tensor

    init._no_grad_trunc_normal_ = truncated_normal

    def undo() -> None:
        init._no_grad_trunc_normal_ = original

    return undo


_truncated_normal_replaced = WhileUsed(_replace_truncated_normal)
