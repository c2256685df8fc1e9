"""The Hugging Face cache: revisions, links to blobs, hashes, and how org/name is found."""

import os
from functools import partial
from pathlib import Path

from .build_directories import (
    COMMIT,
    INDEX,
    OTHER_COMMIT,
    SHARDS,
    Call,
    HubRepo,
    hub_repo,
    link,
    replace_with_link,
    shard_of,
    write,
)
from .cases import Problem, Registry

CASES = Registry()

REPO = "models--org--model"
SNAPSHOT = f"{REPO}/snapshots/{COMMIT}"
ONE_FILE = f"{SNAPSHOT}/one.safetensors"


def by_id(folder, *options, name="org/model", tensors="abc", hashes=("not_checked",)):
    return Call(name, options, {"HF_HUB_CACHE": str(folder / "cache")}, tensors=tensors, hashes=hashes)


def with_refs(*options, tensors="abc", **refs):
    """A repository of which only the refs are given."""

    def make(folder):
        repo = HubRepo(folder / "cache").fill().fill({"x.safetensors": "xy"}, OTHER_COMMIT)
        for name, content in refs.items():
            repo.ref(name.replace("__", "/"), content)
        return by_id(folder, *options, tensors=tensors)

    return make


def add_revisions():
    branch = ("--revision", "dev")
    CASES.accept("cache_main", None, with_refs(main=COMMIT))
    CASES.accept("cache_ref_with_newline", None, with_refs(main=COMMIT + "\n"))
    CASES.accept("cache_revision_branch", None, with_refs(*branch, main=COMMIT, dev=OTHER_COMMIT, tensors="xy"))
    CASES.accept("cache_revision_commit", None, with_refs("--revision", OTHER_COMMIT, main=COMMIT, tensors="xy"))
    CASES.accept("cache_revision_commit_without_refs", None, with_refs("--revision", COMMIT))
    CASES.accept("cache_revision_of_a_pull_request", None, with_refs("--revision", "refs/pr/1", refs__pr__1=COMMIT))

    in_repo = {"file": REPO, "placed": False}
    CASES.refuse("cache_without_refs", None, with_refs(), "not_found", says=("main", "--revision"), **in_repo)
    CASES.refuse(
        "cache_revision_unknown", None, with_refs(*branch, main=COMMIT), "not_found", says=("dev", "main"), **in_repo
    )
    unknown_commit = with_refs("--revision", "a" * 40, main=COMMIT)
    CASES.refuse("cache_revision_commit_unknown", None, unknown_commit, "not_found", says=("a" * 40,), **in_repo)
    upwards = with_refs("--revision", "../../../outside", main=COMMIT)
    CASES.refuse("cache_revision_that_leaves", 18, upwards, "not_found", **in_repo)
    for name, content in {
        "empty": b"",
        "words": b"not a commit",
        "binary": bytes(range(256)),
        "ansi": b"\x1b[31mred",
        "parent": b"..",
        "path": b"../../../outside",
        "absolute_path": b"/etc",
        "of_nothing": b"a" * 40,
        "of_a_megabyte": b"a" * 1_000_000,
        "two_lines": f"{COMMIT}\n{OTHER_COMMIT}\n".encode(),
        "nul_behind": f"{COMMIT}\0".encode(),
    }.items():
        expected = {"file": f"{REPO}/refs/main", "placed": False, "says": ("commit",)}
        CASES.refuse(f"cache_ref_{name}", None, with_refs(main=content), "cache_invalid", **expected)
    expected = {"file": f"{REPO}/refs/main", "placed": False, "says": ("a FIFO",)}
    CASES.refuse("cache_ref_is_fifo", 18, ref_is_fifo, "not_regular_file", **expected)


def ref_is_fifo(folder):
    call = with_refs(other=COMMIT)(folder)
    os.mkfifo(folder / "cache" / REPO / "refs" / "main")
    return call


WAYS_TO_A_CACHE = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
    "HOME": ".cache/huggingface/hub",
}


def cache_by(folder, variables):
    """The first variable leads to the repository, all others to one with a single tensor."""
    for i, variable in enumerate(variables):
        repo = HubRepo(folder / variable / WAYS_TO_A_CACHE[variable])
        repo.fill(SHARDS if i == 0 else {"x.safetensors": "x"})
        repo.ref("main", COMMIT)
    return Call("org/model", env={variable: str(folder / variable) for variable in variables})


def local_directory_of_that_name(folder):
    hub_repo(folder)
    write(folder / "here" / "org" / "model" / "model.safetensors", shard_of("xyz"))
    return Call("org/model", env={"HF_HUB_CACHE": str(folder / "cache")}, cwd=folder / "here", tensors="xyz")


def without_organisation(folder):
    hub_repo(folder, "gpt2")
    return by_id(folder, name="gpt2")


def empty_variable(folder):
    return Call("org/model", env={**cache_by(folder, ["HF_HOME"]).env, "HF_HUB_CACHE": ""})


def add_identifiers():
    variables = list(WAYS_TO_A_CACHE)
    for i, variable in enumerate(variables):
        CASES.accept(f"cache_by_{variable}", None, partial(cache_by, variables=[variable]))
        if i + 1 < len(variables):
            CASES.accept(f"cache_by_{variable}_before_others", None, partial(cache_by, variables=variables[i:]))
    CASES.accept("cache_by_HF_HOME_if_HF_HUB_CACHE_is_empty", None, empty_variable)
    CASES.accept("cache_of_a_name_without_organisation", None, without_organisation)
    CASES.accept("path_before_cache", None, local_directory_of_that_name)
    remedy = {"placed": False, "says": ("lading does not download", "HF_HOME")}
    CASES.refuse(
        "cache_without_the_repository", None, partial(by_id, name="org/other"), "not_found", file="org/other", **remedy
    )
    CASES.refuse(
        "cache_that_is_missing", None, lambda folder: by_id(folder / "nothing"), "not_found", file="org/model", **remedy
    )


def by_path(folder, relative, *options, tensors="abc", hashes=("not_checked",)):
    repo = hub_repo(folder)
    return Call(repo.folder / relative, options, tensors=tensors, hashes=hashes)


def absolute_blob_links(folder):
    repo = hub_repo(folder)
    for path in repo.snapshot().iterdir():
        replace_with_link(path, path.resolve())
    return Call(repo.snapshot())


def link_to_snapshot(folder):
    return Call(link(folder / "mine", hub_repo(folder).snapshot()))


def sub_folder(folder):
    repo = hub_repo(folder)
    for name, tensors in SHARDS.items():
        repo.add(f"text/{name}", shard_of(tensors, fill=7))
    link(
        repo.snapshot() / "text" / INDEX, os.path.relpath((repo.snapshot() / INDEX).resolve(), repo.snapshot() / "text")
    )
    return Call(repo.snapshot() / "text")


def add_paths():
    CASES.accept("cache_repository_by_path", None, partial(by_path, relative="."))
    CASES.accept("cache_snapshot_by_path", None, partial(by_path, relative=f"snapshots/{COMMIT}"))
    CASES.accept("cache_index_by_path", None, partial(by_path, relative=f"snapshots/{COMMIT}/{INDEX}"))
    CASES.accept(
        "cache_file_by_path", None, partial(by_path, relative=f"snapshots/{COMMIT}/one.safetensors", tensors="ab")
    )
    CASES.accept("cache_with_absolute_links", None, absolute_blob_links)
    CASES.accept("cache_snapshot_by_a_link", None, link_to_snapshot)
    CASES.accept("cache_sub_folder_by_path", None, sub_folder)


def blob_outside(folder, *options, call):
    """A shard of the snapshot leads out of models--org--model, but not out of `folder`."""
    repo = hub_repo(folder)
    elsewhere = write(folder / "disk2" / "one.safetensors", shard_of("ab"))
    replace_with_link(repo.snapshot() / "one.safetensors", elsewhere)
    path, env = {
        "id": ("org/model", {"HF_HUB_CACHE": str(folder / "cache")}),
        "repository": (repo.folder, {}),
        "snapshot": (repo.snapshot(), {}),
        "file": (repo.snapshot() / "one.safetensors", {}),
    }[call]
    widened = ("--root", str(folder)) if "widened" in options else ()
    return Call(path, widened, env, tensors="ab" if call == "file" else "abc")


def blob_of_another_model(folder):
    repo = hub_repo(folder)
    other = hub_repo(folder, "org/other")
    path = repo.snapshot() / "one.safetensors"
    replace_with_link(path, os.path.relpath((other.snapshot() / "one.safetensors").resolve(), path.parent))
    return Call(repo.snapshot())


def snapshot_outside(folder):
    repo = hub_repo(folder)
    repo.snapshot().rename(folder / "elsewhere")
    link(repo.snapshot(), folder / "elsewhere")
    return by_id(folder)


def without_blob(folder):
    call = Call(hub_repo(folder).snapshot())
    Path(call.path, "one.safetensors").resolve().unlink()
    return call


def without_file(folder):
    call = Call(hub_repo(folder).snapshot())
    Path(call.path, "one.safetensors").unlink()
    return call


def add_links():
    outside = {"placed": False, "says": ("S4", REPO, "--root")}
    for call in ("id", "repository", "snapshot", "file"):
        CASES.refuse(
            f"cache_blob_outside_by_{call}",
            18,
            partial(blob_outside, call=call),
            "outside_root",
            file=ONE_FILE,
            **outside,
        )

        def widened(folder, call=call):
            return blob_outside(folder, "widened", call=call)

        CASES.accept(f"cache_blob_outside_by_{call}_with_root", 18, widened)
    CASES.refuse("cache_blob_of_another_model", 18, blob_of_another_model, "outside_root", file=ONE_FILE, **outside)
    CASES.refuse(
        "cache_snapshot_outside", 18, snapshot_outside, "outside_root", file=f"snapshots/{COMMIT}", placed=False
    )
    lost = {"tensor": "a", "file": f"{SNAPSHOT}/{INDEX}", "says": ("S5", "one.safetensors")}
    CASES.refuse("cache_blob_missing", 19, without_blob, "index_missing_shard", **lost)
    CASES.refuse("cache_download_not_finished", 19, without_file, "index_missing_shard", **lost)


def flip(path, offset, bit):
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def flipped(folder, *names, path="snapshot"):
    repo = hub_repo(folder)
    for name in names:
        # The last bit of the data; in the index, a tab behind the JSON that becomes a carriage return.
        flip((repo.snapshot() / name).resolve(), -1, 4)
    call = {"snapshot": repo.snapshot(), "file": repo.snapshot() / "one.safetensors", "repository": repo.folder}[path]
    return Call(call, ("--verify-hash",))


def add_hashes():
    verify = "--verify-hash"
    good = ("verified",)
    CASES.accept("hash_verified_by_id", None, lambda folder: hub_repo(folder) and by_id(folder, verify, hashes=good))
    for name, relative, tensors in [
        ("repository", ".", "abc"),
        ("snapshot", f"snapshots/{COMMIT}", "abc"),
        ("index", f"snapshots/{COMMIT}/{INDEX}", "abc"),
        ("file", f"snapshots/{COMMIT}/one.safetensors", "ab"),
    ]:
        make = partial(hashed_by_path, relative=relative, tensors=tensors)
        CASES.accept(f"hash_verified_by_{name}", None, make)
    CASES.accept("hash_flipped_and_not_asked_for", None, lambda folder: Call(flipped(folder, "one.safetensors").path))
    CASES.accept("hash_unknown_outside_a_cache", None, hash_unknown)
    unverified = Problem("unverified", file=f"{SNAPSHOT}/{INDEX}", placed=False)
    CASES.accept("hash_unknown_of_a_copied_index", None, index_copied, unverified)
    expected = {"says": ("damaged", "Delete the damaged blob"), "at": 0}
    for name in ("one.safetensors", "two.safetensors", INDEX):
        file = f"{SNAPSHOT}/{name}"
        CASES.refuse(
            f"hash_flipped_in_{name}", 39, partial(call_flipped, names=(name,)), "hash_mismatch", file=file, **expected
        )
    by_file = partial(call_flipped, names=("one.safetensors",), path="file")
    CASES.refuse("hash_flipped_by_file", 39, by_file, "hash_mismatch", file=ONE_FILE, **expected)
    by_repository = partial(call_flipped, names=("one.safetensors",), path="repository")
    CASES.refuse("hash_flipped_by_repository", 39, by_repository, "hash_mismatch", file=ONE_FILE, **expected)


def hashed_by_path(folder, relative, tensors):
    return by_path(folder, relative, "--verify-hash", tensors=tensors, hashes=("verified",))


def call_flipped(folder, names, path="snapshot"):
    return flipped(folder, *names, path=path)


def index_copied(folder):
    """Shards are links to blobs, but the index is a file of its own: nothing says what it should hold."""
    index = hub_repo(folder).snapshot() / INDEX
    content = index.read_bytes()
    index.unlink()
    index.write_bytes(content)
    return Call(index.parent, ("--verify-hash",), hashes=("verified",))


def hash_unknown(folder):
    place = write(folder / "plain" / "model.safetensors", shard_of("abc"))
    return Call(place, ("--verify-hash",), hashes=("unknown",))


add_revisions()
add_identifiers()
add_paths()
add_links()
add_hashes()
