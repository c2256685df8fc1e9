"""What a load says aloud: reports that are kept, warnings, logging, waiting (python/lading/telling.py)."""

import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest
import torch
from lading import telling
from lading.errors import Problem
from safetensors.torch import save_file
from torch import nn

import lading


PACKAGE = Path(lading.__file__).resolve().parents[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.register_buffer("table", torch.arange(3.0), persistent=False)


@pytest.fixture
def path(tmp_path):
    save_file({"a.weight": torch.ones(3, 3), "b.weight": torch.ones(3, 3), "odd": torch.ones(1)}, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def built():
    with lading.skeleton():
        return Net()


def test_the_report_of_the_last_load_is_kept(path):
    model = built()
    assert lading.report_of(model) is None
    report = lading.materialize(model, path, device="cpu", strict=False)
    assert lading.report_of(model) is report and lading.report_of(model.a) is None


def test_R23_a_request_that_was_not_followed_is_a_warning(path):
    with pytest.warns(UserWarning) as caught:
        lading.materialize(built(), path, device="cpu", strict=False, dtype=torch.bfloat16)
    (warning,) = [one for one in caught if "was requested" in str(one.message)]
    assert str(warning.message) == (
        'dtype BF16 was requested, but 2 tensors of the checkpoint are stored in F32: by default (cast="promote") a request never '
        'rounds (R23). Set cast="exact" to round them, except those that the model keeps in F32.'
    )
    assert warning.filename == __file__
    for options in ({"dtype": torch.bfloat16, "cast": "exact"}, {"dtype": "f32"}, {}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lading.materialize(built(), path, device="cpu", strict=False, **options)


def test_the_logger_says_what_was_done(path, caplog):
    with caplog.at_level(logging.INFO, logger="lading"):
        lading.materialize(built(), path, device="cpu", allow_missing=["*"], strict=False, mapping={"b.*": None})
    text = caplog.text
    assert "1 tensor missing from the checkpoint, and initialised: b.weight" in text
    assert "1 key in the checkpoint, not read: odd" in text
    assert "keys that a rule ignores: b.weight" in text
    assert "tensors (" in text


def test_the_first_rank_of_a_subgroup_speaks_for_it(path):
    """Whatever its number in the job is; the others are silent."""
    report = lading.materialize(built(), path, device="cpu", strict=False)
    report.rank = 5
    request = Problem("dtype", "not followed", rule="R23", remedy="Ask for something else.")
    with pytest.warns(UserWarning, match=r"not followed \(R23\)\. Ask"):
        telling.tell([], report, [request], passed_over=[], is_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        telling.tell([], report, [request], passed_over=[], is_first=False)


def test_names_of_dtypes_that_people_use(path):
    for name in ("f32", "fp32", "float32", "F32", "float", torch.float32, "torch.float32"):
        model = built()
        lading.materialize(model, path, device="cpu", strict=False, dtype=name)
        assert model.a.weight.dtype == torch.float32
    for name in ("bf16", "bfloat16", "BF16"):
        model = built()
        lading.materialize(model, path, device="cpu", strict=False, dtype=name, cast="exact")
        assert model.a.weight.dtype == torch.bfloat16
    for name in ("f16", "fp16", "half", "float16"):
        model = built()
        lading.materialize(model, path, device="cpu", strict=False, dtype=name, cast="exact")
        assert model.a.weight.dtype == torch.float16


def test_the_version_is_that_of_the_engine():
    assert lading.__version__ == lading._engine.version()


def test_a_rank_that_waits_says_so(monkeypatch, caplog):
    monkeypatch.setattr(telling, "_FIRST_WORD_S", 0.05)
    monkeypatch.setattr(telling, "_EVERY_S", 0.05)
    with caplog.at_level(logging.WARNING, logger="lading"), telling.waiting_aloud(3, 8):
        threading.Event().wait(0.4)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) >= 2 and "rank 3 has waited" in said[0]
    caplog.clear()
    with telling.waiting_aloud(3, 8):
        pass
    assert not caplog.records


def test_a_first_rank_alone_is_heard_in_a_real_group(path):
    """Two processes; the second never calls."""
    program = textwrap.dedent(
        """
        import os, sys, time, torch.distributed as dist
        rank = int(sys.argv[1])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
        dist.init_process_group("gloo", rank=rank, world_size=2)
        import lading, torch
        from lading import telling
        telling._FIRST_WORD_S = 0.5
        if rank == 0:
            try:
                lading.materialize(torch.nn.Linear(3, 3), sys.argv[3], timeout=4)
            except lading.LadingError as error:
                print("refused", error)
        else:
            time.sleep(8)
        """
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), port, str(path)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE)})
        for rank in range(2)
    ]  # fmt: skip
    out, err = ranks[0].communicate(timeout=90)
    ranks[1].communicate(timeout=90)
    assert "rank 0 has waited" in err and "refused" in out
