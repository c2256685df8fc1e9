"""Private names of other libraries: one that is gone, or whose signature changed, is refused by name, with the versions
that work; and every private name that the front uses is in a table."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from lading import private_names
from lading.private_tables import TABLES

import lading

REPOSITORY = Path(__file__).resolve().parents[2]
FRONT = REPOSITORY / "python" / "lading"


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has not met any library yet."""
    monkeypatch.setattr(private_names, "_checked", set())
    private_names._check_class.cache_clear()
    yield monkeypatch
    private_names._check_class.cache_clear()


def refusal(call, *names):
    """The refusal, which has a problem for each of these names."""
    with pytest.raises(lading.LadingError) as failure:
        call()
    assert isinstance(failure.value, ImportError)
    problems = {name: [one for one in failure.value.problems if name in one.message] for name in names}
    assert all(problems.values()), failure.value
    for one in failure.value.problems:
        library = one.code.removesuffix("_version")
        assert TABLES[library].versions in one.remedy and private_names.version_of(library) in one.message
    return failure.value


# ---- the libraries that are here


@pytest.mark.parametrize("library,part", [(name, part) for name, table in TABLES.items() for part in table.parts])
def test_the_library_that_is_here_has_every_name(library, part):
    pytest.importorskip(library)
    private_names._checked.discard((library, part))
    private_names.check(library, part)
    assert (library, part) in private_names._checked


@pytest.mark.parametrize(
    "library,name",
    [(library, name) for library, table in TABLES.items() for part in table.parts.values() for name in part],
    ids=lambda one: getattr(one, "path", one),
)
def test_every_name_can_be_missed(library, name):
    """No entry is found whatever the library has."""
    pytest.importorskip(library)
    broken = re.sub(r"\w+$", "no_such_name", name.path)
    assert private_names.difference(private_names.Name(broken, ""))[0] == "has no"


# ---- a name that is gone


def rename(monkeypatch, cls, old, new):
    """In the code of a class, as a new version of the library would."""
    for member in vars(cls).values():
        function = getattr(member, "__func__", member)  # of a class method
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        if old in code.co_names:
            names = tuple(new if one == old else one for one in code.co_names)
            monkeypatch.setattr(function, "__code__", code.replace(co_names=names))


def test_torch(fresh):
    fresh.delattr(torch._C, "_swap_tensor_impl")
    fresh.delattr(torch.nn.init, "_no_grad_trunc_normal_")
    error = refusal(lambda: private_names.check("torch"), "torch._C._swap_tensor_impl", "_no_grad_trunc_normal_")
    assert error.code == "torch_version" and len(error.problems) == 2


def test_a_changed_signature(fresh):
    def changed(tensor, average, std, a, b, generator=None):
        raise AssertionError

    fresh.setattr(torch.nn.init, "_no_grad_trunc_normal_", changed)
    error = refusal(lambda: private_names.check("torch"), "torch.nn.init._no_grad_trunc_normal_")
    assert error.problems[0].expected.startswith("tensor, mean, std") and "average" in error.problems[0].found


IMPORTS = """
    import torch
    del torch.utils._python_dispatch._disable_current_modes
    {how}
    try:
        lading.materialize
    except lading.LadingError as error:
        assert error.code == "torch_version" and "_disable_current_modes" in str(error), error
        assert "2.11, 2.12 or 2.13" in str(error), error
    else:
        raise SystemExit("it was not refused")
"""


@pytest.mark.parametrize("how", ["import lading", "import lading.errors, lading"])
def test_importing_lading_works_without_a_name_of_torch_and_using_it_says_which(how):
    code = textwrap.dedent(IMPORTS).format(how=how)
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(FRONT.parent)}, timeout=120)


def test_process_groups(fresh, tmp_path):
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from lading.agreement import Agreement

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fresh.delattr(c10d, "_get_process_group_store")
        refusal(Agreement.of, "_get_process_group_store")
    finally:
        dist.destroy_process_group()


@pytest.fixture
def mesh(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(torch.nn.Linear(4, 4, device="meta"), mesh=mesh)


def test_fsdp2_without_its_state(fresh, mesh):
    """Not: a model without units."""
    from torch.distributed.fsdp import FSDPModule

    model = sharded(mesh)
    fresh.delattr(FSDPModule, "_get_fsdp_state")
    error = refusal(lambda: lading.materialize(model, "nowhere"), "FSDPModule._get_fsdp_state")
    assert error.code == "torch_version"


@pytest.mark.parametrize("name", ["fsdp_params", "offload_policy", "_all_gather_result"])
def test_fsdp2_with_a_renamed_attribute(fresh, mesh, name):
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    rename(fresh, FSDPParamGroup, name, "renamed")
    model = sharded(mesh)
    refusal(lambda: lading.materialize(model, "nowhere"), f"FSDPParamGroup.{name}")


def test_a_state_without_groups(fresh, mesh):
    """On the object itself: the class has the name, the state has not."""
    from lading.placements import fsdp_states

    model = sharded(mesh)
    private_names.check("torch", "FSDP2")

    class State:
        pass

    fresh.setattr(type(model), "_get_fsdp_state", lambda _: State())
    refusal(lambda: list(fsdp_states([model])), "State._fsdp_param_group")


def test_fsdp1(fresh, mesh):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp._flat_param import FlatParameter

    model = FSDP(torch.nn.Linear(4, 4), process_group=mesh.get_group(), device_id=torch.device("cpu"))
    for name in ("_is_padding_mask", "_local_shard"):
        rename(fresh, FlatParameter, name, f"{name}_renamed")
        fresh.delitem(FlatParameter.__annotations__, name)  # where torch declares what such a parameter has
    names = ("FlatParameter._is_padding_mask", "FlatParameter._local_shard")
    refusal(lambda: lading.materialize(model, "nowhere"), *names)


def test_dtensor(fresh, mesh):
    from torch.distributed.tensor import DeviceMesh, distribute_tensor

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh))
    fresh.delattr(DeviceMesh, "_get_root_mesh")
    refusal(lambda: lading.materialize(model, "nowhere"), "DeviceMesh._get_root_mesh")


def test_transformers(fresh):
    transformers = pytest.importorskip("transformers")
    from lading import huggingface

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    ))  # fmt: skip
    fresh.delattr("transformers.core_model_loading.rename_source_key")
    fresh.delattr(transformers.PreTrainedModel, "get_expanded_tied_weights_keys")
    names = ("rename_source_key", "PreTrainedModel.get_expanded_tied_weights_keys")
    error = refusal(lambda: huggingface.describe(model, "nowhere"), *names)
    assert error.code == "transformers_version" and len(error.problems) == 2


def test_peft(fresh):
    peft = pytest.importorskip("peft")

    model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), peft.LoraConfig(target_modules=["0"]))
    fresh.delattr(peft.tuners.tuners_utils.BaseTunerLayer, "get_base_layer")
    error = refusal(lambda: lading.materialize(model, "nowhere"), "BaseTunerLayer.get_base_layer")
    assert error.code == "peft_version"


def test_accelerate(fresh):
    accelerate = pytest.importorskip("accelerate")

    model = torch.nn.Linear(4, 4)
    accelerate.hooks.add_hook_to_module(model, accelerate.hooks.ModelHook())
    rename(fresh, accelerate.hooks.AlignDevicesHook, "offload", "renamed")
    error = refusal(lambda: lading.materialize(model, "nowhere"), "AlignDevicesHook.offload")
    assert error.code == "accelerate_version"


def test_deepspeed(fresh):
    """Imported it says nothing; in use it does."""
    pytest.importorskip("deepspeed")
    from deepspeed.comm import comm
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    model = torch.nn.Linear(4, 4)
    fresh.delattr(DeepSpeedZeroOptimizer_Stage3, "set_local_hp_param")
    lading.take_inventory(model)
    fresh.setattr(comm, "cdb", object())
    error = refusal(lambda: lading.take_inventory(model), "DeepSpeedZeroOptimizer_Stage3.set_local_hp_param")
    assert error.code == "deepspeed_version"


# ---- names that no table has

# Strings with an underscore in front that are no name of somebody's object.
_OTHER_WORDS = {
    "_", "_g", "_v", "_orig",  # what old weight norm puts behind a name
    "_like", "_token_id", "_extra_state",  # ends of names
    "_to_copy", "_unsafe_view", "_reshape_alias", "_empty_affine_quantized",  # operators
    "_fp32_from_fp16",  # names of copies of no library in particular
    "_Function", "_Result",  # of ctypes and of typing
    "_cls",  # what some call the first parameter
}  # fmt: skip
_PUBLIC = {"_asdict", "_replace", "_getframe"}  # of namedtuple and sys
# Names without an underscore that are just as private.
_LISTED = """
    ds_tensor ds_shape ds_id ds_status ds_process_group ds_secondary_tensor ds_zero_param_process_group ds_quant_scale
    final_location ds_active_sub_modules fp16_groups set_local_hp_param fsdp_params sharded_param fsdp_placement
    reset_sharded_param offload_policy mp_policy compiled_sources scope_prefix source_patterns add_tensor
    all_tied_weights_keys initialize_weights original_module modules_to_save base_layer weights_map tensor_meta
    shard_order split_factor flat_param uses_sharded_strategy
""".split()


def test_every_private_name_is_in_a_table():
    listed = {part for table in TABLES.values() for names in table.parts.values() for one in names
              for part in re.split(r"[:.]", one.path)}  # fmt: skip
    missing = {}
    for name, places in private_uses().items():
        if name not in listed and name not in _OTHER_WORDS | _PUBLIC:
            missing[name] = places
    assert not missing, "private names without an entry in python/lading/private_tables.py"


def test_every_entry_is_used():
    """An entry that nothing uses any more would refuse versions for nothing."""
    text = "".join(path.read_text() for path in FRONT.glob("*.py") if path.name != "private_tables.py")
    words = set(re.findall(r"\w+", text))
    unused = [one.path for table in TABLES.values() for names in table.parts.values() for one in names
              if re.split(r"[:.]", one.path)[-1] not in words | {"__new__", "TensorMeta", "ParamInfo"}]  # fmt: skip
    assert not unused


def private_uses():
    """Names that begin with an underscore or are listed above, of objects that are not lading's own, and where."""
    trees = {path: ast.parse(path.read_text()) for path in FRONT.glob("*.py") if path.name != "private_tables.py"}
    own = {name for tree in trees.values() for name in defined(tree)}
    uses = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for name in names_in(node):
                is_private = name.startswith("_") and not name.endswith("__") and not name.startswith("_lading")
                if (is_private and name not in own) or name in _LISTED:
                    uses.setdefault(name, []).append(f"{path.name}:{getattr(node, 'lineno', 0)}")
    return uses


def names_in(node):
    if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        private = any(part.startswith("_") and part != "__future__" for part in (node.module or "").split("."))
        yield from (one.name for one in node.names if private or one.name.startswith("_"))


def defined(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id in ("self", "cls"):
                yield node.attr
