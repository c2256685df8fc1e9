"""Long-lived groups of forked ranks that live through worlds one after another, and the watchdog over them.

The parent has imported torch, and does nothing with it: every group is forked from it. A rank reads documents of
worlds from a pipe and answers a verdict each, as lines of JSON.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from .pieces import Json

WORLD_DEADLINE_S = 40.0
_WORLDS_PER_GROUP = 400
_START_DEADLINE_S = 60.0


class Group:
    """`size` ranks. Between two worlds all of them wait for the next document."""

    def __init__(self, size: int, scratch: Path, prepare: Callable[[], None] | None = None) -> None:
        self.size, self.scratch, self._prepare = size, scratch, prepare
        self.pids: list[int] = []
        self.spec: Json | None = None
        self.worlds = 0
        self._start()

    # ---- the parent's side

    def _start(self) -> None:
        self._ins, self._outs, self._buffers = [], [], [b""] * self.size
        self.answers: list[Json | None] = [None] * self.size
        self.pids, self.worlds = [], 0
        port = _free_port()
        self.log = Path(tempfile.mkstemp(prefix=f"group{self.size}_", suffix=".log", dir=self.scratch)[1])
        for rank in range(self.size):
            to_rank, from_rank = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                for descriptor in (*self._ins, *self._outs, to_rank[1], from_rank[0]):
                    os.close(descriptor)
                _rank_main(rank, self.size, port, to_rank[0], from_rank[1], self.log, self.scratch, self._prepare)
            os.close(to_rank[0])
            os.close(from_rank[1])
            self._ins.append(to_rank[1])
            self._outs.append(from_rank[0])
            self.pids.append(pid)

    def begin(self, spec: Json) -> None:
        self.spec, self.answers, self.began = spec, [None] * self.size, time.monotonic()
        line = (json.dumps(spec) + "\n").encode()
        for descriptor in self._ins:
            os.write(descriptor, line)

    def descriptors(self) -> list[int]:
        return self._outs

    def read(self, descriptor: int) -> bool:
        """Takes in what a rank wrote. False: the rank is gone."""
        rank = self._outs.index(descriptor)
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            return False
        self._buffers[rank] += chunk
        if self._buffers[rank].endswith(b"\n"):
            self.answers[rank] = json.loads(self._buffers[rank])
            self._buffers[rank] = b""
        return True

    @property
    def is_done(self) -> bool:
        return all(answer is not None for answer in self.answers)

    @property
    def is_late(self) -> bool:
        extra = _START_DEADLINE_S if not self.worlds else 0
        return time.monotonic() - self.began > WORLD_DEADLINE_S + extra

    def finish(self) -> list[Json]:
        """The verdicts of a world that is done."""
        answers = [answer for answer in self.answers if answer is not None]
        self.spec, self.worlds = None, self.worlds + 1
        return answers

    @property
    def is_old(self) -> bool:
        return self.worlds >= _WORLDS_PER_GROUP or any(answer is not None and answer.get("tired") for answer in self.answers)

    def kill(self) -> list[str]:
        """Ends all ranks, and says how each had ended."""
        said = []
        for rank, pid in enumerate(self.pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                if self.answers[rank] is None and self.spec is not None:
                    said.append(f"rank {rank} was still running")
                    os.kill(pid, signal.SIGABRT)  # faulthandler then writes where it was
                    time.sleep(0.3)
                os.kill(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
                os.waitpid(pid, 0)
            elif os.WIFSIGNALED(status):
                said.append(f"rank {rank} was ended by signal {os.WTERMSIG(status)}")
            else:
                said.append(f"rank {rank} ended with {os.WEXITSTATUS(status)}")
        for descriptor in (*self._ins, *self._outs):
            os.close(descriptor)
        self.spec = None
        return said

    def restart(self) -> None:
        self.kill()
        self.log.unlink(missing_ok=True)
        self._start()

    def last_words(self) -> str:
        """The end of the ranks' output, less the lists of extension modules under faulthandler's stacks."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(line[:300] for line in lines if not line.startswith("Extension modules:"))[-3000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- a rank's side


def _rank_main(
    rank: int, size: int, port: int, source: int, sink: int, log: Path, scratch: Path, prepare: Callable[[], None] | None
) -> None:
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        _join(rank, size, port)
        if prepare is not None:
            prepare()
        from .world import live

        for spec in _documents(source):
            answer = _answer(live, spec, rank, scratch)
            os.write(sink, (json.dumps(answer) + "\n").encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _join(rank: int, size: int, port: int) -> None:
    import faulthandler

    import torch
    import torch.distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # compiled modules run as they are: tracing takes seconds
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


def _documents(source: int) -> Iterator[Json]:
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def _answer(live: Callable[..., Json], spec: Json, rank: int, scratch: Path) -> Json:
    from .layouts import mesh_count

    try:
        answer = live(spec, rank, scratch)
    except Exception as error:  # noqa: BLE001 - a fault of the fuzzer itself
        text = traceback.format_exc()[-1500:]
        answer = {"verdict": "broken", "cause": f"{type(error).__name__}: {error}"[:160], "details": [text]}
    answer["tired"] = mesh_count() > 40
    return answer


def watch(groups: list[Group], timeout_s: float) -> Iterator[tuple[Group, int]]:
    """Groups of which a rank has something to say, with the descriptor."""
    with selectors.DefaultSelector() as selector:
        for group in groups:
            for descriptor in group.descriptors():
                selector.register(descriptor, selectors.EVENT_READ, group)
        for key, _ in selector.select(timeout_s):
            yield key.data, key.fd

