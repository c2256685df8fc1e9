"""What a path may name, and where links may lead: fault 18 of docs/how-it-works/faults.md, and files of a directory."""

import os
import socket
import stat
from functools import partial

from .build import entry, file_of
from .build_directories import INDEX, SINGLE, Call, checkpoint, index_of, link, one_shard_replaced, shard_of, write
from .cases import Problem, Registry

CASES = Registry()

ONE_FILE = "ckpt/one.safetensors"
GOOD_SHARD = shard_of("ab")
MAX_LINKS = 40


def make_socket(path):
    # The path of a socket is short by law: bind it in its folder.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def make_device(path):
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero


SPECIAL_FILES = {"fifo": (os.mkfifo, "FIFO"), "socket": (make_socket, "socket"), "directory": (os.mkdir, "directory")}
if os.geteuid() == 0:
    SPECIAL_FILES["device"] = (make_device, "device")


def as_single(folder, name, make_file):
    place = folder / "ckpt"
    place.mkdir()
    make_file(place / name)
    return Call(place)


def by_path(folder, name, make_file):
    return Call(as_single(folder, name, make_file).path / name)


def add_special_files():
    for name, (make_file, word) in SPECIAL_FILES.items():
        expected = {"placed": False, "says": ("S4", "regular file", word)}
        CASES.refuse(
            f"shard_is_{name}",
            18,
            partial(one_shard_replaced, make_shard=make_file),
            "not_regular_file",
            file=ONE_FILE,
            **expected,
        )
        for role, file_name in {"single": SINGLE, "index": INDEX}.items():
            bad = partial(as_single, name=file_name, make_file=make_file)
            CASES.refuse(f"{role}_is_{name}", 18, bad, "not_regular_file", file=f"ckpt/{file_name}", **expected)
        if name != "directory":
            bad = partial(by_path, name="x.safetensors", make_file=make_file)
            CASES.refuse(f"path_is_{name}", 18, bad, "not_regular_file", file="ckpt/x.safetensors", **expected)
    device = Problem("not_regular_file", file="/dev/zero", placed=False, says=("device",))
    CASES.refuse_all("path_is_dev_zero", 18, lambda folder: Call("/dev/zero"), device)


def outside_shard(folder, name="outside"):
    return write(folder / name / "one.safetensors", GOOD_SHARD)


def shard_links_to(folder, target):
    outside_shard(folder)
    return one_shard_replaced(folder, lambda path: link(path, target))


def absolute_link(folder):
    return shard_links_to(folder, folder / "outside" / "one.safetensors")


def chain_out(folder):
    call = shard_links_to(folder, "first")
    link(call.path / "first", "sub/second")
    link(call.path / "sub" / "second", "../../outside/one.safetensors")
    return call


def directory_link(folder, target):
    outside_shard(folder)
    place = checkpoint(
        folder, weight_map={"a": "sub/one.safetensors", "b": "sub/one.safetensors", "c": "two.safetensors"}
    )
    link(place / "sub", target)
    return Call(place)


def add_links_out():
    outside = {"placed": False, "says": ("S4", "--root")}
    for name, target in {
        "relative": "../outside/one.safetensors",
        "to_a_device": "/dev/zero",
        "to_a_system_file": "/etc/passwd",
        "to_the_root": "/",
        "out_and_in_again": "../ckpt/two.safetensors",
        "to_nothing_outside": "../nothing/one.safetensors",
        "with_many_parents": "../" * 60 + "etc/passwd",
    }.items():
        CASES.refuse(
            f"link_{name}", 18, partial(shard_links_to, target=target), "outside_root", file=ONE_FILE, **outside
        )
    CASES.refuse("link_absolute", 18, absolute_link, "outside_root", file=ONE_FILE, **outside)
    CASES.refuse("link_chain_that_leaves", 18, chain_out, "outside_root", file=ONE_FILE, **outside)
    sibling = partial(shard_links_to_sibling, name="ckpt2")
    CASES.refuse("link_to_a_folder_whose_name_begins_alike", 18, sibling, "outside_root", file=ONE_FILE, **outside)
    out_by_directory = partial(directory_link, target="../outside")
    CASES.refuse(
        "link_of_a_directory", 18, out_by_directory, "outside_root", file="ckpt/sub/one.safetensors", **outside
    )
    for role, name in {"single": SINGLE, "index": INDEX}.items():
        bad = partial(as_single, name=name, make_file=partial(link, target="../outside/x"))
        CASES.refuse(f"link_as_{role}", 18, bad, "outside_root", file=f"ckpt/{name}", **outside)
    by_name = partial(by_path, name="x.safetensors", make_file=partial(link, target="../outside/x"))
    CASES.refuse("link_as_path", 18, by_name, "outside_root", file="ckpt/x.safetensors", **outside)


def shard_links_to_sibling(folder, name):
    outside_shard(folder, name)
    return one_shard_replaced(folder, lambda path: link(path, folder / name / "one.safetensors"))


def chain(folder, links):
    """one.safetensors leads to the shard in that many steps."""
    call = one_shard_replaced(folder, lambda path: link(path, "link1"))
    for i in range(1, links):
        link(call.path / f"link{i}", f"link{i + 1}" if i + 1 < links else "real")
    write(call.path / "real", GOOD_SHARD)
    return call


def two_links(folder):
    call = one_shard_replaced(folder, lambda path: link(path, "back"))
    link(call.path / "back", "one.safetensors")
    return call


def dangling_shard(folder):
    return one_shard_replaced(folder, lambda path: link(path, "nothing"))


def add_loops_and_dangling_links():
    loop = {"file": ONE_FILE, "placed": False}
    CASES.refuse("loop_of_one_link", 18, partial(shard_links_to, target="one.safetensors"), "symlink_loop", **loop)
    CASES.refuse("loop_of_two_links", 18, two_links, "symlink_loop", **loop)
    CASES.refuse(
        "loop_of_a_directory",
        18,
        partial(directory_link, target="sub"),
        "symlink_loop",
        file="ckpt/sub/one.safetensors",
        placed=False,
    )
    CASES.refuse("links_41_in_a_chain", 18, partial(chain, links=MAX_LINKS + 1), "symlink_loop", **loop)
    CASES.accept("links_40_in_a_chain", 18, partial(chain, links=MAX_LINKS))
    by_name = partial(by_path, name="x.safetensors", make_file=partial(link, target="x.safetensors"))
    CASES.refuse("loop_as_path", 18, by_name, "symlink_loop", file="ckpt/x.safetensors", placed=False)
    missing = Problem("index_missing_shard", "a", ("S5",), f"ckpt/{INDEX}")
    CASES.refuse_all("link_to_nothing", 18, dangling_shard, missing)
    for role, name, make in (("single", SINGLE, as_single), ("path", "x.safetensors", by_path)):
        bad = partial(make, name=name, make_file=partial(link, target="nothing"))
        CASES.refuse(f"link_to_nothing_as_{role}", 18, bad, "not_found", file=f"ckpt/{name}", placed=False)


def link_inside(folder, absolute):
    call = one_shard_replaced(folder, lambda path: link(path, path.parent / "real" if absolute else "sub/../real"))
    write(call.path / "real", GOOD_SHARD)
    (call.path / "sub").mkdir()
    return call


def hard_link(folder):
    return one_shard_replaced(folder, lambda path: os.link(outside_shard(folder), path))


def wider_root(folder, root):
    call = absolute_link(folder)
    return Call(call.path, ("--root", str(folder / root)))


def in_sub_folders(folder):
    return Call(checkpoint(folder, {"deep/er/one.safetensors": "ab", "two.safetensors": "c"}))


def add_links_that_are_fine():
    CASES.accept("link_inside", 18, partial(link_inside, absolute=False))
    CASES.accept("link_inside_absolute", 18, partial(link_inside, absolute=True))
    CASES.accept("link_of_a_directory_inside", 18, directory_link_inside)
    CASES.accept("hard_link", 18, hard_link)
    CASES.accept("path_through_a_link", 18, lambda folder: Call(link(folder / "alias", checkpoint(folder))))
    CASES.accept("root_that_contains_the_link", 18, partial(wider_root, root="."))
    CASES.refuse(
        "root_that_contains_the_link_no_more",
        18,
        partial(wider_root, root="ckpt"),
        "outside_root",
        file=ONE_FILE,
        placed=False,
    )
    CASES.refuse(
        "root_beside_the_checkpoint",
        18,
        partial(wider_root, root="outside"),
        "outside_root",
        file="ckpt",
        placed=False,
        says=("--root",),
    )
    CASES.refuse(
        "root_that_is_missing", 18, partial(wider_root, root="nothing"), "not_found", file="nothing", placed=False
    )
    CASES.accept("shard_in_a_sub_folder", 17, in_sub_folders)


def directory_link_inside(folder):
    call = directory_link(folder, "real")
    write(call.path / "real" / "one.safetensors", GOOD_SHARD)
    (call.path / "one.safetensors").unlink()
    return call


def files(contents, tensors="abc"):
    def make(folder):
        place = folder / "ckpt"
        place.mkdir()
        for name, content in contents.items():
            write(place / name, content)
        return Call(place, tensors=tensors)

    return make


def oddly_named(folder):
    return Call(write(folder / "od\x1b[31md\n" / "x.safetensors", file_of({"a": entry(1, 2)}, bytes(2))))


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
FOREIGN = {
    "dcp": ((".metadata", "__0_0.distcp"), "dcp_to_torch"),
    "deepspeed": (("latest", "zero_to_fp32.py", "global_step1/x.pt"), "deepspeed.utils.zero_to_fp32"),
    "orbax": (("_CHECKPOINT_METADATA", "default/_METADATA"), "orbax.checkpoint"),
    "orbax_item": (("_METADATA", "manifest.ocdbt", "ocdbt.process_0/d/x"), "orbax.checkpoint"),
    "zarr": ((".zarray", "0.0"), "orbax.checkpoint"),
    "tensorflow": (("checkpoint", "model.ckpt.index", "model.ckpt.data-00000-of-00001"), "tf.train.load_checkpoint"),
    "saved_model": (("saved_model.pb", "variables/variables.index"), "tf.train.load_checkpoint"),
    "bin": (("config.json", "pytorch_model.bin"), "weights_only=True"),
    "bin_index": (("pytorch_model.bin.index.json",), "weights_only=True"),
    "gguf": (("config.json", "model.gguf"), "gguf_file="),
    "keras": (("tf_model.h5",), "h5py"),
    "flax": (("flax_model.msgpack",), "msgpack_restore"),
}


def add_foreign_directories():
    """Checkpoints of other formats, told by the names of their files: the files are not opened."""
    for name, (contents, command) in FOREIGN.items():
        CASES.refuse(
            f"foreign_directory_{name}",
            None,
            files(dict.fromkeys(contents, b"x")),
            "not_a_checkpoint",
            file="ckpt",
            placed=False,
            says=(INDEX, command),
        )
    CASES.refuse(
        "foreign_part_of_dcp",
        None,
        lambda folder: Call(write(folder / "__0_0.distcp", b"PK\x03\x04" + bytes(64))),
        "not_a_checkpoint",
        file="__0_0.distcp",
        says=("DCP", "dcp_to_torch"),
    )
    CASES.refuse_all(
        "every_shard_is_a_git_lfs_pointer",
        None,
        lambda folder: Call(checkpoint(folder, shards=dict.fromkeys(("one.safetensors", "two.safetensors"), LFS_POINTER), weight_map={"a": "one.safetensors", "b": "two.safetensors"})),
        *(Problem("not_a_checkpoint", file=f"ckpt/{n}.safetensors", says=("git lfs pull",)) for n in ("one", "two")),
    )


def add_choices():
    """Which file of a directory is meant."""
    nothing = {"file": "ckpt", "placed": False, "says": (INDEX, "hf download")}
    for name, contents in {"empty": {}, "of_other_files": {"README.md": b"x", "checkpoint": b"x", "optimizer.pt": b"x"}}.items():
        CASES.refuse(f"directory_that_is_{name}", None, files(contents), "not_a_checkpoint", **nothing)
    several = {"file": "ckpt", "placed": False, "says": ("x.safetensors", "y.safetensors")}
    both = {"x.safetensors": shard_of("a"), "y.safetensors": shard_of("b")}
    CASES.refuse("several_files_and_no_index", None, files(both), "ambiguous_checkpoint", **several)
    indexes = {f"{name}.safetensors.index.json": index_of({"a": "x.safetensors"}) for name in "xy"} | both
    CASES.refuse("several_indexes", None, files(indexes), "ambiguous_checkpoint", **several)
    CASES.accept("only_file_of_any_name", None, files({"x.safetensors": shard_of("abc"), "config.json": b"{}"}))
    stray = Problem("stray_shard", file="ckpt/x.safetensors", placed=False)
    CASES.accept("usual_name_among_others", 21, files({SINGLE: shard_of("abc"), "x.safetensors": b"x"}), stray)
    other_name = {
        "diffusion.safetensors.index.json": index_of(dict.fromkeys("abc", "x.safetensors")),
        "x.safetensors": shard_of("abc"),
    }
    CASES.accept("only_index_of_any_name", None, files(other_name))
    usual_wins = {**other_name, INDEX: index_of(dict.fromkeys("de", "y.safetensors")), "y.safetensors": shard_of("de")}
    CASES.accept("usual_index_among_others", 21, files(usual_wins, "de"), stray)
    CASES.accept("index_by_path", None, lambda folder: Call(checkpoint(folder) / INDEX))
    CASES.accept("shard_by_path", None, lambda folder: Call(checkpoint(folder) / "one.safetensors", tensors="ab"))
    CASES.refuse(
        "path_that_is_missing", None, lambda folder: Call(folder / "nothing"), "not_found", file="nothing", placed=False
    )
    config = Problem("index_invalid", file="config.json", says=("weight_map",))
    CASES.refuse_all(
        "json_that_is_no_index", 19, lambda folder: Call(write(folder / "config.json", '{"model_type":"x"}')), config
    )
    CASES.refuse(
        "folder_with_an_odd_name", 16, oddly_named, "header_hole", tensor="a", file="od\x1b[31md\n/x.safetensors"
    )
    long_name = {**dict.fromkeys("ab", "one.safetensors"), "c": "x" * 300 + ".safetensors"}
    too_long = Problem("open_failed", file="x.safetensors", placed=False)
    CASES.refuse_all(
        "shard_name_longer_than_linux_allows",
        19,
        lambda folder: Call(checkpoint(folder, weight_map=long_name)),
        too_long,
    )


def unreadable(folder):
    call = one_shard_replaced(folder, lambda path: path.write_bytes(GOOD_SHARD))
    (call.path / "one.safetensors").chmod(0)
    return call


add_special_files()
add_links_out()
add_loops_and_dangling_links()
add_links_that_are_fine()
add_choices()
add_foreign_directories()
if os.geteuid() != 0:  # root may read everything
    CASES.refuse(
        "shard_without_permission", 18, unreadable, "open_failed", file=ONE_FILE, placed=False, says=("ermission",)
    )
