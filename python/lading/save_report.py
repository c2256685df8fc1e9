"""What a save did: `SaveReport`, the answer of `lading.save`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

from .errors import Problem


class SavedKey(NamedTuple):
    """One key of the saved checkpoint."""

    key: str
    dtype: str  # named as in safetensors
    shape: tuple[int, ...]
    file: str
    tensors: tuple[str, ...]  # of the model, that it is made of


@dataclasses.dataclass(frozen=True)
class SaveReport:
    """A save that is done: the checkpoint is complete, and on the disk. The same on every rank, but for `rank`,
    `written_bytes` and `snapshot_bytes`.

        report = lading.save(model, "out", base="org/base")
        print(report)                                   # 291 keys in 4 files, 16.1 GB, 7.2 s …
        report.keys["lm_head.weight"].file              # "model-00004-of-00004.safetensors"

    Attributes:
        path: the directory of the checkpoint.
        files: the bytes of every file that holds weights, by its name.
        keys: everything that the files hold, by key.
        bytes: of all files that hold weights, headers included.
        written_bytes: what this rank wrote of them.
        beside: names of the other files: config.json, the tokenizer's, the index, the ledger.
        replaced: whether another checkpoint was in the directory before.
        left_out: tensors of the model that are not saved, such as buffers that no checkpoint has.
        dropped_keys: keys of `base` that the model has no tensor for, and that are left out.
        kept_keys: keys of `base` that the model has no tensor for, whose bytes are those of its files.
        plan_digest: equal on all ranks.
        seconds: from the call to the end.
        snapshot_bytes: what this rank's copy of the values took, of a save in the background.
        notes: what lading decided, in sentences.
        warnings: what may be unintended.
        optimizer: what was saved of `optimizer=`, in a directory of its own within `path`; None without one.
    """

    path: Path
    rank: int
    ranks: int
    files: dict[str, int]
    keys: dict[str, SavedKey]
    bytes: int
    written_bytes: int
    beside: tuple[str, ...]
    replaced: bool
    left_out: tuple[str, ...]
    dropped_keys: tuple[str, ...]
    kept_keys: tuple[str, ...]
    plan_digest: str
    planning_seconds: float
    writing_seconds: float
    seconds: float
    snapshot_bytes: int
    notes: tuple[str, ...]
    warnings: tuple[Problem, ...]
    optimizer: SaveReport | None = None

    def to_json(self) -> str:
        """Everything as JSON text."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["path"] = str(self.path)
        fields["keys"] = {key: one._asdict() for key, one in self.keys.items()}
        fields["warnings"] = [dataclasses.asdict(warning) for warning in self.warnings]
        fields["optimizer"] = None if self.optimizer is None else json.loads(self.optimizer.to_json())
        return json.dumps(fields, indent=2)

    def __str__(self) -> str:
        speed = self.bytes / self.seconds / 1e9 if self.seconds else 0.0
        head = f"rank {self.rank} of {self.ranks}: " if self.ranks > 1 else ""
        files = f"{len(self.files)} file{'s' if len(self.files) != 1 else ''}"
        size = f"{self.bytes / 1e6:.1f} MB in {self.seconds:.2f} s ({speed:.2f} GB/s)"
        lines = [f"{head}{len(self.keys)} keys in {files}, {size}: {self.path}"]
        if self.ranks > 1:
            lines.append(f"this rank wrote {self.written_bytes / 1e6:.1f} MB")
        if self.optimizer is not None:
            lines.append(f"optimizer: {self.optimizer.bytes / 1e6:.1f} MB in {len(self.optimizer.keys)} keys")
        lines += [*self.notes, *(f"warning: {warning}" for warning in self.warnings)]
        return "\n  ".join(lines)
