"""Every example runs, as its first lines say, and says that the model is right."""

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from geometry.launch import run_worker

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "python"
RIGHT = r"the output differs by \S+ from that of the model that was saved"
ONE_PROCESS = {
    "audit.py": r'"head.weight".*\[untied, R49\](.|\n)*"softcap".*\[value, R6\]',
    "dry_run.py": r"19 tensors \(18 file, 1 \w+\)(.|\n)*beside the model",
    "other_names.py": RIGHT,
    "single.py": RIGHT,
    "transformers_model.py": r"LlamaForCausalLM, logits \(1, 8, 97\)",
}
AS_A_SCRIPT = {
    "quickstart.py": r"2 tensors \(2 file\)(.|\n)*requires_grad=True",
    "first_audit.py": r'"head.weight".*\[untied, R49\](.|\n)*"scale".*\[value, R6\](.|\n)*False',
    "first_model.py": r"11 tensors \(10 file, 1 host\)(.|\n)*^host$",
}
SEVERAL_RANKS = {
    "tp.py": 2, "fsdp2_tp.py": 4, "hsdp.py": 4, "transformers_model.py": 2, "from_nothing.py": 2, "dtypes.py": 2,
    "exchange.py": 4, "dcp_fsdp2.py": 2, "save.py": 2, "resume.py": 2,
}  # fmt: skip
ON_RANKS = {  # where it is not RIGHT
    "resume.py": r"rank \d of 2(.|\n)*the state of 17 parameters was loaded(.|\n)*the losses go on: ",
    "save.py": rf"rank \d of 2: 17 keys in 1 file, (.|\n)*step-3(.|\n)*{RIGHT}",
    "dtypes.py": r"torch.float32 R23\nrank \d of 2: 5 tensors \(5 file\)",
    "exchange.py": rf"(rank (0|1) of 4(.|\n)*read 74\d+ bytes|rank (2|3) of 4(.|\n)*read 0 bytes)(.|\n)*{RIGHT}",
    "from_nothing.py": r"rank \d of 2: 19 tensors(.|\n)*the same bits as in one process",
}
TORCHRUN = {"fsdp2.py": 2, "sharded.py": 2}  # like AS_A_SCRIPT as its users start it, which takes longer


def run(place, *command):
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "python"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def printed():
    return run_worker("examples_worker", 240, package="python_front", alone=list(ONE_PROCESS), ranks=SEVERAL_RANKS)


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_on_one_process(name, printed):
    assert re.search(ONE_PROCESS[name], printed[0][name]), printed[0][name]


@functools.cache
def printed_by(name):
    with tempfile.TemporaryDirectory() as place:
        return run(place, EXAMPLES / name)


@pytest.mark.parametrize("name", AS_A_SCRIPT)
def test_as_a_script(name):
    assert re.search(AS_A_SCRIPT[name], printed_by(name), re.MULTILINE)


def shown_output():
    """What pages say that an example prints: "…" stands for what differs from run to run."""
    shown = re.compile(r"^<!-- printed by examples/python/(\S+) -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [(page.stem, *match) for page in pages for match in shown.findall(page.read_text())]


def is_printed(shown, printed):
    """Lines may be wrapped; seconds and speeds are those of a machine."""
    plain = lambda text: " ".join(re.sub(r"\d+\.\d+ (s|GB/s)\b", r"# \1", text).split())
    return re.fullmatch(".*".join(map(re.escape, plain(shown).split("…"))), plain(printed)) is not None


@pytest.mark.parametrize(("page", "name", "shown"), shown_output(), ids=lambda value: value[:20])
def test_a_page_shows_what_is_printed(page, name, shown):
    printed = printed_by(name)
    assert is_printed(shown, printed), printed
    assert not is_printed(shown.replace("tensor", "sensor"), printed)


def test_pages_show_what_is_printed():
    assert [(page, name) for page, name, _ in shown_output()] == [
        ("first-audit", "first_audit.py"), ("first-model", "first_model.py"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL_RANKS)
def test_on_several_ranks(name, printed):
    by_rank = printed[1][name]
    assert len(by_rank) == SEVERAL_RANKS[name]
    otherwise = ONE_PROCESS.get(name, rf"rank \d of {SEVERAL_RANKS[name]}(.|\n)*{RIGHT}").replace("Llama", "FSDPLlama")
    wanted = ON_RANKS.get(name, otherwise)
    for text in by_rank:
        assert re.search(wanted, text), text


@pytest.mark.parametrize("name", TORCHRUN)
def test_by_torchrun(name, tmp_path):
    ranks = TORCHRUN[name]
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, EXAMPLES / name)
    text = run(tmp_path, *command)
    wanted = RIGHT if name == "fsdp2.py" else r"rank \d of 2: 4 tensors \(4 file\)"
    assert len(re.findall(wanted, text)) == ranks and f"rank {ranks - 1} of {ranks}" in text


def test_none_is_forgotten():
    tried = {*ONE_PROCESS, *AS_A_SCRIPT, *SEVERAL_RANKS, *TORCHRUN}
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"common.py"} | tried


@pytest.mark.parametrize("name", [*SEVERAL_RANKS, *TORCHRUN])
def test_the_first_lines_say_how_many_ranks(name):
    ranks = (SEVERAL_RANKS | TORCHRUN)[name]
    assert f"torchrun --nproc-per-node {ranks} examples/python/{name}" in (EXAMPLES / name).read_text()
