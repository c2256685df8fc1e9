"""`mpirun -n 4 lading load --exchange …`: what several ranks hold is read once, and lands where it should."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

RANKS = 4
DDP = ("--mesh", f"dp={RANKS}", "--strategy", "ddp")
# Matrices are cut in two, and every half is on two ranks; all else is on four.
TWO_BY_TWO = {
    "schema": "lading.layout/1",
    "mesh": [{"name": "replicate", "size": 2}, {"name": "tp", "size": 2}],
    "devices": "cpu",
    "rules": [
        {"pattern": "*.up", "cuts": [{"shard": 0, "axes": ["tp"]}]},
        {"pattern": "*.down", "cuts": [{"shard": 1, "axes": ["tp"]}]},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint in two files, the layout, and under `policy.json` a dtype that some of the tensors are cast to."""
    folder = tmp_path_factory.mktemp("exchange")
    random = np.random.default_rng(3)
    halves = ({}, {})
    for layer in range(6):
        half = halves[layer % 2]
        half[f"l{layer}.up"] = random.standard_normal((256, 130 + layer)).astype(np.float32)
        # Half a row is more than the engine would rather read along than leave out.
        half[f"l{layer}.down"] = random.standard_normal((9, 20000 + layer)).astype(np.float16)
        half[f"l{layer}.norm"] = random.standard_normal(128).astype(np.float32)
    halves[0]["table"] = random.standard_normal((5000, 64)).astype(np.float32)
    halves[1]["empty"] = np.zeros((0, 7), np.float32)
    (folder / "ckpt").mkdir()
    names = {}
    for i, half in enumerate(halves):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file(half, folder / "ckpt" / file)
        names |= {name: file for name in half}
    (folder / "ckpt" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "layout.json").write_text(json.dumps(TWO_BY_TWO))
    (folder / "policy.json").write_text(json.dumps({"schema": "lading.policy/1", "dtype": "F32"}))
    return folder


def size_of(folder):
    return sum(path.stat().st_size for path in (folder / "ckpt").glob("*.safetensors"))


@pytest.mark.parametrize("layout", ["ddp", "two_by_two"])
@pytest.mark.parametrize("scope", ["node", "job"])
def test_R17_every_byte_is_read_once_and_lands_everywhere(run, mpirun, folder, layout, scope):
    how = DDP if layout == "ddp" else ("--layout", folder / "layout.json")
    how = (folder / "ckpt", *how, "--policy", folder / "policy.json", "--poison")
    one, together = folder / f"{layout}.{scope}.json", folder / f"{layout}.{scope}"
    together.mkdir()
    code, _, error = run("load", *how, "--ledger", one)
    assert code == 0, error

    code, out, error = mpirun("load", *how, "--exchange", scope, "--json", "--ledger", together / "ledger.json")
    assert code == 0, error
    assert json.loads(out)["group_read_bytes"] <= 1.02 * size_of(folder)

    code, out, error = run("diff", one, together)
    assert code == 0 and "equal: 20 tensors" in out, error
    received = set()
    for rank in range(RANKS):
        ledger = together / f"ledger.rank{rank}.json"
        code, _, error = run("verify", folder / "ckpt", ledger)
        assert code == 0, error
        records = json.loads(ledger.read_text())["records"]
        received |= {(record["received_from"], rank) for record in records if "received_from" in record}
    assert {to for _, to in received} == {by for by, _ in received} == set(range(RANKS)), "all read, and all receive"


def test_without_it_every_rank_reads_everything(mpirun, folder):
    code, out, error = mpirun("load", folder / "ckpt", *DDP, "--json")
    assert code == 0, error
    assert json.loads(out)["group_read_bytes"] > 3.9 * size_of(folder)


def test_a_process_alone_has_nobody_to_exchange_with(run, folder):
    code, _, error = run("load", folder / "ckpt", *DDP, "--exchange", "job")
    assert code == 2 and "needs other processes" in error
    code, _, error = run("load", folder / "ckpt", *DDP, "--exchange", "never")
    assert code == 0, error
