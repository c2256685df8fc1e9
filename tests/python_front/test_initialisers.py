"""Initialisers of a model that came on plain meta: what they raise reaches the user, and what they change is not the
model."""

import collections
import dataclasses
import traceback
import types

import lading
import pytest
import torch
from safetensors.torch import save_file
from torch import nn


@pytest.fixture
def path(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@dataclasses.dataclass
class Counts:
    runs: int = 0
    names: list = dataclasses.field(default_factory=list)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.register_buffer("table", torch.empty(4), persistent=False)


class Failing(Base):
    def reset_parameters(self):
        self.look_up("cos")

    def look_up(self, name):
        raise KeyError(f"no table {name}")


def chain(error):
    while error is not None:
        yield error
        error = error.__cause__


def refused(model, path, **options):
    with pytest.raises(lading.LadingError) as raised:
        lading.materialize(model, path, device="cpu", progress=False, **options)
    return raised.value


def on_meta(make):
    with torch.device("meta"):
        return make()


def test_R6_what_an_initialiser_raises_is_told_with_its_traceback(path):
    error = refused(on_meta(Failing), path)
    assert error.tensors == ("table",)
    assert "the initialiser raised KeyError: 'no table cos'" in str(error)
    cause = next(one for one in chain(error) if isinstance(one, KeyError))
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)][-2:] == ["reset_parameters", "look_up"]


def test_an_initialiser_that_fails_does_not_matter_where_the_value_comes_from_elsewhere(path):
    model = on_meta(Failing)
    lading.materialize(model, path, device="cpu", recipes={"table": lambda *_: torch.ones(4)}, progress=False)
    assert torch.equal(model.table, torch.ones(4))


class Writing(Base):
    """An initialiser that leaves traces wherever it can."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.log = ["built"]
        self.log = ["built"]
        self.state = {"deep": [{"runs": 0}], "order": collections.OrderedDict(a=1)}
        self.seen, self.queue = {"built"}, collections.deque(["built"])
        self.counts = Counts()
        self.config = types.SimpleNamespace(size=4, nested=types.SimpleNamespace(done=False))
        self.numbers = torch.Generator().manual_seed(1)
        self.pair = (["built"], 1)
        self.held = [self.weight]
        self.real = torch.zeros(2, device="cpu")
        self.state["self"] = self.state

    def reset_parameters(self):
        self.table.copy_(torch.arange(4.0) + float(self.held[0] is self.weight))
        self.log.append("reset")
        self.inner.log.append("reset")
        self.state["deep"][0]["runs"] += 1
        self.state["order"]["b"] = self.state["self"]["more"] = 2
        self.seen.add("reset")
        self.queue.append("reset")
        self.counts.runs += 1
        self.counts.names.append("reset")
        self.config.size = 5
        self.config.nested.done = True
        torch.rand(1, generator=self.numbers)
        self.pair[0].append("reset")
        self.real.fill_(7)
        self.register_forward_hook(lambda *_: None)


def test_R61_an_initialiser_changes_nothing_but_its_stand_in(path):
    model = on_meta(Writing)
    state = model.numbers.get_state()
    lading.materialize(model, path, device="cpu", progress=False)
    assert torch.equal(model.table, torch.arange(4.0) + 1), "it ran, and names of one tensor were one"
    assert model.log == model.inner.log == list(model.queue) == model.pair[0] == ["built"]
    assert model.seen == {"built"} and not model._forward_hooks
    assert model.state["deep"] == [{"runs": 0}] and model.state["order"] == {"a": 1} and "more" not in model.state
    assert model.counts == Counts() and model.config.size == 4 and not model.config.nested.done
    assert torch.equal(model.numbers.get_state(), state) and torch.equal(model.real, torch.zeros(2))
    assert model.held[0] is model.weight


def test_a_constructor_that_fails_is_logged_with_its_traceback(tmp_path, caplog):
    transformers = pytest.importorskip("transformers")

    class Odd(transformers.LlamaForCausalLM):
        def __init__(self, config, more):
            super().__init__(config)

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    model = Odd(transformers.LlamaConfig(num_hidden_layers=1, **sizes), 1).requires_grad_(False)
    model.save_pretrained(tmp_path)
    with caplog.at_level("INFO", logger="lading"):
        report = lading.audit(model, tmp_path)
        lading.cast_frozen(model, torch.bfloat16)
    told = [record for record in caplog.records if "could not be built from its config" in record.getMessage()]
    assert [(record.levelname, record.exc_info[0]) for record in told] == [("INFO", TypeError), ("WARNING", TypeError)]
    assert any("Odd could not be built from its config: TypeError" in note for note in report.notes)


# ---- PEFT


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)


@pytest.fixture
def lora(tmp_path):
    peft = pytest.importorskip("peft")
    save_file({"layer.weight": torch.ones(4, 4)}, tmp_path / "base.safetensors")

    def make():
        return peft.get_peft_model(Wide(), peft.LoraConfig(target_modules=["layer"], r=2))

    return on_meta(make), tmp_path / "base.safetensors", peft.tuners.lora.LoraLayer


def test_R13_what_an_initialiser_of_PEFT_raises_is_told(lora, monkeypatch):
    model, path, layer = lora

    def fails(self, adapter_name, init_lora_weights):
        raise RuntimeError("no weights today")

    monkeypatch.setattr(layer, "reset_lora_parameters", fails)
    error = refused(model, path)
    assert "the initialiser raised RuntimeError: no weights today" in str(error)
    assert any(isinstance(one, RuntimeError) and "today" in str(one) for one in chain(error))


def test_R61_an_initialiser_of_PEFT_changes_nothing_but_its_stand_in(lora, monkeypatch):
    model, path, layer = lora
    own = layer.reset_lora_parameters

    def writes(self, adapter_name, init_lora_weights):
        self.scaling[adapter_name] = 99.0
        own(self, adapter_name, init_lora_weights)

    monkeypatch.setattr(layer, "reset_lora_parameters", writes)
    (wrapped,) = [module for module in model.modules() if isinstance(module, layer)]
    scaling = dict(wrapped.scaling)
    lading.materialize(model, path, device="cpu", progress=False)
    assert wrapped.scaling == scaling
    assert not torch.equal(wrapped.lora_A["default"].weight, torch.zeros(2, 4)), "it ran"
