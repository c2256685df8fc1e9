"""Whether a file's pages are in memory, and how to bring them there or get rid of them; each verified with mincore."""

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BLOCK_BYTES = 32 << 20


def resident_share(path: Path) -> float:
    """Of the file's pages, how many are in memory."""
    size = path.stat().st_size
    if size == 0:
        return 1.0
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-size // mmap.PAGESIZE)
    rights = mmap.PROT_READ | mmap.PROT_WRITE  # ctypes wants to write; private, so the file stays as it is
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, rights) as view:
        first = ctypes.c_char.from_buffer(view)
        found = (ctypes.c_ubyte * pages)()
        done = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found)
        del first
    if done != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return int((np.frombuffer(found, np.uint8) & 1).sum()) / pages


def warm(paths: list[Path]) -> None:
    """Reads what is not in memory, and makes sure that all of it is."""
    cold = [path for path in paths if resident_share(path) < 1]

    def read(path: Path, begin: int) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            os.preadv(file, [bytearray(BLOCK_BYTES)], begin)
        finally:
            os.close(file)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in cold:
            list(pool.map(lambda at, path=path: read(path, at), range(0, path.stat().st_size, BLOCK_BYTES)))
    for path in cold:
        if (share := resident_share(path)) < 0.999:
            raise RuntimeError(f"{path.name}: only {share:.1%} could be brought into memory")


def drop(paths: list[Path]) -> None:
    """Throws the pages away, and makes sure that they are gone."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    for path in paths:
        if (share := resident_share(path)) > 0.01:
            raise RuntimeError(f"{path.name}: {share:.1%} is still in memory")
