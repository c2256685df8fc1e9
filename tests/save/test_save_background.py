"""`lading.save(…, background=True)`: on real gloo ranks, and in programs that end, fork, fail or are interrupted."""

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import save_models as models  # noqa: E402
from geometry.launch import run_worker  # noqa: E402
from save_checks import only, save  # noqa: E402

DEADLINE_S = 280
LAYOUTS = ("fsdp2", "zero3")
MODELS = ("llama_tied", "qwen3_moe")
CASES = (
    "a_training_step",
    "the_next_save_waits",
    "a_rank_that_cannot_write",
    "what_can_be_refused_at_once_is",
    "another_call_meanwhile",
)


@pytest.fixture(scope="module")
def results():
    pytest.importorskip("deepspeed")
    return run_worker("background_worker", DEADLINE_S, package="save", layouts=LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_R69_files_hold_the_values_from_before(results, layout, model):
    assert results[layout][model] == []


@pytest.mark.parametrize("case", CASES)
def test_R69_background_case(results, case):
    assert results["fsdp2"][case] == []


def test_none_is_forgotten(results):
    assert {(layout, case) for layout in LAYOUTS for case in results[layout]} == {
        *(("fsdp2", case) for case in CASES), *((layout, model) for layout in LAYOUTS for model in MODELS)
    }  # fmt: skip


# ---- programs

BEGIN = """
    import os, signal, sys, threading, time
    import lading, save_models, torch
    from lading.save_engine import SavePlan

    write = SavePlan.write

    may_write = threading.Event()
    later = threading.Timer(0.7, may_write.set)

    def slow(*arguments, **options):
        assert may_write.wait(60)
        return write(*arguments, **options)

    SavePlan.write = slow
    model = save_models.original("llama")
    pending = lading.save(model, sys.argv[1], exist="replace", background=True)
    assert not pending.done()
    later.start()
    with torch.no_grad():
        for one in model.parameters():
            one.zero_()
"""
ENDS = {
    "ends": ("", 0),
    "raises": ("raise ZeroDivisionError", 1),
    "exits": ("sys.exit(3)", 3),
    "is interrupted": (
        """
        later.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever began the tests may have had it ignored
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            pending.result()
        except KeyboardInterrupt:
            may_write.set()
            sys.exit(4)
        """,
        4,
    ),
    "waits too short": (
        """
        try:
            pending.result(timeout=0.1)
        except TimeoutError:
            sys.exit(5)
        """,
        5,
    ),
    "forks": (
        """
        child = os.fork()
        if child == 0:
            try:
                pending.result()
            except RuntimeError as error:
                assert "fork" in str(error)
                may_write.set()
                again = lading.save(model, sys.argv[1] + "-child", background=True)
                assert again.result().keys
                os._exit(6)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        6,
    ),
    "is refused a second": (
        """
        try:
            lading.save(model, "/proc/no/such", background=True).result()
        except lading.LadingError:
            assert pending.done()
            sys.exit(7)
        """,
        7,
    ),
}


def program(target, end):
    command = [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(end), str(target)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("end", ENDS)
def test_python_waits_for_the_save(folder, tmp_path, end):
    code, status = ENDS[end]
    done = program(tmp_path / "out", code)
    assert done.returncode == status, done.stderr
    assert "Fatal" not in done.stderr
    assert models.differences(tmp_path / "out", folder / "llama") == []
    assert end == "forks" or only(tmp_path / "out")


@pytest.mark.parametrize("end", ["os._exit(9)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_R69_a_program_that_is_killed(folder, tmp_path, end):
    """While it saves in the background: the old checkpoint is there, and the next save cleans up."""
    target = tmp_path / "out"
    save(models.original("small"), target)
    assert program(target, "later.cancel(); time.sleep(0.2); " + end).returncode in (9, -9)
    assert models.differences(target, folder / "small") == [] and not only(target)
    save(models.original("llama"), target, exist="replace", background=True).result()
    assert models.differences(target, folder / "llama") == [] and only(target)


def test_a_replica_copies_what_it_writes_alone():
    """Of memory that this rank does not write nothing is copied, and what lies in one memory is copied once."""
    from lading.save_memory import Memories
    from lading.save_snapshot import snapshot_of

    one, other = torch.arange(5.0), torch.arange(100, dtype=torch.uint8)
    address = (one.data_ptr(), one.nbytes)
    memories = Memories([address, (other.data_ptr(), 100), address], [one, other, one])
    snapshot = snapshot_of(memories, [1, 0, 2], torch.device("cpu"))
    first, missing, third = snapshot.memories.addresses
    assert first == third and missing == (0, 100) and snapshot.size_bytes == 64 and first[0] != one.data_ptr()
    snapshot.release()


def test_room_on_a_device(monkeypatch):
    """The most that torch has had there comes again, and a margin stays free."""
    from lading import save_snapshot

    def has_room(size, free, reserved, peak):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 160))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: peak)
        return save_snapshot._has_room(size, torch.device("cuda", 0))

    assert has_room(20, 30, 50, 50) and not has_room(21, 30, 50, 50)
    assert has_room(20, 40, 40, 50) and not has_room(20, 39, 40, 50)
