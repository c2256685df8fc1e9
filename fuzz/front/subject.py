"""The same model, loaded by lading. The only file of the fuzzer's worlds that imports it."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import lading
import torch
from torch import nn

from . import files, snapshot
from .build import build
from .layouts import shard
from .oracle import resolve
from .pieces import Json
from .surgery import operate
from .wrap import learner, run, wrap, wrap_sharded


@dataclasses.dataclass
class Loaded:
    model: nn.Module
    optimizer: Any = None
    report: Any = None
    error: BaseException | None = None

    @property
    def cause(self) -> str:
        """Of a refusal: code and first words, without names."""
        error = self.error
        if error is None:
            return ""
        if not isinstance(error, lading.LadingError):
            return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        problem = error.problems[0]
        words = " ".join(problem.message.split()[:9])
        return f"{problem.code}: {words}"

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
    model, _ = operate(build(spec, context_of(spec)), spec["surgery"])
    model = wrap(model, spec, folder, is_subject=True)
    model = wrap_sharded(shard(model, spec["layout"], rank), spec)
    kinds = {cut["kind"] for cut in spec["surgery"]}
    loaded = Loaded(model)
    if "optimizer" in kinds:
        loaded.optimizer = learner(model)
    if "forward" in kinds and spec["build"] == "real":
        with contextlib.suppress(RuntimeError):
            run(model, spec)
    return loaded


def fill(loaded: Loaded, spec: Json, path: str, group: Any = None) -> None:
    """The load. What it raises is kept."""
    options = _options(loaded.model, spec)
    if "load_before" in {cut["kind"] for cut in spec["surgery"]}:
        with contextlib.suppress(lading.LadingError):
            lading.materialize(loaded.model, path, progress=False, group=group, **options)
    try:
        loaded.report = lading.materialize(loaded.model, path, progress=False, group=group, **options)
    except BaseException as error:  # noqa: BLE001 - every exception is a verdict
        loaded.error = error


def _options(model: nn.Module, spec: Json) -> dict[str, Any]:
    load = spec["load"]
    options: dict[str, Any] = {"cast": load["cast"], "strict": load["strict"], "exchange": load["exchange"]}
    if spec["layout"]["kind"] in ("single", "replicas", "different", "stages"):
        options["device"] = "cpu"
    if load["dtype"] != "auto":
        options["dtype"] = getattr(torch, load["dtype"])
    for name in ("allow_missing", "verify"):
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
        options["whole"] = operate(build(spec, context_of(spec)), spec["surgery"])[0]
    return options


def _wants_twin(spec: Json) -> bool:
    return bool(spec["load"]["external"] or spec["load"]["keep"] or spec["load"]["recipes"])


def _recipes(model: nn.Module, twin: nn.Module) -> dict[str, Any]:
    """What the constructor would have computed, for every tensor on meta that no file holds."""
    known = {name: tensor for name, kind, tensor in snapshot.tensors(twin) if kind in ("constant", "attribute")}
    lost = [name for name, kind, tensor in snapshot.tensors(model) if kind in ("constant", "attribute") and tensor.is_meta]

    def recipe(value: torch.Tensor) -> Any:
        return lambda module, name: value.detach().clone()

    return {name: recipe(known[name]) for name in lost if name in known}
