"""The ranks of one load, on torch.distributed's store: the engine's protocol (docs/how-it-works/reliability.md), by the
C ABI.

    with Coordinator(store, rank, size) as ranks:
        ranks.begin()
        devices = ranks.agree("devices", collect={"device": "cuda:3"})["device"]   # what each rank said
        ranks.agree("the plan", {"plan": digest})       # or a LadingError, the same on all ranks
        ...                                             # ranks.poll(done_bytes) several times per deadline
        ranks.commit()                                  # only if all ranks have come here

A rank that fails says so with `fail(error)`. Nothing here decides anything: notes go from the engine to the store and
back. Any store with `set`, `get`, `check` and `compare_set` will do, `TCPStore` and `HashStore` among them. The
engine asks it on a thread of its own, and leaves a question behind that the store does not answer in time.
"""

from __future__ import annotations

import base64
import ctypes
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import _engine
from .errors import LadingError, Problem

_READY, _ABSENT, _GONE = range(3)
_LONGEST_PAUSE_S = 0.1  # between two questions for notes that are waited for

_PUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64)
_DECIDE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p
)
_WAIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p
)


class _Store(ctypes.Structure):
    _fields_ = [("user", ctypes.c_void_p), ("put", _PUT), ("decide", _DECIDE), ("wait", _WAIT)]


def _bind() -> ctypes.CDLL:
    library = _engine._library
    text, handle, ranks = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p
    for name, result, arguments in (
        ("lading_add_note", None, [ctypes.c_void_p, text, ctypes.c_uint64]),
        ("lading_ranks_new", handle, [text, ctypes.POINTER(_Store), ctypes.POINTER(ctypes.c_void_p)]),
        ("lading_ranks_begin", handle, [ranks, text]),
        ("lading_ranks_agree", handle, [ranks, text]),
        ("lading_ranks_agree_replicas", handle, [ranks, handle, ctypes.c_int]),
        ("lading_ranks_poll", ctypes.c_int, [ranks, ctypes.c_int64]),
        ("lading_ranks_fail", handle, [ranks, text]),
        ("lading_ranks_commit", handle, [ranks]),
        ("lading_ranks_free", None, [ranks]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class _Notes:
    """The engine's three questions, answered by a store. Stores take text: notes are bytes."""

    def __init__(self, store: Any, library: ctypes.CDLL) -> None:
        self._store, self._library = store, library
        self.in_c = _Store(None, _PUT(self._put), _DECIDE(self._decide), _WAIT(self._wait))

    def _put(self, _user: Any, key: bytes, value: int, size: int) -> int:
        return self._guarded(lambda: self._store.set(key.decode(), _text(value, size)))

    def _decide(self, _user: Any, key: bytes, value: int, size: int, notes: int) -> int:
        def decide() -> None:
            self._add(notes, self._store.compare_set(key.decode(), "", _text(value, size)))

        return self._guarded(decide)

    def _wait(self, _user: Any, keys: Any, count: int, timeout_s: float, notes: int) -> int:
        def wait() -> int:
            names = [keys[i].decode() for i in range(count)]
            if not self._are_there(names, timeout_s):
                return _ABSENT
            for name in names:
                self._add(notes, self._store.get(name))
            return _READY

        return self._guarded(wait)

    def _are_there(self, names: list[str], timeout_s: float) -> bool:
        """Asked again and again: a `wait` of the store's that ends without a note is a warning on standard error."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while not self._store.check(names):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    def _add(self, notes: int, value: bytes) -> None:
        note = base64.b64decode(value)
        self._library.lading_add_note(notes, note, len(note))

    def _guarded(self, ask: Any) -> int:
        try:
            return ask() or _READY
        except Exception as error:  # noqa: BLE001 - nothing may be thrown into the engine
            self._library.lading_set_error(str(error).encode())
            return _GONE


def _text(value: int, size: int) -> str:
    return base64.b64encode(ctypes.string_at(value, size)).decode()


# What the engine's threads may still use when a coordinator is gone, if one was left behind in a store that hangs.
_kept: list[_Notes] = []


class Coordinator:
    """One per load and rank. Steps are made by one thread; `poll` may be called from any."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        prefix: str = "lading",
        deadline_s: float = 10.0,
        step_timeout_s: float = 300.0,
        is_host: bool = False,
    ) -> None:
        self.rank, self.size, self.deadline_s = rank, size, deadline_s
        self._library = _bind()
        self._notes = _Notes(store, self._library)
        _kept.append(self._notes)
        self._may_hang = False
        self._ranks = ctypes.c_void_p()
        request = {"rank": rank, "size": size, "prefix": prefix, "is_host": is_host}
        request |= {"deadline_s": deadline_s, "step_timeout_s": step_timeout_s}
        made = self._library.lading_ranks_new(
            _request(request), ctypes.byref(self._notes.in_c), ctypes.byref(self._ranks)
        )
        self._answer(made)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, same: Mapping[str, str] | None = None) -> None:
        """All ranks have come, with the same version, number of ranks, and fields."""
        self._answer(self._library.lading_ranks_begin(self._ranks, _request({"fields": _fields(same, None)})))

    def agree(
        self,
        step: str,
        same: Mapping[str, str] | None = None,
        *,
        collect: Mapping[str, str] | None = None,
        records: Sequence[Mapping[str, Any]] | None = None,
        failure: LadingError | None = None,
        while_alive: bool = False,
    ) -> dict[str, list[str]]:
        """What each rank said of the collected fields, in the order of ranks; or the one error that all of them get."""
        request: dict[str, Any] = {"step": step, "fields": _fields(same, collect)}
        if while_alive:
            request["while_alive"] = True
        if records is not None:
            request["records"] = list(records)
        if failure is not None:
            request["failure"] = _failure(failure)
        answer = self._answer(self._library.lading_ranks_agree(self._ranks, _request(request)))
        said = {name: [""] * self.size for name in collect or ()}
        for name, values in said.items():
            for share in answer["fields"].get(name, ()):
                for rank in share["ranks"]:
                    values[rank] = share["value"]
        return said

    def agree_replicas(self, loaded: _engine.Report, *, begun: bool) -> None:
        """Ranks that hold the same bytes have the same digests of them (R17); or the one error that all of them get,
        which names the tensors. `begun`: what that error says of the model."""
        self._answer(self._library.lading_ranks_agree_replicas(self._ranks, loaded.handle, int(begun)))

    def poll(self, done: int | None = None) -> bool:
        """False: the load has failed, here or elsewhere, and any step says how."""
        is_well = self._library.lading_ranks_poll(self._ranks, -1 if done is None else done) == 0
        self._may_hang = self._may_hang or not is_well
        return is_well

    def fail(self, failure: LadingError) -> LadingError:
        """Tells all ranks at once. What all of them get: another rank's failure, if that came first."""
        try:
            self._answer(self._library.lading_ranks_fail(self._ranks, _request({"failure": _failure(failure)})))
        except LadingError as error:
            return error
        return failure

    def commit(self) -> None:
        """This rank is complete. Returns if all are."""
        self._answer(self._library.lading_ranks_commit(self._ranks))

    def close(self) -> None:
        """The rank that holds the store stays until the others know how it ended, for a deadline at most."""
        ranks, self._ranks = self._ranks, ctypes.c_void_p()
        self._library.lading_ranks_free(ranks)
        if not self._may_hang and self._notes in _kept:
            _kept.remove(self._notes)

    def _answer(self, handle: int | None) -> dict[str, Any]:
        answer = _engine._Answer(handle)
        fields: dict[str, Any] = json.loads(answer.text())
        if fields["ok"]:
            return fields
        self._may_hang = self._may_hang or bool(fields.get("detail"))  # the store did not answer
        raise LadingError(
            [Problem.from_json(problem) for problem in fields["problems"]],
            stage="agreement",
            begun=fields["begun"],
            exit_code=fields["exit_code"],
            not_listed=fields["problems_not_listed"],
            error_id=fields.get("error_id", ""),
            speakers=(speakers := fields.get("speakers", ())),
            is_speaker=not speakers or self.rank in speakers,
        )


def _request(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema": _engine.REQUEST_SCHEMA, **fields}).encode()


def _fields(same: Mapping[str, str] | None, collect: Mapping[str, str] | None) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in (same or {}).items()]
    return fields + [{"name": name, "value": value, "collect": True} for name, value in (collect or {}).items()]


def _failure(failure: LadingError) -> dict[str, Any]:
    problems = [
        {name: value for name, value in dataclasses.asdict(problem).items() if value not in (None, "")}
        for problem in failure.problems
    ]
    told = {"problems": problems, "exit_code": failure.exit_code, "begun": failure.begun}
    return told | {"problems_not_listed": failure.not_listed}
