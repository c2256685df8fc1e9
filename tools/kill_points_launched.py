"""Loads whose ranks somebody else starts, and ends: `mpirun lading load`.

    mpirun = Mpirun(command, plugin, folder)
    outcomes = run_all(cases, mpirun.start, at_once=2)

Wanted of a launcher: it ends too, soon after the ranks; with 0 if all ranks are well and only then; and leaves no
process behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from kill_points_cases import AGREEMENT, COMMIT, LOAD, START, WELL, Case, Ending, Outcome, judge
from kill_points_world import GRACE_S, Limits, World
from safetensors.numpy import save_file

# What a rank adds of its own to what all are told.
_OWN_LINES = ("do not use the loaded tensors", "Run `lading help", "lading: ")
# What ranks print for which others print the problems.
_SHORT = re.compile(r"^(?:refused: |failed: )?(?:rank \d+: )?(?P<text>.*) \((?P<speakers>.*) prints? the details; error id (?P<id>\w+)\)$", re.M)
TOKEN = "LADING_KILL_POINT"  # in the environment of every process of a load: how those left behind are found
_DIFFERENT_ENDS = 7  # the exit code of a rank that failed because of another
_HEADERS_BYTES = 1 << 20  # more than a rank reads before its load
_SETTLED_S = 0.5
LAUNCHER_S = 20.0  # for the launcher to end after the ranks


class Launched(World):
    """A load under a launcher. A rank that says nothing and is gone was ended by it."""

    def __init__(self, case: Case, limits: Limits, argv: Sequence[str], environment: Mapping[str, str], folder: Path):
        super().__init__(case, limits)
        self.folder = folder
        self._token = f"{TOKEN}={folder}"
        self._ranks_over: float | None = None
        self._late: list[int] = []
        with (folder / "launcher").open("w") as log:
            self.launcher = subprocess.Popen(
                argv,
                env=dict(environment) | dict([self._token.split("=", 1)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    def _is_nobody_left(self) -> bool:
        return self.launcher.poll() is not None

    def is_over(self) -> bool:
        now = time.monotonic()
        if self._ranks_over is None:
            if not super().is_over():
                return False
            self._ranks_over = now
            self._late = self.late_ranks() if self.launcher.poll() is None else []
            if self.case.fault == "stop" and self.case.victim in self.processes:
                self.processes[self.case.victim].send(signal.SIGKILL)  # a launcher waits long for one that is stopped
        return self.launcher.poll() is not None or now - self._ranks_over > LAUNCHER_S

    def result(self, keep: Path | None = None) -> Outcome:
        """`keep`: where its folder goes, which is removed otherwise."""
        code = self.launcher.poll()
        running = [_state(pid) for pid in self._processes()] if code is None else []
        orphans = self._left_behind() if code is not None else []
        seen = self.seen(living=self._late, exit_code=code, orphans=orphans)
        self.clean_up()
        silent = [rank for rank in range(self.case.ranks) if rank not in seen.endings and rank != self.case.victim]
        outcome = judge(dataclasses.replace(seen, ended_by_launcher=silent))
        if code is None:
            late = f"ranks {self._late} did not end; " if self._late else ""
            outcome.wrong["hang"] = f"{late}the launcher still runs {LAUNCHER_S:.0f} s later: {running}"
        if "failure of nothing" in outcome.wrong:
            outcome.wrong["failure of nothing"] += (self.folder / "launcher").read_text()[-1000:]
        if keep is not None:
            self.folder.rename(keep)
        shutil.rmtree(self.folder, ignore_errors=True)
        return outcome

    def clean_up(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        super().clean_up()
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left_behind(self) -> list[int]:
        """A launcher that is gone may have told its processes to end a moment ago."""
        end = time.monotonic() + GRACE_S
        while (left := self._processes()) and time.monotonic() < end:
            time.sleep(0.02)
        return left

    def _processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._token.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


# ---- mpirun


class _Watch:
    """Which files ranks have open, each in a folder of its own: the program itself is not touched."""

    _OPEN, _CLOSE = 0x20, 0x10
    _EVENT = struct.Struct("iIII")

    def __init__(self, folders: Sequence[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        mask = self._OPEN | self._CLOSE
        watches = [libc.inotify_add_watch(self._fd, os.fsencode(folder), mask) for folder in folders]
        self._ranks = {watch: rank for rank, watch in enumerate(watches)}
        self._is_open: dict[int, bool] = {}

    def is_open(self, rank: int) -> bool | None:
        """None: it never was."""
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._fd, 1 << 16):
                self._note(events)
        return self._is_open.get(rank)

    def close(self) -> None:
        os.close(self._fd)

    def _note(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            watch, mask, _, size = self._EVENT.unpack_from(events, at)
            at += self._EVENT.size + size
            if size > 0:  # otherwise it is the folder itself
                self._is_open[self._ranks[watch]] = bool(mask & self._OPEN)


class MpirunWorld(Launched):
    def __init__(self, case: Case, limits: Limits, mpirun: Mpirun) -> None:
        self._mpirun = mpirun
        folder = mpirun.folder / str(case.number)
        places = [folder / f"rank{rank}" for rank in range(case.ranks)]
        for rank, place in enumerate(places):
            place.mkdir(parents=True)
            is_own = rank == case.victim and case.fault in ("error", "truncate")
            (shutil.copyfile if is_own else os.link)(mpirun.checkpoint, place / mpirun.checkpoint.name)
        self._watch = _Watch(places)
        self._phase_of_killed: int | None = None
        self._readers: set[int] = set()  # ranks that have read more than headers
        script = "rank=$OMPI_COMM_WORLD_RANK; echo $$ > pid.$rank.part; mv pid.$rank.part pid.$rank; "
        script += 'exec "$@" rank$rank 2> said.$rank'
        argv = ["mpirun", "--oversubscribe", "-n", str(case.ranks), "sh", "-c", script, "sh", str(mpirun.command)]
        argv += ["load", *mpirun.options(case), "--threads", "1", "--io", "pread", "--ledger", "ledger.json"]
        super().__init__(case, limits, argv, mpirun.environment, folder)

    def phase(self, rank: int) -> int:
        """It has begun when it looks at the files, loads when it reads much of them, and is done when it closes them.

        Of a rank that was killed, what it was then: the kernel closes its files too.
        """
        if rank == self.case.victim and self._phase_of_killed is not None:
            return self._phase_of_killed
        is_open = self._watch.is_open(rank)
        if is_open is None:
            return START
        if not self._has_read(rank):
            return AGREEMENT
        return LOAD if is_open else COMMIT

    def phase_at_end(self, rank: int) -> int:
        """How far others came is not known of those that mpirun has ended; they say nothing, and are not asked."""
        return self.phase(rank) if rank == self.case.victim else COMMIT

    def _has_read(self, rank: int) -> bool:
        if rank not in self._readers and rank in self.processes:
            with contextlib.suppress(OSError):  # it is gone
                fields = Path(f"/proc/{self.processes[rank].pid}/io").read_text().split()
                if int(fields[1]) > _HEADERS_BYTES:
                    self._readers.add(rank)
        return rank in self._readers

    def pid(self, rank: int) -> int:
        path = self.folder / f"pid.{rank}"
        return int(path.read_text()) if path.exists() else 0

    def can_wake(self) -> bool:
        return False

    def _let_happen(self, now: float) -> None:
        """Before all have begun a rank may be away for as long as minutes. It is let go on, and nothing may come of it.

        One that is killed is stopped first: so that it is known how far it came.
        """
        if self.case.fault == "stop" and not self.have_all_begun():
            self.case = dataclasses.replace(self.case, fault="brief")
        victim = self.processes[self.case.victim]
        if self.case.fault == "kill" and not victim.has_ended():
            victim.send(signal.SIGSTOP)
            _wait_until_stopped(victim.pid)
            self._phase_of_killed = self.phase(self.case.victim)
        super()._let_happen(now)

    def before_begin_s(self) -> float:
        return self.limits.deadline_s + GRACE_S  # nobody waits for one that is gone: mpirun ends them

    def make_fail(self) -> None:
        path = self.folder / f"rank{self.case.victim}" / self._mpirun.checkpoint.name
        if self.case.fault == "error":
            path.unlink()
            path.mkdir()
        else:
            os.truncate(path, path.stat().st_size // 2)

    def has_told(self, rank: int) -> bool:
        """One that is well may then wait half a minute for the others to leave MPI: not part of the load.

        A failure is said after the ledger is written, which is complete too if all bytes had come by then.
        """
        path = self.folder / f"ledger.rank{rank}.json"
        if not path.exists() or time.time() - path.stat().st_mtime < _SETTLED_S:
            return False
        return self._ledger(rank).get("complete", False) and "error id " not in self._read(f"said.{rank}")

    def ending(self, rank: int) -> Ending | None:
        said, ledger = self._read(f"said.{rank}"), self._ledger(rank)
        if ledger.get("complete") and "error id " not in said:
            is_right = self._mpirun.digests(self.case, rank) == _digests(ledger, rank)
            return Ending(WELL, "", touched="" if is_right else "wrong weights")
        if "error id " not in said or self._is_woken_by_mpirun(rank):
            return None
        if short := _SHORT.search(said):
            return Ending(short["text"], short["id"], is_short=True)
        text, behind = said.rsplit("error id ", 1)
        error_id = behind.split("\n", 1)[0]
        lines = [line.removeprefix("refused: ").removeprefix("failed: ") for line in text.splitlines()]
        return Ending("\n".join(line for line in lines if not line.startswith(_OWN_LINES)), error_id.strip())

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def _ledger(self, rank: int) -> dict:
        return json.loads(self._read(f"ledger.rank{rank}.json") or "{}")

    def _is_woken_by_mpirun(self, rank: int) -> bool:
        """So that it ends, as the others have: it can reach nobody any more, and says that."""
        return rank == self.case.victim and self.case.fault == "stop"

    def result(self) -> Outcome:
        outcome = super().result()
        code = self.launcher.returncode
        if self.case.fault == "stop" and outcome.ended == "failed alike" and code != _DIFFERENT_ENDS:
            outcome.wrong["wrong exit code"] = f"{code}, not {_DIFFERENT_ENDS}"
        return outcome

    def clean_up(self) -> None:
        super().clean_up()
        self._watch.close()


class Mpirun:
    """What the loads share: the program, a checkpoint of 100 MB, and what a rank should hold of it."""

    _DEADLINE_S = 10.0  # of the command, which has no option for it

    def __init__(self, command: Path, plugin: Path, folder: Path) -> None:
        self.command, self.folder = command.resolve(), folder
        self.limits = Limits(self._DEADLINE_S, 300.0, phase_s=(0.3, 0.03, 0.15, 0.05))
        self.environment = os.environ | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "LADING_MPI_PLUGIN": str(plugin.resolve()),
        }
        self.checkpoint = folder / "model.safetensors"
        numbers = np.random.default_rng(1)
        save_file({f"w{i}": numbers.standard_normal((512, 2048), np.float32) for i in range(24)}, self.checkpoint)

    def start(self, case: Case) -> World:
        return MpirunWorld(case, self.limits, self)

    @staticmethod
    def options(case: Case) -> list[str]:
        return ["--mesh", f"dp={case.ranks}", "--strategy", "ddp" if case.is_in_place else "fsdp2"]

    def digests(self, case: Case, rank: int) -> dict[str, str]:
        """Of one process that loads all ranks."""
        options = self.options(case)
        ledger = self.folder / f"{'.'.join(options)}.json"
        if not ledger.exists():
            argv = [str(self.command), "load", str(self.checkpoint), *options, "--ledger", str(ledger)]
            subprocess.run(argv, env=self.environment, check=True, capture_output=True, timeout=60)
        return _digests(json.loads(ledger.read_text()), rank)


def _state(pid: int) -> str:
    """As in `ps`: number, name, state."""
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text().split()[:3])
    except OSError:
        return f"{pid} (gone)"


def _digests(ledger: dict, rank: int) -> dict[str, str]:
    return {record["tensor"]: record.get("digest", "") for record in ledger["records"] if record["rank"] == rank}


def _wait_until_stopped(pid: int) -> None:
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "TZX":
            return
        time.sleep(0.0005)
