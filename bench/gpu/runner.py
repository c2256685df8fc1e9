"""Runs the contenders of one workload, each in a process of its own, in rounds, and adds up what they say."""

import json
import os
import select
import statistics
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import page_cache
import tensor_parallel
from workloads import DCP, DCP_PEERS, DIRECT_READ, FROM_PRETRAINED, FRONT, LADING, Workload

PEER = Path(__file__).resolve().parent.parent / "e2e" / "gpu_peer.py"
FRONT_PEER = PEER.with_name("gpu_front.py")
# Peers that are not taken from the machine's own Python: the folder that has them.
FOLDERS = {"safetensors-0.9": "safetensors", "instanttensor": "instanttensor", "fastsafetensors": "fastsafetensors"}
LIMIT_S = 180


@dataclass(frozen=True)
class Setting:
    binaries: Path
    peers: Path  # a folder for each, with what its wheel holds
    device: str
    scratch: Path
    repeat: int


def unpack_wheels(wheels: Path, into: Path) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into / wheel.name.split("-")[0])


def binary(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / "bench" / name) if path.exists()), None)


def library_environment(folder: Path) -> dict[str, str]:
    """For programs that brought their libraries along."""
    places = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(place for place in places if place)}


def run_gpu_load(setting: Setting, options: list[str]) -> dict:
    program = binary(setting.binaries, "gpu_load")
    if program is None:
        return {"error": f"there is no gpu_load in {setting.binaries}"}
    try:
        done = subprocess.run(
            [str(program), *options], capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=library_environment(setting.binaries),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {LIMIT_S} s"}
    return parsed(done.stdout, done.stderr, done.returncode)


def parsed(out: str, err: str, code: int) -> dict:
    """The last line that is JSON: a peer may chatter."""
    lines = [line for line in out.splitlines() if line.startswith("{")]
    try:
        return json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        tail = (err.strip() or out.strip())[-500:]
        return {"error": f"exit code {code}: {tail}"}


class Lading:
    """Not started before its turn: its process is quick to start."""

    def __init__(self, name: str, setting: Setting, workload: Workload, checkpoint: Path, expectation: Path) -> None:
        self.setting = setting
        self.options = [str(checkpoint), "--expect", str(expectation), "--device", setting.device]
        self.options += ["--repeat", str(setting.repeat)]
        if name == "lading-no-digests":
            self.options.append("--no-digests")
        if workload.tp:
            rank, count = workload.tp
            self.options += ["--mesh", f"tp={count}", "--strategy", "tp", "--rank", str(rank)]
            self.options += tensor_parallel.lading_options()
        if workload.dtype:
            policy = expectation.with_suffix(".policy.json")
            policy.write_text(json.dumps({"schema": "lading.policy/1", "dtype": workload.dtype, "cast": "exact"}))
            self.options += ["--policy", str(policy), "--pool-factor", "2" if workload.dtype == "F32" else "0.51"]

    def finish(self) -> dict:
        return run_gpu_load(self.setting, self.options)

    def give_up(self) -> None:
        pass


class DirectRead:
    def __init__(self, setting: Setting, checkpoint: Path) -> None:
        self.setting, self.files = setting, checkpoints.files_of(checkpoint)

    def finish(self) -> dict:
        options = [word for file in self.files for word in ("--read-direct", str(file))]
        result = run_gpu_load(self.setting, options)
        if "direct_gb_per_second" not in result:
            return result
        size = sum(file.stat().st_size for file in self.files)
        return {"seconds": size / result["direct_gb_per_second"] / 1e9, "right": True}

    def give_up(self) -> None:
        pass


class Peer:
    """Started at once, so that imports of all peers go side by side; it waits to be told to begin."""

    def __init__(self, contender: str, setting: Setting, workload: Workload, checkpoint: Path) -> None:
        script = FRONT_PEER if contender in (*FRONT, FROM_PRETRAINED, *DCP, *DCP_PEERS) else PEER
        command = [sys.executable, str(script), contender, str(checkpoint), "--device", setting.device]
        if workload.dtype:
            command += ["--dtype", workload.dtype]
        if workload.tp:
            command += ["--tp", "{}/{}".format(*workload.tp)]
        folder = next((setting.peers / where for start, where in FOLDERS.items() if contender.startswith(start)), None)
        places = [str(folder) if folder else "", os.environ.get("PYTHONPATH", "")]
        path = ":".join(place for place in places if place)
        environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        if library := binary(setting.binaries, "liblading.so"):
            environment["LADING_LIBRARY"] = str(library)
        self.missing = folder is not None and not folder.exists()
        self.errors = open(setting.scratch / f"{contender}.stderr", "w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment,
        )  # fmt: skip
        self.first = ""

    def wait_until_ready(self) -> None:
        while not self.first.startswith(("ready", "{")):
            if not select.select([self.process.stdout], [], [], LIMIT_S)[0]:
                return
            self.first = self.process.stdout.readline()
            if not self.first:
                return

    def finish(self) -> dict:
        if self.missing:
            self.give_up()
            return {"error": "its wheel is not there (--wheels)"}
        try:
            out, _ = self.process.communicate("go\n", timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.give_up()
            return {"error": f"took more than {LIMIT_S} s"}
        self.errors.seek(0)
        return parsed(self.first + out, self.errors.read(), self.process.returncode)

    def give_up(self) -> None:
        self.process.kill()
        self.process.wait()


Contender = Lading | DirectRead | Peer


def start(name: str, setting: Setting, workload: Workload, checkpoint: Path, expectation: Path) -> Contender:
    if name in LADING:
        return Lading(name, setting, workload, checkpoint, expectation)
    if name == DIRECT_READ:
        return DirectRead(setting, checkpoint)
    return Peer(name, setting, workload, checkpoint)


def run_round(order: list[str], setting: Setting, workload: Workload, checkpoint: Path, expectation: Path) -> dict:
    started = {name: start(name, setting, workload, checkpoint, expectation) for name in order}
    results = {}
    try:
        for contender in started.values():
            if isinstance(contender, Peer):
                contender.wait_until_ready()
        for name in order:
            files = checkpoints.files_of(checkpoint)
            if workload.cold:
                page_cache.drop(files)
            else:
                page_cache.warm(files)
            results[name] = started.pop(name).finish()
    finally:
        for contender in started.values():
            contender.give_up()
    return results


def summary(runs: list[dict]) -> dict:
    """Median and spread of every figure, over the runs that gave the right bytes; and what went wrong in the others."""
    good = [run for run in runs if run.get("right")]
    result: dict = {"runs": runs, "good": len(good)}
    for run in runs:
        if not run.get("right"):
            result["wrong"] = run.get("error") or run.get("first_wrong") or "not compared"
    for field in good[0] if good else []:
        values = [run[field] for run in good]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            result[field] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return result


def measure(contenders: list[str], rounds: int, setting: Setting, workload: Workload, checkpoint: Path,
            expectation: Path, out_of_time) -> dict[str, dict]:  # fmt: skip
    runs: dict[str, list[dict]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        if number > 0 and out_of_time():
            print(f"  {workload.name}: {number} of {rounds} rounds, the time is spent", file=sys.stderr)
            break
        begin = time.monotonic()
        # Each time in another order. A contender that failed twice is not tried again.
        order = contenders[number % len(contenders) :] + contenders[: number % len(contenders)]
        order = [name for name in order if sum("error" in run for run in runs[name]) < 2]
        for name, result in run_round(order, setting, workload, checkpoint, expectation).items():
            runs[name].append(result)
        print(f"  {workload.name}: round {number + 1} in {time.monotonic() - begin:.1f} s", file=sys.stderr)
    return {contender: summary(list_of_runs) for contender, list_of_runs in runs.items()}
