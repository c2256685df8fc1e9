"""Processes that end, fork or are interrupted while a thread of theirs loads: exit_worker.py FILE TRIES.

torch is imported once; each try of a case is a fork that ends as a program does. Writes the exit statuses, as JSON.
Models are built before their thread begins: a daemon thread that is inside torch.empty() when Python ends aborts the
process without lading too."""

import json
import os
import signal
import sys
import threading
import time

import torch
from lading import _engine, materialize  # not first in a thread: a fork during an import leaves its lock behind
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for place in range(8):
            self.register_parameter(f"w{place}", nn.Parameter(torch.empty(1 << 20)))
        self.register_buffer("made", torch.zeros(3), persistent=False)


def empty_models(count):
    with torch.device("meta"):
        return [Model() for _ in range(count)]


def load(path, outcomes, model=None):
    try:
        model = model or empty_models(1)[0]
        recipes = {"made": lambda module, name: torch.ones(3)}
        materialize(model, path, device="cpu", progress=False, recipes=recipes)
        outcomes.append("loaded")
    except BaseException as error:
        outcomes.append(type(error).__name__)
    print(outcomes[-1], flush=True)


def begin(path, *, daemon):
    outcomes = []
    thread = threading.Thread(target=load, args=(path, outcomes, *empty_models(1)), daemon=daemon)
    thread.start()
    return thread, outcomes


def daemon(path, wait_s):
    """The program ends while a daemon thread loads."""
    begin(path, daemon=True)
    time.sleep(wait_s)


def daemon_again(path, wait_s):
    """The thread does not give up."""
    models = empty_models(100)

    def again():
        for model in models:
            load(path, [], model)

    threading.Thread(target=again, daemon=True).start()
    time.sleep(wait_s)


def engine(path, wait_s):
    """Engine calls alone, several at once, on daemon threads."""
    for _ in range(3):
        threading.Thread(target=lambda: [_engine.inspect(path) for _ in range(1 << 20)], daemon=True).start()
    time.sleep(wait_s)


def other_thread(path, wait_s):
    """sys.exit while a thread that is no daemon loads: the load comes to its end."""
    _, outcomes = begin(path, daemon=False)
    time.sleep(wait_s)
    import atexit

    atexit.register(lambda: outcomes == ["loaded"] or os._exit(70))
    sys.exit(0)


def interrupt(path, wait_s):
    """Ctrl-C in the main thread, which loads."""
    threading.Timer(max(wait_s, 0.02), lambda: os.kill(os.getpid(), signal.SIGINT)).start()  # not inside start()
    outcomes = []
    while outcomes[-1:] != ["KeyboardInterrupt"]:
        load(path, outcomes)
    assert set(outcomes[:-1]) <= {"loaded"}


def interrupt_beside(path, wait_s):
    """Ctrl-C in the main thread, while a daemon thread loads."""
    begin(path, daemon=True)
    try:
        threading.Timer(wait_s, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        time.sleep(20)
    except KeyboardInterrupt:
        return


def fork(path, wait_s):
    """os.fork during a load: the child loads too and ends, the parent's load is as if nothing had been."""
    load(path, [])  # the engine looks at the machine in the first load of a process, under a lock of the compiler's
    thread, outcomes = begin(path, daemon=True)
    time.sleep(wait_s)
    child = os.fork()
    if child == 0:
        own = []
        load(path, own)
        begin(path, daemon=True)
        sys.exit(0 if own == ["loaded"] else 71)
    thread.join()
    assert outcomes == ["loaded"], outcomes
    assert os.waitpid(child, 0)[1] == 0


CASES = [daemon, daemon_again, engine, other_thread, interrupt, interrupt_beside, fork]


def main(path, tries):
    for case in CASES:
        statuses = []
        for attempt in range(tries):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
                case(path, 0.002 + 0.1 * attempt / tries)
                return
            statuses.append(os.waitpid(child, 0)[1])
        print(json.dumps({"case": case.__name__, "statuses": statuses}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
