"""Seed 004, speculators#314: a draft model whose layers are on meta, beside embeddings and a head that were taken from
its verifier and frozen. `to_empty` and `reset_parameters` over what is on meta leaves norms and buffers as memory was;
over everything, it also makes the verifier's weights random.

The model is ours, of the shape of an EAGLE-3 draft: layers with `reset_parameters` or nothing, vocabulary maps as
buffers of the checkpoint, a head that is cut out of the verifier's by one of them.
"""

import pytest

from geometry.launch import require, run_ranks, run_worker

require("torch", exactly=False)
DEADLINE_S = 100
VERIFIER, CAP = 7.0, 30.0


@pytest.fixture(scope="module")
def found():
    return run_worker("test_004_materialize_non_layer_modules", DEADLINE_S, package="seeds")


def test_reset_of_what_is_on_meta_leaves_garbage(found):
    """The seed's first repair: a norm has no `reset_parameters`, a buffer neither."""
    assert all({"layers.0.norm.weight", "layers.0.cap"} <= set(rank["reset of layers"]) for rank in found)


def test_reset_of_everything_loses_the_verifier(found):
    assert all({"embed_tokens.weight", "verifier_head.weight"} <= set(rank["reset of everything"]) for rank in found)


@pytest.mark.parametrize("layout", ("one process", "fsdp2"))
@pytest.mark.parametrize("source", ("checkpoint", "nothing trained yet"))
def test_R7_R14_R66_the_verifier_is_kept_and_everything_else_is_right(found, layout, source):
    for rank in found:
        assert rank[f"{layout}, {source}"] == []


def test_R16_new_layers_are_the_same_on_all_layouts_and_ranks(found):
    """Initialised by recipe, not by the rank's own random numbers."""
    assert len({rank[f"{layout}, new layers"] for rank in found for layout in ("one process", "fsdp2")}) == 1


def test_external_weights_may_come_from_another_model(found):
    assert all(rank["external"] == [] for rank in found)


def test_R13_what_nothing_initialises_is_an_error(found):
    """The seed's helper passes over modules without `reset_parameters`. Here nothing is passed over: of a draft on
    plain meta, all tensors that no file has and nobody can make are named, on all ranks."""
    layers = [f"layers.{place}.{name}" for place in (0, 1) for name in ("mix.bias", "mix.weight", "norm.weight")]
    for rank in found:
        assert rank["without initialisers"] == {"rules": ["R13"], "tensors": [*layers, "lm_head.weight", "norm.weight"]}


def test_R66_a_head_is_cut_out_of_a_sharded_verifier(found):
    """FSDP2 shards the verifier's table and head, and the draft's head that is computed from them in the same load."""
    assert all(rank["sharded input"] == [] for rank in found)


# ---- on the ranks


def draft():
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.weight * x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.mix = nn.Linear(8, 8)
            self.register_buffer("cap", torch.tensor(CAP), persistent=False)

        def forward(self, x):
            return x + torch.tanh(self.mix(self.norm(x)) / self.cap) * self.cap

    class Draft(nn.Module):
        """16 words of the verifier's, of which the draft knows 8."""

        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(16, 8)
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            self.norm = Norm()
            self.lm_head = nn.Linear(8, 8, bias=False)
            self.verifier_head = nn.Linear(8, 16, bias=False)
            self.register_buffer("t2d", torch.zeros(16, dtype=torch.bool))
            self.register_buffer("d2t", torch.zeros(8, dtype=torch.int64))
            for frozen in (self.embed_tokens, self.verifier_head):
                frozen.weight.requires_grad_(False)

        def forward(self, ids):
            x = self.embed_tokens(ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

    return Draft()


def verifier_weights():
    import torch

    return VERIFIER + torch.arange(16.0).repeat(8, 1).T.contiguous()


def preloaded(model):
    """As the constructor of a draft does: real and frozen, whatever context the rest was built under."""
    import torch
    from torch import nn

    for module in (model.embed_tokens, model.verifier_head):
        module.weight = nn.Parameter(verifier_weights(), requires_grad=False)
    assert not torch.equal(model.embed_tokens.weight, torch.zeros(16, 8))
    return model


def main():
    import tempfile

    import torch
    from safetensors.torch import save_file

    folder = tempfile.mkdtemp()
    torch.manual_seed(1)
    trained = preloaded(draft())
    trained.t2d[1::2] = True
    trained.d2t.copy_(torch.arange(8) * 2 + 1 - torch.arange(8))
    maps = {"t2d": trained.t2d, "d2t": trained.d2t}
    state = {
        name: tensor for name, tensor in trained.state_dict().items() if "head" not in name and "embed" not in name
    }
    save_file(state, f"{folder}/trained.safetensors")
    save_file(maps, f"{folder}/maps.safetensors")
    return run_ranks(2, on_a_rank, DEADLINE_S - 20, folder)


def on_a_rank(rank, folder):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    found = {"reset of layers": reset(whole=False), "reset of everything": reset(whole=True)}
    for layout, where in (("one process", None), ("fsdp2", mesh)):
        for source, file in (("checkpoint", "trained"), ("nothing trained yet", "maps")):
            model = ours(f"{folder}/{file}.safetensors", where)
            found[f"{layout}, {source}"] = wrong(model, folder if file == "trained" else None)
        found[f"{layout}, new layers"] = whole(model.layers[1].mix.weight).tolist().__repr__()
    found["external"] = external(f"{folder}/trained.safetensors", mesh)
    found["sharded input"] = sharded_input(f"{folder}/trained.safetensors", mesh)
    found["without initialisers"] = without_initialisers(f"{folder}/maps.safetensors")
    return found


def reset(*, whole):
    """`_materialize_fsdp_model` of the seed, over what is on meta or over everything. Which tensors are not as wanted."""
    import torch
    import zoo

    model = preloaded(draft())
    model.layers.to(device="meta")
    with zoo.poisoned_memory():
        for module in (model,) if whole else (model.layers,):
            module.to_empty(device="cpu")
            for part in module.modules():
                if hasattr(part, "reset_parameters"):
                    part.reset_parameters()
    wanted = {name: torch.ones(8) for name, _ in model.named_parameters() if name.endswith("norm.weight")}
    wanted |= {f"layers.{place}.cap": torch.tensor(CAP) for place in (0, 1)}
    wanted |= {"embed_tokens.weight": verifier_weights(), "verifier_head.weight": verifier_weights()}
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [name for name, value in wanted.items() if not torch.equal(tensors[name], value)]


def built(mesh):
    import lading
    from torch.distributed.fsdp import fully_shard

    with lading.skeleton():
        model = draft()
    preloaded(model)
    if mesh is not None:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
    return model


def ours(file, mesh):
    import lading

    model = built(mesh)
    before = [model.embed_tokens.weight.data_ptr(), model.verifier_head.weight.data_ptr()]
    head = lading.Computed(lambda kept: verifier_weights()[kept], "t2d")
    kept = ["embed_tokens.weight", "verifier_head.weight"]
    options = {
        "keep": kept,
        "recipes": {"lm_head.weight": head},
        "allow_missing": ["lm_head.weight", "layers.*", "norm.*"],
    }
    lading.materialize(model, file, device="cpu", progress=False, timeout=60, **options)
    assert before == [model.embed_tokens.weight.data_ptr(), model.verifier_head.weight.data_ptr()]
    return model


def whole(tensor):
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def wrong(model, folder):
    import torch
    from safetensors.torch import load_file

    wanted = {f"layers.{place}.cap": torch.tensor(CAP) for place in (0, 1)}
    wanted |= {name: torch.ones(8) for name, _ in model.named_parameters() if name.endswith("norm.weight")}
    wanted |= {"embed_tokens.weight": verifier_weights(), "verifier_head.weight": verifier_weights()}
    wanted["lm_head.weight"] = verifier_weights()[1::2]
    if folder is not None:
        wanted |= load_file(f"{folder}/trained.safetensors")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    found = [name for name, value in wanted.items() if not torch.equal(whole(tensors[name]), value)]
    found += [name for name, tensor in tensors.items() if tensor.is_meta or not whole(tensor).float().isfinite().all()]
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return found if frozen == {"embed_tokens.weight", "verifier_head.weight"} else [*found, f"frozen: {frozen}"]


def external(file, mesh):
    """Nothing preloaded: everything on meta and sharded, the verifier's weights from a model that is in memory."""
    import lading
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    verifier = preloaded(draft())
    with lading.skeleton():
        model = draft()
    fully_shard(model, mesh=mesh)
    head = nn.Parameter(verifier_weights()[1::2])
    given = {"embed_tokens.*": verifier, "verifier_head.*": verifier, "lm_head.weight": head}
    lading.materialize(model, file, external=given, progress=False, timeout=60)
    wanted = {"embed_tokens": verifier_weights(), "verifier_head": verifier_weights(), "lm_head": head}
    return [name for name, value in wanted.items() if not torch.equal(whole(getattr(model, name).weight), value)]


def sharded_input(file, mesh):
    import lading
    import torch
    from torch.distributed.fsdp import fully_shard

    with lading.skeleton():
        model = draft()
    fully_shard(model, mesh=mesh)
    known = lading.Computed(lambda head, kept: head[kept], "verifier_head.weight", "t2d")
    given = {"embed_tokens.weight": verifier_weights(), "verifier_head.weight": verifier_weights() + 0.5}
    options = {"external": given, "recipes": {"lm_head.weight": known}, "allow_missing": "lm_head.weight"}
    lading.materialize(model, file, progress=False, timeout=60, **options)
    right = torch.equal(whole(model.lm_head.weight), verifier_weights()[1::2] + 0.5)
    return [] if right else [f"the head is {whole(model.lm_head.weight)}"]


def without_initialisers(file):
    """A draft on plain meta, and a checkpoint without its layers."""
    import lading
    import torch

    with torch.device("meta"):
        model = draft()
    preloaded(model)
    missing = ["lm_head.weight", "layers.*", "norm.*"]
    options = {"keep": ["embed_tokens.weight", "verifier_head.weight"], "allow_missing": missing}
    options["recipes"] = {"layers.*.cap": lambda module, name: torch.tensor(CAP)}
    try:
        lading.materialize(model, file, device="cpu", progress=False, timeout=60, **options)
    except lading.LadingError as error:
        rules = sorted({problem.rule for problem in error.problems})
        return {"rules": rules, "tensors": sorted({problem.tensor for problem in error.problems})}
    return {"rules": [], "tensors": []}
