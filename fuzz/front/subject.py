"""The same model, loaded by lading. The only file of the fuzzer's worlds that imports it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import lading
import torch
from torch import nn

from . import files, snapshot
from .build import build
from .disturb import disturbed
from .layouts import shard
from .oracle import for_rank, resolve
from .pieces import Json
from .surgery import operate
from .wrap import ADAPTER, cut_of, learner, ready, run, wrap, wrap_sharded

_TOOLS = {"empty_parameters": lading.empty_parameters, "zero3_init": lading.zero3_init}


@dataclasses.dataclass
class Loaded:
    model: nn.Module
    optimizer: Any = None
    report: Any = None
    error: BaseException | None = None
    touched: str = ""  # what the load changed in the process
    others: list[Loaded] = dataclasses.field(default_factory=list)  # of other threads

    @property
    def cause(self) -> str:
        """Of a refusal: code and first words, without names."""
        error = self.error
        if error is None:
            return ""
        if not isinstance(error, lading.LadingError):
            return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        problem = error.problems[0]
        words = [word for word in problem.message.split() if not any(mark in word for mark in ".[]{}'\"0123456789")]
        return f"{problem.code}: {' '.join(words[:9])}"

    @property
    def is_refused(self) -> bool:
        return isinstance(self.error, lading.LadingError)


def context_of(spec: Json) -> Any:
    how = spec["build"]
    if how == "skeleton":
        return lading.skeleton()
    if how == "meta":
        return torch.device("meta")
    if how == "accelerate":
        from accelerate import init_empty_weights

        return init_empty_weights(include_buffers=False)
    return contextlib.nullcontext()


def prepare(spec: Json, folder: Path, rank: int) -> Loaded:
    """Everything before the load."""
    loaded = _prepare(for_rank(spec, rank), folder, rank)
    loaded.others = [_prepare(spec, folder, rank) for _ in range(spec["load"]["threads"] - 1)]
    return loaded


def _prepare(spec: Json, folder: Path, rank: int) -> Loaded:
    model, _ = operate(build(spec, context_of(spec)), spec["surgery"])
    model = wrap(model, spec, folder, is_subject=True)
    model = wrap_sharded(shard(model, spec["layout"], rank, _TOOLS), spec)
    if spec["layout"].get("engine_first"):
        model = ready(model, spec)
    loaded = Loaded(model)
    if cut_of(spec, "optimizer") is not None:
        loaded.optimizer = learner(model)
    is_partitioned = spec["layout"]["kind"] == "zero3"  # torch's RNNs read past the end of partitions without an engine
    if cut_of(spec, "forward") is not None and not (is_partitioned and any(isinstance(one, nn.RNNBase) for one in model.modules())):
        with contextlib.suppress(RuntimeError):
            run(model, spec)
    return loaded


def fill(loaded: Loaded, spec: Json, folder: Path, path: str) -> None:
    """The load. What it raises is kept."""
    if spec["load"]["threads"] == 1:
        with disturbed(spec["load"]["disturb"], spec["seed"]):
            options = _options(loaded.model, spec, folder)
            state = process_state()
            _fill(loaded, spec, folder, path, options)
            loaded.touched = changed_since(state)
        return
    threads = [
        threading.Thread(target=_fill, args=(one, spec, folder, path, _options(one.model, spec, folder) | {"group": False}))
        for one in (loaded, *loaded.others)
    ]
    state = process_state()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded.touched = changed_since(state)
    loaded.error = next((one.error for one in (loaded, *loaded.others) if one.error is not None), None)


def _fill(loaded: Loaded, spec: Json, folder: Path, path: str, options: dict[str, Any]) -> None:
    try:
        if cut_of(spec, "load_before") is not None:
            before = path.replace(str(folder), str(folder.parent / "before"))
            with contextlib.suppress(lading.LadingError):
                lading.materialize(loaded.model, before, **options)
        loaded.report = lading.materialize(loaded.model, path, **options)
    except BaseException as error:  # noqa: BLE001 - every exception is a verdict
        loaded.error = error


def process_state() -> tuple[bytes, torch.dtype]:
    """What a load must not touch."""
    return bytes(torch.get_rng_state().numpy().tobytes()), torch.get_default_dtype()


def changed_since(state: tuple[bytes, torch.dtype]) -> str:
    now = process_state()
    if now[1] != state[1]:
        torch.set_default_dtype(state[1])
        return f"the default dtype was {state[1]}, and is {now[1]}"
    return "the process's random numbers were touched" if now[0] != state[0] else ""


def _options(model: nn.Module, spec: Json, folder: Path) -> dict[str, Any]:
    load = spec["load"]
    options: dict[str, Any] = {"cast": load["cast"], "strict": load["strict"], "exchange": load["exchange"]}
    options["progress"] = False
    if load["dtype"] != "auto":
        options["dtype"] = getattr(torch, load["dtype"])
    for name in ("allow_missing", "verify", "device"):
        if load.get(name):
            options[name] = load[name]
    twin, _ = operate(build(spec), spec["surgery"]) if _wants_twin(spec) else (model, [])
    if load["external"]:
        every = dict(twin.named_parameters(remove_duplicate=False))
        options["external"] = {
            name: files.noise(every[name], spec["seed"] + 5, name) for name in resolve(twin, load["external"])
        }
    if load["keep"]:
        options["keep"] = resolve(twin, load["keep"])
    if load["recipes"]:
        options["recipes"] = _recipes(model, twin)
    if spec["layout"]["kind"] == "stages":
        whole = operate(build(spec, context_of(spec)), spec["surgery"])[0]
        options["whole"] = wrap(whole, spec, folder, is_subject=True)
    cut = cut_of(spec, "peft")
    if cut is not None and cut["how"] != "new":
        options["adapter"] = str(folder / ADAPTER)
    return options


def _wants_twin(spec: Json) -> bool:
    return bool(spec["load"]["external"] or spec["load"]["keep"] or spec["load"]["recipes"])


def _recipes(model: nn.Module, twin: nn.Module) -> dict[str, Any]:
    """What the constructor would have computed, for every tensor that no file holds."""
    known = {name: tensor for name, kind, tensor in snapshot.tensors(twin) if kind in ("constant", "attribute")}
    lost = [
        name for name, kind, tensor in snapshot.tensors(model)
        if kind in ("constant", "attribute") and "_flat_weights" not in name  # an RNN makes this list itself
    ]  # fmt: skip

    def recipe(value: torch.Tensor) -> Any:
        return lambda module, name: value.detach().clone()

    # A name with a star is a pattern, and matches others too: the first that matches decides.
    return {name: recipe(known[name]) for name in sorted(lost, key=lambda name: "*" in name) if name in known}
