"""Runs cases: a case is a file made from (seed, index), judged by both readers and by reading.py."""

import ctypes
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import safetensors

from .byte_mutations import BYTE_MUTATIONS
from .draft_mutations import DRAFT_MUTATIONS
from .drafts import random_draft
from .reading import read
from .reasons import explain

ROOT = Path(__file__).resolve().parents[3]
KEPT_FAILURES = 20


def probe_path():
    return Path(os.environ.get("LADING_PROBE", ROOT / "build" / "dev" / "fuzz" / "liblading_probe.so"))


def load_lading():
    """lading's verdict as a function: True if it accepts the bytes."""
    function = ctypes.CDLL(str(probe_path())).lading_probe_header
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    function.restype = ctypes.c_int
    code = ctypes.create_string_buffer(256)
    return lambda file: function(file, len(file), code, len(code)) == 1


def reference_accepts(file):
    # deserialize runs the same validation as safe_open, in memory.
    try:
        safetensors.deserialize(file)
    except safetensors.SafetensorError:
        return False
    return True


def case_rng(seed, index):
    return random.Random(seed << 40 | index)


def make_file(seed, index):
    rng = case_rng(seed, index)
    draft = random_draft(rng)
    for mutate in rng.choices(DRAFT_MUTATIONS, k=rng.choice((0, 0, 1, 1, 1, 1, 2, 3))):
        mutate(rng, draft)
    file = draft.render(rng)
    for mutate in rng.choices(BYTE_MUTATIONS, k=rng.choice((0, 0, 0, 0, 0, 1, 1, 2))):
        file = mutate(rng, file)
    return file


@dataclass
class Failure:
    seed: int
    index: int
    kind: str
    file: bytes

    def __str__(self):
        return f"{self.seed}:{self.index}: {self.kind}: {self.file.hex()}"


@dataclass
class Tally:
    verdicts: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    only_faults: Counter = field(default_factory=Counter)  # files by their fault, where they have just one
    failure_count: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add_failure(self, failure):
        self.failure_count += 1
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(failure)

    def merge(self, other):
        self.verdicts += other.verdicts
        self.reasons += other.reasons
        self.only_faults += other.only_faults
        self.failure_count += other.failure_count
        self.failures = (self.failures + other.failures)[:KEPT_FAILURES]


def describe(accepted):
    return "accepts" if accepted else "refuses"


def judge(file, ours, theirs, reading):
    """The reasons for a difference, and what is wrong: nothing, where all is explained."""
    reasons = explain(file, ours, theirs, reading) if ours != theirs else []
    if ours != theirs and not reasons:
        return [], f"unexplained: lading {describe(ours)}, the reference {describe(theirs)}"
    # Also where the two agree: both may be wrong.
    valid = not reading.faults
    if ours != valid:
        return reasons, f"lading {describe(ours)} what the bytes say is {'valid' if valid else sorted(reading.faults)}"
    return reasons, None


def run_cases(seed, begin, end, lading_accepts):
    tally = Tally()
    for index in range(begin, end):
        file = make_file(seed, index)
        ours, theirs = lading_accepts(file), reference_accepts(file)
        reading = read(file)
        reasons, wrong = judge(file, ours, theirs, reading)
        tally.verdicts[f"lading {describe(ours)}, reference {describe(theirs)}"] += 1
        tally.reasons.update(reasons)
        if len(reading.faults) == 1:
            tally.only_faults.update(reading.faults)
        if wrong:
            tally.add_failure(Failure(seed, index, wrong, file))
    return tally
