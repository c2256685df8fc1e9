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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "python"), str(ROOT / "tests" / "python_front")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import ranks_models
import torch
from power_loss import CALLS
from safetensors.torch import load_file

import lading
from lading import saving

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

    def save(self, number, *, last_step=None, is_well=True, **options):
        """`last_step`: what strace does to the first sync of the last step."""
        model = model_of(number)
        mine, its = socket.socketpair()
        child = os.fork()
        if child == 0:
            self._save_in_child(model, its, last_step, **options)
        trace = self.folder / f"trace.{self.count}.0"
        strace = listen(child, trace)
        mine.sendall(b"begin")
        if last_step is not None:
            assert mine.recv(10) == b"last step"
            strace.send_signal(signal.SIGINT)
            strace.wait()
            strace = listen(child, self.folder / f"trace.{self.count}.1", f"--inject=fsync:{last_step}:when=1")
            mine.sendall(b"go on")
        _, status = os.waitpid(child, 0)
        strace.wait()
        assert (status == 0) == is_well, f"{self.folder.name}: a save ended with {status}"
        shutil.copytree(self.place, self.folder / f"after.{self.count}")
        self.count += 1
        check(self.place / "out", model.state_dict(), with_optimizer=options.get("optimized", False))

    def convert(self):
        command = os.environ.get("LADING_COMMAND", ROOT / "build" / "dev" / "lading")
        argv = [command, "convert", self.base, self.place / "out", "--dtype", "bf16", "--max-shard-size", "10KB"]
        trace = self.folder / "trace.0.0"
        subprocess.run([*LISTENING, "-o", trace, *argv, "--exist", "replace"], check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(self.place, self.folder / "after.0")
        check(self.place / "out", {key: value.bfloat16() for key, value in model_of(0).state_dict().items()})

    def _save_in_child(self, model, parent, last_step, *, exist, optimized=False):
        status = 1
        try:
            optimizer = stepped(model) if optimized else None
            if last_step is not None:
                commit = saving.commit

                def told(target):
                    parent.sendall(b"last step")
                    assert parent.recv(10) == b"go on"
                    return commit(target)

                saving.commit = told
            assert parent.recv(10) == b"begin"
            options = {"exist": exist, "max_shard_size": SHARD_BYTES, "optimizer": optimizer}
            lading.save(model, self.place / "out", base=self.base, group=False, progress=False, **options)
            status = 0
        except lading.LadingError as error:
            print(error, flush=True)
        finally:
            os._exit(status)


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


def listen(child, log, *options):
    """It is attached when this returns."""
    strace = subprocess.Popen([*LISTENING, *options, "-o", log, "-p", str(child)], stderr=subprocess.PIPE, text=True)
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


CASES = {function.__name__: function for function in (refuse, replace, optimizer, convert, killed, sync_failed)}


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
