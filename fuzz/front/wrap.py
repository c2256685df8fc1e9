"""What is put around a model before and after it is sharded, and how a wrapped model is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .build import input_for
from .files import fill_with_noise
from .frameworks import engine
from .layouts import inner
from .pieces import Json

ADAPTER = "adapter"


def cut_of(spec: Json, kind: str) -> Json | None:
    return next((cut for cut in spec["surgery"] if cut["kind"] == kind), None)


# ---- PEFT


def _with_lora(model: nn.Module, cut: Json) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    from .modules import Mlp

    targets = sorted(
        name for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is nn.Linear and not nn.utils.parametrize.is_parametrized(module)
        and not hasattr(module, "weight_g") and not hasattr(module, "weight_orig")
    )  # fmt: skip
    kept = sorted(name for name, module in model.named_modules() if isinstance(module, Mlp | nn.LayerNorm))
    start = cut["pick"] % len(targets) if targets else 0
    chosen = [name for name in targets[start : start + 2] if not any(name.startswith(f"{one}.") for one in kept[:1])]
    if not chosen:
        raise LookupError("there is no linear layer for an adapter")
    saved = kept[:1] if cut["swap"] else None
    return get_peft_model(model, LoraConfig(target_modules=chosen, r=2, modules_to_save=saved))  # type: ignore[arg-type]


def write_adapter(model: nn.Module, spec: Json, folder: Path) -> None:
    """A trained adapter of this model, as PEFT saves it."""
    cut = cut_of(spec, "peft")
    if cut is None or cut["how"] == "new":
        return
    wrapped = _with_lora(model, cut)
    fill_with_noise(wrapped, spec["seed"] + 29)
    wrapped.save_pretrained(folder / ADAPTER)  # type: ignore[operator]


def _adapted(model: nn.Module, spec: Json, folder: Path, *, is_subject: bool) -> nn.Module:
    cut = cut_of(spec, "peft")
    if cut is None:
        return model
    model = _with_lora(model, cut)
    is_real = not any(parameter.is_meta for parameter in model.parameters())
    if cut["how"] != "new" and is_real and (not is_subject or cut["how"] == "merged"):
        from peft import set_peft_model_state_dict
        from peft.utils import load_peft_weights

        set_peft_model_state_dict(model, load_peft_weights(str(folder / ADAPTER), device="cpu"))
    if cut["how"] == "merged" and is_real:
        model.merge_adapter()  # type: ignore[operator]
    return model


# ---- before and after sharding


def wrap(model: nn.Module, spec: Json, folder: Path, *, is_subject: bool) -> nn.Module:
    """Before sharding."""
    model = _adapted(model, spec, folder, is_subject=is_subject)
    if cut_of(spec, "offload") is not None:
        from accelerate import cpu_offload

        cpu_offload(model, execution_device=torch.device("cpu"))
    return model


def wrap_sharded(model: nn.Module, spec: Json) -> nn.Module:
    """After sharding."""
    if cut_of(spec, "compile") is not None:
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    return model


# ---- use


def ready(model: nn.Module, spec: Json) -> nn.Module:
    """A model that can be run: partitions of ZeRO-3 are gathered by an engine."""
    is_partitioned = spec["layout"]["kind"] == "zero3" and not hasattr(model, "backward")
    return engine(model, spec["layout"]) if is_partitioned else model


def learner(model: nn.Module) -> Any:
    """An optimizer over what can learn, or None. An engine has its own."""
    every = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(every, lr=0.125) if every and not hasattr(model, "optimizer") else None


def run(model: nn.Module, spec: Json) -> torch.Tensor:
    output: torch.Tensor = model(input_for(spec, inner(model)))
    return output


def step(model: nn.Module, optimizer: Any, loss: torch.Tensor) -> None:
    """One step of training, by the engine if there is one."""
    if hasattr(model, "backward"):
        model.backward(loss)  # type: ignore[operator]
        model.step()  # type: ignore[operator]
        return
    loss.backward()
    if optimizer is not None:
        optimizer.step()
