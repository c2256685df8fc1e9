"""Saves, each in a process that strace listens to: what the place was before and after, and the log of its system calls.

    python power_loss_worker.py FOLDER CASE…        # FOLDER/CASE/{before,after.0,trace.0,…}, FOLDER/CASE/place
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "python"), str(ROOT / "tests" / "python_front")]
os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import ranks_models
import torch
import torch.distributed as dist
from power_loss import CALLS
from safetensors.torch import load_file

import lading
from lading import saving

DEADLINE_S = 120
SHARD_BYTES = 20_000
LISTENING = ("strace", "-f", "-y", "-xx", "-s", str(1 << 24), "-e", f"trace={CALLS}")
BASE_FILES = {"tokenizer.json": "words " * 500, "tokenizer_config.json": "{}", "merges.txt": "a b\n" * 300}


def model_of(number):
    torch.manual_seed(number)
    return ranks_models.fill(ranks_models.MODELS["llama"]())


class Case:
    """One place, and the saves that are made there one after the other."""

    def __init__(self, folder, name, *, has_old=False):
        self.folder, self.place = folder / name, folder / name / "place"
        self.base = folder / "base"
        self.place.mkdir(parents=True)
        if has_old:
            shutil.copytree(folder / "old", self.place / "out")
        shutil.copytree(self.place, self.folder / "before")
        self.count = 0

    def save(self, number, *, ranks=1, last_step=None, is_well=True, **options):
        """`last_step`: what strace does to the first sync of the last step, on one rank."""
        model = model_of(number)
        children, mine = [], []
        for rank in range(ranks):
            ours, its = socket.socketpair()
            child = os.fork()
            if child == 0:
                self._save_in_child(model, its, (rank, ranks), last_step, **options)
            its.close()
            children.append(child)
            mine.append(ours)
        assert {one.recv(10) for one in mine} == {b"ready"}
        strace = listen(children, self.folder / f"trace.{self.count}.0")
        for one in mine:
            one.sendall(b"begin")
        if last_step is not None:
            assert mine[0].recv(10) == b"last step"
            strace.send_signal(signal.SIGINT)
            strace.wait()
            strace = listen(children, self.folder / f"trace.{self.count}.1", f"--inject=fsync:{last_step}:when=1")
            mine[0].sendall(b"go on")
        statuses = [os.waitpid(child, 0)[1] for child in children]
        strace.wait()
        assert (set(statuses) == {0}) == is_well, f"{self.folder.name}: a save ended with {statuses}"
        shutil.copytree(self.place, self.folder / f"after.{self.count}")
        self.count += 1
        check(self.place / "out", model.state_dict(), with_optimizer=options.get("optimized", False))

    def _save_in_child(self, model, parent, ranks, last_step, *, exist, optimized=False):
        status = 1
        signal.alarm(DEADLINE_S)
        try:
            optimizer = stepped(model) if optimized else None
            rank, count = ranks
            if count > 1:
                store = f"file://{self.folder / 'store'}"
                dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
            if last_step is not None:
                _tell_before_the_last_step(parent)
            parent.sendall(b"ready")
            assert parent.recv(10) == b"begin"
            options = {"exist": exist, "max_shard_size": SHARD_BYTES, "optimizer": optimizer, "progress": False}
            report = lading.save(model, self.place / "out", base=self.base, group=None if count > 1 else False, **options)
            assert report.written_bytes > 0
            if count > 1:
                dist.barrier()
            status = 0
        except lading.LadingError as error:
            print(error, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def convert(self):
        command = os.environ.get("LADING_COMMAND", ROOT / "build" / "dev" / "lading")
        argv = [command, "convert", self.base, self.place / "out", "--dtype", "bf16", "--max-shard-size", "10KB"]
        trace = self.folder / "trace.0.0"
        subprocess.run([*LISTENING, "-o", trace, *argv, "--exist", "replace"], check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(self.place, self.folder / "after.0")
        check(self.place / "out", {key: value.bfloat16() for key, value in model_of(0).state_dict().items()})


def _tell_before_the_last_step(parent):
    commit = saving.commit

    def told(target):
        parent.sendall(b"last step")
        assert parent.recv(10) == b"go on"
        return commit(target)

    saving.commit = told


def stepped(model):
    """Without a backward pass, whose threads a fork may not have."""
    optimizer = torch.optim.AdamW(model.parameters())
    values = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
    return optimizer


def listen(processes, log, *options):
    """It is attached when this returns."""
    attached = [argument for process in processes for argument in ("-p", str(process))]
    strace = subprocess.Popen([*LISTENING, *options, "-o", log, *attached], stderr=subprocess.PIPE, text=True)
    for _ in processes:
        said = strace.stderr.readline()
        assert "attached" in said, said
    threading.Thread(target=strace.stderr.read, daemon=True).start()
    return strace


def check(out, wanted, *, with_optimizer=False):
    """It is the complete checkpoint, so that its bytes may be the measure of what is found later."""
    found = {key: value for path in out.glob("*.safetensors") for key, value in load_file(path).items()}
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert {name: (out / name).read_text() for name in BASE_FILES} == BASE_FILES
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "lading.ledger.json", "model.safetensors.index.json"} <= names
    assert len(list(out.glob("*.safetensors"))) > 2
    assert ("optimizer" in names) == with_optimizer


def refuse(case):
    case.save(1, exist="refuse")


def replace(case):
    case.save(1, exist="replace")


def optimizer(case):
    case.save(1, exist="replace", optimized=True)


def two_ranks(case):
    """Each of which writes and syncs some bytes of the files, and one of which renames."""
    case.save(1, exist="replace", ranks=2)


def convert(case):
    """By the command, which makes the same steps."""
    case.convert()


def killed(case):
    """Between the rename and its sync; then the next save, which cleans up."""
    case.save(1, exist="replace", last_step="signal=KILL", is_well=False)
    case.save(2, exist="replace")


def sync_failed(case):
    """That of the rename, which leaves the error to clean up."""
    case.save(1, exist="replace", last_step="error=EIO", is_well=False)
    case.save(2, exist="replace")


ALL = (refuse, replace, optimizer, two_ranks, convert, killed, sync_failed)
CASES = {function.__name__: function for function in ALL}


def main(folder, names):
    torch.set_num_threads(1)
    for place, number in (("base", 0), ("old", 7)):
        model_of(number).save_pretrained(folder / place, max_shard_size=SHARD_BYTES)
        for name, text in BASE_FILES.items():
            (folder / place / name).write_text(text.upper() if place == "old" else text)
    (folder / "old" / "mine.txt").write_text("mine")
    for name in names:
        CASES[name](Case(folder, name, has_old=name != "refuse"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
