"""What a load says: lists of keys, the report's text, levels of logging, dtypes, progress, requests that were not
followed (python/lading/outcome.py, report.py, showing.py). Ranks: speaking_worker.py."""

import fcntl
import json
import logging
import os
import pty
import struct
import subprocess
import sys
import termios
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from lading import showing
from lading.report import folded
from ranks_launch import run_script
from safetensors.torch import save_file
from torch import nn

import lading

PACKAGE = Path(lading.__file__).resolve().parents[1]
BF16, F32 = torch.bfloat16, torch.float32


class Net(nn.Module):
    """A tie, parameters and buffers of all kinds."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.extra = nn.Linear(4, 2)
        self.register_buffer("steps", torch.full((2,), 3.0))
        self.register_buffer("table", torch.arange(3.0), persistent=False)


def built(dtype=F32):
    torch.manual_seed(1)
    with lading.skeleton():
        return Net().to(dtype)


def values(*, without=(), **more):
    torch.manual_seed(0)
    state = {name: value.clone() for name, value in Net().state_dict().items() if name != "head.weight"}
    return {name: value for name, value in (state | more).items() if name not in without}


@pytest.fixture
def saved(tmp_path):
    def save(content):
        save_file(content, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"

    return save


def load(model, path, **options):
    return lading.materialize(model, path, device="cpu", **options)


# ---- lists of keys


def test_R39_keys_are_those_that_torch_names(saved):
    """The oracle: load_state_dict of torch itself."""
    content = values(without=("extra.weight", "extra.bias", "steps"), odd=torch.ones(1), other=torch.ones(2))
    wanted = Net().load_state_dict(content | {"head.weight": content["embed.weight"]}, strict=False)
    report = load(built(), saved(content), strict=False, allow_missing="*")
    assert report.missing_keys == sorted(wanted.missing_keys) == ["extra.bias", "extra.weight", "steps"]
    assert report.unexpected_keys == sorted(wanted.unexpected_keys) == ["odd", "other"]
    assert report.initialized == report.missing_keys and report.mismatched_keys == []
    written = json.loads(report.to_json())
    for name in ("missing_keys", "unexpected_keys", "mismatched_keys", "initialized"):
        assert written[name] == getattr(report, name)


def test_a_tie_without_a_key_is_missing_under_both_names(saved):
    report = load(built(), saved(values(without=("embed.weight",))), allow_missing=["embed.*", "head.*"])
    assert report.missing_keys == report.initialized == ["embed.weight", "head.weight"]


def test_nothing_is_missing_where_everything_is_there(saved):
    report = load(built(), saved(values()))
    assert report.missing_keys == report.unexpected_keys == report.mismatched_keys == report.initialized == []
    assert report.tensors["table"].provenance == "host"  # no file is expected to have it


@pytest.mark.parametrize("is_real", [False, True])
def test_R21_a_mismatch_is_initialised_or_kept(saved, is_real):
    content = values() | {"extra.weight": torch.ones(3, 4)}
    model = Net() if is_real else built()
    report = load(model, saved(content), allow_mismatch="extra.*")
    assert report.mismatched_keys == ["extra.weight"] and report.missing_keys == []
    assert report.initialized == ([] if is_real else ["extra.weight"])


def test_what_the_user_gives_or_keeps_is_not_missing(saved):
    path = saved(values(without=("extra.weight", "extra.bias", "steps")))
    model = built()
    report = load(
        model, path, external={"extra.weight": torch.ones(2, 4)}, allow_missing=["extra.bias", "steps"],
        recipes={"extra.bias": lambda module, name: torch.full((2,), 7.0)},
    )  # fmt: skip
    assert report.missing_keys == report.initialized == ["extra.bias", "steps"]
    assert model.extra.bias.tolist() == [7.0, 7.0]
    real = Net()
    report = load(real, path, keep=["extra.*"], allow_missing=["steps"])
    assert report.missing_keys == ["steps"] and report.initialized == []  # it has the value that it had


def test_keys_are_those_that_transformers_names(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=9, num_labels=3, **sizes)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path)
    config.type_vocab_size = 5
    chosen = transformers.BertForSequenceClassification
    _, wanted = chosen.from_pretrained(
        tmp_path, config=config, ignore_mismatched_sizes=True, output_loading_info=True
    )
    mismatched = [one if isinstance(one, str) else one[0] for one in wanted["mismatched_keys"]]
    model = lading.from_pretrained(
        tmp_path, cls=chosen, config=config, device="cpu", strict=False, allow_missing="*", allow_mismatch="*"
    )
    report = lading.report_of(model)
    assert report.missing_keys == sorted(wanted["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    assert report.mismatched_keys == sorted(mismatched) == ["bert.embeddings.token_type_embeddings.weight"]
    assert report.unexpected_keys == sorted(wanted["unexpected_keys"]) != []
    assert report.initialized == sorted([*report.missing_keys, *report.mismatched_keys])


def test_R65_adapters_without_a_file_are_initialised_and_not_missing(saved, caplog):
    peft = pytest.importorskip("peft")
    path = saved(values())
    with lading.skeleton():
        model = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["extra"], r=2))
    report = load(model, path)
    name = "base_model.model.extra.lora_{}.default.weight".format
    assert report.missing_keys == [] and report.initialized == [name("A"), name("B")]
    assert "2 tensors initialised, which checkpoints do not usually have" in str(report)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


# ---- the text and the log


def test_R14_a_note_names_what_is_kept_and_not_what_keep_names(saved):
    content = values(without=("steps", "extra.bias"))
    models = [built(), built()]
    for model in models:
        model.steps = torch.ones(2)
        model.extra.bias = nn.Parameter(torch.ones(2))
    note = "kept as assigned after the model was built, because no file has it: {}".format
    assert note("extra.bias, steps") in load(models[0], saved(content), allow_missing="*").notes
    assert note("steps") in load(models[1], saved(content), allow_missing="*", keep=["extra.bias"]).notes


def test_a_model_that_starts_without_a_checkpoint_is_told_nothing_of_checkpoints():
    report = lading.initialize(built(), device="cpu", progress=False)
    assert "checkpoint" not in str(report) and f"{len(report.initialized)} tensors initialised: " in str(report)


def raises(_module, _name):
    raise RuntimeError("no such table")


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ({"external": {"extra.bias": torch.ones(3)}}, "ValueError: the value of extra.bias has", "external="),
        ({"recipes": {"extra.bias": raises}}, "RuntimeError: no such table", "recipes="),
    ],
)
def test_a_value_that_cannot_be_had_is_advised_on_by_its_argument(saved, given, said, remedy):
    with pytest.raises(lading.LadingError) as raised:
        load(built(), saved(values(without=("extra.bias",))), allow_missing=["extra.bias"], **given)
    assert said in str(raised.value) and "callback" not in str(raised.value)
    assert remedy in raised.value.problems[0].remedy


def test_the_report_says_first_what_a_person_needs_first(saved):
    content = values(without=("extra.bias",), odd=torch.ones(1)) | {"extra.weight": torch.ones(3, 4)}
    content["layers.0.weight"] = content["layers.0.weight"].to(BF16)
    report = load(built(), saved(content), allow_missing="*", allow_mismatch="extra.*", strict=False)
    text = str(report).splitlines()
    assert text[0].startswith("30 tensors (")
    assert [line.strip() for line in text[1:5]] == [
        "1 tensor missing from the checkpoint, and initialised: extra.bias",
        "1 tensor of another shape in the checkpoint, and initialised: extra.weight",
        "1 key in the checkpoint, not read: odd",
        "1 tensor: built as F32, loaded as BF16, as the checkpoint has them",
    ]
    assert 'warning: tensor "extra.weight"' in text[-1] and "expected [2, 4], found [3, 4]" in text[-1]


def test_the_report_is_short_when_nothing_is_unusual(saved, caplog):
    with caplog.at_level(logging.INFO, logger="lading"):
        report = load(built(), saved(values()))
    assert len(str(report).splitlines()) == 2  # the second says which device
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_initialised_tensors_are_a_warning_in_the_log(saved, caplog):
    path = saved(values(without=[f"layers.{i}.bias" for i in range(12)]))
    load(built(), path, allow_missing="*")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "12 tensors missing from the checkpoint, and initialised: layers.*.bias (12)"
    ]
    caplog.clear()
    load(Net(), path, allow_missing="*")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "12 tensors missing from the checkpoint, and kept as before: layers.*.bias (12)"
    ]


def test_names_are_folded_where_they_are_many():
    assert folded(["a.0.b", "a.1.b"]) == "a.0.b, a.1.b"
    assert folded([*(f"a.{i}.b" for i in range(9)), "0.x", "1.x", "v2.w"]) == "a.*.b (9), *.x (2), v2.w"
    assert folded([f"n{i}" for i in range(30)]).endswith("n19 and 10 more")
    assert folded(["a\nb"]) == r"a\nb"


# ---- dtypes


@pytest.mark.parametrize(
    ("build", "file", "options", "said"),
    [
        (F32, BF16, {}, "29 tensors: built as F32, loaded as BF16, as the checkpoint has them"),
        (F32, BF16, {"dtype": "f16", "cast": "exact"}, "29 tensors: built as F32, loaded as F16, as requested"),
        (BF16, BF16, {"pins": ["extra"]}, "2 tensors: built as BF16, loaded as F32, as lading.resolve_dtypes explains"),
    ],
)  # fmt: skip
def test_R22_a_model_of_another_dtype_than_it_was_built_in_is_named(saved, build, file, options, said):
    content = {name: value.to(file) for name, value in values().items()}
    report = load(built(build), saved(content), **options)
    assert report.notes[0] == said and sum("built as" in note for note in report.notes) == 1
    if not options:
        same = load(built(BF16), saved(content))
        assert not any("built as" in note for note in same.notes)


# ---- requests that were not followed


def test_R23_what_was_not_followed_is_in_the_warnings_and_not_in_the_notes(saved):
    with pytest.warns(UserWarning, match="BF16 was requested"):
        report = load(built(), saved(values()), dtype=BF16)
    (warning,) = [one for one in report.warnings if one.code == "dtype"]
    assert warning.rule == "R23" and not any("requested" in note for note in report.notes)
    assert "dtype BF16 was requested, but 28 tensors of the checkpoint are stored in F32" in str(report)


RECORDED = (
    "27 trainable parameters will be computed in F32, not in the compute dtype BF16, because the checkpoint has them in "
    'F32 (R26). Set compute_record="ignore" to compute them in BF16, except those that the model keeps in F32.'
)


def test_R26_a_record_that_goes_before_the_compute_dtype_is_a_warning(saved):
    path = saved(values())
    for call in (load, lambda model, path, **options: lading.resolve_dtypes(model, path, **options)):
        with pytest.warns(UserWarning, match="compute_record") as caught:
            answer = call(built(), path, compute_dtype=BF16)
        (said,) = [one for one in caught if "will be computed" in str(one.message)]
        assert str(said.message) == RECORDED and said.filename == __file__
        (warning,) = [one for one in answer.warnings if one.rule == "R26"]
        assert 'Set compute_record="ignore"' in warning.remedy
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(built(), path, compute_dtype=BF16, compute_record="ignore")
            call(built(), path)


# ---- progress


def test_progress_may_be_a_function(saved):
    seen = []
    report = load(built(), saved(values()), progress=seen.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == report.bytes > 0


def test_what_the_function_raises_stops_the_load(saved):
    def fail(progress):
        raise ValueError("enough")

    model = built()
    with pytest.raises(lading.LadingError, match="progress function raised ValueError: enough") as raised:
        load(model, saved(values()), progress=fail)
    assert isinstance(raised.value.__cause__, ValueError) and raised.value.code == "cancelled"
    assert not raised.value.begun and all(tensor.is_meta for tensor in model.state_dict().values())
    real = Net()
    with pytest.raises(lading.LadingError) as raised:
        load(real, saved(values()), progress=fail)
    assert raised.value.begun and "enough" in lading.is_incomplete(real)


def test_an_interrupt_in_the_function_stays_one(saved):
    def interrupt(progress):
        raise KeyboardInterrupt

    model = built()
    with pytest.raises(KeyboardInterrupt):
        load(model, saved(values()), progress=interrupt)
    assert model.extra.weight.is_meta


def test_progress_is_true_false_or_a_function(saved):
    with pytest.raises(TypeError, match="progress is 'yes'; it should be True, False, or a function"):
        load(built(), saved(values()), progress="yes")


def test_a_line_says_how_far_the_load_is(monkeypatch, caplog):
    """Every ten seconds from the fifth on, as a clock of ours says."""
    now = 100.0
    monkeypatch.setattr(showing.time, "monotonic", lambda: now)
    monkeypatch.setattr(showing, "_is_watched", lambda: False)
    display = showing.display_for(True, is_first=True)
    with caplog.at_level(logging.INFO, logger="lading"):
        for second in range(31):
            now = 100.0 + second
            display.show(showing.Progress(second * 10**9, 40 * 10**9, 0))
    assert [record.getMessage() for record in caplog.records] == [
        "loading: 12 %, 5.0 of 40.0 GB, 1.00 GB/s, 35 s left",
        "loading: 37 %, 15.0 of 40.0 GB, 1.00 GB/s, 25 s left",
        "loading: 62 %, 25.0 of 40.0 GB, 1.00 GB/s, 15 s left",
    ]


@pytest.mark.parametrize("stderr", ["closed", None])
def test_a_daemon_without_standard_error_loads(saved, monkeypatch, tmp_path, stderr):
    if stderr == "closed":
        stderr = open(tmp_path / "log", "w")  # noqa: SIM115
        stderr.close()
    monkeypatch.setattr(showing, "_BAR_DELAY_S", -1)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        report = load(built(), saved(values()))
    assert report.missing_keys == []


def test_a_bar_on_a_terminal_and_lines_elsewhere(saved):
    """Two processes, one with a terminal of its own as standard error."""
    program = textwrap.dedent(
        """
        import logging, sys, torch
        import lading
        from lading import showing
        showing._BAR_DELAY_S = showing._FIRST_LINE_S = -1
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        model = torch.nn.Linear(4, 2)
        lading.materialize(model, sys.argv[1], device="cpu", strict=False, mapping={"extra.*": "*"})
        """
    )
    command = [sys.executable, "-c", program, str(saved(values()))]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))  # tqdm shows nothing in no columns
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0 and b"lading:" in shown and "loading:" not in out
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=True, timeout=120)
    assert "lading:" not in done.stderr and "INFO:lading:loading: 100 %" in done.stdout


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # how a terminal says that nobody is at its other end
        return b""


# ---- ranks


@pytest.fixture(scope="module")
def ranks():
    return run_script(Path(__file__).resolve().parent / "speaking_worker.py", 200)


CASES = ("lists", "stages", "stopped", "record", "record ignored")


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_speak_as_one(ranks, case):
    assert ranks[case] == []


def test_every_case_of_the_ranks_was_run(ranks):
    assert set(ranks) == set(CASES)
