"""Copies and flags that others keep of what a load fills (python/lading/holders.py). After a load a forward pass and an
optimizer step use the loaded values, as a plain torch model does that had them from the start; or the load is refused
before anything is written."""

import copy
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import lading

X = torch.linspace(-1, 1, 12).reshape(3, 1, 4)


class Net(nn.Module):
    """One layer of any kind. RNNs answer a tuple."""

    def __init__(self, make):
        super().__init__()
        self.layer = make()

    def forward(self, x):
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out


def linear():
    return nn.Linear(4, 4)


def old_style(wrap, make, **options):
    def build():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(make(), **options)

    return build


def pruned():
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", amount=5)
    prune.random_unstructured(layer, "weight", amount=3)  # a container of two masks
    return layer


def normed_lstm():
    return old_style(weight_norm, lambda: nn.LSTM(4, 3), name="weight_hh_l0")()


KINDS = {
    "linear": linear,
    "lstm": lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True, proj_size=2),
    "gru": lambda: nn.GRU(4, 3),
    "rnn": lambda: nn.RNN(4, 3),
    "weight_norm": old_style(weight_norm, linear),
    "spectral_norm": old_style(spectral_norm, linear),
    "lstm with weight_norm": normed_lstm,
    "pruned": pruned,
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
}


@pytest.fixture
def saved(tmp_path):
    """A model with values that no constructor gives, and its file."""

    def save(make, seed=5):
        want = Net(make)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in want.state_dict().items():
                if "mask" not in name:
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
        path = tmp_path / f"{seed}.safetensors"
        save_file({name: tensor.clone() for name, tensor in want.state_dict().items()}, path)
        want = Net(make)
        want.load_state_dict(torch_state(path))
        return want, path

    return save


def torch_state(path):
    from safetensors.torch import load_file

    return load_file(path)


def computed(model):
    """Tensors that hang on the layer, and are not registered: what hooks computed."""
    return {
        name: value.detach().clone() for name, value in vars(model.layer).items() if isinstance(value, torch.Tensor)
    }


def trained(model, optimizer=None):
    """Outputs of a forward pass, a step, and another forward pass; and the weights."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    outputs = [model(X)]
    outputs[0].square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    outputs.append(model(X))
    return [*outputs, *model.state_dict().values()]


def same(found, wanted):
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert torch.equal(one, two)


def build(make, how):
    if how == "skeleton":
        with lading.skeleton():
            return Net(make)
    model = Net(make)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "mask" not in name:
                tensor.fill_(-5.0)
    return model


@pytest.mark.parametrize("how", ["real", "after a forward pass", "skeleton"])
@pytest.mark.parametrize("kind", KINDS)
def test_R61_forward_and_step_use_what_was_loaded(saved, kind, how):
    want, path = saved(KINDS[kind])
    model = build(KINDS[kind], how)
    if how == "after a forward pass":
        model(X).sum().backward()
        model.zero_grad()
    lading.materialize(model, path, device="cpu", progress=False)
    before = computed(model)
    want.eval()(X), model.eval()(X)  # computes what hangs on the layer, and changes no buffer
    same(list(before.values()), list(computed(want).values()))
    same(trained(model.train()), trained(want.train()))


@pytest.mark.parametrize("make", [KINDS["lstm"], KINDS["gru"]])
def test_R61_flat_weights_are_the_parameters(saved, make):
    """A stale list is what a forward pass computes with."""
    want, path = saved(make)
    for spoil in (
        lambda layer: setattr(layer, "_flat_weights", [one.detach().clone() for one in layer._flat_weights]),
        lambda layer: layer._parameters.update(weight_hh_l0=nn.Parameter(torch.zeros_like(layer.weight_hh_l0))),
    ):
        model = Net(make)
        spoil(model.layer)
        lading.materialize(model, path, progress=False)
        layer = model.layer
        assert all(one is getattr(layer, name) for name, one in zip(layer._flat_weights_names, layer._flat_weights))
        same(trained(model), trained(copy.deepcopy(want)))


def test_R61_cached_parametrizations_are_computed_again(saved):
    want, path = saved(KINDS["parametrized"])
    model = Net(KINDS["parametrized"])
    with parametrize.cached():
        model(X)
        lading.materialize(model, path, progress=False)
        found = model(X)
    same([found], [want(X)])


def test_R61_optimizers_compiled_and_averaged_models(saved):
    """An optimizer that was built before the load, compiled modules, an average: all of them have the parameters."""
    want, path = saved(linear)
    optimizers = {
        "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    }
    for make in optimizers.values():
        model = build(linear, "real")
        optimizer = make(model.parameters())
        lading.materialize(model, path, progress=False)
        twin = copy.deepcopy(want)
        same(trained(model, optimizer), trained(twin, make(twin.parameters())))
    model = torch.compile(build(linear, "real"), backend="eager")
    model(X)
    lading.materialize(model, path, progress=False)
    same([model(X)], [want(X)])


def test_R61_an_average_is_a_model_of_its_own(saved, tmp_path):
    want, _ = saved(linear)
    average = torch.optim.swa_utils.AveragedModel(want)
    average.update_parameters(want)
    path = tmp_path / "average.safetensors"
    save_file({name: tensor.clone() for name, tensor in average.state_dict().items()}, path)
    model = torch.optim.swa_utils.AveragedModel(build(linear, "real"))
    lading.materialize(model, path, progress=False)
    same([model(X)], [want(X)])
    for one in (model, average):
        one.update_parameters(want)
    same(list(model.state_dict().values()), list(average.state_dict().values()))


def refused(model, path, **options):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if not tensor.is_meta}
    with pytest.raises(lading.LadingError) as caught:
        lading.materialize(model, path, progress=False, **options)
    same([tensor for tensor in model.state_dict().values() if not tensor.is_meta], list(before.values()))
    assert not caught.value.begun
    assert all(problem.code == "copies" and problem.remedy for problem in caught.value.problems), caught.value
    return caught.value


def test_R61_scripted_modules_are_filled_in_place(saved):
    """A scripted module has its tensors in C++, where no other tensor can be put."""
    want, path = saved(linear)
    model = torch.jit.script(build(linear, "real"))
    lading.materialize(model, path, progress=False)
    same(trained(model), trained(copy.deepcopy(want)))
    error = refused(torch.jit.script(build(linear, "real")), path, device="cuda:0")
    assert {"layer.weight", "layer.bias"} == set(error.tensors)


def test_R61_copies_on_parameters_are_refused(saved):
    """Megatron's optimizers, Apex and others hang their master weights on the parameter."""
    _, path = saved(linear)
    model = build(linear, "real")
    model.layer.weight.main_param = torch.zeros(3)  # a part of it, as a distributed optimizer has
    model.layer.bias.of_mine = model.layer.bias.detach().double()
    error = refused(model, path)
    assert error.tensors == ("layer.bias", "layer.weight")
    assert "main_param" in str(error) and "of_mine" in str(error)


def test_R61_steps_in_the_backward_pass(saved):
    """The step hangs on a node of the graph, which a parameter that gets other memory has not any more."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    want, path = saved(linear)
    for how in ("skeleton", "real"):
        model = build(linear, how)
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.5})
        if how == "skeleton":
            assert set(refused(model, path, device="cpu").tensors) == {"layer.weight", "layer.bias"}
            continue
        lading.materialize(model, path, progress=False)
        model(X).square().sum().backward()
        trained(want)
        same(list(model.state_dict().values()), list(want.state_dict().values()))


def test_R61_what_is_no_copy_stays(saved):
    want, path = saved(linear)
    model = build(linear, "real")
    weight = model.layer.weight
    weight.main_grad, weight.mask, weight.note = torch.zeros(4, 4), torch.ones(4, 4), "mine"
    weight.view = weight.detach()[0]
    lading.materialize(model, path, progress=False)
    same(trained(model), trained(want))
    assert weight.note == "mine" and torch.equal(weight.mask, torch.ones(4, 4))


def test_every_holder_names_tests_that_exist():
    from pathlib import Path

    from lading.holders import HOLDERS

    text = "".join((Path(__file__).parent / name).read_text() for name in ("test_holders.py", "holders_worker.py"))
    for holder in HOLDERS:
        assert holder.tests and all(f"def {name}(" in text or f"def test_R61_{name}(" in text for name in holder.tests)
