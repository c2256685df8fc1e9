"""lading loads checkpoints into sharded models, and proves that every tensor on every rank has the right bytes.

    with lading.skeleton():                                  # builds on meta, and records the constructors
        model = Model()
    lading.materialize(model, checkpoint, device="cpu")      # every parameter and buffer, in place

Importing this does not import torch; the first use of a name that needs it does. If torch is already imported,
everything that a load needs is imported too, so that the first load does not wait for imports.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

_HOMES = {
    "AuditReport": "audit_report",
    "Computed": "computed",
    "Fingerprint": "fingerprints",
    "LadingError": "errors",
    "PendingSave": "save_background",
    "Plan": "planning",
    "Report": "report",
    "SaveReport": "save_report",
    "audit": "audit_model",
    "fingerprint": "fingerprints",
    "from_pretrained": "pretrained",
    "help": "helping",
    "initialize": "initializing",
    "is_incomplete": "loading",
    "materialize": "loading",
    "plan": "planning",
    "Initializer": "recipes",
    "Recording": "recording",
    "SkeletonError": "recording",
    "empty_parameters": "fsdp1",
    "zero3_init": "zero3_partition",
    "derive": "skeleton_recorder",
    "skeleton": "skeleton_recorder",
    "take_inventory": "inventory",
    "recipe_of": "skeleton_recorder",
    "recording_of": "recording",
    "DTypes": "resolving",
    "Sharding": "sharding",
    "cast_frozen": "frozen",
    "report_of": "telling",
    "save": "saving",
    "resolve_dtypes": "resolving",
    "shard_by_dtype": "sharding",
    "skeleton_json": "inventory_json",
    "skeleton_of": "skeleton_files",
    "write_skeleton": "skeleton_files",
}

_MODULES = ("dcp",)  # which import a framework's own package, and only when they are used

__all__ = sorted(_HOMES)

__version__: str

# The same for type checkers and editors, which do not run __getattr__. A test compares the two.
if TYPE_CHECKING:
    from . import dcp as dcp
    from .audit_model import audit as audit
    from .audit_report import AuditReport as AuditReport
    from .computed import Computed as Computed
    from .errors import LadingError as LadingError
    from .fingerprints import Fingerprint as Fingerprint
    from .fingerprints import fingerprint as fingerprint
    from .frozen import cast_frozen as cast_frozen
    from .fsdp1 import empty_parameters as empty_parameters
    from .helping import help as help
    from .initializing import initialize as initialize
    from .inventory import take_inventory as take_inventory
    from .inventory_json import skeleton_json as skeleton_json
    from .loading import is_incomplete as is_incomplete
    from .loading import materialize as materialize
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .pretrained import from_pretrained as from_pretrained
    from .skeleton_files import skeleton_of as skeleton_of
    from .skeleton_files import write_skeleton as write_skeleton
    from .recipes import Initializer as Initializer
    from .recording import Recording as Recording
    from .recording import SkeletonError as SkeletonError
    from .recording import recording_of as recording_of
    from .report import Report as Report
    from .resolving import DTypes as DTypes
    from .resolving import resolve_dtypes as resolve_dtypes
    from .save_background import PendingSave as PendingSave
    from .save_report import SaveReport as SaveReport
    from .saving import save as save
    from .sharding import Sharding as Sharding
    from .sharding import shard_by_dtype as shard_by_dtype
    from .skeleton_recorder import derive as derive
    from .skeleton_recorder import recipe_of as recipe_of
    from .skeleton_recorder import skeleton as skeleton
    from .telling import report_of as report_of
    from .zero3_partition import zero3_init as zero3_init
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return importlib.import_module("._engine", __name__).version()
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name in _HOMES:
            return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


if "torch" in sys.modules:
    with contextlib.suppress(ImportError):  # a missing package is reported on first use
        importlib.import_module(".loading", __name__)
        importlib.import_module(".huggingface", __name__)
