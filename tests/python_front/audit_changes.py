"""Models for tests of `lading.audit` that break, or oddly change, one thing each: how they are loaded, and the changes
that several tests share."""

import torch
import transformers
import zoo
from safetensors.torch import load_file, save_file
from torch import nn

ROPE = "model.rotary_emb"
TEXT = "model.language_model"
NORM = "model.norm.weight"


def save_all(folder):
    """A checkpoint of each model."""
    for name in ("llama", "gemma3"):
        zoo.make(name, str(folder / name))
    (folder / "lstm").mkdir()
    save_file(lstm().state_dict(), folder / "lstm" / "model.safetensors")
    return folder


def load(folders, name, **options):
    if name == "lstm":
        model = lstm()
        model.load_state_dict(load_file(folders / name / "model.safetensors"))
        return model
    cls = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForConditionalGeneration"}[name]
    return getattr(transformers, cls).from_pretrained(folders / name, **options)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 3)


def lstm():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Recurrent()


def flagged(report):
    return {(problem.code, problem.tensor) for problem in report.problems}


def value_of(model, name):
    owner, _, attribute = name.rpartition(".")
    return model.get_submodule(owner), attribute


class Plain(nn.Module):
    """With a buffer that no file has."""

    def __init__(self, **buffers):
        super().__init__()
        self.w = nn.Parameter(torch.arange(3.0))
        self.register_buffer("softcap", torch.full((2,), 50.0), persistent=False)
        for name, value in buffers.items():
            self.register_buffer(name, value)


def saved(folder, **state):
    save_file({name: value.clone() for name, value in state.items()}, folder / "model.safetensors")
    return folder


def offloaded(model):
    import accelerate

    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


def as_buffer(name, *, persistent, factor):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone() * factor
        delattr(owner, attribute)
        owner.register_buffer(attribute, value, persistent=persistent)

    return change


def as_attribute(name, factor=3):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone() * factor
        delattr(owner, attribute)
        owner.__dict__[attribute] = value

    return change


def as_parameter(name):
    def change(model):
        owner, attribute = value_of(model, name)
        value = getattr(owner, attribute).detach().clone()
        delattr(owner, attribute)
        setattr(owner, attribute, nn.Parameter(value))

    return change


def without(name):
    def change(model):
        owner, attribute = value_of(model, name)
        del owner._buffers[attribute]

    return change


def filled(name, value=7.0):
    def change(model):
        owner, attribute = value_of(model, name)
        with torch.no_grad():
            getattr(owner, attribute).fill_(value)

    return change
