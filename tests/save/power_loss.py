"""What a power loss can leave of a save: a model of a disk, over the log of the system calls that strace has recorded.

    log = Log.of(before, place, [trace])   # `place` is the folder that the saves wrote in, and `before` a copy from before
    for moment, tree in possible(log, "out", 200):   # {path: bytes of a file, None of a folder}

The disk promises no more than POSIX does. Until a file is synced, each of its blocks may hold what it held before or
after any write, and its size may be any that it had. Until a folder is synced, each of its changes (a file that was
made, removed or renamed) may have happened or not, whatever happened to the others; one rename happens wholly or not
at all. A sync covers the calls that had returned before it was called. sync_file_range promises nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

BLOCK = 512
CALLS = (
    "open,openat,creat,write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,splice,truncate,ftruncate,"
    "fallocate,lseek,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "fsync,fdatasync,sync,syncfs,msync,sync_file_range,mmap,io_uring_enter"
)
_NEVER = float("inf")
Tree = dict[str, bytes | None]


@dataclasses.dataclass(frozen=True)
class Op:
    """One effect: on a folder (`entries`), on a file (`write` or `size`), or a sync of `inode`."""

    begin: float
    end: float
    inode: int
    call: str
    entries: tuple[tuple[str, int | None], ...] = ()
    write: tuple[int, bytes] | None = None
    size: int | None = None

    @property
    def is_sync(self) -> bool:
        return self.call in ("fsync", "fdatasync")


@dataclasses.dataclass(frozen=True)
class _Call:
    begin: float
    end: float
    name: str
    arguments: list[str]
    result: str


_LINE = re.compile(r"(\d+) +(.*)")
_WHOLE = re.compile(r"(\w+)\((.*)\) += (.+)")
_PART = re.compile(r"""[^,"<\[{]+|"[^"]*"(?:\.\.\.)?|<[^>]*>|\[[^\]]*\]|\{[^}]*\}""")


def _calls(traces: list[Path]) -> Iterator[_Call]:
    """In the order in which they ended."""
    waiting: dict[str, tuple[int, str]] = {}
    lines = itertools.chain.from_iterable(trace.read_text().splitlines() for trace in traces)
    for number, line in enumerate(lines):
        pid, text = _LINE.fullmatch(line).groups()
        if text.endswith("<unfinished ...>"):
            waiting[pid] = (number, text.removesuffix("<unfinished ...>").rstrip())
            continue
        begin = number
        if text.startswith("<... "):
            begin, front = waiting.pop(pid)
            text = front + re.sub(r"^<\.\.\. \w+ resumed>", "", text)
        if (found := _WHOLE.fullmatch(text)) is not None:
            name, arguments, result = found.groups()
            yield _Call(begin, number, name, _split(arguments), result)


def _split(arguments: str) -> list[str]:
    parts, at = [""], 0
    while at < len(arguments):
        if arguments[at] == ",":
            parts.append("")
            at += 1
        else:
            found = _PART.match(arguments, at)
            parts[-1] += found[0]
            at = found.end()
    return [part.strip() for part in parts]


def _bytes(text: str) -> bytes:
    """Of a string of strace -xx, with its quotes or brackets or without."""
    if text.endswith("..."):
        raise ValueError("strace has cut a string short")
    return bytes.fromhex(text.strip('"<>').replace("\\x", ""))


def _at(argument: str) -> tuple[str, str]:
    """A file descriptor's number and path."""
    number, _, path = argument.partition("<")
    return number, os.fsdecode(_bytes(path.removesuffix(">(deleted)").rstrip(">")))


class Log:
    """The effects that calls had in a folder, whose files and folders have numbers: one file, one number, whatever its name
    is at the time."""

    ROOT = 0  # the folder itself

    def __init__(self, ops: list[Op], folders: dict[int, dict[str, int]], files: dict[int, bytes]) -> None:
        self.ops, self.folders, self.files = ops, folders, files  # as they were before, but for ops

    @classmethod
    def of(cls, before: Path, place: Path, traces: list[Path]) -> Log:
        return _Reader(before, place).read(traces)

    def changed(self, ops: list[Op]) -> Log:
        return Log(ops, self.folders, self.files)

    def moments(self) -> list[float]:
        """Before all, between each two ends, and after all."""
        return [-1.0, *sorted(op.end + 0.5 for op in self.ops)]

    def names(self) -> dict[int, str]:
        """The last path of each file and folder."""
        paths: dict[int, str] = {Log.ROOT: ""}
        waiting = [*((folder, name, inode) for folder, known in self.folders.items() for name, inode in known.items())]
        waiting += [(op.inode, name, inode) for op in self.ops for name, inode in op.entries if inode is not None]
        for folder, name, inode in waiting:
            paths[inode] = f"{folder}/{name}"
        return paths


class _Reader:
    def __init__(self, before: Path, place: Path) -> None:
        self._place = str(place)
        self._numbers = itertools.count(Log.ROOT)
        self._now: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self._take(before)
        self._before = {inode: dict(entries) for inode, entries in self._now.items()}, dict(self._files)
        self._positions: dict[str, int] = {}  # of open files, by descriptor and path: several processes may save
        self._ops: list[Op] = []

    def _take(self, path: Path) -> int:
        inode = next(self._numbers)
        if path.is_dir():
            self._now[inode] = {}
            self._now[inode] = {below.name: self._take(below) for below in sorted(path.iterdir())}
        else:
            self._files[inode] = path.read_bytes()
        return inode

    def read(self, traces: list[Path]) -> Log:
        for call in _calls(traces):
            self._add(call)
        folders, files = self._before
        made = {op.inode for op in self._ops} | {inode for op in self._ops for _, inode in op.entries}
        folders |= {inode: {} for inode in made & self._now.keys() - folders.keys()}
        files |= {inode: b"" for inode in made & self._files.keys() - files.keys()}
        return Log(self._ops, folders, files)

    # ---- paths

    def _inside(self, path: str) -> list[str] | None:
        """Names from the place on; None for what is elsewhere."""
        path = os.path.normpath(path)
        if path != self._place and not path.startswith(f"{self._place}/"):
            return None
        return [name for name in path.removeprefix(self._place).split("/") if name]

    def _entry(self, at: str, name: str) -> tuple[int, str] | None:
        """The folder and the name in it."""
        names = self._inside(os.path.join(_at(at)[1] if at else "/", os.fsdecode(_bytes(name))))
        return (self._walk(names[:-1]), names[-1]) if names else None

    def _walk(self, names: list[str]) -> int:
        inode = Log.ROOT
        for name in names:
            inode = self._now[inode][name]
        return inode

    def _open_file(self, argument: str) -> int | None:
        names = self._inside(_at(argument)[1])
        return None if names is None else self._walk(names)

    # ---- calls

    def _add(self, call: _Call) -> None:
        handle = getattr(self, f"_{call.name}", None)
        if call.result.startswith(("-1 ", "?")):
            return
        if handle is not None:
            handle(call)
        elif any(self._inside(os.fsdecode(_bytes(text))) is not None for text in _paths(call)):
            raise ValueError(f"a call that the model does not know: {call.name}({', '.join(call.arguments)[:200]})")

    def _note(self, call: _Call, inode: int, **effect) -> None:
        self._ops.append(Op(call.begin, call.end, inode, call.name, **effect))

    def _set(self, call: _Call, folder: int, entries: dict[str, int | None]) -> None:
        self._note(call, folder, entries=tuple(entries.items()))
        for name, inode in entries.items():
            if inode is None:
                del self._now[folder][name]
            else:
                self._now[folder][name] = inode

    def _resize(self, call: _Call, inode: int, size: int) -> None:
        self._note(call, inode, size=size)

    def _write_at(self, call: _Call, argument: str, offset: int, content: bytes) -> None:
        if (inode := self._open_file(argument)) is not None:
            self._note(call, inode, write=(offset, content))

    def _openat(self, call: _Call) -> None:
        self._positions[call.result] = 0
        entry = self._entry(call.arguments[0], call.arguments[1])
        if entry is None:
            return
        folder, name = entry
        flags = call.arguments[2].split("|")
        if "O_TMPFILE" in flags or "O_APPEND" in flags:
            raise ValueError(f"the model does not know {flags}")
        if name not in self._now[folder]:
            inode = next(self._numbers)
            self._files[inode] = b""
            self._set(call, folder, {name: inode})
        elif "O_TRUNC" in flags:
            self._resize(call, self._now[folder][name], 0)

    def _passed(self, call: _Call) -> int:
        """The position of an open file, which moves on."""
        position = self._positions.get(call.arguments[0], 0)
        self._positions[call.arguments[0]] = position + int(call.result)
        return position

    def _lseek(self, call: _Call) -> None:
        self._positions[call.arguments[0]] = int(call.result)

    def _write(self, call: _Call) -> None:
        content = _bytes(call.arguments[1])[: int(call.result)]
        self._write_at(call, call.arguments[0], self._passed(call), content)

    def _pwrite64(self, call: _Call) -> None:
        content = _bytes(call.arguments[1])[: int(call.result)]
        self._write_at(call, call.arguments[0], int(call.arguments[3]), content)

    def _sendfile(self, call: _Call) -> None:
        """Of a file that nobody changes: the base's."""
        begin = int(call.arguments[2].split("]")[0].strip("["))
        content = Path(_at(call.arguments[1])[1]).read_bytes()[begin : begin + int(call.result)]
        self._write_at(call, call.arguments[0], self._passed(call), content)

    def _fallocate(self, call: _Call) -> None:
        inode = self._open_file(call.arguments[0])
        if inode is not None:
            if call.arguments[1] != "0":
                raise ValueError(f"the model does not know fallocate with {call.arguments[1]}")
            self._resize(call, inode, int(call.arguments[2]) + int(call.arguments[3]))

    def _ftruncate(self, call: _Call) -> None:
        if (inode := self._open_file(call.arguments[0])) is not None:
            self._resize(call, inode, int(call.arguments[1]))

    def _made_folder(self, call: _Call, entry: tuple[int, str] | None) -> None:
        if entry is not None:
            inode = next(self._numbers)
            self._now[inode] = {}
            self._set(call, entry[0], {entry[1]: inode})

    def _mkdir(self, call: _Call) -> None:
        self._made_folder(call, self._entry("", call.arguments[0]))

    def _mkdirat(self, call: _Call) -> None:
        self._made_folder(call, self._entry(*call.arguments[:2]))

    def _unlinkat(self, call: _Call) -> None:
        if (entry := self._entry(*call.arguments[:2])) is not None:
            self._set(call, entry[0], {entry[1]: None})

    def _renameat2(self, call: _Call) -> None:
        one, other = self._entry(*call.arguments[:2]), self._entry(*call.arguments[2:4])
        if one is None and other is None:
            return
        if one is None or other is None or one[0] != other[0]:
            raise ValueError("the model knows renames in one folder alone")
        known = self._now[one[0]]
        back = known[other[1]] if call.arguments[4] == "RENAME_EXCHANGE" else None
        self._set(call, one[0], {other[1]: known[one[1]], one[1]: back})

    def _fsync(self, call: _Call) -> None:
        if (inode := self._open_file(call.arguments[0])) is not None:
            self._note(call, inode)

    _fdatasync = _fsync

    def _sync_file_range(self, call: _Call) -> None:
        """It promises nothing."""

    def _mmap(self, call: _Call) -> None:
        if "MAP_SHARED" in call.arguments[3] and "PROT_WRITE" in call.arguments[2] and "<" in call.arguments[4]:
            names = self._inside(_at(call.arguments[4])[1])
            if names is not None:
                raise ValueError("a file is written to through a mapping, which the log does not have")


def _paths(call: _Call) -> list[str]:
    """Whatever of a call may be a path."""
    return [text for argument in call.arguments for text in re.findall(r'["<](\\x2f[^">]*)[">]', argument)]


# ---- states


class Every:
    """Every choice there is, one after the other."""

    def __init__(self) -> None:
        self._choices: list[list[int]] = []  # what was chosen, of how many
        self._at = 0

    def __call__(self, count: int) -> int:
        if self._at == len(self._choices):
            self._choices.append([0, count])
        self._at += 1
        return self._choices[self._at - 1][0]

    def next(self) -> bool:
        self._at = 0
        while self._choices and self._choices[-1][0] + 1 == self._choices[-1][1]:
            self._choices.pop()
        if self._choices:
            self._choices[-1][0] += 1
        return bool(self._choices)


class Many:
    """Random choices. Now and then mostly the first (lost), or mostly the last (kept)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.next()

    def next(self) -> bool:
        self._lost, self._kept = self._random.choice([(0.0, 0.0), (0.9, 0.0), (0.0, 0.9), (0.1, 0.8), (0.5, 0.5)])
        return True

    def __call__(self, count: int) -> int:
        drawn = self._random.random()
        if drawn < self._lost:
            return 0
        return count - 1 if drawn < self._lost + self._kept else self._random.randrange(count)


def _kept(count: int) -> int:
    return count - 1


class Disk:
    """At one moment of the log: what is on it for certain, and what may be."""

    def __init__(self, log: Log, moment: float) -> None:
        self._log = log
        self._certain: dict[int, int] = {}
        self._ops: dict[int, list[Op]] = {}
        self._contents: dict[int, list[bytes]] = {}
        covered: dict[int, float] = {}
        for op in log.ops:
            if op.is_sync and op.end < moment:
                covered[op.inode] = max(op.begin, covered.get(op.inode, op.begin))
        for op in log.ops:
            if op.is_sync or op.begin > moment:
                continue
            ops = self._ops.setdefault(op.inode, [])
            ops.append(op)
            if op.end < covered.get(op.inode, -_NEVER):
                self._certain[op.inode] = len(ops)

    def tree(self, pick, top: str | None = None) -> Tree:
        """What the choices leave, in the folder `top`, or everywhere."""
        found: Tree = {}
        for name, inode in sorted(self._entries(Log.ROOT, pick).items()):
            if top in (None, name):
                self._add(name, inode, pick, found)
        return found

    def inodes_at(self, top: str) -> list[int]:
        """Of the file or folder, and of all below it, if nothing is lost."""
        found = [self._entries(Log.ROOT, _kept)[top]]
        for inode in found:
            if inode in self._log.folders:
                found += self._entries(inode, _kept).values()
        return found

    def _add(self, path: str, inode: int, pick, found: Tree) -> None:
        if inode in self._log.folders:
            found[path] = None
            for name, below in sorted(self._entries(inode, pick).items()):
                self._add(f"{path}/{name}", below, pick, found)
        else:
            found[path] = self._content(inode, pick)

    def _entries(self, folder: int, pick) -> dict[str, int]:
        entries: dict[str, int | None] = dict(self._log.folders[folder])
        certain = self._certain.get(folder, 0)
        for number, op in enumerate(self._ops.get(folder, ())):
            if number < certain or pick(2):
                entries |= dict(op.entries)
        return {name: inode for name, inode in entries.items() if inode is not None}

    def _content(self, file: int, pick) -> bytes:
        versions = self._versions(file)
        if len(versions) == 1:
            return versions[0]
        size = len(versions[pick(len(versions))])
        blocks = []
        for begin in range(0, size, BLOCK):
            choices = list(dict.fromkeys(version[begin : begin + BLOCK].ljust(BLOCK, b"\0") for version in versions))
            blocks.append(choices[pick(len(choices)) if len(choices) > 1 else 0])
        return b"".join(blocks)[:size]

    def _versions(self, file: int) -> list[bytes]:
        """What the file held when it was synced, and after each call since."""
        if file not in self._contents:
            content = bytearray(self._log.files[file])
            certain = self._certain.get(file, 0)
            versions = [] if certain else [bytes(content)]
            for number, op in enumerate(self._ops.get(file, ()), 1):
                if op.write is not None:
                    begin, written = op.write
                    content.extend(bytes(max(0, begin + len(written) - len(content))))
                    content[begin : begin + len(written)] = written
                elif op.size is not None and (op.call != "fallocate" or op.size > len(content)):
                    del content[op.size :]
                    content.extend(bytes(op.size - len(content)))
                if number >= certain:
                    versions.append(bytes(content))
            self._contents[file] = versions
        return self._contents[file]


def possible(log: Log, top: str, most: int) -> Iterator[tuple[float, Tree]]:
    """What can be at `top` after a power loss at each moment: all of it, or, where that is more than `most` states, as
    many at random."""
    for moment in log.moments():
        disk = Disk(log, moment)
        every = Every()
        trees = [disk.tree(every, top)]
        while len(trees) <= most and every.next():
            trees.append(disk.tree(every, top))
        if len(trees) > most:
            at_random = Many(int(moment))
            trees = [disk.tree(at_random, top) for _ in range(most) if at_random.next()]
        yield from ((moment, tree) for tree in trees)


def tree_of(folder: Path, top: str | None = None) -> Tree:
    """What a folder really holds."""
    paths = sorted(path for path in folder.rglob("*") if top in (None, path.relative_to(folder).parts[0]))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}
