"""Code of modules that `load_state_dict` runs and lading does not (python/lading/load_hooks.py): refused by name, unless
it is known to change no value."""

import functools
import types
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

import lading


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 3))
        self.register_buffer("b", torch.zeros(3))


class Scales(Plain):
    def _load_from_state_dict(self, state, prefix, *others):
        state[prefix + "w"] = state[prefix + "w"] * 2
        super()._load_from_state_dict(state, prefix, *others)


class Mixin:
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "w"] = destination[prefix + "w"] / 2


class Batch(Mixin, nn.BatchNorm1d):
    """A class of torch that is known, and another that is not."""

    def __init__(self):
        super().__init__(3)


class Renames(Plain):
    def state_dict(self, *arguments, **options):
        return {f"old_{name}": tensor for name, tensor in super().state_dict(*arguments, **options).items()}


class Strips(Plain):
    def load_state_dict(self, state, *arguments, **options):
        return super().load_state_dict({name.removeprefix("old_"): one for name, one in state.items()})


def transpose(module, state, prefix, *others):
    state[prefix + "w"] = state[prefix + "w"].t()


class Callable:
    def __call__(self, *arguments):
        return None


def hooked(register, hook):
    def make():
        module = Plain()
        getattr(module, register)(hook)
        return module

    return make


def on_the_instance():
    module = Plain()
    module.state_dict = types.MethodType(lambda self, *others, **options: {}, module)
    return module


class Wrapped(Plain):
    """Its override bears the name, and the module, of torch's own method."""

    @functools.wraps(nn.Module._load_from_state_dict)
    def _load_from_state_dict(self, state, prefix, *others):
        state[f"{prefix}w"] = state[f"{prefix}w"] * 2
        super()._load_from_state_dict(state, prefix, *others)


WAYS = {
    "override that is wrapped as torch's own": Wrapped,
    "override of _load_from_state_dict": Scales,
    "override of _save_to_state_dict in a mixin": Batch,
    "override of state_dict": Renames,
    "override of load_state_dict": Strips,
    "state_dict of the instance": on_the_instance,
    "load pre-hook": hooked("register_load_state_dict_pre_hook", transpose),
    "private load pre-hook": hooked("_register_load_state_dict_pre_hook", lambda *arguments: None),
    "load post-hook": hooked("register_load_state_dict_post_hook", lambda module, keys: None),
    "state dict hook": hooked("_register_state_dict_hook", transpose),
    "state dict post-hook": hooked("register_state_dict_post_hook", lambda *arguments: None),
    "state dict pre-hook": hooked("register_state_dict_pre_hook", lambda *arguments: None),
    "an object that is called": hooked("_register_load_state_dict_pre_hook", Callable()),
}


class Net(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.inner = nn.ModuleList([make()])


@pytest.fixture
def saved(tmp_path):
    def save(model):
        path = tmp_path / "model.safetensors"
        generator = torch.Generator().manual_seed(2)
        state = {
            name: torch.randint(1, 9, tensor.shape, generator=generator).to(tensor.dtype)
            for name, tensor in nn.Module.state_dict(model).items()
        }
        save_file(state, path)
        return path

    return save


def tensors(model):
    return dict([*model.named_parameters(), *model.named_buffers()])


def file_of(make, saved):
    """A file with the names of the model, whatever its hooks make of them."""
    model = Net(Plain if make is not Batch else lambda: nn.BatchNorm1d(3))
    return saved(model)


@pytest.mark.parametrize("how", ["real", "skeleton"])
@pytest.mark.parametrize("way", WAYS)
def test_R61_unknown_code_is_refused_by_the_modules_name(saved, way, how):
    make = WAYS[way]
    path = file_of(make, saved)
    if how == "skeleton":
        with lading.skeleton():
            model = Net(make)
    else:
        model = Net(make)
    before = {name: tensor.clone() for name, tensor in tensors(model).items()}
    with pytest.raises(lading.LadingError) as caught:
        lading.materialize(model, path, device="cpu", progress=False)
    (problem,) = caught.value.problems
    assert problem.code == "hooks" and "'inner.0'" in problem.message and problem.remedy
    for name, tensor in tensors(model).items():
        assert tensor.is_meta if how == "skeleton" else torch.equal(tensor, before[name])


def test_R1_audit_does_not_judge_what_such_code_may_have_changed(saved):
    model = Net(Scales)
    path = saved(Net(Plain))
    model.load_state_dict(load_file(path))
    report = lading.audit(model, path)
    assert not report.ok and {problem.code for problem in report.problems} == {"hooks"}
    assert {problem.tensor for problem in report.problems} == {"inner.0.w", "inner.0.b"}


def test_R61_all_of_them_are_listed(saved):
    def make():
        module = Scales()
        module.register_load_state_dict_pre_hook(transpose)
        module.register_load_state_dict_post_hook(lambda module, keys: None)
        return module

    model = Net(make)
    model.register_load_state_dict_pre_hook(lambda *arguments: None)
    with pytest.raises(lading.LadingError) as caught:
        lading.materialize(model, file_of(Plain, saved), progress=False)
    assert [problem.code for problem in caught.value.problems] == ["hooks"] * 4
    assert "the model itself" in str(caught.value) and "Scales" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_R61_observers_of_torch_are_no_exception(saved):
    """Without the version of a pickled state dict they put a value of their own over `eps`."""
    model = Net(torch.ao.quantization.MinMaxObserver)
    path = saved(model)
    with pytest.raises(lading.LadingError, match="MinMaxObserver"):
        lading.materialize(model, path, progress=False)


def test_R61_values_that_are_given_need_no_hook(saved):
    path = file_of(Scales, saved)
    model = Net(Scales)
    given = {"inner.0.w": torch.full((3, 3), 4.0), "inner.0.b": torch.full((3,), 5.0)}
    lading.materialize(model, path, external=given, progress=False)
    assert torch.equal(model.inner[0].w, given["inner.0.w"])
    assert torch.equal(model.first.weight, load_file(path)["first.weight"])


def test_R61_a_module_without_tensors_may_have_any(saved):
    class Nothing(nn.Module):
        def _load_from_state_dict(self, *arguments):
            raise AssertionError("it was run")

        def __init__(self):
            super().__init__()
            self.register_load_state_dict_pre_hook(transpose)
            self.register_buffer("scratch", torch.zeros(2), persistent=False)

    model = Net(Nothing)
    path = saved(model)
    lading.materialize(model, path, progress=False)
    assert torch.equal(model.first.weight, load_file(path)["first.weight"])


def lazy():
    module = nn.LazyLinear(3)
    with torch.random.fork_rng():
        module(torch.zeros(1, 3))
    return module


def normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return spectral_norm(nn.Linear(3, 3))


KNOWN = {
    "batch norm": lambda: nn.BatchNorm1d(3),
    "sync batch norm": lambda: nn.SyncBatchNorm(3),
    "instance norm": lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    "spectral norm": normed,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "new spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    "lazy": lazy,
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4), 1),
    "lstm": lambda: nn.LSTM(3, 3),
    "compiled": lambda: torch.compile(nn.Linear(3, 3), backend="eager"),
    "scripted": lambda: torch.jit.script(nn.Linear(3, 3)),
    "lists of parameters": lambda: nn.ParameterList([torch.zeros(2)]),
    "adaptive": lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KNOWN)
def test_R61_torchs_own_give_what_load_state_dict_gives(saved, kind):
    make = KNOWN[kind]
    want, model = Net(make), Net(make)
    path = saved(want)
    state = load_file(path)
    want.load_state_dict(state)
    if kind == "compiled":  # names have no trace of it here
        save_file({name.replace("_orig_mod.", ""): tensor for name, tensor in state.items()}, path)
    lading.materialize(model, path, progress=False)
    for name, tensor in tensors(want).items():
        assert torch.equal(tensors(model)[name], tensor), name
