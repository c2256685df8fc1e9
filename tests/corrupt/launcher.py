"""Starts commands and measures them; a process of its own, driven over pipes by runner.py.

Linux counts the memory of the process that starts a command as the command's own peak until it calls
exec. pytest with a corpus in memory is large; this process is small, so its peaks mean something.

One JSON object per line: in, what to run; out, how it ended and what it used.
"""

import json
import os
import signal
import subprocess
import sys


def run(request):
    with open(request["stdout"], "wb") as out, open(request["stderr"], "wb") as err:
        process = subprocess.Popen(
            request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=request["cwd"],
            env=request["env"],
        )
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.setitimer(signal.ITIMER_REAL, request["deadline_s"])
    _, status, usage = os.wait4(process.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "exit_code": process.returncode,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
