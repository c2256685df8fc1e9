"""Uses every public name as a user would, for `mypy --strict`, which must find nothing here. Nothing runs it."""

from pathlib import Path

import lading
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as load_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

CHECKPOINT = Path("checkpoint")


def version() -> str:
    return lading.__version__


def explain(error: lading.LadingError) -> str:
    return lading.help(error.code, "R45", 3) + lading.help()


def load(model: nn.Module, group: "torch.distributed.ProcessGroup") -> lading.Report:
    lading.materialize(model, "org/name", revision="v1", device=torch.device("cuda", 0), dtype=torch.bfloat16)
    lading.materialize([model, model], CHECKPOINT, device=0, dtype="bf16", cast="exact", pins=["*.A_log"])
    lading.materialize(model, CHECKPOINT, compute_dtype="bfloat16", compute_record="ignore", group=False, timeout=60)
    lading.materialize(model, CHECKPOINT, subtree_dtypes={"tower": torch.float32, "head": "fp16"}, pins=[("a", "b")])
    lading.materialize(model, CHECKPOINT, strict=False, allow_missing=["a"], allow_unexpected=("b",))
    lading.materialize(model, CHECKPOINT, keep=["a"], external={"head": torch.zeros(2), "tower.*": model}, seed=3)
    head = lading.Computed(lambda kept: kept + 1, "t2d")
    lading.materialize(model, CHECKPOINT, recipes={"a": lambda module, name: torch.zeros(2), "head": head})
    lading.materialize(model, CHECKPOINT, mapping={"transformer.h.*": "blocks.*", "*.mask": None}, whole=model)
    lading.materialize(model, CHECKPOINT, mapping="mapping.json", adapter={"default": "adapter"}, ties="untie")
    lading.materialize(model, CHECKPOINT, key_mapping={"^a": "b"}, adapter=Path("a"), verify="full", budget=1 << 30)
    lading.materialize(model, CHECKPOINT, quantized="keep", arithmetic="reference")
    report = lading.materialize(model, CHECKPOINT, exchange="node", verify=False, progress=False, group=group)
    names: list[str] = report.by_provenance()["file"]
    text: str = report.ledger + report.to_json() + report.tensors[names[0]].digest
    print(text, report.read_bytes, [problem.code for problem in report.warnings])
    return report


def into_a_state_dict(state: dict[str, object]) -> lading.Report | None:
    reader = lading.dcp.Reader(CHECKPOINT, strict=True, mapping={"a.*": "b.*"}, quantized="keep", group=False)
    load_state_dict(state, storage_reader=reader)
    return reader.report


def save(model: nn.Module, group: "torch.distributed.ProcessGroup") -> lading.SaveReport:
    lading.save(model, "out", base="org/base", revision="v1", max_shard_size="2GB", dtype="base", unmapped="drop")
    lading.save([model], CHECKPOINT, max_shard_size=1 << 30, dtype=torch.bfloat16, exist="replace", group=group)
    report = lading.save(model, CHECKPOINT, base=lading.report_of(model), progress=False, timeout=60)
    pending: lading.PendingSave = lading.save(model, CHECKPOINT, background=True)
    print(pending.result(timeout=60).bytes, pending.done(), pending.path, pending.snapshot_bytes, report.snapshot_bytes)
    print(report.keys["w"].file, report.path / "config.json", report.files["model.safetensors"], report.to_json())
    return report


def same_values(model: nn.Module, group: "torch.distributed.ProcessGroup") -> dict[str, str]:
    whole: lading.Fingerprint = lading.fingerprint([model], group=group, timeout=60)
    print(whole.tensors["a"].digest, whole.tensors["a"].shape)
    return lading.fingerprint("org/name", revision="v1").differences(whole)


def without_a_checkpoint(model: nn.Module) -> lading.Report:
    lading.initialize(model, seed=3, device="cpu", dtype=torch.bfloat16, cast="exact", keep=["a"], group=False)
    return lading.initialize([model, model], external={"a": torch.zeros(1)}, whole=model, progress=False)


def dry_run(model: nn.Module) -> int:
    plan: lading.Plan = lading.plan(
        model, CHECKPOINT, revision=None, device="cpu", dtype="auto", cast="promote", keep=["a"], budget=1 << 28
    )
    print(plan.missing_keys, plan.unexpected_keys, plan.by_dtype()["BF16"], plan.by_provenance(), plan.plan_digest)
    print(plan.tensors["a"].local_shape, plan.to_json(), plan.staging_bytes)
    return sum(one.read_bytes for one in plan.totals)


def shard(model: nn.Module) -> None:
    model.requires_grad_(False)


def pretrained() -> nn.Module:
    model = lading.from_pretrained("org/name", revision="v1", device="cuda:0", torch_dtype=torch.bfloat16)
    model = lading.from_pretrained(CHECKPOINT, device_map={"": 0}, attn_implementation="sdpa", use_cache=False)
    model = lading.from_pretrained(CHECKPOINT, cls=nn.Linear, config=object(), trust_remote_code=True, num_labels=3)
    model = lading.from_pretrained(CHECKPOINT, attn_implementation={"text_config": "eager"}, device_map="cpu")
    return lading.from_pretrained(CHECKPOINT, parallelize=shard, cast="exact", exchange="auto", verify=True)


def look(model: nn.Module) -> None:
    if why := lading.is_incomplete(model):
        raise SystemExit(why)
    report = lading.report_of(model)
    print(report.bytes if report is not None else 0)
    audited: lading.AuditReport = lading.audit(
        model, CHECKPOINT, revision=None, like=[model], device="cpu", dtype="auto", raise_on="error", adapter="adapter"
    )
    print([problem.rule for problem in (*audited.problems, *audited.warnings)])


def dtypes(model: nn.Module, mesh: DeviceMesh) -> torch.dtype:
    found: lading.DTypes = lading.resolve_dtypes(model, "org/name", "bf16", revision="main", cast="destination")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    sharding: lading.Sharding = lading.shard_by_dtype(model, mesh, policy, checkpoint="org/name", revision="main")
    lading.shard_by_dtype(model, dtypes=found, units=lambda name, module: "mlp" in name, reshard_after_forward=True)
    cast: dict[str, torch.dtype] = lading.cast_frozen(model, torch.bfloat16, pins=["norm.*"])
    print(cast, [unit.modules for unit in sharding.units])
    return found["head"].storage


def skeletons() -> str:
    with lading.skeleton(seed=1) as recording:
        model = nn.Linear(2, 2)
    made: lading.Recording = recording
    known: lading.Recording | None = lading.recording_of(model.weight)
    recipe: lading.Initializer | None = lading.recipe_of(model.weight)
    try:
        value: torch.Tensor = lading.derive(model.weight, name="weight", seed=1)
    except lading.SkeletonError as error:
        print(error.reason, error.tensor)
    else:
        print(value, made, known, recipe.kind if recipe is not None else "")
    lading.empty_parameters(model, "cpu")
    lading.zero3_init(model, {"zero_optimization": {"stage": 3}})
    print([(entry.name, entry.kind, entry.shape) for entry in lading.take_inventory(model)])
    lading.write_skeleton(CHECKPOINT, "model.json", revision=None, cls=nn.Linear, trust_remote_code=False)
    return lading.skeleton_json(model) + lading.skeleton_of("org/name", revision="v1")


def refused(model: nn.Module) -> tuple[str, ...]:
    try:
        lading.materialize(model, CHECKPOINT)
    except lading.LadingError as error:
        print(error.code, error.rule, error.rank, error.begun, error.exit_code, error.problems[0].remedy)
        return error.tensors
    return ()
