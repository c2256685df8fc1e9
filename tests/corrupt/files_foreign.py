"""What people mistake for a safetensors file: named by its first bytes, with the command that converts or fetches it."""

import os
import pickle
from functools import partial

from .build import entry, file_of
from .cases import Registry

CASES = Registry()

TORCH = ("torch.load", "weights_only=True", "save_file")


def tar_archive(name=b"model/x.pt"):
    return name.ljust(257, b"\0") + b"ustar\x0000" + bytes(248)


class Exploit:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (99,)


FOREIGN = {
    "html_page": (b"<!DOCTYPE html><html><body>Log in</body></html>", ("web page", "hf download")),
    "html_page_behind_space": (b"\r\n  <HTML><body>404</body></HTML>", ("web page", "hf auth login")),
    "xml_error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', ("web page", "hf download")),
    "git_lfs_pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        ("git-lfs pointer", "git lfs pull"),
    ),
    "zip_archive": (b"PK\x03\x04\x14\x00\x08\x08\x08\x00\x00\x00", ("zip archive", *TORCH)),
    "zip_archive_cut": (b"PK\x03\x04", ("zip archive", *TORCH)),
    "gguf": (b"GGUF\x03\x00\x00\x00" + bytes(16), ("GGUF", "gguf_file=")),
    "gguf_claiming_2_to_64_tensors": (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, ("GGUF",)),
    "pickle": (b"\x80\x02}q\x00X\x06\x00\x00\x00weight", ("pickle", *TORCH)),
    "pickle_that_would_run": (pickle.dumps(Exploit(), protocol=2), ("pickle", *TORCH)),
    "pickle_of_protocol_5": (pickle.dumps({"weight": [1]}, protocol=5), ("pickle", *TORCH)),
    "pickle_whose_frame_is_small": (b"\x80\x04\x95\x03" + bytes(7) + b"}.", ("pickle", *TORCH)),
    "old_torch_file": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        ("before PyTorch 1.6", *TORCH),
    ),
    "tar_archive": (tar_archive(), ("tar archive", "tar -xf")),
    "tar_archive_of_a_short_name": (tar_archive(b"x"), ("tar archive", "tar -xf")),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(16), ("HDF5", "h5py")),
}
for name, (content, says) in FOREIGN.items():
    CASES.refuse(f"foreign_{name}", 2, partial(bytes, content), "not_a_checkpoint", says=says, at=0)


def begins_as_a_pickle():
    """A header of 0x280 bytes: its length is written as a pickle of protocol 2 begins."""
    bare = len(file_of({"__metadata__": {"k": ""}, "a": entry(0, 2)})) - 8
    whole = file_of({"__metadata__": {"k": "x" * (0x280 - bare)}, "a": entry(0, 2)}, bytes(2))
    assert whole.startswith(b"\x80\x02")
    return whole


CASES.accept("header_length_begins_as_a_pickle", None, begins_as_a_pickle)
