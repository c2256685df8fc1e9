"""Which checkpoint a call means: a path, or a repository in the Hugging Face cache at a revision.

Nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import LadingError, Problem

_REPOSITORY = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_REVISION = re.compile(r"\w[\w./-]*")
_FOLDER = "models--"  # what folders of repositories begin with in the cache


class Location(str):
    """A checkpoint as the user named it, and the revision of it. The two travel together: no part of a load can then
    read another revision than the rest."""

    revision: str | None

    def __new__(cls, name: str, revision: str | None = None) -> Location:
        made = super().__new__(cls, name)
        made.revision = revision
        return made


def located(checkpoint: str | os.PathLike[str], revision: str | None = None) -> Location:
    """The checkpoint of a call. LadingError if a revision is given for a path that has none."""
    if isinstance(checkpoint, Location) and revision is None:
        return checkpoint
    name = os.fsdecode(checkpoint)
    if revision is None:
        return Location(name)
    if not isinstance(revision, str):
        raise TypeError(f"revision is {revision!r}; it should be the name of a branch or tag, or the hash of a commit")
    if os.path.exists(name) and not is_repository_folder(name):
        message = f"revision is {revision!r}, but this path is not a repository in the Hugging Face cache"
        remedy = 'Omit revision, or pass the repository as "org/name".'
        raise LadingError(Problem("usage", message, file=name, remedy=remedy), stage="request", exit_code=2)
    return Location(name, revision)


def located_if_any(checkpoint: str | os.PathLike[str] | None, revision: str | None) -> Location | None:
    """The same for calls that need no checkpoint."""
    if checkpoint is not None:
        return located(checkpoint, revision)
    if revision is not None:
        raise ValueError(f"revision is {revision!r}, but there is no checkpoint: pass checkpoint too, or no revision")
    return None


def revision_of(location: str) -> str | None:
    return location.revision if isinstance(location, Location) else None


def is_repository_folder(path: str) -> bool:
    """Whether it is a folder of the cache that holds all revisions of a repository: …/models--org--name."""
    return Path(path).name.startswith(_FOLDER) and os.path.isdir(os.path.join(path, "snapshots"))


def folder_in_cache(location: str, file: str) -> Path | None:
    """The folder of a repository's revision in the Hugging Face cache, if this file of it is there; else None."""
    from huggingface_hub import try_to_load_from_cache

    name, cache = str(location), None
    if is_repository_folder(name):
        folder = Path(name).absolute()
        name, cache = folder.name.removeprefix(_FOLDER).replace("--", "/", 1), folder.parent
    try:
        found = try_to_load_from_cache(name, file, cache_dir=cache, revision=revision_of(location))
    except ValueError:  # no name of a repository
        return None
    return Path(found).parent if isinstance(found, str) else None


def pinned(location: Location, folder: Path | None) -> Location:
    """At the commit whose folder this is: what is read later is of the same, even if a branch moves meanwhile."""
    is_path = os.path.exists(location) and not is_repository_folder(location)
    return location if folder is None or is_path else Location(location, folder.name)


def resolved(location: Location, file: str) -> Location:
    """What this location means now. `file`: of the checkpoint, its index or its only file, as the engine found it."""
    return Location(file if os.path.isfile(location) else str(Path(file).parent))


def download_command(location: str) -> str:
    """The command that downloads a repository; "" if this is not the name of one."""
    revision = revision_of(location)
    is_plain = _REPOSITORY.fullmatch(location) and (revision is None or _REVISION.fullmatch(revision))
    if not is_plain or os.path.exists(location):
        return ""
    return f"hf download {location}" + (f" --revision {revision}" if revision is not None else "")


def how_to_get(location: str) -> str:
    """A remedy for a checkpoint that is not on this machine."""
    if command := download_command(location):
        return f"Run `{command}` first, or pass a folder: lading does not download."
    return "Pass a folder, or a repository in the Hugging Face cache: lading does not download."
