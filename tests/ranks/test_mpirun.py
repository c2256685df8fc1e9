"""`mpirun -n 4 lading load`: four processes, a rank each, do what one does for all four, or all refuse alike."""

import numpy as np
import pytest
from safetensors.numpy import save_file

RANKS = 4
LAYOUT = ("--mesh", f"dp={RANKS}", "--strategy", "fsdp2")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mpirun")
    tensors = {"w": np.arange(44, dtype=np.float32).reshape(11, 4), "v": np.ones(3, np.float32)}
    for name, state in (("same", tensors), ("other", {**tensors, "v": np.ones(3, np.float16)})):
        (folder / name).mkdir()
        save_file(state, folder / name / "model.safetensors")
    return folder


def test_R44_four_processes_load_what_one_does(run, mpirun, checkpoints):
    one, together = checkpoints / "one.json", checkpoints / "together"
    together.mkdir()
    code, _, error = run("load", checkpoints / "same", *LAYOUT, "--ledger", one)
    assert code == 0, error
    code, _, error = mpirun("load", checkpoints / "same", *LAYOUT, "--ledger", together / "ledger.json")
    assert code == 0, error
    assert sorted(path.name for path in together.iterdir()) == [f"ledger.rank{rank}.json" for rank in range(RANKS)]
    code, out, error = run("diff", one, together)
    assert code == 0 and "equal: 2 tensors" in out, error


def test_R44_a_ledger_that_one_rank_cannot_write_is_refused_by_all(mpirun, checkpoints):
    place = checkpoints / "occupied"
    place.mkdir()
    taken = place / "ledger.rank2.json"
    taken.write_text("precious")
    script = f'exec "$@" 2> {checkpoints}/said.$OMPI_COMM_WORLD_RANK'
    code, _, _ = mpirun("load", checkpoints / "same", *LAYOUT, "--ledger", place / "ledger.json", script=script)
    assert code != 0
    for rank in range(RANKS):
        text = (checkpoints / f"said.{rank}").read_text()
        assert "ledger.rank2.json" in text and "is no ledger" in text and "error id " in text, text
    assert [path.name for path in place.iterdir()] == [taken.name]
    assert taken.read_text() == "precious"


def test_R44_a_rank_with_another_checkpoint_is_refused_by_all(mpirun, checkpoints):
    """The last argument is the folder: on rank 2 it is another one."""
    script = (
        f'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then at={checkpoints}/other; else at={checkpoints}/same; fi\n'
        f'exec "$@" "$at" 2> {checkpoints}/said.$OMPI_COMM_WORLD_RANK'
    )
    code, _, _ = mpirun("load", *LAYOUT, script=script)
    assert code != 0
    texts = {(checkpoints / f"said.{rank}").read_text() for rank in range(RANKS)}
    assert len(texts) == 1, texts
    (text,) = texts
    assert text.startswith("failed: ") and "error id " in text
    assert (
        'tensor "v": the ranks do not have the same checkpoint: dtype; found F32 on ranks 0-1, 3; F16 on rank 2' in text
    )
