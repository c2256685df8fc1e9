"""What a checkpoint has and `lading.audit` cannot judge is said, and hides nothing else."""

import audit_models as models
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lading
from lading.errors import Problem

pytest.importorskip("transformers")

from audit_changes import NORM, Plain, flagged, load, offloaded, save_all, saved  # noqa: E402


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("checkpoints"))


def test_a_planning_refusal_becomes_a_finding(tmp_path, monkeypatch):
    """Such as R48: a quantized payload without its scale. The rest is judged."""
    from lading import _engine

    folder = models.save(tmp_path)
    model = models.original()
    real, problem = _engine.plan, Problem("plan", "it has no scale", tensor="lin.weight", rule="R48")

    def plan(request):
        if any(tensor["name"] == "lin.weight" for tensor in request["skeleton"]["tensors"]):
            raise lading.LadingError(problem, stage="planning", exit_code=4)
        return real(request)

    monkeypatch.setattr(_engine, "plan", plan)
    report = lading.audit(model, folder)
    assert flagged(report) == {("plan", "lin.weight")} and report.problems[0].rule == "R48"
    assert report.checked["with the checkpoint"] == 7


def test_a_load_that_fails_becomes_a_finding(tmp_path, monkeypatch):
    from lading import _engine

    folder = models.save(tmp_path)
    real = _engine.Plan.load

    def load_(self, memories, **options):
        if any("lin.weight" in (one.name, *one.aliases) for one in self.destinations):
            problem = Problem("data_read", "it cannot be read", tensor="lin.weight")
            raise lading.LadingError(problem, stage="loading", exit_code=5)
        return real(self, memories, **options)

    monkeypatch.setattr(_engine.Plan, "load", load_)
    report = lading.audit(models.original(), folder)
    assert flagged(report) == {("data_read", "lin.weight")}
    assert report.checked["with the checkpoint"] == 7


def test_two_keys_of_a_tie_that_differ(tmp_path):
    """The file has both names of a tie with different values: nothing is raised, and the rest is judged."""
    folder = models.save(tmp_path, extra={"head.weight": torch.full((6, 4), 9.0)})
    model = models.original()
    with torch.no_grad():
        model.norm.weight[0] = 77.0
    report = lading.audit(model, folder)
    assert ("value", "norm.weight") in flagged(report) and "head.weight" in report.tensors


def test_a_lazy_parameter_is_a_finding(tmp_path):
    folder = models.save(tmp_path)
    model = models.original()
    model.late = nn.LazyLinear(3)
    report = lading.audit(model, folder)
    assert {"late.weight", "late.bias"} <= set(report.tensors)
    assert report.checked["with the checkpoint"] == 8


@pytest.mark.parametrize("name, value", [("sparse", torch.eye(3).to_sparse()), ("coarse", None)])
def test_a_tensor_that_no_plan_can_say_hides_no_other(tmp_path, name, value):
    value = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8) if value is None else value
    model = Plain(**{name: value})
    folder = saved(tmp_path, w=torch.arange(3.0) + 1)
    report = lading.audit(model, folder)
    assert set(report.tensors) == {name, "w"} and ("value", "w") in flagged(report)


def test_extra_state_that_is_a_tensor(tmp_path):
    class Counting(Plain):
        def get_extra_state(self):
            return torch.tensor([7])

        def set_extra_state(self, state):
            pass

    right = saved(tmp_path, w=torch.arange(3.0), _extra_state=torch.tensor([7]))
    assert lading.audit(Counting(), right, like=Counting()).ok
    wrong = saved(tmp_path, w=torch.arange(3.0), _extra_state=torch.tensor([8]))
    assert flagged(lading.audit(Counting(), wrong, like=Counting())) == {("value", "_extra_state")}


def test_an_offload_map_without_a_value_is_said(folders):
    model = load(folders, "llama")
    offloaded(model)
    model.model.norm._hf_hook.weights_map.dataset.pop(NORM)
    assert flagged(lading.audit(model, folders / "llama")) == {("not_judged", NORM)}


def test_strict_false_excuses_keys_and_no_tensor(tmp_path):
    """A key that nothing reads is a warning; one that the model has a tensor for must be judged."""
    folder = saved(tmp_path, w=torch.arange(3.0), surplus=torch.ones(1))
    report = lading.audit(Plain(), folder, strict=False)
    assert report.ok and [warning.tensor for warning in report.warnings] == ["surplus"]
    folder = saved(tmp_path, w=torch.arange(3.0), softcap=torch.ones(2))
    assert flagged(lading.audit(Plain(), folder, strict=False)) == {("not_judged", "softcap")}
    assert lading.audit(Plain(), folder, strict=False, allow_unexpected=["softcap"]).ok
    model = Plain()
    del model.w
    model.w = torch.arange(3.0) * 3
    assert flagged(lading.audit(model, folder, strict=False)) == {("not_judged", "softcap"), ("not_judged", "w")}


def test_a_key_that_transformers_passes_over(tmp_path, monkeypatch):
    """A buffer that the library does not expect in a file, where nothing says what its constructor makes."""
    from lading import huggingface

    model = models.outsider()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file(state | {"softcap": torch.tensor(3.0)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert lading.audit(model, tmp_path).ok  # judged by its constructor

    def build(*arguments, **options):
        raise TypeError("it wants more than a config")

    monkeypatch.setattr(huggingface, "build", build)
    assert flagged(lading.audit(model, tmp_path)) == {("not_judged", "softcap")}


def test_two_parts_with_one_name(tmp_path):
    folder = saved(tmp_path, w=torch.arange(3.0))
    assert "w" in lading.audit([Plain(), Plain()], folder).tensors
