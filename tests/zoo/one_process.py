"""The zoo in one process, each model forked from a parent that has imported everything.

one_process.check("llama", ["load", "forward", "exact", "audit"])
"""

import tempfile
from pathlib import Path

import forward
import lading
import lading.audit_model
import lading.pretrained
import torch
import zoo
from lading_loader import BUILDS, under_meta, under_skeleton

PARTS = ("load", "forward", "exact", "audit")
DTYPES = ("bfloat16", "float16", "float32")
RIGHT, SKIPPED = "right", "–"


# ---- other loaders, as people use them


def from_pretrained(model, folder):
    return type(model).from_pretrained(folder)


def to_empty_and_load(model, folder):
    model.to_empty(device="cpu").load_state_dict(_state(folder), strict=False)
    return model


def to_empty_init_and_load(model, folder):
    model.to_empty(device="cpu").init_weights()
    model.load_state_dict(_state(folder), strict=False)
    model.tie_weights()
    return model


def dcp_full(model, folder):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    set_model_state_dict(model, _state(folder), options=StateDictOptions(full_state_dict=True, strict=True))
    return model


def dcp_reader(model, folder):
    import torch.distributed.checkpoint as dcp

    state = model.to_empty(device="cpu").state_dict()
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(folder), no_dist=True)
    model.load_state_dict(state)
    return model


def accelerate_load(model, folder):
    from accelerate import load_checkpoint_in_model

    load_checkpoint_in_model(model.to_empty(device="cpu"), folder)
    return model


def _state(folder):
    from safetensors.torch import load_file

    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(path)
    return found


PEERS = (from_pretrained, to_empty_and_load, to_empty_init_and_load, dcp_full, dcp_reader, accelerate_load)


# ---- one model


def check(model_type, parts, timeout_s=300):
    """{column: (verdict, detail)}, from a process of its own."""
    status, answer = zoo.isolated(_check, model_type, parts, timeout=timeout_s)
    return answer if status == "ok" else {"load": ("error", answer)}


def _check(model_type, parts):
    with tempfile.TemporaryDirectory(prefix="lading_zoo_") as folder:
        original = zoo.make(model_type, folder)
        found = {}
        if "load" in parts:
            for name, build in BUILDS.items():
                found[name] = _guarded(lambda build=build: _check_load(model_type, original, folder, build))
        if "forward" in parts:
            found["forward"] = _guarded(lambda: _check_forward(model_type, original, folder))
        if "exact" in parts:
            for name in DTYPES:
                found[name] = _guarded(lambda name=name: _check_exact(original, folder, name))
        if "audit" in parts:
            found["audit"] = _guarded(lambda: _check_audit(model_type, original, folder))
        return found


def _guarded(check):
    try:
        return check()
    except ModuleNotFoundError as error:
        return SKIPPED, f"{error.name} is not installed"
    except Exception as error:  # noqa: BLE001  # it is told
        return "error", zoo.describe(error)


def _check_load(model_type, original, folder, build):
    model = build(model_type)
    before = {name: id(value) for name, (_, value) in zoo.tensors(model).items()}
    with zoo.poisoned_memory():
        lading.materialize(model, folder, device="cpu", progress=False)
    found = zoo.differences(original, model) + zoo.attribute_differences(original, model)
    after = {name: id(value) for name, (_, value) in zoo.tensors(model).items()}
    found += [("object", name, "another than before") for name in before if after.get(name) != before[name]]
    return ("wrong", zoo.summary(found)) if found else (RIGHT, "")


def _check_forward(model_type, original, folder):
    """Every output has the same bits as that of the original."""
    try:
        given, wanted, note = forward.reference(original)
    except forward.CannotRunError as error:
        return SKIPPED, f"the original cannot: {error}"
    model = under_skeleton(model_type)
    lading.materialize(model, folder, device="cpu", progress=False)
    distance = forward.distance(wanted, forward.outputs(model, given))
    return (RIGHT, note) if distance == 0 else ("wrong", f"outputs differ by {distance:.1e}")


def _check_exact(original, folder, name):
    """`requires_grad` is left out: transformers makes frozen parameters trainable, and lading does not."""
    dtype = getattr(torch, name)
    theirs = type(original).from_pretrained(folder, dtype=dtype)
    ours = lading.from_pretrained(folder, cls=type(original), device="cpu", dtype=dtype, cast="exact", progress=False)
    found = [one for one in zoo.differences(theirs, ours) if one[0] != "requires_grad"]
    return ("wrong", zoo.summary(found)) if found else (RIGHT, "")


def _check_audit(model_type, original, folder):
    """Nothing is said after a right load, and something exactly where another loader was wrong."""
    model = under_skeleton(model_type)
    lading.materialize(model, folder, device="cpu", progress=False)
    report = lading.audit(model, folder)
    if not report.ok or report.warnings:
        return "wrong", f"after a right load: {report}"
    flagged = silent = 0
    for peer in PEERS:
        try:
            with zoo.poisoned_memory():
                other = peer(under_meta(model_type), folder)
        except BaseException:  # noqa: BLE001, S112  # it refused, which is not wrong; torch's are no Exceptions
            continue
        wrong = {name for code, name, _ in zoo.differences(original, other) if code != "untied"}
        report = lading.audit(other, folder)
        if bool(zoo.differences(original, other)) == report.ok or wrong - set(report.tensors):
            return "wrong", f"after {peer.__name__}: {len(wrong)} wrong, the audit says {report}"[:600]
        flagged, silent = flagged + (not report.ok), silent + report.ok
    return RIGHT, f"{flagged} wrong loads found, {silent} right ones passed"
