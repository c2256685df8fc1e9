"""The zoo: 40 architectures of transformers, built in three ways, loaded and run in one process; five of them in every
layout on ranks, four by transformers' own tensor parallel plans. `./dev zoo` does all of it (tests/zoo/RESULTS.md)."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import forward
import on_ranks

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = (REPOSITORY / "tests" / "zoo" / "dev40.txt").read_text().split()
# Transposed weights, state spaces, LSTMs and uneven parts, two towers and merged experts, pinned buffers.
ON_RANKS = ["gpt2", "jamba", "encodec", "qwen3_vl_moe", "gemma4"]
BY_PLAN = ["phi3", "mixtral", "llama4", "ernie4_5_vl_moe"]
LAYOUTS = ["ddp", "fsdp2", "fsdp2x4", "hsdp", "tp", "fsdp2tp"]
PLANS = [layout for layout in on_ranks.LAYOUTS if layout.endswith(on_ranks.PLAN)]
COLUMNS = ["skeleton", "meta", "accelerate", "forward"]
NO_FORWARD = {"qwen2_vl"}  # its tiny config has rotary sections that are larger than its heads
DEADLINE_S = 600


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    result = tmp_path_factory.mktemp("zoo") / "result.json"
    options = ["--parts", "load,forward", "--layouts", "", "--json", result]
    said = on_ranks.run([REPOSITORY / "tools" / "zoo", *options], DEADLINE_S)
    assert result.exists(), said
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def in_layouts():
    return on_ranks.check(LAYOUTS, ON_RANKS, DEADLINE_S)


@pytest.fixture(scope="module")
def by_plans():
    return on_ranks.check(PLANS, BY_PLAN, DEADLINE_S)


@pytest.mark.parametrize("model", MODELS)
def test_one_process(in_one_process, model):
    """R1, R2, R4, R5, R6, R17, R49, R61: everything is as it was saved, and a forward pass gives the same bits."""
    cells = in_one_process[model]
    verdicts = {column: cells[column][0] for column in cells}
    expected = dict.fromkeys(COLUMNS, "right") | ({"forward": "–"} if model in NO_FORWARD else {})
    assert verdicts == expected, cells


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks(in_layouts, layout):
    """R4, R5, R17, R37, R49, R54, R61: however it is built, every rank holds its part, and FSDP2 computes with it."""
    for model, (verdict, detail, passed) in in_layouts[layout].items():
        assert verdict == "correct", (model, detail)
        if "tp" not in layout:
            assert passed["distance"] == passed["twin"] == 0, (model, passed)


@pytest.mark.parametrize("layout", PLANS)
def test_plans_of_transformers(by_plans, layout):
    """R43, R54: strided placements of fused weights too; outputs are the original's up to the order of sums."""
    for model, (verdict, detail, passed) in by_plans[layout].items():
        assert verdict == "correct", (model, detail)
        assert passed["twin"] == 0, (model, passed)
        assert passed["distance"] <= forward.SHARED_SUMS, (model, passed)
