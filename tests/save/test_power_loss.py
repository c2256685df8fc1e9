"""A power loss at any moment of `lading.save` leaves the old checkpoint or the complete new one, whatever of the
unsynced data the disk has lost; after a save has returned, only the new one.

strace records saves in processes of their own, and power_loss.py says what POSIX allows to be left of them. Besides all
that can be at the place, LADING_POWER_LOSS_STATES random states of the whole disk are tried for each case (default
200; with -s, pytest shows their numbers).
"""

import collections
import dataclasses
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from geometry.launch import patient, require
from power_loss import Disk, Log, Many, possible, tree_of

require("torch")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

CASES = ("refuse", "replace", "optimizer", "two_ranks", "convert", "killed", "sync_failed")
OVER_OLD_ONES = CASES[1:]
CLEANED_UP = ("killed", "sync_failed")
OUT = "out"
MOST = 200  # states at one moment
STATES = int(os.environ.get("LADING_POWER_LOSS_STATES", "200"))
AT_ONCE = 10  # random states of one moment
DEADLINE_S = 150
LATEST = float("inf")


class Recorded:
    """The saves of one case."""

    def __init__(self, folder):
        before, self.place = folder / "before", folder / "place"
        self.log = Log.of(before, self.place, sorted(folder.glob("trace.*")))
        afters = sorted(folder.glob("after.*"))
        self.allowed = [tree_of(state, OUT) for state in (before, *afters)]

    def wrong(self, ops):
        """The first state at the place that may not be, if these had been the effects."""
        log = self.log.changed(sorted(ops, key=lambda op: op.end))
        end = log.moments()[-1]
        for moment, tree in possible(log, OUT, MOST):
            if tree not in (self.allowed if moment < end else self.allowed[-1:]):
                return f"at {moment} of {end}: {sorted(tree)}"
        return None

    def without_syncs(self, inode):
        return [op for op in self.log.ops if not (op.is_sync and op.inode == inode)]

    def root_syncs(self):
        return [op for op in self.log.ops if op.is_sync and op.inode == self.log.ROOT]

    def renames(self):
        return [op for op in self.log.ops if op.call == "renameat2" and op.inode == self.log.ROOT]


def strace_works():
    return shutil.which("strace") and subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    if not strace_works():
        pytest.skip("strace cannot be run here")
    folder = tmp_path_factory.mktemp("power")
    worker = Path(__file__).with_name("power_loss_worker.py")
    done = subprocess.run(
        [sys.executable, worker, folder, *CASES],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=patient(DEADLINE_S),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: Recorded(folder / name) for name in CASES}


@pytest.mark.parametrize("case", CASES)
def test_the_log_has_all_that_happened(recorded, case):
    """Otherwise the states that are made of it would prove nothing."""
    one = recorded[case]
    assert Disk(one.log, LATEST).tree(lambda count: count - 1) == tree_of(one.place)
    assert len({tuple(sorted(tree)) for tree in one.allowed}) > 1 and len(one.root_syncs()) >= 1


@pytest.mark.parametrize("case", CASES)
def test_R69_a_power_loss_leaves_one_whole_checkpoint(recorded, case):
    one = recorded[case]
    assert one.wrong(one.log.ops) is None


@pytest.mark.parametrize("case", CASES)
def test_R69_random_states_of_the_whole_disk(recorded, case):
    """Beside the place, only what the next save removes is left."""
    one = recorded[case]
    moments, seed = one.log.moments(), random.Random(CASES.index(case))
    late = [moment for moment in moments if moment > one.renames()[0].begin]
    seen, distinct = collections.Counter(), set()
    for number in range(0, STATES, AT_ONCE):
        moment = seed.choice(late if seed.random() < 0.25 else moments)
        disk, pick = Disk(one.log, moment), Many(seed.getrandbits(64))
        for _ in range(min(AT_ONCE, STATES - number)):
            pick.next()
            tree = disk.tree(pick)
            at_place = {path: content for path, content in tree.items() if path.split("/")[0] == OUT}
            is_right = at_place in (one.allowed if moment < moments[-1] else one.allowed[-1:])
            assert is_right, (moment, sorted(tree))
            besides = {path.split("/")[0] for path in tree} - {OUT}
            assert all(re.fullmatch(r"\.lading-save\.out\.[0-9a-f]{16}", name) for name in besides), besides
            seen[one.allowed.index(at_place)] += 1
            distinct.add(hash(frozenset(tree.items())))
    names = ["old" if one.allowed[0] else "nothing", "new", "newer"]
    found = ", ".join(f"{count} {names[which]}" for which, count in sorted(seen.items()))
    print(f"\n{case}: {len(one.log.ops)} effects, {STATES} states, {len(distinct)} of them different; at the place: {found}")


# ---- mistakes, planted in the log


@pytest.mark.parametrize("case", CASES)
def test_each_sync_that_is_left_out_is_found(recorded, case):
    """Of any file or folder of the new checkpoint, and of the folder that it is in."""
    one = recorded[case]
    names = one.log.names()
    new = Disk(one.log, LATEST).inodes_at(OUT)
    assert len(new) == len(one.allowed[-1])
    missed = [names[inode] for inode in (*new, one.log.ROOT) if one.wrong(one.without_syncs(inode)) is None]
    assert missed == []


@pytest.mark.parametrize("case", CASES)
def test_a_rename_that_is_not_synced_is_found(recorded, case):
    one = recorded[case]
    last = one.root_syncs()[-1]
    assert one.wrong([op for op in one.log.ops if op is not last]) is not None


@pytest.mark.parametrize("case", CASES)
def test_a_rename_before_the_syncs_is_found(recorded, case):
    one = recorded[case]
    renamed = one.renames()[-1]
    new = set(Disk(one.log, LATEST).inodes_at(OUT))
    first = min(op.begin for op in one.log.ops if op.is_sync and op.inode in new)
    early = dataclasses.replace(renamed, begin=first - 0.3, end=first - 0.2)
    assert one.wrong([early if op is renamed else op for op in one.log.ops]) is not None


@pytest.mark.parametrize("case", CLEANED_UP)
def test_a_cleanup_before_the_rename_is_synced_is_found(recorded, case):
    """What the temporary name stands for may be the old checkpoint, which a power loss would bring back without files."""
    one = recorded[case]
    first = one.root_syncs()[0]
    assert one.wrong([op for op in one.log.ops if op is not first]) is not None


@pytest.mark.parametrize("case", OVER_OLD_ONES)
def test_a_removal_before_the_rename_is_found(recorded, case):
    """As if the old directory were removed first, in place of the exchange."""
    one = recorded[case]
    renamed = one.renames()[-1]
    old = [op for op in one.log.ops if op.call == "unlinkat" and op.begin > renamed.end]
    assert old
    moved = {op.end: dataclasses.replace(op, begin=renamed.begin - 0.3, end=renamed.begin - 0.2) for op in old}
    assert one.wrong([moved.get(op.end, op) for op in one.log.ops]) is not None
