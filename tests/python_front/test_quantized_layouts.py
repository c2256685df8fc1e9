"""FP8 checkpoints on ranks whose cuts meet no block's edge, and architectures of the zoo, quantized to FP8 and to packed
codes: every bit is that of an oracle that knows nothing of lading. `tests/zoo/quantized_zoo.py` does all forty
architectures, and test_packed_layouts.py has packed codes on more layouts."""

import csv
import importlib.util
import os
from pathlib import Path

import pytest
from geometry.launch import require, run_worker

require("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import on_ranks  # noqa: E402

ZOO = Path(__file__).resolve().parents[1] / "zoo"
DEADLINE_S = 240
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
CASES = ["lading_fsdp2 on 2", "lading_tp on 2", "an_element_of_one_rank on 2", "lading_fsdp2 on 3"]
CASES += ["lading_fsdp2 on 4", "lading_tp on 4", "lading_fsdp2_over_tp on 4", "lading_hsdp_exchanged on 4"]
CASES += ["lading_peft on 2", "a_scale_of_one_rank on 2"]
ZERO3 = ["lading_zero3 on 2", "lading_zero3 on 3"]
# Fused and stacked experts, fused halves, transposed experts, experts of two kinds, a scheme of each kind.
MODELS = ["llama", "mixtral", "deepseek_v3", "gpt_oss", "phi3", "qwen3_vl_moe", "ernie4_5_vl_moe", "t5"]
LAYOUTS = {"fsdp2": [], "fsdp2x4": [], "tp": [], "fsdp2tp": [], "fsdp2x3": ["--three"]}
# The same models in packed codes.
LAYOUTS |= {"packed fsdp2": ["--packed"], "packed tp": ["--packed"], "packed fsdp2x3": ["--packed", "--three"]}


@pytest.fixture(scope="module")
def results():
    cases = [*CASES, *(ZERO3 if HAS_DEEPSPEED else [])]
    return run_worker("quantized_worker", DEADLINE_S, package="python_front", cases=cases)


@pytest.mark.parametrize("case", [*CASES, *ZERO3])
def test_R48_every_element_has_its_own_block_scale(results, case):
    """And the audit says so, on each rank; what was planted in one rank's part is found there."""
    if case in ZERO3 and not HAS_DEEPSPEED:
        pytest.skip("deepspeed is not installed")
    planted = "model.layers.0.mlp.up_proj.weight"
    for rank, answer in enumerate(results[case]):
        assert "failed" not in answer, answer["failed"]
        is_planted = case == "an_element_of_one_rank on 2"
        assert list(answer["wrong"]) == ([planted] if is_planted else [])
        assert answer["audit"] == ([planted] if is_planted and rank == 1 else [])


def plain(layout):
    """As zoo_ranks.py calls it."""
    return layout.removeprefix("packed ").removesuffix("x3")


@pytest.fixture(scope="module")
def in_layouts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    found = {}
    for options in ([], ["--three"], ["--packed"], ["--packed", "--three"]):
        layouts = [layout for layout, own in LAYOUTS.items() if own == options]
        table = folder / f"table{len(found)}.csv"
        command = [ZOO / "quantized_zoo.py", *options, "check", "--loader", "lading_loader:load_on_ranks"]
        command += ["--layout", ",".join(map(plain, layouts)), "--only", ",".join(MODELS)]
        cache = folder / ("packed" if "--packed" in options else "checkpoints")
        command += ["--csv", table, "--cache", cache, "--stall", on_ranks.STALL_S]
        command += ["--deadline", on_ranks.DEADLINE_S, "--limit", DEADLINE_S]
        said = on_ranks.run(command, DEADLINE_S, {"OMP_NUM_THREADS": "1", **os.environ})
        rows = list(csv.DictReader(table.open(newline=""))) if table.exists() else []
        verdicts = {(row["layout"], row["model_type"]): (row["verdict"], row["detail"]) for row in rows}
        for layout in layouts:
            found[layout] = {model: verdicts.get((plain(layout), model), ("error", said)) for model in MODELS}
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_R48_architectures_of_the_zoo(in_layouts, layout):
    wrong = {model: detail for model, (verdict, detail) in in_layouts[layout].items() if verdict != "correct"}
    assert wrong == {}
