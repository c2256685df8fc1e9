"""What two ranks say of a load: lists that are the same on both, and one rank that speaks.

    python speaking_worker.py RESULT.json DEADLINE_S
"""

import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from geometry.launch import run_ranks
from safetensors.torch import save_file
from torch import nn

import lading


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4)


def built():
    with lading.skeleton():
        return Net()


def mesh_of_two():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,))


class Heard(logging.Handler):
    """What was logged as a warning, and what Python was warned of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("lading").addHandler(self)
        self._catching = warnings.catch_warnings(record=True)
        self._caught = self._catching.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *error):
        self.lines += [str(one.message) for one in self._caught if "compute_record" in str(one.message)]
        self._catching.__exit__(*error)
        logging.getLogger("lading").removeHandler(self)


def expect(wanted, found):
    return [] if wanted == found else [f"expected {wanted!r}, found {found!r}"]


def names_of(report):
    return [report.missing_keys, report.unexpected_keys, report.mismatched_keys, report.initialized]


MISSING = [["b.bias"], ["odd"], ["b.weight"], ["b.bias", "b.weight"]]
SAID = [
    "1 tensor missing from the checkpoint, and initialised: b.bias",
    "1 tensor of another shape in the checkpoint, and initialised: b.weight",
]
ALLOWED = {"allow_missing": ["b.*"], "allow_mismatch": ["b.*"], "strict": False, "timeout": 30}


def lists(rank, folder):
    from torch.distributed.fsdp import fully_shard

    model = built()
    fully_shard(model, mesh=mesh_of_two())
    with Heard() as heard:
        report = lading.materialize(model, folder / "other.safetensors", device="cpu", **ALLOWED)
    return expect(MISSING, names_of(report)) + expect(SAID if rank == 0 else [], heard.lines)


class Stage(nn.Module):
    """One half of the model, under its names."""

    def __init__(self, model, name):
        super().__init__()
        setattr(self, name, getattr(model, name))


def stages(rank, folder):
    """Only the second rank has `b`."""
    whole = built()
    stage = Stage(whole, "ab"[rank])
    with Heard() as heard:
        report = lading.materialize(stage, folder / "other.safetensors", device="cpu", whole=whole, **ALLOWED)
    problems = expect(MISSING, names_of(report)) + expect(SAID if rank == 0 else [], heard.lines)
    return problems + expect(rank == 1, "b.weight" in report.tensors)


def stopped(rank, folder):
    """The function of the first rank raises; that of the second is never called."""

    called = []

    def fail(progress):
        called.append(rank)
        raise ValueError(f"enough on rank {rank}")

    model = built()
    try:
        lading.materialize(model, folder / "full.safetensors", device="cpu", progress=fail, timeout=30)
    except lading.LadingError as error:
        problems = expect(rank == 0, called != [])
        problems += [] if "raised ValueError: enough on rank 0" in error.full_text() else [f"it says {error}"]
        problems += expect((0, "cancelled", True), (error.rank, error.code, bool(error.error_id)))
        if rank == 0:
            problems += expect("ValueError('enough on rank 0')", repr(error.__cause__))
        return problems + expect([True] * 3, [tensor.is_meta for tensor in model.state_dict().values()])
    return ["the load was not stopped"]


def record(rank, folder, **options):
    """R26, by shard_by_dtype."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model, file = built(), folder / "full.safetensors"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    with Heard() as heard:
        sharding = lading.shard_by_dtype(model, mesh_of_two(), policy, checkpoint=file, timeout=30, **options)
    is_ignored = bool(options)
    compute = torch.bfloat16 if is_ignored else torch.float32
    problems = expect({compute}, {unit.compute for unit in sharding.units})
    problems += expect(rank == 0 and not is_ignored, len(heard.lines) == 1 and "3 trainable" in heard.lines[0])
    with Heard() as heard:
        lading.materialize(model, file, device="cpu", compute_dtype=torch.bfloat16, timeout=30, **options)
    return problems + expect(1 if rank == 0 and not is_ignored else 0, len(heard.lines))


def record_ignored(rank, folder):
    return record(rank, folder, compute_record="ignore")


RUNS = {"lists": lists, "stages": stages, "stopped": stopped, "record": record, "record ignored": record_ignored}


def main():
    result, deadline_s = sys.argv[1:]
    signal.alarm(int(deadline_s))
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"]))
    full = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(4, 4), "b.bias": torch.ones(4)}
    save_file(full, folder / "full.safetensors")
    other = {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(3, 4), "odd": torch.ones(1)}
    save_file(other, folder / "other.safetensors")
    by_rank = run_ranks(2, lambda rank: {name: run(rank, folder) for name, run in RUNS.items()}, int(deadline_s) - 20)
    answers = {name: [f"rank {rank}: {one}" for rank in range(2) for one in by_rank[rank][name]] for name in RUNS}
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
