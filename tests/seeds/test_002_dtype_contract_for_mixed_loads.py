"""Seed 002, Automodel#2419: a checkpoint of several dtypes under FSDP2. A BF16 request rounds what the authors left in
F32, and putting the dtype back does not bring the bits back; units of both dtypes fail at the first forward pass; an
F32 buffer of a frozen tower promotes every activation behind it; a request for the whole does not reach its parts.

The model is ours, a composite of transformers' classes: text blocks with an F32 `A_log` in a holder of its own, as
state-space models have it, and a frozen vision tower with F32 statistics.
"""

import pytest
from geometry.launch import require, run_ranks, run_worker, wrong_in

require("torch")
pytest.importorskip("transformers")
DEADLINE_S = 120
EXACT = 1 + 2**-10  # which BF16 cannot hold


@pytest.fixture(scope="module")
def found():
    return run_worker("test_002_dtype_contract_for_mixed_loads", DEADLINE_S, package="seeds")


@wrong_in("transformers")
def test_transformers_rounds_what_is_f32(found):
    assert all(rank["transformers"] == {"dtype": "torch.bfloat16", "value": 1.0} for rank in found)


def test_the_dtype_comes_back_and_the_bits_do_not(found):
    """The seed's first repair, planted here: load at the requested dtype, then widen to the checkpoint's."""
    assert all(rank["restored"] == {"dtype": "torch.float32", "value": 1.0} for rank in found)


def test_R24_ours_is_f32_to_the_last_bit(found):
    assert all(rank["ours"] == {"dtype": "torch.float32", "value": EXACT} for rank in found)


@wrong_in("torch")
def test_units_by_blocks_fail_at_the_first_forward(found):
    assert all("uniform original parameter dtype" in rank["torch alone"] for rank in found)


def test_a_frozen_buffer_promotes_what_is_behind_it(found):
    """With everything in units of one dtype, which torch accepts: the tower hands F32 to a BF16 projector."""
    assert all("dtype" in rank["torch alone, frozen tower"] for rank in found)


@pytest.mark.parametrize("request_for", ("auto", "bfloat16", "float32"))
def test_R23_R26_R27_R28_ours_trains(found, request_for):
    """Dtypes as the contract says, two steps, gradients that are finite and those of one process in F32."""
    for rank in found:
        assert rank[f"ours, {request_for}"] == []


def test_R32_a_request_reaches_every_part(found):
    assert all(rank["parts"] == ["torch.float16"] for rank in found)


# ---- on the ranks


def classes():
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

    class TextConfig(PreTrainedConfig):
        model_type = "seed_text"
        dim: int = 8

    class VisionConfig(PreTrainedConfig):
        model_type = "seed_vision"
        dim: int = 8

    class Config(PreTrainedConfig):
        model_type = "seed"
        sub_configs = {"text_config": TextConfig, "vision_config": VisionConfig}  # noqa: RUF012

        def __init__(self, text_config=None, vision_config=None, **rest):
            self.text_config = TextConfig(**(text_config or {}))
            self.vision_config = VisionConfig(**(vision_config or {}))
            super().__init__(**rest)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.A_log = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * torch.exp(-self.A_log)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)
            self.decay = Holder()

        def forward(self, x):
            return x + self.proj(self.decay(x))

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)
            self.register_buffer("std_bias", torch.zeros(8))

        def forward(self, x):
            return self.proj(x) - self.std_bias

    class Model(PreTrainedModel):
        config_class = Config
        _no_split_modules = ("Block",)

        def __init__(self, config):
            super().__init__(config)
            self.tower = Tower()
            self.projector = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(8, 4)
            self.post_init()

        def _init_weights(self, module):
            pass

        def forward(self, x):
            x = self.projector(self.tower(x))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Config, Model


def is_wide(name):
    return name.endswith(("A_log", "std_bias"))


def main():
    import os
    import tempfile

    import torch
    from safetensors.torch import save_file

    folder = tempfile.mkdtemp(dir=os.environ["LADING_SCRATCH"])
    config_class, model_class = classes()
    torch.manual_seed(2)
    model = model_class(config_class())
    state = {}
    for name, tensor in model.state_dict().items():
        value = torch.full_like(tensor, EXACT) if name.endswith("A_log") else torch.randn_like(tensor) * 0.3
        state[name] = value if is_wide(name) else value.bfloat16()
    save_file(state, f"{folder}/model.safetensors", metadata={"format": "pt"})
    config_class(architectures=["Model"], dtype="bfloat16").save_pretrained(folder)
    return run_ranks(2, on_a_rank, DEADLINE_S - 25, folder)


def on_a_rank(rank, folder):
    import lading
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    config_class, model_class = classes()
    config = config_class.from_pretrained(folder)
    theirs = model_class.from_pretrained(folder, dtype=torch.bfloat16)
    found = {"transformers": first(theirs)}
    theirs.blocks[0].decay.A_log.data = theirs.blocks[0].decay.A_log.data.float()
    found["restored"] = first(theirs)
    options = {"cls": model_class, "config": config, "group": False, "progress": False}
    ours = lading.from_pretrained(folder, dtype=torch.bfloat16, device="cpu", **options)
    found["ours"] = first(ours)
    for name in ("auto", "bfloat16", "float32"):
        dtype = name if name == "auto" else getattr(torch, name)
        found[f"ours, {name}"] = trains(mesh, folder, dtype, {"cls": model_class, "config": config})
    found["torch alone"] = alone(mesh, lading.from_pretrained(folder, device="cpu", **options))
    found["torch alone, frozen tower"] = alone(mesh, uniform(lading.from_pretrained(folder, device="cpu", **options)))
    whole = lading.from_pretrained(folder, dtype=torch.float16, cast="exact", device="cpu", **options)
    parts = [whole, whole.config, whole.config.text_config, whole.config.vision_config]
    found["parts"] = sorted({str(part.dtype) for part in [*parts, *whole.state_dict().values()]})
    return found


def first(model):
    value = model.blocks[0].decay.A_log
    return {"dtype": str(value.dtype), "value": value[0].item()}


def mixed_precision():
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def uniform(model):
    """All parameters BF16; the tower frozen, with its F32 buffer."""
    import torch

    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.tower.requires_grad_(False)
    return model


def alone(mesh, model):
    """torch by itself: blocks and root. What its first forward pass says."""
    import torch
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=mixed_precision())
    fully_shard(model, mesh=mesh, mp_policy=mixed_precision())
    try:
        model(torch.ones(2, 8))
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return "nothing"


def trains(mesh, folder, dtype, options):
    import lading
    import torch

    compute = torch.bfloat16

    def shard(model):
        model.tower.requires_grad_(False)
        known = lading.resolve_dtypes(model, folder, dtype)
        lading.shard_by_dtype(model, mesh, mixed_precision(), dtypes=known, timeout=60)

    given = {"dtype": dtype, "compute_dtype": compute, "parallelize": shard, "progress": False, "timeout": 60}
    model = lading.from_pretrained(folder, **given, **options)
    problems = []
    for name, parameter in model.named_parameters():
        stored = torch.float32 if is_wide(name) or dtype == torch.float32 else torch.bfloat16
        stored = compute if name.startswith("tower") else stored
        if parameter.dtype != stored:
            problems.append(f"{name} is {parameter.dtype}")
    if model.tower.std_bias.dtype != compute:
        problems.append(f"std_bias is {model.tower.std_bias.dtype}")
    if not torch.equal(model.blocks[0].decay.A_log.full_tensor(), torch.full((8,), EXACT)):
        problems.append("A_log is not what the file has")
    seen = {}
    model.blocks[0].decay.register_forward_pre_hook(lambda module, _: seen.update(A_log=module.A_log.dtype))
    model.head.register_forward_pre_hook(lambda module, _: seen.update(head=module.weight.dtype))
    problems += steps(model, lading.from_pretrained(folder, device="cpu", group=False, progress=False, **options))
    if seen != {"A_log": torch.float32, "head": compute}:
        problems.append(f"computed in {seen}")
    return problems


def steps(model, plain):
    """Two steps beside one process in F32; the tower is frozen in both."""
    import torch

    plain.float().tower.requires_grad_(False)
    x, labels = torch.randn(6, 8, generator=torch.Generator().manual_seed(5)), torch.arange(6) % 4
    models = (model, plain)
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.05) for m in models]
    problems = []
    for step in range(2):
        for one, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(one(x).float(), labels).backward()
        wanted = dict(plain.named_parameters())
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                grad, want = parameter.grad.full_tensor().float(), wanted[name].grad
                if not torch.isfinite(grad).all() or (grad - want).norm() > 0.05 * want.norm() + 1e-3:
                    problems.append(f"step {step}: the gradient of {name} is off by {(grad - want).norm()}")
        for optimizer in optimizers:
            optimizer.step()
    return problems
