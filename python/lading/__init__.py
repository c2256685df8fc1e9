"""lading: checkpoints into models, every tensor right or an error.

Importing this does not import torch; the first use of a name that needs it does.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AuditReport": "audit_model",
    "LadingError": "errors",
    "Report": "report",
    "audit": "audit_model",
    "from_pretrained": "pretrained",
    "is_incomplete": "loading",
    "materialize": "loading",
    "Recipe": "recipes",
    "Recording": "recording",
    "SkeletonError": "recording",
    "derive": "skeleton_recorder",
    "skeleton": "skeleton_recorder",
    "take_inventory": "inventory",
    "recipe_of": "skeleton_recorder",
    "recording_of": "recording",
    "skeleton_json": "inventory_json",
    "skeleton_of": "huggingface",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
