"""Modules whose checkpoints are not what they hold: hooks of `state_dict` and of `load_state_dict`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def _transpose_on_save(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    state[prefix + "weight"] = state[prefix + "weight"].t()


def _transpose_on_load(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    if prefix + "weight" in state:
        state[prefix + "weight"] = state[prefix + "weight"].t()


def _rename_on_save(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    state[prefix + "old_weight"] = state.pop(prefix + "weight")


def _rename_on_load(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    if prefix + "old_weight" in state:
        state[prefix + "weight"] = state.pop(prefix + "old_weight")


def _leave(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Looks and changes nothing."""
    assert all(isinstance(key, str) for key in state)


def _zero_after_load(module: nn.Module, incompatible: Any) -> None:
    with torch.no_grad():
        module.bias.zero_()  # type: ignore[union-attr,operator]


def _halve_input(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (arguments[0] * 0.5, *arguments[1:])


def _double_output(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


class Scaling(nn.Linear):
    """Files hold the weight times two."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[no-untyped-call]
        destination[prefix + "weight"] = destination[prefix + "weight"] * 2

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if prefix + "weight" in state_dict:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"] / 2
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[no-untyped-call]


class Passing(nn.Linear):
    """An override that only looks."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.__dict__["loads"] = self.__dict__.get("loads", 0) + 1
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[no-untyped-call]


KINDS = (
    "forward", "transpose", "rename", "identity", "save identity", "post", "post identity", "scaling", "passing",
)  # fmt: skip


def hooked(kind: str, width: int) -> nn.Module:
    module = Scaling(width, width) if kind == "scaling" else Passing(width, width) if kind == "passing" else None
    if module is not None:
        return module
    linear = nn.Linear(width, width)
    if kind == "forward":
        linear.register_forward_pre_hook(_halve_input)
        linear.register_forward_hook(_double_output)
    elif kind == "transpose":
        linear._register_state_dict_hook(_transpose_on_save)
        linear.register_load_state_dict_pre_hook(_transpose_on_load)
    elif kind == "rename":
        linear._register_state_dict_hook(_rename_on_save)
        linear.register_load_state_dict_pre_hook(_rename_on_load)
    elif kind == "identity":
        linear.register_load_state_dict_pre_hook(_leave)
    elif kind == "save identity":
        linear._register_state_dict_hook(_leave)
    elif kind == "post":
        linear.register_load_state_dict_post_hook(_zero_after_load)
    else:
        linear.register_load_state_dict_post_hook(_look)
    return linear


def _look(module: nn.Module, incompatible: Any) -> None:
    assert isinstance(incompatible.missing_keys, list)
