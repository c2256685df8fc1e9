"""`PlainDispatchMode`: a TorchDispatchMode whose first tensor does not cost a second."""

from __future__ import annotations

from .torch_names import TorchDispatchMode


class PlainDispatchMode(TorchDispatchMode):
    """torch 2.13 wraps `__torch_dispatch__` so that Dynamo leaves it alone, and the wrapper imports Dynamo at its first
    call. Nothing is compiled in our modes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
