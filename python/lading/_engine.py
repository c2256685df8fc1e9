"""The engine, through its C ABI (include/lading/lading_c.h), with ctypes. The only door between Python and lading.

    plan = plan({"checkpoint": "org/name", "skeleton": {...}, "ranks": [0]})
    memories = [allocate(d.size_bytes, d.device) for d in plan.destinations]   # (address, size in bytes)
    report = plan.load(memories)

Importing this module opens the library and compares its ABI version with the one that is bound here. It does not import
torch: memory is an address and a size. While the engine works the GIL is free.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .errors import LadingError, Problem
from .exiting import awaited_at_exit

ABI_VERSION = 1
REQUEST_SCHEMA = "lading.request/1"

_DIFFERENCES = 6  # the exit code of a verification that found some


class _Value(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size_bytes", ctypes.c_uint64), ("dtype", ctypes.c_char_p)]


_VALUE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(_Value))
_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_RECEIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Callbacks(ctypes.Structure):
    _fields_ = [
        ("user", ctypes.c_void_p),
        ("value", _VALUE),
        ("progress", _PROGRESS),
        ("cancelled", ctypes.POINTER(ctypes.c_int)),
    ]


class _Exchange(ctypes.Structure):
    _fields_ = [("owners", ctypes.POINTER(ctypes.c_int64)), ("user", ctypes.c_void_p), ("receive", _RECEIVE)]


def _find_library() -> Path:
    """LADING_LIBRARY, else the one in the package, else a developer's build beside it."""
    named = os.environ.get("LADING_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"LADING_LIBRARY is {named!r}, but that file does not exist")
        return Path(named)
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    places = sorted((package / "lib").glob("liblading.so*"))
    if (checkout / "CMakeLists.txt").is_file():
        places.append(checkout / "build" / "dev" / "liblading.so")
    for place in places:
        if place.is_file():
            return place
    raise ImportError(
        f"liblading.so is neither in {package / 'lib'} nor in a developer's build. Install lading again, or set "
        "LADING_LIBRARY to its path."
    )


def _open_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        version = library.lading_abi_version
    except OSError as error:
        raise ImportError(f"{path} cannot be opened: {error}") from error
    except AttributeError as error:
        raise ImportError(f"{path} is not a lading library, or has no C ABI") from error
    version.restype = ctypes.c_int
    if version() != ABI_VERSION:
        raise ImportError(
            f"{path} has ABI version {version()}, and this Python package needs {ABI_VERSION}: they are of different "
            "versions of lading. Install lading again, or unset LADING_LIBRARY."
        )
    text, handle, pointer = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p
    for name, result, arguments in (
        ("lading_version", text, []),
        ("lading_exit_code", ctypes.c_int, [handle]),
        ("lading_text", pointer, [handle, ctypes.POINTER(ctypes.c_uint64)]),
        ("lading_free", None, [handle]),
        ("lading_fold", handle, [text]),
        ("lading_inspect", handle, [text]),
        ("lading_plan", handle, [text]),
        ("lading_dtypes", handle, [text]),
        ("lading_plan_document", handle, [handle]),
        ("lading_load", handle, [handle, pointer, ctypes.c_uint64, ctypes.POINTER(_Callbacks)]),
        (
            "lading_load_exchanged",
            handle,
            [handle, pointer, ctypes.c_uint64, ctypes.POINTER(_Callbacks), ctypes.POINTER(_Exchange)],
        ),
        ("lading_owners", handle, [handle, text]),
        ("lading_read_speed", handle, [handle]),
        ("lading_digest", handle, [pointer, ctypes.c_uint64, ctypes.c_uint64]),
        ("lading_sampled_contents", handle, [handle]),
        ("lading_ledger", handle, [handle]),
        ("lading_verify", handle, [text]),
        ("lading_check_memory", handle, [text, ctypes.c_uint64]),
        ("lading_save_plan", handle, [text]),
        ("lading_save_prepare", handle, [handle, text]),
        ("lading_save_write", handle, [handle, pointer, ctypes.c_uint64, text, ctypes.POINTER(_Callbacks)]),
        ("lading_save_finish", handle, [handle, text]),
        ("lading_save_commit", handle, [text]),
        ("lading_save_discard", handle, [text]),
        ("lading_help", handle, [text]),
        ("lading_gpus", handle, []),
        ("lading_pattern_matches", ctypes.c_int, [text, ctypes.c_uint64, text, ctypes.c_uint64]),
        ("lading_set_error", None, [text]),
    ):
        function = getattr(library, name, None)
        if function is None:  # new functions do not change the ABI version: only who calls it needs it
            setattr(library, name, _missing(path, name))
            continue
        function.restype = result
        function.argtypes = arguments
    return library


def _missing(path: Path, name: str) -> Callable[..., Any]:
    def refuse(*arguments: Any) -> Any:
        raise ImportError(f"{path} is older than this Python package: it has no {name}. Install lading again.")

    return refuse


LIBRARY_PATH = _find_library()
_library = _open_library(LIBRARY_PATH)


class _Answer:
    """A handle of the engine's, freed with this object."""

    def __init__(self, handle: int | None) -> None:
        if not handle:
            raise MemoryError("lading: there is not even memory for an error message")
        self.handle = handle
        # Not at exit: the memory goes with the process, and a daemon thread may still use it.
        weakref.finalize(self, _library.lading_free, handle).atexit = False

    @property
    def exit_code(self) -> int:
        return _library.lading_exit_code(self.handle)

    def text(self) -> str:
        size_bytes = ctypes.c_uint64()
        address = _library.lading_text(self.handle, ctypes.byref(size_bytes))
        return ctypes.string_at(address, size_bytes.value).decode()

    def checked(self, *accepted: int) -> str:
        """The text, or LadingError. `accepted`: exit codes beside 0 that are no error."""
        text = self.text()
        if self.exit_code in (0, *accepted):
            return text
        answer = json.loads(text)
        ledger = _Answer(_library.lading_ledger(self.handle))
        raise LadingError.from_answer(answer, ledger.text() if ledger.exit_code == 0 else "")


def folded(problems: Mapping[str, Any]) -> list[str]:
    """Lines for people, of `problems` and `problems_not_listed` as an answer has them."""
    return json.loads(_Answer(_library.lading_fold(json.dumps(problems).encode())).text())["lines"]


def _request(fields: Mapping[str, Any]) -> bytes:
    """A request's JSON. Paths may be path objects; what is None is left out. A location brings its revision."""
    given = {"revision": getattr(fields.get("checkpoint"), "revision", None), **fields}
    given = {key: value for key, value in given.items() if value is not None}
    return json.dumps({"schema": REQUEST_SCHEMA, **given}, default=os.fspath, allow_nan=False).encode()


class Destination(NamedTuple):
    """One memory that a load fills: a tensor's part on a rank (DestinationInfo of the C++ API)."""

    rank: int
    name: str
    slot: str
    unit: str
    device: str
    provenance: str
    dtype: str
    checkpoint_dtype: str  # of a tensor from a file
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    size_bytes: int
    aliases: tuple[str, ...]
    replicas: tuple[int, ...]  # the ranks that hold the same bytes under the same name, this one among them
    checkpoint: int = 0  # that has it: 0 the base's; n: the n-th of the request's adapters

    @classmethod
    def _of(cls, fields: Mapping[str, Any], sets: Sequence[tuple[int, ...]]) -> Destination:
        return cls(
            fields["rank"],
            fields["name"],
            fields["slot"],
            fields["unit"],
            fields["device"],
            fields["provenance"],
            fields["dtype"],
            fields.get("checkpoint_dtype", fields["dtype"]),
            tuple(fields["shape"]),
            tuple(fields["local_shape"]),
            fields["size_bytes"],
            tuple(fields["aliases"]),
            sets[fields["replicas"]] if sets else (fields["rank"],),
            fields.get("checkpoint", 0),
        )


@dataclass(frozen=True, slots=True)
class HostValue:
    """A tensor's whole value in host memory, row-major. `owner` keeps the memory alive until the load is done, or, of a
    call and of a value that was deferred, until the next value is asked for (`is_brief`)."""

    address: int
    size_bytes: int
    dtype: str
    owner: Any = None
    is_brief: bool = False

    @classmethod
    def deferred(cls, size_bytes: int, dtype: str) -> HostValue:
        """No bytes yet: they are asked for when they are written."""
        return cls(0, size_bytes, dtype)

    @classmethod
    def of_bytes(cls, data: bytes | bytearray | memoryview, dtype: str) -> HostValue:
        """Of a copy of the bytes."""
        size_bytes = memoryview(data).nbytes
        copy = (ctypes.c_char * max(1, size_bytes)).from_buffer_copy(bytes(data) or b"\0")
        return cls(ctypes.addressof(copy), size_bytes, dtype, copy)


@dataclass(frozen=True, slots=True)
class Progress:
    done_bytes: int
    total_bytes: int
    read_bytes: int


def _warnings(answer: Mapping[str, Any]) -> tuple[Problem, ...]:
    return tuple(Problem.from_json(warning) for warning in answer["warnings"])


class Report:
    """A load that is done. `digests[i]` is that of `destinations[i]`; "" without digests.

    `answer` is the engine's answer less its digests, with `bytes`, `read_bytes`, `planning_seconds`, … in it
    (docs/schema/request.md).
    """

    def __init__(self, answered: _Answer, destinations: Sequence[Destination], answer: dict[str, Any]) -> None:
        self._answered = answered
        self.destinations = destinations
        self.digests: list[str] = answer.pop("digests")
        self.answer = answer
        self.warnings = _warnings(answer)
        self.notes: tuple[str, ...] = tuple(answer["notes"])

    @property
    def handle(self) -> int | None:
        return self._answered.handle

    def ledger(self) -> str:
        """The bill of lading, as JSON text (docs/schema/ledger.md)."""
        return _Answer(_library.lading_ledger(self._answered.handle)).checked()


_VALUE_REMEDY = "Correct what external= or recipes= gives for the tensor; the cause of this error says where it failed."


class _Caller:
    """What a load calls back. An exception must not cross the engine: it is kept until the engine has returned."""

    def __init__(
        self,
        value: Callable[[str, int], HostValue] | None,
        progress: Callable[[Progress], None] | None,
        cancelled: Callable[[], bool] | None,
        receive: Callable[[Callable[[], bool]], None] | None = None,
        deferred_value: Callable[[str, int], HostValue] | None = None,
    ) -> None:
        self._value, self._deferred_value = value, deferred_value
        self._progress = progress
        self._cancelled = cancelled
        self._receive = receive
        self._alive: list[tuple[HostValue, bytes]] = []  # the engine borrows them, as this object does
        self._brief: tuple[HostValue, bytes] | None = None  # and this one until it asks for the next
        self._flag = ctypes.c_int(0)
        self.stopped_by: BaseException | None = None  # to be raised as it is
        self.called_error: Exception | None = None  # the reason of a problem that the engine tells
        self._without_value: set[str] = set()  # names of which a value was asked for in vain
        # Without a value function the engine says itself whose value is missing. Progress is always asked for: Python
        # looks at signals, and we at `cancelled`, only when Python runs.
        self.callbacks = _Callbacks(
            value=_VALUE(self._on_value) if value else _VALUE(),
            progress=_PROGRESS(self._on_progress),
            cancelled=ctypes.pointer(self._flag),
        )
        self._look_at_cancelled()

    def is_stopped(self) -> bool:
        return self._flag.value != 0

    def stop(self, reason: BaseException | None = None) -> None:
        self._flag.value = 1
        self.stopped_by = self.stopped_by or reason

    def _look_at_cancelled(self) -> None:
        if self._cancelled is not None and self._cancelled():
            self.stop()

    def _on_progress(self, _user: int, done_bytes: int, total_bytes: int, read_bytes: int) -> int:
        try:
            self._look_at_cancelled()
            if self._progress is not None:
                self._progress(Progress(done_bytes, total_bytes, read_bytes))
        except BaseException as error:  # noqa: BLE001
            self.stop(error)
        return self._flag.value

    def _on_value(self, _user: int, name: bytes, rank: int, out: Any) -> int:
        try:
            self._brief = None  # before the next value is made: its memory can be used for that
            is_second = out[0].dtype is not None
            value = (self._deferred_value if is_second else self._value)(name.decode(), rank)
            dtype = value.dtype.encode()
            if value.is_brief:
                self._brief = (value, dtype)
            else:
                self._alive.append((value, dtype))
            out[0] = _Value(value.address, value.size_bytes, dtype)
            self._look_at_cancelled()
            return 0
        except BaseException as error:  # noqa: BLE001
            self._without_value.add(name.decode())
            self._keep(error)
        return 1

    def advised(self, failure: LadingError) -> LadingError:
        """The error, in which a missing value has the remedy of a caller in Python."""
        problems = [
            replace(one, remedy=_VALUE_REMEDY) if one.code == "usage" and one.tensor in self._without_value else one
            for one in failure.problems
        ]
        return LadingError(
            problems,
            stage=failure.stage,
            begun=failure.begun,
            exit_code=failure.exit_code,
            report=failure.report,
            ledger=failure.ledger,
            not_listed=failure.not_listed,
        )

    def _keep(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.called_error = self.called_error or error
            _library.lading_set_error(f"{type(error).__name__}: {error}".encode(errors="replace"))
        else:
            self.stop(error)

    def exchange(self, owners: Sequence[int | None]) -> _Exchange:
        list_of_owners = (ctypes.c_int64 * max(1, len(owners)))(*(-1 if one is None else one for one in owners))
        return _Exchange(owners=list_of_owners, receive=_RECEIVE(self._on_receive) if self._receive else _RECEIVE())

    def _on_receive(self, _user: int) -> int:
        try:
            if self._receive is not None:
                self._receive(self.is_stopped)
            return 0
        except BaseException as error:  # noqa: BLE001
            self._keep(error)
        return 1


@contextlib.contextmanager
def _interrupts_stop(caller: _Caller) -> Iterator[None]:
    """Ctrl-C stops the load in order. Another handler stays, and what it raises in a callback is kept there."""
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGINT, lambda _signal, _frame: caller.stop(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Plan:
    """A proved plan. It can be loaded more than once.

    `answer` is the engine's answer less its destinations (docs/schema/request.md).
    """

    def __init__(self, answered: _Answer) -> None:
        self._answered = answered
        self.answer: dict[str, Any] = json.loads(answered.checked())
        # Shared by all destinations that are cut alike; a library that is older than them has none.
        sets = [tuple(ranks) for ranks in self.answer.pop("replica_sets", ())]
        self.destinations = [Destination._of(fields, sets) for fields in self.answer.pop("destinations")]
        self.warnings = _warnings(self.answer)

    def document(self) -> str:
        """The whole plan as JSON text (docs/schema/plan.md)."""
        return _Answer(_library.lading_plan_document(self._answered.handle)).checked()

    def sampled_contents(self) -> str:
        """A 128-bit fingerprint of sampled blocks of the files."""
        with awaited_at_exit():
            return json.loads(_Answer(_library.lading_sampled_contents(self._answered.handle)).checked())["contents"]

    def exchange(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Whether ranks exchange bytes, and who reads what (docs/guides/exchange.md): the answer "owners" of
        docs/schema/request.md. If its `exchange` is "measure", it wants to be asked again with speeds."""
        return json.loads(_Answer(_library.lading_owners(self._answered.handle, _request(facts))).checked())

    def read_speed(self) -> float:
        """Bytes per second, from a few small parts of the plan's files that no other rank measures."""
        with awaited_at_exit():
            answered = _Answer(_library.lading_read_speed(self._answered.handle))
            return json.loads(answered.checked())["bytes_per_second"]

    def load(
        self,
        memories: Sequence[tuple[int, int]],
        *,
        value: Callable[[str, int], HostValue] | None = None,
        deferred_value: Callable[[str, int], HostValue] | None = None,
        progress: Callable[[Progress], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        stopping: Callable[[Callable[[], bool]], None] | None = None,
        owners: Sequence[int | None] | None = None,
        receive: Callable[[Callable[[], bool]], None] | None = None,
    ) -> Report:
        """Fills the destinations. Raises LadingError; `error.begun` says whether anything was written.

        Args:
            memories: (address, size in bytes), one for each destination, in order: contiguous, on the destination's
                device, and alive until this returns. Destinations of one unit on one rank have the same memory.
            value: answers the value of a "host" or "call" tensor, by name and rank. What it raises becomes the cause of
                the LadingError, which lists all values that are missing.
            deferred_value: answers the bytes of a "host" value that `value` deferred, one at a time: each is written
                before the next one is asked for.
            progress: called several times a second. What it raises stops the load, and is raised when nothing is in
                flight any more, with the load's LadingError, if it was stopped in time, as its cause. So is
                KeyboardInterrupt.
            cancelled: asked several times a second; True stops the load with the code "cancelled".
            stopping: called first, with a function that says whether the load was stopped. A `value` that waits for
                something should look.
            owners: who reads what, as `owners()` has it. What another rank reads is not read here.
            receive: with owners: called once, on this thread, when what is read here is in place. It hands over all
                bytes of the destinations that this rank owns, and takes all bytes of those that others do. It is given
                a function that says whether the load was stopped meanwhile, and should look. What it raises becomes the
                cause of the LadingError.
        """
        caller = _Caller(value, progress, cancelled, receive, deferred_value)
        if stopping is not None:
            stopping(caller.is_stopped)
        # Two words a memory, as struct lading_memory has them; an address and a size are both 8 bytes wide.
        words = array.array("Q", [word for address, size_bytes in memories for word in (address or 0, size_bytes)])
        with _interrupts_stop(caller), awaited_at_exit(caller.stop):
            answered = _Answer(
                _library.lading_load(
                    self._answered.handle, words.buffer_info()[0], len(memories), ctypes.byref(caller.callbacks)
                )
                if owners is None
                else _library.lading_load_exchanged(
                    self._answered.handle,
                    words.buffer_info()[0],
                    len(memories),
                    ctypes.byref(caller.callbacks),
                    ctypes.byref(caller.exchange(owners)),
                )
            )
        failure = None
        try:
            answer = json.loads(answered.checked())
        except LadingError as error:
            failure = caller.advised(error)
        if caller.stopped_by is not None:
            raise caller.stopped_by from failure
        if failure is not None:
            raise failure from caller.called_error
        return Report(answered, self.destinations, answer)


def version() -> str:
    """Of the library."""
    return _library.lading_version().decode()


def plan(request: Mapping[str, Any]) -> Plan:
    """Plans a load and proves the plan: `request` as docs/schema/request.md has it; "schema" may be left out."""
    with awaited_at_exit():
        return Plan(_Answer(_library.lading_plan(_request(request))))


def dtypes(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the dtype contract decides for a model: `request` as in docs/schema/request.md; no checkpoint is fine."""
    return json.loads(_Answer(_library.lading_dtypes(_request(request))).checked())


def inspect(checkpoint: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """What a checkpoint holds. Options: root, revision, trailing_bytes, verify_hash."""
    with awaited_at_exit():
        answered = _Answer(_library.lading_inspect(_request({"checkpoint": checkpoint, **options})))
        return json.loads(answered.checked())


def verify(checkpoint: str | os.PathLike[str], ledger: Any, **options: Any) -> dict[str, Any]:
    """Compares a ledger (its path, or what json.loads gives) with the files. Where they differ, `ok` is False.

    The differences are in `problems`. Options: root, revision, trailing_bytes, threads; adapters, one
    `{"checkpoint": path}` for each adapter of the ledger, in its order.
    """
    with awaited_at_exit():
        answered = _Answer(_library.lading_verify(_request({"checkpoint": checkpoint, "ledger": ledger, **options})))
        return json.loads(answered.checked(_DIFFERENCES))


def check_memory(device: str, needed_bytes: int) -> int | None:
    """Raises LadingError if a device ("cpu", "cuda:1") has fewer bytes free. Returns how many, or None if unknown.

    For who allocates the memory of a load, before anything is allocated. Memory that a framework's allocator holds in
    reserve counts as used: subtract it from `needed_bytes`.
    """
    answer = _Answer(_library.lading_check_memory(device.encode(), needed_bytes)).checked()
    return json.loads(answer)["available_bytes"]


def digest(address: int, size_bytes: int) -> str:
    """Of the bytes of a whole tensor in host memory, where they are (docs/how-it-works/digests.md)."""
    answered = _Answer(_library.lading_digest(address or None, size_bytes, 0))
    found: str = json.loads(answered.checked())["digest"]
    return found


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a pattern of names, as policies have it, matches this one (docs/schema/policy.md)."""
    first, second = pattern.encode(errors="surrogatepass"), name.encode(errors="surrogatepass")
    return bool(_library.lading_pattern_matches(first, len(first), second, len(second)))


def help_text(topic: str | None) -> str:
    """What a topic means and what to do; None lists all topics."""
    answered = _Answer(_library.lading_help(None if topic is None else topic.encode()))
    said: str = json.loads(answered.checked())["text"]
    return said


def gpus() -> dict[str, Any]:
    """The GPUs of this machine, or why none can be used."""
    return json.loads(_Answer(_library.lading_gpus()).checked())
