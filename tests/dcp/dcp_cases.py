"""What `lading.dcp.Reader` takes and refuses, case by case."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from unittest import mock

import quantized_models
import ranks_models as models
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_layouts import differences, in_files, local
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import lading
import lading.dcp
from lading import _engine

PLAIN = {
    "a": torch.arange(24, dtype=torch.float32).reshape(6, 4) / 7,
    "b": torch.arange(5, dtype=torch.float32) - 1.0000001,
    "count": torch.tensor(3),
}


def make_checkpoints(folder):
    for name, tensors in {
        "plain": PLAIN,
        "untied": {"embed": torch.ones(3, 2), "head": torch.zeros(3, 2)},
        "parts": {"q": torch.randn(4, 3), "k": torch.randn(4, 3)},
        "small_shards": {"one": torch.tensor([[1.0, 2.0]]), "none": torch.zeros(0, 3), "whole": torch.ones(4)},
    }.items():
        (folder / name).mkdir()
        save_file(tensors, folder / name / "model.safetensors")
    quantized_models.make(folder / "quantized", 64, 192)


def reader(path, **options):
    return lading.dcp.Reader(path, timeout=60, **options)


def empty():
    return {name: torch.full_like(tensor, 9) for name, tensor in PLAIN.items()}


def refused(words, load, unwritten=None, *, begun=False):
    """What is wrong with a refusal that should have these words on every rank, and write nothing to these tensors."""
    before = {name: local(tensor).clone() for name, tensor in (unwritten or {}).items() if isinstance(tensor, torch.Tensor)}
    try:
        load()
    except dcp.CheckpointException as error:
        failures = [failure for failure, _trace in error.failures.values()]
    else:
        return ["it was not refused"]
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    problems = [f"{failure!r} is no LadingError" for failure in failures if not isinstance(failure, lading.LadingError)]
    if problems:
        return problems
    if len(failures) != ranks:
        problems.append(f"only {len(failures)} of {ranks} ranks have failed")
    if len({failure.full_text() for failure in failures}) != 1:
        problems.append(f"the ranks have different errors: {[failure.full_text() for failure in failures]}")
    text = failures[0].full_text()
    problems += [f"{word!r} is not in: {text}" for word in words if word not in text]
    problems += [f"{name} was written" for name, tensor in before.items() if not torch.equal(tensor, local(unwritten[name]))]
    problems += [f"begun is {failure.begun}" for failure in failures if failure.begun != begun]
    return problems


def unequal(state, wanted):
    return [
        f"{name} is {local(state[name])}, not {tensor}"
        for name, tensor in wanted.items()
        if local(state[name]).dtype != tensor.dtype or not torch.equal(local(state[name]), tensor)
    ]


# ---- one process


def a_state_dict_of_tensors(folder):
    state, again = empty(), reader(folder / "plain")
    tensors = dict(state)
    dcp.load(state, storage_reader=again)
    problems = unequal(state, PLAIN)
    problems += [f"{name} was replaced" for name, tensor in tensors.items() if state[name] is not tensor]
    if not isinstance(again, dcp.HuggingFaceStorageReader) or not isinstance(again, dcp.StorageReader):
        problems.append("it is not accepted where a HuggingFaceStorageReader is")
    if sorted(again.report.tensors) != sorted(PLAIN) or again.report.unexpected_keys:
        problems.append(f"the report is {again.report}")
    return problems


def another_dtype_is_cast(folder):
    state = empty() | {"a": torch.zeros(6, 4, dtype=torch.bfloat16), "b": torch.zeros(5, dtype=torch.float64)}
    theirs = {name: tensor.clone() for name, tensor in state.items()}
    dcp.load(state, storage_reader=reader(folder / "plain"))
    dcp.load(theirs, storage_reader=dcp.HuggingFaceStorageReader(str(folder / "plain")))
    return unequal(state, {"a": PLAIN["a"].bfloat16(), "b": PLAIN["b"].double()}) + unequal(state, theirs)


def integers_and_floats_do_not_mix(folder):
    state = empty() | {"count": torch.tensor(0.5)}
    load = lambda: dcp.load(state, storage_reader=reader(folder / "plain"))
    return refused(["count", "dtype"], load, state)


def a_nested_state_dict_with_other_names(folder):
    state = {"model": empty()}
    dcp.load(state, storage_reader=reader(folder / "plain", mapping={"*": "model.*"}))
    return unequal(state["model"], PLAIN)


def conversions(folder):
    """`qkv` is made of two keys, one of them transposed: shapes that no key has."""
    rule = {"id": "qk", "kind": "build", "to": "qk", "expression": {"concat": {"dim": 1, "parts": [
        {"transpose": {"dims": [0, 1], "of": "q"}}, {"transpose": {"dims": [0, 1], "of": "k"}}]}}}  # fmt: skip
    state = {"qk": torch.zeros(3, 8)}
    document = folder / "mapping.json"
    document.write_text(json.dumps({"schema": "lading.mapping/1", "rules": [rule]}))
    dcp.load(state, storage_reader=reader(folder / "parts", mapping=document, strict=True))
    there = in_files(folder / "parts")
    return unequal(state, {"qk": torch.cat([there["q"].T, there["k"].T], dim=1)})


def missing_keys_are_listed_together(folder):
    state = empty() | {"ghost": torch.zeros(2), "phantom": torch.zeros(3)}
    return refused(["ghost", "phantom"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)


def missing_keys_may_be_allowed(folder):
    problems = []
    for about in ({"allow_missing": ["ghost"]}, {"allow_missing": "gh*"}, {}):
        state, again = empty() | {"ghost": torch.full((2,), 9.0)}, reader(folder / "plain", **about)
        dcp.load(state, storage_reader=again, planner=dcp.DefaultLoadPlanner(allow_partial_load=not about))
        problems += unequal(state, PLAIN | {"ghost": torch.full((2,), 9.0)})
        if again.report.missing_keys != ["ghost"]:
            problems.append(f"missing keys are {again.report.missing_keys}")
    return problems


def shapes_that_differ_are_listed_together(folder):
    state = empty() | {"a": torch.zeros(4, 6), "b": torch.zeros(6)}
    return refused(['"a"', '"b"', "[4, 6]"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)


def shapes_that_differ_may_be_allowed(folder):
    state, again = empty() | {"a": torch.full((4, 6), 9.0)}, reader(folder / "plain", allow_mismatch="a")
    dcp.load(state, storage_reader=again)
    problems = [] if again.report.mismatched_keys == ["a"] else [f"mismatched keys are {again.report.mismatched_keys}"]
    return problems + unequal(state, PLAIN | {"a": torch.full((4, 6), 9.0)})


def keys_beyond_the_state_dict(folder):
    state = {"a": torch.zeros(6, 4)}
    again = reader(folder / "plain")
    dcp.load(state, storage_reader=again)
    problems = unequal(state, {"a": PLAIN["a"]})
    if again.report.unexpected_keys != ["b", "count"]:
        problems.append(f"unexpected keys are {again.report.unexpected_keys}")
    strict = reader(folder / "plain", strict=True)
    problems += refused(["count", "R39"], lambda: dcp.load(state, storage_reader=strict), state)
    dcp.load(state, storage_reader=reader(folder / "plain", strict=True, allow_unexpected=["b", "c*"]))
    return problems


def ties(folder):
    one = torch.zeros(6, 4)
    state = {"a": one, "tied": one.view(6, 4), "b": torch.zeros(5)}
    dcp.load(state, storage_reader=reader(folder / "plain"))
    problems = unequal(state, {"a": PLAIN["a"], "tied": PLAIN["a"], "b": PLAIN["b"]})
    same = torch.zeros(3, 2)
    load = lambda: dcp.load({"embed": same, "head": same}, storage_reader=reader(folder / "untied"))
    try:
        load()
        problems.append("two values for one memory were not refused")
    except dcp.CheckpointException as error:
        problems += [] if "R50" in str(error) else [str(error)]
    return problems


def tensors_that_are_not_contiguous(folder):
    state = {
        "a": torch.zeros(4, 6).T,
        "b": torch.zeros(5, 2)[:, 1],
        "count": torch.zeros(3, dtype=torch.int64)[1],
    }
    dcp.load(state, storage_reader=reader(folder / "plain"))
    problems = unequal(state, PLAIN)
    overlapping = {"b": torch.zeros(1).expand(5)}
    return problems + refused(
        ["fewer elements"], lambda: dcp.load(overlapping, storage_reader=reader(folder / "plain")), overlapping
    )


def views_of_one_buffer(folder):
    """As a flat buffer has them."""
    flat = torch.zeros(30)
    state = {"a": flat[:24].view(6, 4), "b": flat[24:29]}
    dcp.load(state, storage_reader=reader(folder / "plain"))
    problems = unequal(state, {"a": PLAIN["a"], "b": PLAIN["b"]})
    if not torch.equal(flat, torch.cat([PLAIN["a"].reshape(-1), PLAIN["b"], torch.zeros(1)])):
        problems.append("the buffer has other values")
    overlapping = {"a": flat[:24].view(6, 4), "b": flat[22:27]}
    flat.zero_()
    return problems + refused(
        ["memory"], lambda: dcp.load(overlapping, storage_reader=reader(folder / "plain")), overlapping
    )


def parameters_that_train(folder):
    weight = torch.nn.Parameter(torch.zeros(6, 4))
    dcp.load({"a": weight}, storage_reader=reader(folder / "plain"))
    return unequal({"a": weight.detach()}, {"a": PLAIN["a"]}) + ([] if weight.requires_grad else ["it is frozen"])


def values_that_are_no_tensors(folder):
    state = empty() | {"count": 4, "name": "x"}
    problems = refused(['"count"', '"name"', "int"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)
    dcp.load(state, storage_reader=reader(folder / "plain", allow_missing=["count", "name"]))
    if state["count"] != 4 or state["name"] != "x":
        problems.append(f"they were changed: {state}")
    return problems + unequal(state, {"a": PLAIN["a"], "b": PLAIN["b"]})


def a_damaged_file(folder):
    cut, whole = folder / "cut", (folder / "plain" / "model.safetensors").read_bytes()
    cut.mkdir()
    (cut / "model.safetensors").write_bytes(whole[:-4])
    state = empty()
    return refused(["data_truncated", "cut"], lambda: dcp.load(state, storage_reader=reader(cut)), state)


def a_file_that_changes(folder):
    """Another process writes when the load is planned and nothing of it has been read."""
    (folder / "changing").mkdir()
    file, load_it = shutil.copy(folder / "plain" / "model.safetensors", folder / "changing"), _engine.Plan.load

    def after_a_write(plan, *arguments, **options):
        with open(file, "r+b") as open_file:
            open_file.seek(-4, os.SEEK_END)
            open_file.write(b"\x01\x02\x03\x04")
        return load_it(plan, *arguments, **options)

    with mock.patch.object(_engine.Plan, "load", after_a_write):
        load = lambda: dcp.load(empty(), storage_reader=reader(folder / "changing"))
        return refused(["file_changed"], load, begun=True)


def tensors_on_meta(folder):
    """DCP gives them memory first, in the state dict alone."""
    state = {name: tensor.to("meta") for name, tensor in PLAIN.items()}
    if not dist.is_available():
        return []
    try:
        dcp.load(state, storage_reader=reader(folder / "plain"))
    except dcp.CheckpointException as error:  # without a process group, torch does not know where
        return [] if "default process group" in str(error).lower() else [str(error)]
    return unequal(state, PLAIN)


def no_state_dict_at_all(folder):
    return unequal(_load_state_dict_from_keys(storage_reader=reader(folder / "plain")), PLAIN)


def the_metadata_lists_the_tensors(folder):
    listed = reader(folder / "plain").read_metadata().state_dict_metadata
    theirs = dcp.HuggingFaceStorageReader(str(folder / "plain")).read_metadata().state_dict_metadata
    return [] if dict(listed) == theirs else [f"{dict(listed)} is not {theirs}"]


def the_checkpoint_id_counts(folder):
    state = empty()
    dcp.load(state, checkpoint_id=folder / "plain", storage_reader=reader(folder / "parts"))
    return unequal(state, PLAIN)


def a_path_that_is_not_there(folder):
    return refused(["nowhere", "not_found"], lambda: dcp.load(empty(), storage_reader=reader(folder / "nowhere")))


class _Doubling(dcp.DefaultLoadPlanner):
    def transform_tensor(self, read_item, tensor):
        return super().transform_tensor(read_item, tensor) * 2


class _Choosing(dcp.DefaultLoadPlanner):
    """Loads a part of the state dict: that is not a planner's hook, and works."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        return dcp.LoadPlan([item for item in plan.items if item.dest_index.fqn == "a"])


def planners(folder):
    state = empty()
    load = lambda: dcp.load(state, storage_reader=reader(folder / "plain"), planner=_Doubling())
    problems = refused(["_Doubling", "transform_tensor"], load, state)
    dcp.load(state, storage_reader=reader(folder / "plain"), planner=_Choosing())
    return problems + unequal(state, {"a": PLAIN["a"], "b": torch.full((5,), 9.0)})


def quantized(folder):
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(quantized_models.config(64, 192)).to(torch.bfloat16)
    models.fill(model, seed=99)
    state = model.state_dict()
    keep = reader(folder / "quantized" / "fp8", quantized="keep")
    problems = refused(["scale"], lambda: dcp.load(state, storage_reader=keep), state)
    dcp.load(state, storage_reader=reader(folder / "quantized" / "fp8"))
    return problems + wrong_values(model, folder)


def wrong_values(model, folder):
    wrong = quantized_models.wrong(model, quantized_models.oracle(folder / "quantized" / "fp8"))
    return [f"{name}: {share:.0%} of the elements" for name, share in wrong.items()]


ON_ONE_PROCESS = {
    case.__name__: case
    for case in (
        a_state_dict_of_tensors, another_dtype_is_cast, integers_and_floats_do_not_mix, a_nested_state_dict_with_other_names,
        conversions, missing_keys_are_listed_together, missing_keys_may_be_allowed, shapes_that_differ_are_listed_together,
        shapes_that_differ_may_be_allowed,
        keys_beyond_the_state_dict, ties, tensors_that_are_not_contiguous, views_of_one_buffer, parameters_that_train,
        values_that_are_no_tensors, tensors_on_meta, no_state_dict_at_all, the_metadata_lists_the_tensors,
        the_checkpoint_id_counts, a_path_that_is_not_there, a_damaged_file, a_file_that_changes, planners, quantized,
    )
}  # fmt: skip


# ---- several ranks


def run(rank, cases, folder):
    return {name: CASES[name](rank, folder) for name in cases}


def missing_on_one_rank(rank, folder):
    state = empty() | ({"ghost": torch.zeros(2)} if rank == 1 else {})
    return refused(["ghost"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)


def another_shape_on_one_rank(rank, folder):
    state = empty() | ({"a": torch.zeros(4, 6)} if rank == 1 else {})
    return refused(['"a"', "ranks_differ"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)


def no_tensor_on_one_rank(rank, folder):
    state = empty() | ({"b": 4} if rank == 1 else {})
    return refused(['"b"', "rank 1"], lambda: dcp.load(state, storage_reader=reader(folder / "plain")), state)


def unexpected_on_all_ranks(_rank, folder):
    state = {"a": torch.zeros(6, 4)}
    strict = reader(folder / "plain", strict=True)
    return refused(["count", "R39"], lambda: dcp.load(state, storage_reader=strict), state)


def ranks_with_different_keys(rank, folder):
    """As pipeline stages have them. What another rank reads is not unexpected."""
    state = {"a": torch.zeros(6, 4)} if rank == 0 else {"b": torch.zeros(5), "count": torch.tensor(0)}
    dcp.load(state, storage_reader=reader(folder / "plain", strict=True))
    return unequal(state, {name: PLAIN[name] for name in state})


def different_arguments(rank, folder):
    again = reader(folder / "plain", strict=rank == 0)
    return refused(["unexpected"], lambda: dcp.load(empty(), storage_reader=again))


def empty_shards(rank, folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "one": distribute_tensor(torch.zeros(1, 2), mesh, [Shard(0)]),
        "none": distribute_tensor(torch.zeros(0, 3), mesh, [Shard(0)]),
        "whole": torch.zeros(4),
    }
    dcp.load(state, storage_reader=reader(folder / "small_shards", strict=True))
    wanted = torch.tensor([[1.0, 2.0]]) if rank == 0 else torch.zeros(0, 2)
    problems = [] if torch.equal(state["one"].to_local().reshape(wanted.shape), wanted) else ["a shard has other values"]
    return problems + unequal(state, {"whole": torch.ones(4)})


def values_of_a_rank(rank, folder):
    """What no file has, and each rank has for itself, such as the state of a generator."""
    state = empty() | {"own": torch.full((3,), float(rank))}
    dcp.load(state, storage_reader=reader(folder / "plain", allow_missing="own", keep="own"))
    problems = unequal(state, PLAIN | {"own": torch.full((3,), float(rank))})
    try:
        dcp.load(state, storage_reader=reader(folder / "plain", allow_missing="own"))
        problems.append("different values of one tensor were accepted")
    except dcp.CheckpointException as error:
        problems += [] if "R17" in str(error) else [str(error)]
    return problems


def ties_with_empty_shards(_rank, folder):
    """A state dict has two objects, and one row for two ranks."""
    model = torch.nn.Sequential(torch.nn.Embedding(1, 2), torch.nn.Linear(2, 1, bias=False))
    model[1].weight = model[0].weight
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    again = reader(folder / "small_shards", mapping={"one": "0.weight"})
    dcp.load(model.state_dict(), storage_reader=again)
    found = model[1].weight.full_tensor()
    return [] if torch.equal(found, torch.tensor([[1.0, 2.0]])) else [f"it is {found}"]


def placements(rank, folder):
    """One after the other, over rows, columns, both, strided, and whole."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    problems = []
    for placed in ([Shard(0), Replicate()], [Shard(1), Shard(0)], [Shard(0), Shard(0)], [Replicate(), Replicate()]):
        state = {"a": distribute_tensor(torch.zeros(6, 4), mesh, placed)}
        dcp.load(state, storage_reader=reader(folder / "plain"))
        if not torch.equal(state["a"].full_tensor(), PLAIN["a"]):
            problems.append(f"{placed}: other values")
    strided = DTensor.from_local(
        torch.zeros(3, 4), mesh["y"], [_StridedShard(0, split_factor=3)], shape=torch.Size((6, 4)), stride=(4, 1)
    )
    dcp.load({"a": strided}, storage_reader=reader(folder / "plain"))
    rows = torch.arange(6).reshape(3, 2, 1)[:, mesh.get_coordinate()[1]].reshape(-1)
    if not torch.equal(strided.to_local(), PLAIN["a"][rows]):
        problems.append("a strided cut has other rows")
    return problems


def half_of_the_ranks(rank, folder):
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    state = empty()
    dcp.load(state, storage_reader=reader(folder / "plain", group=group), process_group=group)
    problems = unequal(state, PLAIN)
    if rank > 1:
        try:
            dcp.load(state, storage_reader=reader(folder / "plain"), process_group=group)
            problems.append("another group was not refused")
        except dcp.CheckpointException as error:
            problems += [] if "process_group" in str(error) else [str(error)]
    return problems


def each_rank_by_itself(rank, folder):
    state = {"a": torch.zeros(6, 4, dtype=torch.float64 if rank else torch.float32)}
    dcp.load(state, storage_reader=reader(folder / "plain", group=False), no_dist=True)
    return unequal(state, {"a": PLAIN["a"].to(state["a"].dtype)})


def quantized_and_sharded(rank, folder):
    """Rows of a rank that are no whole blocks: 192 of them over 2 ranks, in blocks of 128."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(quantized_models.config(64, 192)).to(torch.bfloat16)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    dcp.load(model.state_dict(), storage_reader=reader(folder / "quantized" / "fp8"))
    return wrong_values(model, folder)


def what_dcp_writes(rank, folder):
    """Consolidated files are read; shards that were not are refused, and never taken for whole tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(30.0).reshape(5, 6)
    state = {"w": distribute_tensor(whole, mesh, [Shard(0)])}
    problems = []
    for name, options in {"consolidated": {"enable_consolidation": True}, "shards": {}}.items():
        writer = dcp.HuggingFaceStorageWriter(str(folder / name), save_distributed=True, **options)
        dcp.save(state, storage_writer=writer)
        dist.barrier()
    fresh = {"w": distribute_tensor(torch.zeros(5, 6), mesh, [Shard(1)])}
    problems += refused(["DCP", "consolidate_safetensors_files"], lambda: dcp.load(fresh, storage_reader=reader(folder / "shards")), fresh)
    if rank == 0:
        problems += consolidated_as_told(folder / "shards", folder / "by the command")
    dist.barrier()
    for name in ("consolidated", "by the command"):
        fresh["w"].to_local().zero_()
        dcp.load(fresh, storage_reader=reader(folder / name))
        if not torch.equal(fresh["w"].full_tensor(), whole):
            problems.append(f"{name}: other values")
    return problems


def consolidated_as_told(shards, output):
    """The remedy's command, run as a user would."""
    try:
        len(reader(shards).read_metadata().state_dict_metadata)
    except lading.LadingError as error:
        command = error.problems[0].remedy.partition("python ")[2].removesuffix(" DIR OUT_DIR.")
        done = subprocess.run(
            [sys.executable, *shlex.split(command), shards, output], capture_output=True, text=True, check=False
        )
        return [done.stderr] if done.returncode else []
    return ["they were not refused"]


def after_a_forward_pass(rank, folder):
    """State dicts of a model in use; `set_model_state_dict` is not needed, since memory is the model's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = models.fill(models.MODELS["small_untied"](), seed=99)
    fully_shard(model, mesh=mesh)
    ids = torch.arange(6)
    model(ids)
    dcp.load(model.state_dict(), storage_reader=reader(folder / "small_untied"))
    want = models.original("small_untied")
    problems = differences(model, in_files(folder / "small_untied"))
    with torch.no_grad():
        return problems + ([] if torch.allclose(model(ids), want(ids), atol=1e-5) else ["the output differs"])


def read_once_for_all(rank, folder):
    state = empty()
    again = reader(folder / "plain", exchange="job")
    dcp.load(state, storage_reader=again)
    return unequal(state, PLAIN)


CASES = {
    case.__name__: case
    for case in (
        missing_on_one_rank, another_shape_on_one_rank, no_tensor_on_one_rank, unexpected_on_all_ranks,
        ranks_with_different_keys, different_arguments, empty_shards, ties_with_empty_shards, values_of_a_rank,
        placements, half_of_the_ranks, each_rank_by_itself,
        quantized_and_sharded, what_dcp_writes, after_a_forward_pass, read_once_for_all,
    )
}  # fmt: skip
ON_RANKS = {
    2: [
        "missing_on_one_rank", "another_shape_on_one_rank", "no_tensor_on_one_rank", "unexpected_on_all_ranks",
        "ranks_with_different_keys", "different_arguments", "empty_shards", "ties_with_empty_shards", "values_of_a_rank", "each_rank_by_itself", "quantized_and_sharded",
        "what_dcp_writes", "after_a_forward_pass", "read_once_for_all",
    ],
    4: ["placements", "half_of_the_ranks"],
}  # fmt: skip
