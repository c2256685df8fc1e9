"""One world on one rank: files, expectation, load, comparison. Answers a verdict."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import files, oracle, snapshot, subject
from .build import build
from .pieces import Json
from .surgery import operate
from .wrap import cut_of, learner, ready, run, step, wrap_sharded, write_adapter

Verdict = dict[str, Any]


def live(spec: Json, rank: int, scratch: Path) -> Verdict:
    """Runs a world. Every rank of its group calls it."""
    folder = scratch / f"world{spec['seed']}"
    try:
        return _live(spec, rank, folder)
    finally:
        together(None)
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def together(word: Any) -> list[Any]:
    """What every rank says, on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [word]
    words: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(words, word)
    return words


def _live(spec: Json, rank: int, folder: Path) -> Verdict:
    path, why = "", ""
    if rank == 0:
        try:
            path = _write_files(spec, folder)
        except Exception as error:  # noqa: BLE001
            why = _words(error)
    path, why = together((path, why))[0]
    if why:
        return _verdict("void", f"files: {why}")
    inside = folder / spec["files"]["folder"]
    expected: oracle.Expectation | None = None
    try:
        expected = oracle.expect(spec, inside, rank)
    except Exception as error:  # noqa: BLE001
        why = _words(error)
    whys = together(why)
    if any(whys):
        return _verdict("void", f"torch: {next(filter(None, whys))}")
    assert expected is not None
    return _judge(spec, rank, inside, path, expected)


def _write_files(spec: Json, folder: Path) -> str:
    inside = folder / spec["files"]["folder"]
    path = files.write(oracle.state_of(spec), spec["files"], inside)
    if cut_of(spec, "load_before") is not None:
        files.write(oracle.state_of(spec | {"seed": spec["seed"] + 3}), spec["files"], folder / "before")
    if cut_of(spec, "peft") is not None:
        write_adapter(operate(build(spec), spec["surgery"])[0], spec, inside)
    return path


def _judge(spec: Json, rank: int, folder: Path, path: str, expected: oracle.Expectation) -> Verdict:
    loaded: subject.Loaded | None = None
    why = ""
    try:
        loaded = subject.prepare(spec, folder, rank)
    except Exception as error:  # noqa: BLE001
        why = _words(error)
    whys = together(why)
    if any(whys):
        return _verdict("void", f"before the load: {next(filter(None, whys))}", expected)
    assert loaded is not None
    subject.fill(loaded, spec, folder, path)
    outcome = "refused" if loaded.is_refused else "bare" if loaded.error is not None else "loaded"
    outcomes = together(outcome)
    if outcome == "bare":
        text = "".join(traceback.format_exception(loaded.error))[-1500:]
        return _verdict("bare", loaded.cause, expected, details=[text])
    if len(set(outcomes)) > 1:
        return _verdict("split", f"outcomes differ between ranks: {outcomes}", expected, details=[loaded.cause])
    if loaded.touched:
        return _verdict("different", "process", expected, details=[loaded.touched])
    if outcome == "refused":
        return _verdict("refused", loaded.cause, expected, details=[str(loaded.error)[:600]])
    if refusal := next(filter(None, together(expected.refusal)), ""):
        return _verdict("accepted", f"torch refuses: {refusal}", expected)
    return _compare(spec, expected, loaded)


def _compare(spec: Json, expected: oracle.Expectation, loaded: subject.Loaded) -> Verdict:
    found = _facts(loaded.model, expected)
    memory = "free" if spec["layout"]["kind"] in ("zero3", "zero12") else "exactly"  # an engine has its own buffer
    if spec["layout"]["kind"] in ("tp", "fsdp2_tp", "dtensor") and spec["build"] != "real":
        memory = "apart"  # distribute_tensor makes two of a tie or of views, which on real memory may still share it
    said = snapshot.differences(expected.facts, found, expected.unknown, memory=memory)
    if memory == "apart" and snapshot.differences(expected.facts, found, expected.unknown, memory="exactly"):
        expected.use = min(expected.use, 1)  # a step of training changes shared memory twice
    random = {
        name: found[name].digest() for name in sorted(expected.unknown) if name in found and _is_whole(found[name], spec)
    }
    if any(together(bool(said))):
        if not said:
            return _verdict("equal", "", expected, random=random)  # another rank says what is different
        return _verdict("different", said[0].split(":")[0], expected, details=said[:6], random=random)
    for other in loaded.others:
        theirs = _facts(other.model, expected)
        said = said or snapshot.differences(expected.facts, theirs, expected.unknown, memory=memory)
        for name in expected.unknown & set(found) & set(theirs):
            if found[name].bits != theirs[name].bits:
                said.append(f"threads: {name} differs between two loads at the same time")
    if expected.use and not said:
        said = _use(spec, expected, loaded)
    if said:
        return _verdict("different", said[0].split(":")[0], expected, details=said[:6], random=random)
    return _verdict("equal", "", expected, random=random)


def _facts(model: Any, expected: oracle.Expectation) -> dict[str, snapshot.Fact]:
    return {name: fact for name, fact in snapshot.facts(model).items() if name not in expected.computed}


def _is_whole(fact: snapshot.Fact, spec: Json) -> bool:
    """Whether every rank has all of it."""
    return not fact.placements and (spec["layout"]["kind"] != "fsdp1" or fact.kind != "parameter")


def _use(spec: Json, expected: oracle.Expectation, loaded: subject.Loaded) -> list[str]:
    """A forward pass, an optimizer's step and another forward pass, on both."""
    wanted = _trained(wrap_sharded(expected.model, spec), None, spec)
    there = _trained(loaded.model, loaded.optimizer, spec)
    if isinstance(wanted, str) or isinstance(there, str):
        if isinstance(wanted, str) and isinstance(there, str):
            return []
        one = wanted if isinstance(wanted, str) else "runs"
        return [f"forward: plain torch {one}, and the loaded model {there if isinstance(there, str) else 'runs'}"]
    said = [f"{word}: {text}" for word, one, two in zip(("forward", "second forward"), wanted[:2], there[:2], strict=True)
            if (text := _unlike(one, two))]  # fmt: skip
    if expected.use < 2:
        return [text for text in said if text.startswith("forward")]
    for name, one in wanted[2].items():
        if name in there[2] and name not in expected.unknown and (text := _unlike(one, there[2][name])):
            said.append(f"step: {name} {text}")
    return said


def _trained(model: Any, optimizer: Any, spec: Json) -> Any:
    """(output, output after a step, parameters after it), or what torch raised."""
    try:
        model = ready(model, spec)
        optimizer = optimizer or learner(model)
        first = run(model, spec)
        if first.requires_grad:
            weights = torch.arange(1, first.numel() + 1, dtype=torch.float32).reshape(first.shape) / 512
            step(model, optimizer, (first.float() * weights).sum())
        after = {name: fact.value.clone() for name, fact in snapshot.facts(model).items()
                 if fact.kind == "parameter" and not fact.is_meta}  # fmt: skip
        with torch.no_grad():
            second = run(model, spec)
    except Exception as error:  # noqa: BLE001
        return f"raises {type(error).__name__}: {str(error)[:200]}"
    return first.detach(), second.detach(), after


def _unlike(one: torch.Tensor, two: torch.Tensor) -> str:
    """Rounding may differ where strides do."""
    if one.shape != two.shape or one.dtype != two.dtype:
        return f"should be {list(one.shape)} {one.dtype}, and is {list(two.shape)} {two.dtype}"
    if snapshot.bits_of(one) == snapshot.bits_of(two) or not (one.is_floating_point() or one.is_complex()):
        return ""
    one, two = one.to(torch.float64), two.to(torch.float64)
    rough = 2e-2 if one.dtype in (torch.bfloat16, torch.float16) else 1e-4
    if torch.allclose(one, two, rtol=rough, atol=rough * float(one.abs().nan_to_num().max() + 1e-6), equal_nan=True):
        return ""
    return f"should be {one.flatten()[:4].tolist()}, and is {two.flatten()[:4].tolist()}"


def _words(error: BaseException) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"


def _verdict(
    kind: str,
    cause: str,
    expected: oracle.Expectation | None = None,
    *,
    details: list[str] | None = None,
    random: dict[str, str] | None = None,
) -> Verdict:
    return {
        "verdict": kind,
        "cause": cause,
        "details": details or [],
        "torch_loads": expected is not None and not expected.refusal,
        "torch_says": expected.refusal if expected is not None else "",
        "done": expected.done if expected is not None else [],
        "random": random or {},
    }
