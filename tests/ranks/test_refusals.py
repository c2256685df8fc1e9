"""One rank has something else than the others: all ranks refuse, with one text, and nothing is written (R44).

The models of the PyTorch front are on meta, or real; they are then as they were, bit for bit.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from geometry.launch import require, run_worker
from ranks.conftest import RANKS

ODD = 2  # the rank, as in refusals_worker
DEADLINE_S = 90
BUILDS = ("meta", "real")

# What the text names, by case.
REFUSALS = {
    "truncated": "rank 2: ",
    "vanished": "rank 2: ",
    "checkpoint": "on rank 2",
    "values": "on rank 2",
    "dtype": "on rank 2",
    "model": "ranks 0 and 2 hold this tensor differently",
    "mesh": "ranks 0 and 2 hold this tensor differently",
    "version": "the ranks differ in version",
}
CODES = {"truncated": "data_truncated", "vanished": "not_found"}


# ---- the PyTorch front


@pytest.fixture(scope="module")
def told(repository):
    require("torch", exactly=False)
    library = os.environ.get("LADING_LIBRARY", repository / "build" / "dev" / "liblading.so")
    answers = run_worker("refusals_worker", DEADLINE_S, package="ranks", library=str(library))
    return [before | after for before, after in zip(answers["others"], answers["version"], strict=True)]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("case", REFUSALS)
def test_R44_all_ranks_refuse_alike_before_anything_is_written(told, case, build):
    mine = [answer[f"{case}, {build}"] for answer in told]
    assert len({(one["text"], one["id"]) for one in mine}) == 1, mine
    assert len(mine[0]["id"]) == 8
    assert {one["code"] for one in mine} == {CODES.get(case, "ranks_differ")}
    assert [one["changed"] for one in mine] == [[]] * RANKS
    assert not any(one["begun"] or one["incomplete"] for one in mine)
    assert REFUSALS[case] in mine[0]["text"]


@pytest.mark.parametrize("build", BUILDS)
def test_R45_a_file_that_one_rank_sees_written_to_fails_the_load_of_all(told, build):
    mine = [answer[f"torn, {build}"] for answer in told]
    assert len({(one["text"], one["id"]) for one in mine}) == 1, mine
    assert {one["code"] for one in mine} == {"file_changed"}
    assert all(word in mine[0]["text"] for word in ("rank 2", "R45", 'tensor "last.weight"'))
    assert [bool(one["incomplete"]) for one in mine] == [build == "real"] * RANKS
    if build == "meta":
        assert [one["changed"] for one in mine] == [[]] * RANKS


@pytest.mark.parametrize("build", BUILDS)
def test_R44_ranks_that_have_the_same_are_well(told, build):
    """Otherwise the others would prove nothing."""
    mine = [answer[f"same, {build}"] for answer in told]
    assert [one["text"] for one in mine] == ["well"] * RANKS, mine
    assert all(len(one["changed"]) == 4 for one in mine)


def test_R44_the_version_of_one_rank_is_really_another(told):
    versions = [answer["version, meta"]["version"] for answer in told]
    assert len({*versions[:ODD], *versions[ODD + 1 :]}) == 1 and versions[ODD] != versions[0]


# ---- mpirun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("refusals")
    tensors = {"w": np.arange(44, dtype=np.float32).reshape(11, 4), "v": np.ones(3, np.float32)}
    for name in ("right", "truncated"):
        (place / name).mkdir()
        save_file(tensors, place / name / "model.safetensors")
    path = place / "truncated" / "model.safetensors"
    os.truncate(path, path.stat().st_size - 4)
    for dtype in ("F32", "BF16"):
        policy = {"schema": "lading.policy/1", "dtype": dtype, "cast": "exact"}
        (place / f"{dtype}.json").write_text(json.dumps(policy))
    return place


def refusal(mpirun, folder, right, odd, command=""):
    """What all ranks say. The odd one has other arguments, or another command."""
    script = (
        f'cd {folder}; rank=$OMPI_COMM_WORLD_RANK; command="$1"; arguments="{right}"\n'
        f'if [ "$rank" = {ODD} ]; then arguments="{odd}"; command="{command or "$1"}"; fi\n'
        'exec "$command" load $arguments --ledger ledger.json 2> said.$rank'
    )
    code, _, _ = mpirun(script=script)
    assert code != 0
    texts = [(folder / f"said.{rank}").read_text() for rank in range(RANKS)]
    assert not list(folder.glob("ledger*"))  # nothing was begun
    assert len({text.split()[0] for text in texts}) == 1, texts  # one label
    said, error_id = texts[0], re.search(r"error id (\w{8})", texts[0])[1]
    for rank, text in enumerate(texts):
        assert text == said or (text.count("\n") == 1 and f"rank {rank}: " in text and error_id in text), texts
    assert texts[ODD] == said or "rank 0 prints the details" in texts[ODD], texts
    return texts[0]


FSDP2 = f"--mesh dp={RANKS} --strategy fsdp2"


@pytest.mark.parametrize(
    ("right", "odd", "named"),
    [
        (f"right {FSDP2}", f"truncated {FSDP2}", "rank 2: "),
        (f"right {FSDP2} --policy F32.json", f"right {FSDP2} --policy BF16.json", "BF16 on rank 2"),
        (f"right {FSDP2}", "right --mesh replicate=2,shard=2 --strategy hsdp", "on rank 2"),
        (f"right {FSDP2}", "right --mesh dp=8 --strategy fsdp2", "rank 2: the number of processes is not"),
    ],
    ids=["truncated", "dtype", "mesh", "size"],
)
def test_R44_ranks_of_mpirun_refuse_alike(mpirun, folder, right, odd, named):
    assert named in refusal(mpirun, folder, right, odd)


def test_R44_another_version_is_refused_by_all_ranks_of_mpirun(mpirun, lading, folder):
    from ranks.refusals_worker import of_another_version

    other = folder / "lading"
    other.write_bytes(of_another_version(Path(lading.command).read_bytes()))
    other.chmod(0o755)
    assert "the ranks differ in version" in refusal(
        mpirun, folder, f"right {FSDP2}", f"right {FSDP2}", command=other
    )
