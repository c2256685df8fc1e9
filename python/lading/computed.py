"""A value that is computed from other tensors of the same load: a draft model's head, cut out of its verifier's by a
vocabulary map that is in the checkpoint.

    head = lading.Computed(lambda kept: verifier_head[kept], "t2d")
    lading.materialize(draft, "checkpoint", recipes={"lm_head.weight": head})

The engine orders such values after their inputs (R66), and asks for them when those are complete. It is a recipe like
any other: a key of the checkpoint comes first. A sharded input is gathered for the function (shared_inputs.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .own_numbers import own_random_numbers


class Computed:
    """A value computed from loaded tensors. `function` gets whole copies of the tensors `inputs`, in this order, and
    returns the whole value.

    head = lading.Computed(lambda kept: verifier_head[kept], "t2d")
    lading.materialize(draft, "path/to/checkpoint", recipes={"lm_head.weight": head})
    """

    def __init__(self, function: Callable[..., torch.Tensor], *inputs: str) -> None:
        if not callable(function) or not inputs or not all(isinstance(name, str) for name in inputs):
            raise TypeError("Computed takes a function and the names of the tensors to pass to it")
        self.function, self.inputs = function, inputs

    def value(self, whole: Callable[[str], torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            inputs = [whole(name) for name in self.inputs]
            with own_random_numbers():
                return self.function(*inputs)
