"""`lading.skeleton()`: constructors run as ever, their tensors are on meta, and what they do is recorded.

    with lading.skeleton():
        model = Model(config)
    lading.derive(model.rotary.inv_freq)          # the value that the constructor would have given it, on the CPU
    lading.recipe_of(model.head.weight)           # Initializer(kind="normal", mean=0.0, std=0.02)

Two modes do it. A dispatch mode sees each operator, runs it on meta and records it. A function mode is for what never
reaches an operator: `.tolist()`, `.numpy()`, `.data = …`, and questions such as `t.device`, which are answered as
they would be without us, because initialisers skip tensors that say they are on meta. A constructor that looks at a
value (`.item()`, a shape that depends on data) gets it by replay, there and then.

What is made inside is on meta; what was real before stays real, and so does memory that somebody else owns (numpy, a
loaded file). Where real tensors meet recorded ones they are captured by value. The process's random numbers are not
touched. The context belongs to its thread; inside another `skeleton()` it joins that one."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as _module_hooks

from . import recording as rec
from .dispatch_mode import PlainDispatchMode
from .one_op import run_with_generator
from .own_default_dtype import own_default
from .recipes import Initializer, recipe_of_operand
from .recording import Captured, Op, Operand, Recording, SkeletonError, Version, recording_of, snapshot_of
from .replay import Seeds, early_value, seed_number, value_of
from .skeleton_functions import FunctionMode, recorded_truncated_normal
from .skeleton_ops import OpInfo, op_info
from .torch_names import tree_flatten, tree_map
from .watch import reopen, seal, watch, watch_data, watch_to_empty
from .while_used import WhileUsed

__all__ = [
    "Initializer", "Recording", "SkeletonError", "derive", "recipe_of", "recording_of", "skeleton", "snapshot_of",
]  # fmt: skip

_META = torch.device("meta")
_active = threading.local()


def is_recording() -> bool:
    """Whether this thread is inside of `skeleton()`."""
    return getattr(_active, "recording", None) is not None


@contextlib.contextmanager
def skeleton(*, seed: int = 0) -> Iterator[Recording]:
    """Builds on meta and records. `seed` only matters to constructors that look at their own random values.

        with lading.skeleton():
            model = Model()
        lading.materialize(model, "path/to/checkpoint", device="cuda:0")
    """
    if is_recording():
        yield _active.recording
        return
    watch_data()
    watch_to_empty()
    recording = Recording(seed)
    _note_modules()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lifting_on_cpu)
        stack.enter_context(recorded_truncated_normal(recording))
        stack.enter_context(_Recorder(recording))
        stack.enter_context(FunctionMode(recording))
        _active.recording = recording
        try:
            yield recording
        finally:
            _active.recording = None
    recording.remember_modules()
    watch(recording.modules)
    for reference in recording.reopened:
        if (tensor := reference()) is not None:
            seal(tensor)


def derive(tensor: torch.Tensor | Operand, *, name: str = "", seed: int = 0) -> torch.Tensor:
    """The value that the constructor gave a recorded tensor, on the CPU, with memory of its own.

        with lading.skeleton():
            model = Model()
        lading.derive(model.rotary.inv_freq)                # what the constructor computed, on the CPU

    Random values depend on seed and name, never on the process's generator. `SkeletonError` if the tensor was not
    recorded, if it depends on one that was not, or if the constructor never wrote it.
    """
    try:
        return value_of(_operand(tensor), Seeds(seed, name))
    except SkeletonError as error:
        raise (error.at(name) if name else error) from error.__cause__


def recipe_of(tensor: torch.Tensor | Operand) -> Initializer | None:
    """How the engine can make the value of a recorded `tensor`; kind `host` if only `derive` can; None if nothing gives it one.

    with lading.skeleton():
        norm = nn.LayerNorm(8)
    lading.recipe_of(norm.weight)                       # Initializer(kind="fill", value=1.0)
    """
    if isinstance(tensor, torch.Tensor) and rec.cell_of(tensor) is None:
        return None
    return recipe_of_operand(_operand(tensor))


def _operand(tensor: torch.Tensor | Operand) -> Operand:
    if isinstance(tensor, Operand):
        return tensor
    if tensor.layout is not torch.strided:
        raise SkeletonError("unrecorded", f"a tensor of layout {tensor.layout} is not recorded")
    if rec.cell_of(tensor) is None:
        raise SkeletonError("unrecorded", "it was not made under lading.skeleton()")
    return rec.operand_of(tensor)


class _Recorder(PlainDispatchMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented  # a subclass with a dispatch of its own comes first; we see what it does inside
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, op_info(func), args, kwargs or {})

    def _dispatch(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            return self._run_without_storages(func, info, args, kwargs)
        for tensor in tensors:
            reopen(tensor, self.recording)
        if info.is_lift and not tensors[0].is_meta:
            own = own_default()
            if own is not None and tensors[0].untyped_storage().resizable():  # else an array, with a dtype of its own
                own.look_at(tensors[0].dtype)
            return self._as_constant(func(*args, **kwargs))
        if info.is_metadata:
            return self._change_metadata(func, info, args, kwargs)
        if any(not tensor.is_meta for tensor in info.written(args, kwargs)):
            return self._run_early(func, info, args, kwargs, record=False)
        all_real = bool(tensors) and not any(tensor.is_meta for tensor in tensors)
        if all_real and not self._leaves_memory(info, tensors, args, kwargs):
            return self._run_on_real(func, info, tensors, args, kwargs)
        if self.recording.autocast:
            self._refuse_autocast(info, self._device(info, args, kwargs).type)
        if info.dynamic:
            return self._run_early(func, info, args, kwargs, record=True)
        return self._run_on_meta(func, info, args, kwargs)

    def _refuse_autocast(self, info: OpInfo, device_type: str) -> None:
        if device_type in self.recording.autocast and info.is_autocast(device_type):
            why = f"{info.name} would run under autocast, which passes by what is on meta"
            raise SkeletonError("autocast", why, op=info.name)

    @staticmethod
    def _leaves_memory(
        info: OpInfo, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether an op on real tensors makes what belongs on meta: new memory, random values, another device."""
        if info.short_name == "_to_copy":
            device = info.argument("device", args, kwargs)
            return device is not None and device.type != tensors[0].device.type
        return info.is_factory or info.is_random

    def _run_on_real(
        self, func: Any, info: OpInfo, tensors: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Real tensors only: done at once. A view is real like what it looks at; a result of its own is a constant."""
        storages = {tensor.untyped_storage()._cdata for tensor in tensors}

        def kept(leaf: Any) -> Any:
            is_view = isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata in storages
            return leaf if is_view else self._as_constant(leaf)

        return tree_map(kept, _run(func, info, args, kwargs))

    def _as_constant(self, leaf: Any) -> Any:
        """A real tensor of our own becomes a constant on meta. What lies in somebody else's memory stays real."""
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.numel() == 0:
            return leaf
        return rec.constant(leaf, self.recording, owned=True) if leaf.untyped_storage().resizable() else leaf

    def _run_on_meta(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def stand_in(leaf: Any) -> Any:
            if isinstance(leaf, torch.Generator):
                return None
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=_META)
            return leaf

        meta_args, meta_kwargs = tree_map(stand_in, (args, kwargs))
        meta_args, meta_kwargs = info.with_argument("device", _META, meta_args, meta_kwargs)
        if info.argument("pin_memory", meta_args, meta_kwargs):
            meta_args, meta_kwargs = info.with_argument("pin_memory", False, meta_args, meta_kwargs)
        written = info.written(args, kwargs)
        op = self._op(func, info, args, kwargs, written)  # before it runs: reads come first
        try:
            out = _run(func, info, meta_args, meta_kwargs)
        except NotImplementedError:
            if not written:
                return self._run_early(func, info, args, kwargs, record=True)
            returns = len(func._schema.returns)  # in place, so the result is known without running it
            out = written[0] if returns == 1 else tuple(written) if returns else None
        if any(isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided for leaf in tree_flatten(out)[0]):
            return self._run_without_storages(func, info, args, kwargs)
        self._finish(op, info, args, kwargs, written, tree_flatten(out)[0])
        return out

    def _change_metadata(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`set_`, `t_` and the like change no element. A `resize_` that grew has some that nobody knows."""
        tensor = args[0]
        source = args[1] if info.short_name == "set_" and len(args) > 1 else None
        if tensor.is_meta and source is not None and source.device.type != "meta":
            # torch.load does it: real memory, taken by value
            real = func(torch.empty(0, dtype=tensor.dtype, device=source.device), *args[1:], **kwargs)
            return torch.ops.aten.set_.source_Tensor(tensor, rec.constant(real, self.recording, owned=False))
        before = tensor.untyped_storage().nbytes()
        out = func(*args, **kwargs)
        if tensor.is_meta and info.short_name.startswith("resize") and tensor.untyped_storage().nbytes() > before:
            op = rec.unknown_op("resize_ gave it more memory, and not all of it was written afterwards")
            cell = rec.cell_of(tensor) or rec.attach(tensor, self.recording, torch.device("cpu"), op)
            cell.head = Version(op, cell.ident)
        return out

    def _run_without_storages(self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sparse and other tensors without a storage cannot be recorded: they are made of real values, and real."""
        if any(tensor.is_meta for tensor in info.written(args, kwargs)):
            why = f"{info.name} writes a tensor that is not strided to one that is on meta, which is not recorded"
            raise SkeletonError("unrecordable", why, op=info.name)
        out = self._run_early(func, info, args, kwargs, record=False)
        return tree_map(self._as_constant, out) if not info.writes else out

    def _blank(self, info: OpInfo) -> Op:
        op = Op(None, info.name)
        op.kind = "blank"
        return op

    def _run_early(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], *, record: bool
    ) -> Any:
        """Runs with real values: the constructor wants to know a number or a shape, or writes to a real tensor."""
        op = self._op(func, info, args, kwargs, []) if record else None

        def real(leaf: Any) -> Any:
            return early_value(leaf, self.recording) if isinstance(leaf, torch.Tensor) and leaf.is_meta else leaf

        real_args, real_kwargs = tree_map(real, (args, kwargs))
        if info.argument("device", args, kwargs) is not None:
            real_args, real_kwargs = info.with_argument("device", torch.device("cpu"), real_args, real_kwargs)
        if info.is_random and info.argument("generator", args, kwargs) is None:
            frozen = (self.recording.seed, "", self.recording.random_count)
            self.recording.random_count += 1
            if op is not None:
                op.frozen = frozen
            own = torch.Generator().manual_seed(seed_number(*frozen))
            out = run_with_generator(func, real_args, real_kwargs, own)
        else:
            with torch._C._DisableAutocast():
                out = _run(func, info, real_args, real_kwargs)
        if op is None:
            return out

        def on_meta(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=_META)

        out = tree_map(on_meta, out)
        self._finish(op, info, args, kwargs, [], tree_flatten(out)[0])
        return out

    def _op(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> Op:
        if info.is_blank:
            return self._blank(info)
        overwritten = self._overwritten(info, args, kwargs, written)

        def encode(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                if not leaf.is_meta:
                    return Captured(leaf)
                operand = rec.operand_of(leaf)
                if operand.cell in overwritten and operand.covers_storage():
                    operand.version = None
                return operand
            if isinstance(leaf, torch.Generator):
                return None if leaf is torch.default_generator else self.recording.generator_use(leaf)
            return leaf

        args, kwargs = tree_map(encode, (args, kwargs))
        if info.argument("device", args, kwargs) is not None:
            args, kwargs = info.with_argument("device", torch.device("cpu"), args, kwargs)
        args, kwargs = info.with_argument("pin_memory", None, args, kwargs)
        op = Op(func, info.name, tuple(args), kwargs)
        op.random = info.is_random and not isinstance(info.argument("generator", args, kwargs), rec.GeneratorUse)
        op.seeded = op.random and torch.default_generator.initial_seed() != self.recording.process_seed
        return op

    @staticmethod
    def _overwritten(
        info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
    ) -> set[int]:
        """Cells that the op writes whole and does not read, as far as its name tells."""
        if not info.is_overwrite and not info.out_names:
            return set()
        cells: dict[int, int] = {}
        for leaf in tree_flatten((args, kwargs))[0]:
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                ident = rec.operand_of(leaf).cell
                cells[ident] = cells.get(ident, 0) + 1
        return {ident for ident in (rec.operand_of(tensor).cell for tensor in written) if cells[ident] == 1}

    def _finish(
        self, op: Op, info: OpInfo, args: Any, kwargs: Any, written: list[torch.Tensor], flat: list[Any]
    ) -> None:
        """Gives new storages their cell and written ones their version. A view does neither, and is forgotten."""
        device = self._device(info, args, kwargs)
        news = False
        for place, leaf in enumerate(flat):
            if not isinstance(leaf, torch.Tensor):
                continue
            if leaf.is_meta and leaf.layout is torch.strided and rec.cell_of(leaf) is None:
                rec.add_out(op, place, leaf, rec.attach(leaf, self.recording, device, op).ident)
                news = True
        for tensor in written:
            cell = rec.cell_of(tensor)
            if cell is not None:
                cell.head = Version(op, cell.ident)
                self._write_shadow(cell, tensor)
        if news or written:
            self.recording.op_count += 1
            for leaf in tree_flatten((args, kwargs))[0]:
                if isinstance(leaf, torch.Generator) and leaf is not torch.default_generator:
                    self.recording.generator_used(leaf, op)

    def _write_shadow(self, cell: rec.Cell, tensor: torch.Tensor) -> None:
        """Memory that `.numpy()` gave away shows what torch writes to the tensor."""
        if cell.shadow is None:
            return
        whole = Operand(tensor, cell.ident, cell.head).whole_storage()
        cell.shadow.copy_(value_of(whole, Seeds(self.recording.seed, freeze_for=self.recording)))
        cell.shadow_checksum = rec.checksum(cell.shadow)

    def _device(self, info: OpInfo, args: Any, kwargs: Any) -> torch.device:
        """Where the result would be if we were not here."""
        if self.recording.claim is not None:
            return self.recording.claim
        device = info.argument("device", args, kwargs)
        if device is not None:
            return torch.device(device)
        for leaf in tree_flatten((args, kwargs))[0]:
            if isinstance(leaf, torch.Tensor):
                cell = rec.cell_of(leaf)
                return cell.device if cell is not None else leaf.device
        return torch.device("cpu")


def _run(func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = own_default()
    return func(*args, **kwargs) if own is None else own.run(func, info, args, kwargs)


def _note_module(module: torch.nn.Module, name: str, value: Any) -> None:
    recording = getattr(_active, "recording", None)
    if recording is not None:
        recording.modules.add(module)


def _note_both(module: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
    for one in (module, child):
        if one is not None:
            _note_module(one, name, None)


@functools.cache
def _note_modules() -> None:
    """From the first recording on. A hook that was removed again could fail in a thread that is just building."""
    _module_hooks.register_module_parameter_registration_hook(_note_module)
    _module_hooks.register_module_buffer_registration_hook(_note_module)
    _module_hooks.register_module_module_registration_hook(_note_both)


def _lift_on_cpu() -> Callable[[], None]:
    """`torch.tensor(numbers, device=…)` must come to us before it goes to the device, which may not be there."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    return lambda: torch._C._set_only_lift_cpu_tensors(before)


_lifting_on_cpu = WhileUsed(_lift_on_cpu)
