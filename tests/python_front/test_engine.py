"""The binding of the C ABI: bytes that arrive, errors that are told, loads that are stopped; no torch needed."""

import ctypes
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading")).resolve()
os.environ.setdefault("LADING_LIBRARY", str(COMMAND.parent / "liblading.so"))

from lading import _engine, coordinator  # noqa: E402
from lading.errors import LadingError, Problem  # noqa: E402

DTYPES = {"F32": numpy.float32, "F16": numpy.float16, "I64": numpy.int64, "BOOL": numpy.bool_, "U8": numpy.uint8}


@pytest.fixture(scope="module")
def tensors():
    random = numpy.random.default_rng(3)
    return {
        "layer.weight": random.standard_normal((33, 17)).astype(numpy.float32),
        "layer.bias": random.standard_normal(17).astype(numpy.float16),
        "ids": random.integers(-(2**62), 2**62, (4, 3)),
        "mask": random.integers(0, 2, (3, 11)).astype(bool),
        "scalar": numpy.array(2.5, numpy.float32),
        "nothing": numpy.zeros((0, 4), numpy.float32),
    }


@pytest.fixture(scope="module")
def checkpoint(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    save_file(tensors, path)
    return path


class Memory(list):
    """A buffer for each destination of a plan, as load() takes them. It owns the buffers."""

    def __init__(self, plan):
        self.arrays = [numpy.full(d.local_shape, 1, DTYPES[d.dtype]) for d in plan.destinations]
        super().__init__((array.ctypes.data, array.nbytes) for array in self.arrays)


def of_rank(plan, memory, rank):
    return {d.name: array for d, array in zip(plan.destinations, memory.arrays) if d.rank == rank}


def test_every_byte_arrives(tensors, checkpoint):
    plan = _engine.plan({"checkpoint": checkpoint})
    memory = Memory(plan)
    report = plan.load(memory)
    loaded = of_rank(plan, memory, 0)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].shape == tensor.shape and loaded[name].dtype == tensor.dtype
        assert loaded[name].tobytes() == tensor.tobytes(), name
    assert [d.name for d in report.destinations] == sorted(tensors)
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in report.digests)
    assert report.answer["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert report.answer["loading_seconds"] > 0 and report.answer["plan_digest"] == plan.answer["plan_digest"]


def test_into_memory_of_torch(tensors, checkpoint):
    torch = pytest.importorskip("torch")
    plan = _engine.plan({"checkpoint": checkpoint})
    dtypes = {"F32": torch.float32, "F16": torch.float16, "I64": torch.int64, "BOOL": torch.bool}
    loaded = [torch.empty(d.local_shape, dtype=dtypes[d.dtype]) for d in plan.destinations]
    plan.load([(tensor.data_ptr(), tensor.nbytes) for tensor in loaded])
    for destination, tensor in zip(plan.destinations, loaded):
        assert tensor.numpy().tobytes() == tensors[destination.name].tobytes()


def test_shards_of_two_ranks(tensors, checkpoint):
    plan = _engine.plan({"checkpoint": checkpoint, "mesh": "dp=2", "strategy": "fsdp2", "ranks": "all"})
    memory = Memory(plan)
    plan.load(memory)
    parts = [of_rank(plan, memory, rank)["layer.weight"] for rank in (0, 1)]
    assert [part.shape for part in parts] == [(17, 17), (16, 17)]
    assert numpy.concatenate(parts).tobytes() == tensors["layer.weight"].tobytes()


def test_the_ledger_is_verified(checkpoint, tmp_path):
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(checkpoint.read_bytes())
    plan = _engine.plan({"checkpoint": copy})
    ledger = json.loads(plan.load(Memory(plan)).ledger())
    assert _engine.verify(copy, ledger)["tensors_verified"] == 6
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    found = _engine.verify(copy, ledger)
    assert not found["ok"] and found["problems"][0]["code"] == "values_differ"


def test_inspect_and_the_plan_document(tensors, checkpoint):
    found = _engine.inspect(checkpoint)
    shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in found["tensors"]}
    assert shapes == {name: tensor.shape for name, tensor in tensors.items()}
    assert json.loads(_engine.plan({"checkpoint": checkpoint}).document())["schema"] == "lading.plan/1"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", _engine.version())
    assert isinstance(_engine.gpus()["gpus"], list)


def parameter(name, shape, **more):
    return {"name": name, "kind": "parameter", "shape": shape, "dtype": "F32", **more}


def skeleton(*tensors):
    return {"schema": "lading.skeleton/1", "tensors": list(tensors)}


def test_all_problems_are_in_one_error(checkpoint):
    with pytest.raises(LadingError) as raised:
        _engine.plan({
            "checkpoint": checkpoint,
            "skeleton": skeleton(
                parameter("layer.weight", [5, 17]), parameter("lost.1", [2]), parameter("lost.2", [3])
            ),
        })  # fmt: skip
    error = raised.value
    assert error.stage == "planning" and error.exit_code == 4 and not error.begun
    assert {"layer.weight", "lost.1", "lost.2"} <= set(error.tensors)
    assert error.code == error.problems[0].code and error.rule == error.problems[0].rule
    text = str(error)
    assert text.startswith(str(error.problems[0]))
    for problem in error.problems:
        assert problem.message in text and f'"{problem.tensor}"' in text and problem.remedy in text
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == text and again.problems == error.problems and again.stage == "planning"


def test_a_checkpoint_that_is_refused(tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    for act in (_engine.inspect, lambda path: _engine.plan({"checkpoint": path})):
        with pytest.raises(LadingError) as raised:
            act(path)
        assert raised.value.code == "header_truncated" and raised.value.exit_code == 3
        assert "cut.safetensors" in str(raised.value)


def test_unknown_fields_are_named(checkpoint):
    with pytest.raises(LadingError, match=r"\$\.treads: unknown field") as raised:
        _engine.plan({"checkpoint": checkpoint, "treads": 3})
    assert raised.value.stage == "request" and raised.value.exit_code == 2


def test_memory_that_does_not_fit(checkpoint):
    plan = _engine.plan({"checkpoint": checkpoint})
    memory = Memory(plan)
    with pytest.raises(LadingError, match="number of memories.*expected 6, found 5") as raised:
        plan.load(memory[:-1])
    assert raised.value.stage == "request"
    with pytest.raises(LadingError, match="too small") as raised:
        plan.load([(address, 1) for address, _ in memory])
    assert not raised.value.begun and len(raised.value.tensors) > 1
    assert all((array == 1).all() for array in memory.arrays), "nothing was written"


def plan_with_host_values(checkpoint, *names):
    made = [parameter(name, [2], kind="non_persistent_buffer", derivation={"kind": "host"}) for name in names]
    return _engine.plan({
        "checkpoint": checkpoint,
        "skeleton": skeleton(parameter("layer.weight", [33, 17]), *made),
        "policy": {"schema": "lading.policy/1", "unexpected": "report"},
    })  # fmt: skip


def test_values_come_from_the_caller(checkpoint):
    plan = plan_with_host_values(checkpoint, "made")
    memory = Memory(plan)
    asked = []

    def value(name, rank):
        asked.append((name, rank))
        return _engine.HostValue.of_bytes(numpy.array([8, 9], numpy.float32).tobytes(), "F32")

    plan.load(memory, value=value)
    assert asked == [("made", 0)]
    assert of_rank(plan, memory, 0)["made"].tolist() == [8, 9]


def test_what_value_raises_is_the_cause(checkpoint):
    plan = plan_with_host_values(checkpoint, "made.1", "made.2")

    def value(name, rank):
        raise KeyError(name)

    with pytest.raises(LadingError) as raised:
        plan.load(Memory(plan), value=value)
    assert raised.value.tensors == ("made.1", "made.2"), "all values that could not be had"
    assert "KeyError: 'made.1'" in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError) and not raised.value.begun
    with pytest.raises(LadingError, match="the caller did not supply it"):
        plan.load(Memory(plan))


def test_what_progress_raises_is_raised_at_the_end(checkpoint):
    plan = _engine.plan({"checkpoint": checkpoint})
    seen = []
    plan.load(Memory(plan), progress=seen.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == plan.answer["bytes"]

    def fail(_progress):
        raise ZeroDivisionError("of the caller's")

    with pytest.raises(ZeroDivisionError):
        plan.load(Memory(plan), progress=fail)


def test_cancelled_before_it_began(checkpoint):
    plan = _engine.plan({"checkpoint": checkpoint})
    with pytest.raises(LadingError) as raised:
        plan.load(Memory(plan), cancelled=lambda: True)
    assert raised.value.code == "cancelled" and raised.value.exit_code == 5


@pytest.fixture
def plan_with_call(checkpoint):
    """A value is asked for when the tensor that it is computed from is loaded: the load has begun by then."""
    call = {"kind": "call", "inputs": ["layer.weight"]}
    return _engine.plan({
        "checkpoint": checkpoint,
        "skeleton": skeleton(
            parameter("layer.weight", [33, 17]), parameter("made", [2], kind="non_persistent_buffer", derivation=call)
        ),
        "policy": {"schema": "lading.policy/1", "unexpected": "report"},
    })  # fmt: skip


def test_cancelled_while_it_runs(plan_with_call):
    event = threading.Event()

    def value(name, rank):
        event.set()
        return _engine.HostValue.of_bytes(bytes(8), "F32")

    memory = Memory(plan_with_call)
    with pytest.raises(LadingError) as raised:
        plan_with_call.load(memory, value=value, cancelled=event.is_set)
    error = raised.value
    assert error.code == "cancelled" and error.begun and "incomplete" in str(error)
    assert json.loads(error.ledger)["schema"].startswith("lading.ledger/")


@pytest.fixture
def interrupts():
    """As in a terminal: a shell that starts tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_is_raised_when_the_engine_has_returned(plan_with_call):
    finished = []

    def value(name, rank):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        finished.append(name)
        return _engine.HostValue.of_bytes(bytes(8), "F32")

    memory = Memory(plan_with_call)
    with pytest.raises(KeyboardInterrupt) as raised:
        plan_with_call.load(memory, value=value)
    assert finished == ["made"], "a callback is not torn apart"
    assert raised.value.__cause__.code == "cancelled" and raised.value.__cause__.begun
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_stays(plan_with_call):
    class Stop(Exception):
        pass

    def handler(_signal, _frame):
        raise Stop

    def progress(_progress):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    memory = Memory(plan_with_call)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(Stop):
            plan_with_call.load(memory, value=lambda *_: _engine.HostValue.of_bytes(bytes(8), "F32"), progress=progress)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_gil_is_free_while_it_loads():
    assert type(_engine._library) is ctypes.CDLL, "ctypes.PyDLL would hold it"


def test_a_load_while_another_waits_in_a_callback(plan_with_call):
    memory = Memory(plan_with_call)
    other = threading.Event()

    def value(name, rank):
        thread = threading.Thread(target=load_too)
        thread.start()
        thread.join(30)
        return inner(name, rank)

    def inner(name, rank):
        return _engine.HostValue.of_bytes(bytes(8), "F32")

    def load_too():
        plan_with_call.load(Memory(plan_with_call), value=inner)
        other.set()

    plan_with_call.load(memory, value=value)
    assert other.is_set()


def import_engine(environment):
    program = "import sys; from lading import _engine; assert 'torch' not in sys.modules; print(_engine.LIBRARY_PATH)"
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), **environment},
    )


def test_the_named_library_is_taken_and_torch_is_not_imported():
    done = import_engine({})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == os.environ["LADING_LIBRARY"]


def test_a_library_that_is_not_there(tmp_path):
    done = import_engine({"LADING_LIBRARY": str(tmp_path / "liblading.so")})
    assert done.returncode == 1
    assert "ImportError: LADING_LIBRARY is" in done.stderr and "that file does not exist" in done.stderr


def test_a_library_that_is_another():
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    done = import_engine({"LADING_LIBRARY": libc})
    assert done.returncode == 1 and "is not a lading library" in done.stderr


def test_a_library_of_another_abi_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "ABI_VERSION", 999)
    with pytest.raises(ImportError, match="has ABI version 1, and this Python package needs 999"):
        _engine._open_library(_engine.LIBRARY_PATH)


def test_the_header_says_the_same_as_the_binding():
    header = (REPOSITORY / "include" / "lading" / "lading_c.h").read_text()
    assert re.search(r"#define LADING_ABI_VERSION (\d+)", header)[1] == str(_engine.ABI_VERSION)
    binding = "".join(Path(module.__file__).read_text() for module in (_engine, coordinator))
    bound = set(re.findall(r'"(lading_\w+)"', binding)) | {"lading_abi_version"}
    declared = set(re.findall(r"LADING_API [^;]*?(lading_\w+)\(", header))
    # Structures of C are slow to read from Python: the same destinations, and their replicas, stand in the JSON.
    assert bound == declared - {"lading_destinations", "lading_replicas"}
    assert ctypes.sizeof(_engine._Callbacks) == 4 * ctypes.sizeof(ctypes.c_void_p)


def test_names_are_escaped_in_messages():
    name = "a\x1b[31m\n" + "x" * 1000
    text = str(Problem("plan", "lost", tensor=name, rank=2, rule="R41", expected="[2]", found="[3]", remedy="Look."))
    assert text.isprintable() and len(text) < 400
    assert text.startswith('rank 2: tensor "a\\x1b[31m\\n')
    assert text.endswith("lost; expected [2], found [3] [plan, R41]. Look.")
    with pytest.raises(ValueError, match="without a problem"):
        LadingError([])
