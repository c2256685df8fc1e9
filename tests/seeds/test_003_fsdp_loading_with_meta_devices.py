"""Seed 003, transformers#44473: FSDP with meta devices. Ranks above 0 hold placeholders and wait for rank 0's values;
what is in no state dict, the non-persistent buffers, never comes. The first repair initialised everything again there,
the second lost the buffers: NaN at the first step.

Shown on two real ranks: transformers and accelerate as they are today, wrong; lading, right, without a collective and
without initialising anything that the checkpoint holds. And once more under `accelerate launch`, on two CPU ranks or on
the GPU.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geometry.launch import TESTS, require, run_ranks, run_worker, wrong_in
from seeds import tiny_gemma4

require("torch", exactly=False)
for package in ("accelerate", "transformers"):
    pytest.importorskip(package)
DEADLINE_S = 280
SOFTCAP = 50.0
ROUNDING = 2e-5  # of a loss of about 5: ranks add up in another order
ROUNDING_ON_A_GPU = 1e-4


@pytest.fixture(scope="module")
def found():
    return run_worker("test_003_fsdp_loading_with_meta_devices", DEADLINE_S, package="seeds")


@wrong_in("transformers")
def test_transformers_loses_the_buffer_on_ranks_that_wait_for_rank_0(found):
    """Today's release, its own FSDP path: a buffer that `_init_weights` does not know is whatever memory held."""
    assert any(rank["transformers"] != SOFTCAP for rank in found)


@wrong_in("accelerate", "torch")
def test_accelerate_fails_on_a_persistent_buffer(found):
    """accelerate#3898, still there: it asks a plain buffer for its mesh."""
    assert all("device_mesh" in rank["accelerate"] for rank in found)


@pytest.mark.parametrize("model", ("out_of_tree", "gemma4", "gemma4 prepared by accelerate"))
def test_R4_R6_R12_every_rank_reads_its_own_part(found, model):
    for rank in found:
        assert rank[model]["differences"] == []
        assert rank[model]["collectives"] == []
        assert rank[model]["initialised"] == []


def test_the_watch_sees_what_it_watches_for(found):
    """Otherwise "nothing was initialised, nothing was sent" would say nothing."""
    for rank in found:
        assert {"torch zeros_", "transformers normal_", "transformers copy_"} <= set(rank["seen"]["initialised"])
        collectives = {"all_reduce", "c10d.allreduce_", "_c10d_functional.all_gather_into_tensor"}
        assert collectives <= set(rank["seen"]["collectives"])


def test_gradients_are_finite_after_the_first_step(found):
    assert all(rank["gradients are finite"] for rank in found)
    assert all(abs(rank["loss"] - rank["loss in one process"]) < 1e-5 for rank in found)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Each rank's answer; accelerate's own launcher, with its own options, starts them."""
    folder = tmp_path_factory.mktemp("launched")
    return run_worker("test_003_fsdp_loading_with_meta_devices", DEADLINE_S, package="seeds", launch_in=str(folder))


def test_accelerate_launch_trains_as_one_process_does(launched, record_property):
    device = launched[0]["device"]
    record_property("device", device)
    assert [rank["rank"] for rank in launched] == ([0, 1] if device == "cpu" else [0])
    for rank in launched:
        assert rank["launcher"] == {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
        assert rank["wrong"] == [] and rank["initialised"] == [] and rank["collectives"] == []
        assert rank["sharded"] > 0 and len(rank["losses"]) == 5
        limit = ROUNDING if device == "cpu" else ROUNDING_ON_A_GPU
        assert rank["losses"] == pytest.approx(rank["losses in one process"], abs=limit)


# ---- on the ranks


def main(launch_in=None):
    if launch_in is not None:
        return launch(Path(launch_in))
    import tempfile

    import zoo

    folder = tempfile.mkdtemp()
    out_of_tree()(2).save_pretrained(f"{folder}/out_of_tree")
    zoo.save(tiny_gemma4.original(), f"{folder}/gemma4")
    return run_ranks(2, on_a_rank, DEADLINE_S - 20, folder)


def out_of_tree():
    """A class that transformers does not know: its `_init_weights` cannot make the softcap."""
    import torch
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

    class OutOfTree(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
            self.register_buffer("scale", torch.tensor(0.5))
            self.register_buffer("softcap", torch.tensor(SOFTCAP), persistent=False)
            self.post_init()

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.relu(layer(x)) * self.scale
            return torch.tanh(x / self.softcap) * self.softcap

    def make(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        return OutOfTree(PretrainedConfig())

    make.type = OutOfTree
    return make


def on_a_rank(rank, folder):
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    make = out_of_tree()
    found = {"seen": what_is_seen()}
    found |= {"transformers": transformers_alone(make.type, f"{folder}/out_of_tree")}
    found["accelerate"] = accelerate_alone(tiny_gemma4.original(), mesh)
    found["out_of_tree"] = ours(make, make(2), f"{folder}/out_of_tree", mesh, sharded)
    model = found["out_of_tree"].pop("model")
    found |= one_step(model, make(2), torch.manual_seed(5))
    for name, shard in (("gemma4", sharded), ("gemma4 prepared by accelerate", prepared_by_accelerate)):
        found[name] = ours(tiny_gemma4.build, tiny_gemma4.original(), f"{folder}/gemma4", mesh, shard)
        found[name].pop("model")
    return found


def transformers_alone(cls, folder):
    """The variables that accelerate's launcher sets, and `from_pretrained`."""
    import os
    from unittest import mock

    import zoo

    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    with mock.patch.dict(os.environ, variables), zoo.poisoned_memory():
        return float(cls.from_pretrained(folder).softcap)


def accelerate_alone(model, mesh):
    try:
        prepared_by_accelerate(model, mesh, efficient=True)
    except Exception as error:
        return str(error)
    return "it came back"


def sharded(model, mesh):
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if any(parameter.dim() for parameter in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def prepared_by_accelerate(model, mesh, *, efficient=False):
    """accelerate's own sharding, under a stand-in for its Accelerator, which knows no FSDP on a CPU."""
    from types import SimpleNamespace

    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    layers = {type(module).__name__ for module in model.modules()} & set(model._no_split_modules)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        cpu_ram_efficient_loading=efficient,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=sorted(layers),
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        is_main_process=mesh.get_rank() == 0,
        device="cpu",
        torch_device_mesh={("fsdp",): mesh},
        parallelism_config=SimpleNamespace(fsdp_dim_names=["fsdp"]),
    )
    return fsdp2_prepare_model(accelerator, model)


def ours(build, original, folder, mesh, shard):
    import lading

    with lading.skeleton():
        model = build()
    model = shard(model, mesh)
    with watched() as seen:
        lading.materialize(model, folder, device="cpu", progress=False, timeout=60)
    return {"differences": differences(original, model), "model": model, **seen}


@contextlib.contextmanager
def watched():
    """Which collectives and which initialisers are called meanwhile: torch's, transformers' own, which keeps torch's
    originals and so does not see that torch's are replaced, and every collective that goes through the dispatcher."""
    from unittest import mock

    import torch.distributed as dist
    from torch.nn import init
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers import initialization

    seen = {"collectives": [], "initialised": []}

    class Collectives(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "c10d" in func.namespace:
                seen["collectives"].append(f"{func.namespace}.{func._schema.name.partition('::')[2]}")
            return func(*args, **(kwargs or {}))

    def noting(real, name, calls):
        def called(*arguments, **options):
            calls.append(name)
            return real(*arguments, **options)

        return called

    kept = initialization.TORCH_INIT_FUNCTIONS
    with contextlib.ExitStack() as stack:
        for name in ("broadcast", "all_gather", "all_gather_into_tensor", "all_reduce", "scatter", "send", "recv",
                     "broadcast_object_list", "all_gather_object", "scatter_object_list"):  # fmt: skip
            stack.enter_context(mock.patch.object(dist, name, noting(getattr(dist, name), name, seen["collectives"])))
        for name in [name for name in dir(init) if name.endswith("_") and name[0] != "_"]:
            called = noting(getattr(init, name), f"torch {name}", seen["initialised"])
            stack.enter_context(mock.patch.object(init, name, called))
        theirs = {name: noting(real, f"transformers {name}", seen["initialised"]) for name, real in kept.items()}
        stack.enter_context(mock.patch.dict(kept, theirs))
        copying = noting(initialization.copy_, "transformers copy_", seen["initialised"])
        stack.enter_context(mock.patch.object(initialization, "copy_", copying))
        stack.enter_context(Collectives())
        yield seen


def what_is_seen():
    """The watch, tried on what it is there for."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    model = tiny_gemma4.build()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor._is_hf_initialized = False
    with watched() as seen:
        for module in model.modules():
            model._init_weights(module)
        torch.nn.init.zeros_(torch.empty(2))
        dist.all_reduce(torch.zeros(2))
        functional.all_gather_tensor(torch.zeros(2), 0, dist.group.WORLD)
    return {key: sorted(set(names)) for key, names in seen.items()}


def differences(original, model):
    """Every parameter and buffer, gathered where it is sharded. Bits, dtype, and that nothing is on meta."""
    import zoo
    from torch.distributed.tensor import DTensor

    want, got = zoo.tensors(original), zoo.tensors(model)
    wrong = sorted(set(want) ^ set(got))
    for name, (_, tensor) in got.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if name in want and (full.is_meta or not zoo.same_bits(want[name][1].detach(), full.detach())):
            wrong.append(name)
    return wrong


def one_step(model, reference, generator):
    import torch

    x = torch.randn(4, 16, generator=generator)
    loss, expected = model(x).square().mean(), reference(x).square().mean()
    loss.backward()
    finite = all(bool(parameter.grad.to_local().isfinite().all()) for parameter in model.parameters())
    return {"gradients are finite": finite, "loss": float(loss), "loss in one process": float(expected)}


# ---- under accelerate's launcher


def launch(folder):
    import torch
    import zoo

    zoo.save(tiny_gemma4.original(), f"{folder}/gemma4")
    is_cpu = not torch.cuda.is_available()
    command = [sys.executable, "-m", "accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2"]
    command += ["--fsdp_cpu_ram_efficient_loading", "false", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
    command += ["--fsdp_transformer_layer_cls_to_wrap", "Gemma4TextDecoderLayer"]
    command += ["--num_processes", "2" if is_cpu else "1", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "seeds.accelerate_script", str(folder)]
    environment = os.environ | {"PYTHONPATH": os.environ["PYTHONPATH"] + os.pathsep + str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S - 30)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-4000:])
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank*.json"))]
