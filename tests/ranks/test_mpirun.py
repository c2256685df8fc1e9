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
    speakers, others = said(checkpoints, speakers=[0, 2])
    assert speakers.startswith("failed: rank 2: ") and "ledger.rank2.json" in speakers and "is not a ledger" in speakers
    assert all(text.startswith("failed: ") and "is not a ledger" in text for text in others), others
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
    text, _ = said(checkpoints, speakers=[0])  # every rank has found the difference
    assert text.startswith("failed: ")
    assert 'tensor "v": the ranks differ in checkpoint: dtype; found F32 on ranks 0-1, 3; F16 on rank 2' in text


def test_R44_a_refusal_of_one_rank_has_one_label_and_two_speakers(mpirun, checkpoints):
    script = (
        f'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then at={checkpoints}/none; else at={checkpoints}/same; fi\n'
        f'exec "$@" "$at" 2> {checkpoints}/said.$OMPI_COMM_WORLD_RANK'
    )
    code, _, _ = mpirun("load", *LAYOUT, script=script)
    assert code != 0
    text, others = said(checkpoints, speakers=[0, 2])
    assert text.startswith("refused: rank 2: ") and "[not_found]" in text
    assert all(line.startswith("refused: rank ") for line in others)


def test_R44_what_every_rank_refuses_is_printed_once(mpirun, checkpoints):
    script = f'exec "$@" 2> {checkpoints}/said.$OMPI_COMM_WORLD_RANK'
    code, _, _ = mpirun("load", checkpoints / "none", *LAYOUT, script=script)
    assert code != 0
    texts = [(checkpoints / f"said.{rank}").read_text() for rank in range(RANKS)]
    assert texts[0].startswith("refused: ") and "[not_found]" in texts[0]
    for rank, text in enumerate(texts[1:], 1):
        assert text.startswith(f"refused: rank {rank}: ") and "rank 0 prints the details" in text
        assert text.count("\n") == 1, text


def said(checkpoints, speakers):
    """The text of the ranks that speak, which is one, and the lines of the others."""
    texts = {rank: (checkpoints / f"said.{rank}").read_text() for rank in range(RANKS)}
    told = {texts.pop(rank) for rank in speakers}
    assert len(told) == 1, told
    (text,) = told
    error_id = text[text.index("error id ") :].split()[2]
    named = "rank 0 prints" if speakers == [0] else "rank 0 and rank 2 print"
    for rank, line in texts.items():
        assert line.count("\n") == 1 and f"rank {rank}: " in line, line
        assert f"{named} the details; error id {error_id}" in line, line
    return text, list(texts.values())
