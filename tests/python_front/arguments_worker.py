"""`plan` and the arguments of `from_pretrained` on two ranks: what fails on one rank, all ranks hear of, soon."""

import datetime
import logging
import os
import time
import traceback
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}

import torch
import torch.distributed as dist
from geometry.launch import run_ranks
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import lading

DEADLINE_S = 400
WAIT_S = 20  # that a rank waits in a collective of its own
SOON_S = 200  # far less than the timeout for ranks that do not come, 600 s
COMMIT = "1" * 40


def main():
    """{case: [what is wrong]}"""
    folder = Path(os.environ["LADING_SCRATCH"]) / "models--org--name" / "snapshots" / COMMIT
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=32)).save_pretrained(folder)
    refs = folder.parents[1] / "refs"
    refs.mkdir()
    for name in ("main", "v1"):
        (refs / name).write_text(COMMIT)
    by_rank = run_ranks(2, run, DEADLINE_S, folder.parents[1])
    return {case.__name__: [text for answer in by_rank for text in answer[case.__name__]] for case in CASES}


def run(rank, repository):
    found = {}
    for case in CASES:
        began = time.monotonic()
        try:
            problems = [problem for problem in case(rank, repository) if problem]
        except Exception:
            problems = [traceback.format_exc()[-3000:]]
        if time.monotonic() - began > SOON_S:
            problems.append(f"it took {time.monotonic() - began:.0f} s")
        found[case.__name__] = [f"rank {rank}: {problem}" for problem in problems]
        dist.barrier()
    return found


def skeleton(repository, *, is_sharded=True):
    with lading.skeleton():
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(repository / "snapshots" / COMMIT))
    if is_sharded:
        fully_shard(model)
    return model


def refused(call, *said):
    """What is wrong with the refusal of a call; None if nothing is."""
    try:
        call()
    except lading.LadingError as error:
        missing = [words for words in said if words not in error.full_text()]
        return f"it does not say {missing}: {error}" if missing else None
    return "it was not refused"


def plans(rank, repository):
    model = skeleton(repository)
    plan = lading.plan(model, repository, revision="v1")
    yield None if all(parameter.is_meta for parameter in model.parameters()) else "a parameter has memory"
    report = lading.materialize(model, repository, progress=False)
    yield None if plan.plan_digest == report.plan_digest else "another plan"
    yield None if (plan.rank, plan.ranks) == (rank, 2) else f"rank {plan.rank} of {plan.ranks}"
    own = plan.totals[rank]
    yield None if (own.bytes, own.read_bytes) == (report.bytes, report.read_bytes) else f"{own}, {report.bytes}"
    whole = LlamaForCausalLM(model.config)
    size = sum(p.nbytes for p in whole.parameters()) + 2 * sum(buffer.nbytes for buffer in whole.buffers())
    held = sum(one.bytes for one in plan.totals)
    yield None if held == size else f"the ranks hold {held} bytes of {size}"
    yield None if "all ranks: " in str(plan) else str(plan)


def plan_alone(rank, repository):
    """Without a group no other rank is asked."""
    if rank == 1:
        plan = lading.plan(skeleton(repository, is_sharded=False), repository, device="cpu", group=False)
        yield None if plan.ranks == 1 and plan.tensors else str(plan)


def plan_and_load(rank, repository):
    """One rank plans, the other loads."""
    call = (lading.plan, lading.materialize)[rank]
    yield refused(lambda: call(skeleton(repository), repository), "call")


def revisions_differ(rank, repository):
    revision = ("main", "v1")[rank]
    yield refused(lambda: lading.materialize(skeleton(repository), repository, revision=revision), "revision")
    yield refused(lambda: lading.from_pretrained(repository, parallelize=fully_shard, revision=revision), "revision")
    model = lading.from_pretrained(repository, device="cpu", progress=False)
    yield refused(lambda: lading.audit(model, repository, revision=revision), "revision")


def fields_differ(rank, repository):
    """One rank has an argument that is refused."""
    wrong = {"use_cach": False} if rank else {}
    yield refused(lambda: lading.from_pretrained(repository, device="cpu", **wrong), "use_cach")
    wrong = {"token": "secret"} if rank else {}
    yield refused(lambda: lading.from_pretrained(repository, device="cpu", **wrong), "does not take token")


def parallelize_fails(rank, repository):
    def parallelize(model):
        if rank == 1:
            raise ValueError("no such plan")
        return fully_shard(model)

    try:
        lading.from_pretrained(repository, parallelize=parallelize)
        yield "it was not refused"
    except lading.LadingError as error:
        if "parallelize raised ValueError: no such plan" not in error.full_text() or error.problems[0].rank != 1:
            yield f"it says {error}"
        causes = []
        cause = error
        while cause is not None:
            causes.append(cause)
            cause = cause.__cause__
        own = [one for one in causes if isinstance(one, ValueError)]
        if bool(own) != (rank == 1):
            yield f"its causes are {causes}"
        if own and "parallelize" not in "".join(traceback.format_tb(own[0].__traceback__)):
            yield "the cause has no traceback"


def parallelize_fails_while_another_waits(rank, repository):
    """Rank 0 waits for rank 1 in a collective of its own: it says soon which rank has failed, and fails like it."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=WAIT_S))
    began, lines = time.monotonic(), []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: lines.append((time.monotonic() - began, record.getMessage()))

    def parallelize(model):
        if rank == 1:
            raise ValueError("no such plan")
        dist.barrier(group)

    logging.getLogger("lading").addHandler(handler)
    try:
        lading.from_pretrained(repository, parallelize=parallelize)
        yield "it was not refused"
    except lading.LadingError as error:
        if "parallelize raised ValueError: no such plan" not in str(error) or error.problems[0].rank != 1:
            yield f"it says {error}"
    finally:
        logging.getLogger("lading").removeHandler(handler)
    if rank == 1:
        yield None if not lines else f"who failed says {lines}"
        return
    said = [(after, text) for after, text in lines if "rank 1" in text and "no such plan" in text]
    yield None if len(said) == 1 and said[0][0] < WAIT_S / 2 else f"in {time.monotonic() - began:.1f} s it said {lines}"


def parallelize_loads(rank, repository):
    """`parallelize` calls lading itself, on the same ranks."""
    teachers = []

    def parallelize(model):
        teachers.append(lading.from_pretrained(repository, parallelize=fully_shard, progress=False))
        lading.shard_by_dtype(model, checkpoint=repository, revision="v1")

    model = lading.from_pretrained(repository, parallelize=parallelize, progress=False)
    yield None if not any(parameter.is_meta for parameter in model.parameters()) else "a parameter is on meta"
    pairs = zip(model.parameters(), teachers[0].parameters(), strict=True)
    yield None if all(torch.equal(one.full_tensor(), two.full_tensor()) for one, two in pairs) else "they differ"


CASES = (plans, plan_alone, plan_and_load, revisions_differ, fields_differ, parallelize_fails, parallelize_loads)
CASES += (parallelize_fails_while_another_waits,)
