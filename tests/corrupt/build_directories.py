"""Builds sharded checkpoints and Hugging Face caches, right or wrong."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from .build import as_bytes, entry, file_of

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARDS = {"one.safetensors": ("a", "b"), "two.safetensors": ("c",)}
TENSOR_BYTES = 2


@dataclass(frozen=True)
class Call:
    """How to call the command, and what it finds if all is well."""

    path: Path | str
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    tensors: str = "abc"
    hashes: tuple[str, ...] = ("not_checked",)


def shard_of(tensors, fill=1):
    header = {name: entry(i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES) for i, name in enumerate(tensors)}
    return file_of(header, bytes([fill]) * (TENSOR_BYTES * len(tensors)))


def weight_map_of(shards):
    return {tensor: shard for shard, tensors in shards.items() for tensor in tensors}


def index_of(weight_map, **metadata):
    return json.dumps({"metadata": metadata, "weight_map": weight_map})


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_bytes(content))
    return path


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def checkpoint(folder, shards=None, weight_map=None, index=None):
    """Writes shards and their index to folder/ckpt; what is given replaces what would be right."""
    shards = SHARDS if shards is None else shards
    place = folder / "ckpt"
    for name, content in shards.items():
        write(place / name, content if isinstance(content, bytes) else shard_of(content))
    if index is None:
        index = index_of(weight_map if weight_map is not None else weight_map_of(shards))
    write(place / INDEX, index)
    return place


def one_shard_replaced(folder, make_shard):
    """A good checkpoint of which make_shard(path) makes "one.safetensors"."""
    place = checkpoint(folder)
    (place / "one.safetensors").unlink()
    make_shard(place / "one.safetensors")
    return Call(place)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40


class HubRepo:
    """A repository in a Hugging Face cache: blobs named by their hash, snapshots of links to them, refs."""

    def __init__(self, cache, name="org/model"):
        self.folder = Path(cache) / ("models--" + name.replace("/", "--"))
        self.blobs = self.folder / "blobs"

    def snapshot(self, commit=COMMIT):
        return self.folder / "snapshots" / commit

    def ref(self, name, content):
        return write(self.folder / "refs" / name, content)

    def add(self, name, content, hashed=sha256, commit=COMMIT):
        """A file of a snapshot; gives its blob."""
        blob = write(self.blobs / hashed(content), content)
        path = self.snapshot(commit) / name
        link(path, os.path.relpath(blob, path.parent))
        return blob

    def fill(self, shards=None, commit=COMMIT):
        """A sharded checkpoint, as a download leaves it."""
        shards = shards or SHARDS
        for shard, tensors in shards.items():
            self.add(shard, shard_of(tensors), commit=commit)
        index = as_bytes(index_of(weight_map_of(shards)) + "\t")
        self.add(INDEX, index, hashed=git_sha1, commit=commit)
        return self


def hub_repo(folder, name="org/model"):
    repo = HubRepo(folder / "cache", name).fill()
    repo.ref("main", COMMIT)
    return repo


def replace_with_link(path, target):
    path.unlink()
    link(path, target)
