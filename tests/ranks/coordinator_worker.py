"""Plays loads of four ranks on stores of torch's: in each, something happens to a rank. Run by geometry.launch.

All cases run at once, since most of their time is waiting. Ranks are forked from this process, which has no thread but
one. Each case has a store, held by a process of its own, except where the first rank holds it: then it dies with that
rank. Nobody begins before all are connected: torch's TCPStore looks up the name of each new client in the DNS, on the
one thread that serves all, which takes seconds where no server answers.
"""

import json
import os
import signal
import time
import traceback
from pathlib import Path

from torch.distributed import TCPStore

from lading.coordinator import Coordinator
from lading.errors import LadingError, Problem

SIZE = 4
DEADLINE_S = 8.0  # from a rank's silence to the end of all others
STEP_TIMEOUT_S = 9.0  # for ranks that never come
LOAD_S = 1.0
CASE_DEADLINE_S = 50

# what happens: to which rank
CASES = {
    "nothing": None,
    "differs": 2,
    "refuses": 1,
    "fails": 3,
    "killed": 2,
    "first_killed": 0,
    "first_killed_with_store": 0,
    "stopped": 1,
    "absent": 2,
}


def main(only=()):
    scratch = Path(os.environ["LADING_SCRATCH"])
    cases = [case for case in CASES if not only or case in only]
    holders = {case: _fork_store() for case in cases if case != "first_killed_with_store"}
    children = {
        _fork(case, rank, holders.get(case, (0, 0))[1], scratch): (case, rank) for case in cases for rank in range(SIZE)
    }
    end = time.monotonic() + CASE_DEADLINE_S
    waiting = {pid for pid, (case, rank) in children.items() if CASES[case] != rank or case in SPEAKING}
    while waiting and time.monotonic() < end:
        waiting -= {pid for pid in list(waiting) if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)}
        time.sleep(0.02)
    for pid in (*children, *(holder for holder, _ in holders.values())):
        os.kill(pid, signal.SIGKILL)  # those that are stopped, or hang, which the result shows
        os.waitpid(pid, 0)
    return {case: [_read(scratch / f"{case}.{rank}") for rank in range(SIZE)] for case in cases}


SPEAKING = ("nothing", "differs", "refuses", "fails")  # where all ranks live to tell


def _fork_store():
    """The process that holds the store, and its port."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(2 * CASE_DEADLINE_S)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        signal.pause()
    return pid, int(os.read(reader, 16))


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


def _fork(case, rank, port, scratch):
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        signal.alarm(CASE_DEADLINE_S)
        told = _told(case, rank, port, scratch)
        (scratch / "part").mkdir(exist_ok=True)
        part = scratch / "part" / f"{case}.{rank}"
        part.write_text(json.dumps(told))
        part.rename(scratch / f"{case}.{rank}")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _told(case, rank, port, scratch):
    """How it ended here, and how long after what happened."""
    told = {"error": None, "devices": None}
    store, is_host = _store(case, rank, port, scratch)
    with Coordinator(
        store, rank, SIZE, prefix=case, deadline_s=DEADLINE_S, step_timeout_s=STEP_TIMEOUT_S, is_host=is_host
    ) as ranks:
        began = time.monotonic()
        try:
            told["devices"] = _play(ranks, case, scratch)
        except LadingError as error:
            told["error"] = {
                "text": error.full_text(),
                "id": error.error_id,
                "problems": [[problem.code, problem.rank, problem.tensor] for problem in error.problems],
                "exit_code": error.exit_code,
                "begun": error.begun,
            }
        ended = time.monotonic()
    happened = scratch / f"{case}.happened"
    told["seconds"] = ended - (float(happened.read_text()) if happened.exists() else began)
    return told


def _store(case, rank, port, scratch):
    """Of the case; all ranks are connected."""
    is_host = case == "first_killed_with_store" and rank == 0
    shown = scratch / "port"
    if is_host:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (scratch / "part_of_port").write_text(str(store.port))
        (scratch / "part_of_port").rename(shown)
    else:
        while not port and not shown.exists():
            time.sleep(0.01)
        store = TCPStore("127.0.0.1", port or int(shown.read_text()), is_master=False)
    store.add("connected", 1)
    while store.add("connected", 0) < SIZE:
        time.sleep(0.01)
    return store, is_host


def _play(ranks, case, scratch):
    is_mine = CASES[case] == ranks.rank
    if is_mine and case == "absent":
        signal.pause()
    ranks.begin()
    devices = ranks.agree("devices", collect={"device": f"cpu:{ranks.rank}"})["device"]
    records = [{"name": name, "fields": {"dtype": "F32", "shape": "[2, 3]"}} for name in ("a", "b", "c")]
    if is_mine and case == "differs":
        records[1]["fields"]["dtype"] = "BF16"
    failure = LadingError(Problem("missing", "no key", tensor="b", rule="R13"), exit_code=4)
    ranks.agree(
        "the plan", {"plan": "digest"}, records=records, failure=failure if is_mine and case == "refuses" else None
    )
    _load(ranks, case if is_mine else "", scratch)
    ranks.commit()
    return devices


def _load(ranks, case, scratch):
    end = time.monotonic() + LOAD_S
    happens = end - LOAD_S / 2
    while time.monotonic() < end:
        if not ranks.poll(done=int(time.monotonic() * 1e6)):
            return
        if case and case != "nothing" and time.monotonic() > happens:
            (scratch / f"{case}.happened").write_text(repr(time.monotonic()))
            if case == "fails":
                raise ranks.fail(LadingError(Problem("read_failed", "the disk is gone"), begun=True, exit_code=5))
            os.kill(os.getpid(), signal.SIGSTOP if case == "stopped" else signal.SIGKILL)
        time.sleep(0.05)
