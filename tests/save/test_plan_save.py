"""`lading plan --save`: which rank would write what, against the rows that torch.chunk gives each rank."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import save_file


def plan(lading, *arguments):
    return subprocess.run([lading.command, "plan", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def checkpoint(tmp_path):
    shapes = {"a": (7, 30), "b": (5,), "c": (64, 3, 2), "d": (1, 9)}
    folder = tmp_path / "in"
    folder.mkdir()
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def rows_of(header, begin, rank, ranks):
    """The bytes of the file that a rank of FSDP2 holds, joined where they touch."""
    joined = []
    for _, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, first = entry["shape"], begin + entry["data_offsets"][0]
        row_bytes = 4 * torch.zeros(shape)[:1].numel()
        chunks = torch.arange(shape[0]).chunk(ranks)
        if rank >= len(chunks):
            continue
        rows = chunks[rank]
        run = [first + row_bytes * int(rows[0]), first + row_bytes * (int(rows[-1]) + 1)]
        if joined and joined[-1][1] == run[0]:
            joined[-1][1] = run[1]
        else:
            joined.append(run)
    return joined


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_R69_each_rank_writes_its_rows(lading, checkpoint, ranks):
    done = plan(lading, checkpoint, "--save", "--mesh", f"dp={ranks}", "--strategy", "fsdp2", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["kind"] == "save_plan" and answer["rank_count"] == ranks and answer["index"] == ""
    data = (checkpoint / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = {name: entry for name, entry in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"}
    found = {share["rank"]: share for share in answer["shares"]}
    for rank in range(ranks):
        runs = rows_of(header, answer["files"][0]["size_bytes"] - answer["data_bytes"], rank, ranks)
        share = found.pop(rank, None)
        if not runs:
            assert share is None
            continue
        assert share["file"] == "model.safetensors" and share["runs"] == len(runs)
        assert share["bytes"] == sum(end - begin for begin, end in runs)
        assert share["span"] == [runs[0][0], runs[-1][1]]
    assert not found
    assert sum(share["bytes"] for share in answer["shares"]) == answer["data_bytes"] == answer["bytes_proved"]


def test_the_text_has_a_row_for_each_rank_and_file(lading, checkpoint):
    done = plan(lading, checkpoint, "--save", "--mesh", "dp=2", "--strategy", "fsdp2")
    assert done.returncode == 0, done.stderr
    assert "one writer for each byte" in done.stdout and done.stdout.count("model.safetensors") == 2


def test_replicas_have_one_writer(lading, checkpoint):
    done = plan(lading, checkpoint, "--save", "--mesh", "dp=4", "--strategy", "ddp", "--json")
    answer = json.loads(done.stdout)
    assert sum(share["bytes"] for share in answer["shares"]) == answer["data_bytes"]


def test_what_does_not_go_with_it_is_refused(lading, checkpoint):
    for other in (["--tensors"], ["--rank", "0"], ["--explain", "a"], ["--policy", "x.json"]):
        assert plan(lading, checkpoint, "--save", *other).returncode == 2, other
    refused = plan(lading, checkpoint / "none", "--save", "--json")
    assert refused.returncode == 3 and json.loads(refused.stdout)["kind"] == "save_plan"
