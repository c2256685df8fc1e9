"""Models for the tests of `lading.audit`, and what is wrong with one of them, found in a way that knows nothing of
lading."""

import contextlib
import functools

import lading
import torch
from ranks_common import part_of
from ranks_models import tensors
from safetensors.torch import save_file
from torch import nn


class Model(nn.Module):
    """What some loader gets wrong: buffers that no file holds, 0-dim ones, a tie, a frozen parameter."""

    def __init__(self, rows=6, is_tied=True, has_derived=True, has_scalars=True):
        super().__init__()
        self.embed = nn.Embedding(rows, 4)
        self.lin = nn.Linear(4, 4, bias=False)
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, rows, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.A_log = nn.Parameter(torch.full((4,), 1 + 2.0**-10))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        if has_scalars:
            self.register_buffer("layer_scalar", torch.tensor(1.0))
            self.register_buffer("input_max", torch.tensor(float("inf")))
        if has_derived:
            self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
            self.register_buffer("inv_freq", 1.0 / torch.arange(1, 5).float(), persistent=False)


def original(is_mixed=False, **options):
    """As the checkpoint has it: values that no constructor gives; if mixed, lin is in bf16."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(**options)
        with torch.no_grad():
            model.norm.weight.copy_(torch.arange(1.0, 5.0))
            model.frozen.copy_(torch.arange(4) + 0.3)
            if options.get("has_scalars", True):
                model.layer_scalar.fill_(0.5)
                model.input_max.fill_(42.0)
    if is_mixed:
        model.lin.bfloat16()
    return model


def save(folder, without=(), extra=(), **options):
    """A checkpoint of it. A tie is saved once."""
    state = original(**options).state_dict()
    if options.get("is_tied", True):
        del state["head.weight"]
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in state.items() if name not in without}
    save_file(kept | dict(extra), folder / "model.safetensors", {"format": "pt"})
    return folder


def twin(**options):
    with lading.skeleton():
        return Model(**options)


def meta(**options):
    with torch.device("meta"):
        return Model(**options)


@contextlib.contextmanager
def unwritten_is_nan():
    """Memory that nobody wrote may be right by luck: here torch.empty gives NaN."""
    before, fill = (torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def emptied(model):
    with unwritten_is_nan():
        return model.to_empty(device="cpu")


@functools.cache
def out_of_tree():
    """(config class, model class) that transformers knows nothing of: its `_init_weights` makes nothing."""
    import transformers

    class MineConfig(transformers.PreTrainedConfig):
        model_type = "mine_of_the_audit"

        def __init__(self, rows=6, wide=1, **options):
            self.rows, self.wide = rows, wide
            super().__init__(**options)

    class MineModel(transformers.PreTrainedModel):
        config_class = MineConfig
        _keep_in_fp32_modules_strict = ("A_log",)
        _no_split_modules = []

        def __init__(self, config):
            super().__init__(config)
            self.embed = nn.Embedding(config.rows, 4)
            self.lin = nn.Linear(4, 4)
            self.A_log = nn.Parameter(torch.full((4,), 1 + 2.0**-10))
            self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
            self.gain = nn.Module()  # with a buffer only
            self.gain.register_buffer("scale", torch.full((config.wide,), 1 + 2.0**-10))
            self.register_buffer("softcap", torch.tensor(50.0), persistent=False)
            self.post_init()

        def _init_weights(self, module):
            pass

        def get_input_embeddings(self):
            return self.embed

    return MineConfig, MineModel


def outsider(**options):
    """An out-of-tree model with values of its own."""
    config_class, model_class = out_of_tree()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model_class(config_class(**options))


# ---- what is wrong, without lading


def wrong(model, want):
    """The names that do not hold what `want` does, on this rank; of ties, those that are not the first name's."""
    found, wanted = tensors(model), tensors(want)
    names = {name for name, tensor in found.items() if _differs(tensor, wanted[name])}
    return sorted(names | _untied(found, wanted))


def _differs(tensor, want):
    local = getattr(tensor, "_local_tensor", tensor).detach()
    expected = part_of(want, tensor)
    if hasattr(tensor, "ds_tensor"):
        local, expected = _zero3(tensor, want.detach())
    if local.is_meta or local.dtype != expected.dtype or local.numel() != expected.numel():
        return True
    if tensor.requires_grad and not want.requires_grad:
        return True
    return not torch.equal(_bits(local), _bits(expected))


def _zero3(tensor, want):
    """ZeRO-3 cuts the flat tensor evenly, and pads it."""
    held = tensor.ds_tensor.detach().reshape(-1)
    expected = want.reshape(-1)[torch.distributed.get_rank() * held.numel() :][: held.numel()]
    return held[: expected.numel()], expected


def _bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _untied(found, wanted):
    first = {}
    names = set()
    for name in sorted(wanted):
        other = first.setdefault(id(wanted[name]), name)
        if found[name] is not found[other]:
            names.add(name)
    return names
