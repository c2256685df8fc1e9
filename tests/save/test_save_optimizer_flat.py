"""Optimizer state of DeepSpeed's ZeRO-3 and of FSDP1, to and from FSDP2: real steps, and the same losses after a save and a load."""

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from geometry.launch import require, run_worker  # noqa: E402

require("deepspeed")

DEADLINE_S = 900
SOURCES, DTYPES = ("zero3", "fsdp2", "fsdp1"), ("float32", "bfloat16")
SAVES = [
    f"{layout} {dtype}, saved on 2 ranks"
    for layout in SOURCES
    for dtype in DTYPES
    if (layout, dtype) != ("fsdp1", "bfloat16")
]
LOADS = [
    f"{layout} {dtype}, of {source} on {world} ranks"
    for world in (2, 4)
    for layout in (*SOURCES, "tp")
    for dtype in DTYPES
    for source in SOURCES
    if dtype == "float32" or not {"tp", "fsdp1"} & {layout, source}
    if os.environ.get("LADING_ALL_LAYOUTS") or (layout in (source, "tp") if world == 2 else layout != "tp")
]
UNEVEN = "uneven, refused on 2 ranks"


@pytest.fixture(scope="module")
def results():
    return run_worker("optimizer_flat_worker", DEADLINE_S, package="save")


@pytest.mark.parametrize("case", SAVES)
def test_R69_state_is_what_deepspeed_and_torch_gather(results, case):
    assert results[case] == []


@pytest.mark.parametrize("case", LOADS)
def test_R69_losses_go_on(results, case):
    assert results[case] == []


def test_R69_one_step_for_a_sub_group(results):
    assert results[UNEVEN] == []


def test_none_is_forgotten(results):
    assert set(results) == {*SAVES, *LOADS, UNEVEN}
