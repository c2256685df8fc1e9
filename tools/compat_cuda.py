"""Makes a CUDA build of torch importable on a machine without CUDA.

    stand_in(Path("build/compat/torch-2.12/lib/python3.11/site-packages"))

PyPI has torch for Linux with CUDA only, and its CUDA libraries are two gigabytes more. The front's tests use the CPU.
So each missing library is replaced by one that has the symbols torch links to, and nothing behind them: a call aborts.
The small CUDA runtime itself must be real (`REAL`), because torch's libraries call it when they are loaded.
"""

import re
import shutil
import subprocess
from pathlib import Path

REAL = ["nvidia-cuda-runtime>=13,<14"]  # of the CUDA that torch 2.11 and 2.12 on PyPI are built for
_UNVERSIONED = re.compile(r"(cudnn|nccl|cu|nv)[A-Za-z]\w*")


def stand_in(packages: Path) -> list[str]:
    """The names of the libraries that were replaced."""
    folder = packages / "torch" / "lib"
    for real in packages.glob("nvidia/**/libcudart.so.*"):
        shutil.copy(real, folder)
    wanted: dict[str, set[str]] = {}  # by library
    versions: dict[str, dict[str, set[str]]] = {}  # by library and version of its symbols
    loose: set[str] = set()
    for library in sorted(folder.glob("*.so")):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", _readelf("-d", library))
        missing = [name for name in needed if not (folder / name).exists() and not _system_has(name)]
        for name in missing:
            wanted.setdefault(name, set())
        homes = _homes_of_versions(library)
        for symbol, version in re.findall(r" UND (\w+)(?:@([\w.]+))?", _readelf("--dyn-syms", library)):
            home = homes.get(version, "")
            if home in wanted:
                versions.setdefault(home, {}).setdefault(version, set()).add(symbol)
            elif not version and _UNVERSIONED.fullmatch(symbol):
                loose.add(symbol)
    if wanted:
        wanted[min(wanted)] |= loose
    for name, symbols in wanted.items():
        _compile(folder / name, symbols, versions.get(name, {}))
    return sorted(wanted)


def _readelf(option: str, library: Path) -> str:
    return subprocess.run(["readelf", "-W", option, library], capture_output=True, text=True, check=True).stdout


def _homes_of_versions(library: Path) -> dict[str, str]:
    """By the version of a symbol, the library that has it."""
    homes, file = {}, ""
    for line in _readelf("-V", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif file and (found := re.search(r"Name: (\S+)", line)):
            homes[found[1]] = file
    return homes


def _system_has(name: str) -> bool:
    folders = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
    return any((Path(folder) / name).exists() for folder in folders)


def _compile(target: Path, symbols: set[str], versions: dict[str, set[str]]) -> None:
    everything = sorted({*symbols, *(one for some in versions.values() for one in some)})
    source = "void abort(void);\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in everything)
    nodes = {version: " ".join(f"{name};" for name in sorted(names)) for version, names in versions.items()}
    script = "".join(f"{version} {{ {names} }};\n" for version, names in nodes.items())
    map_file = target.with_name(f"{target.name}.map")
    map_file.write_text(script)
    option = [f"-Wl,--version-script={map_file}"] if versions else []
    command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{target.name}", *option, "-o", target, "-x", "c", "-"]
    subprocess.run(command, input=source, text=True, check=True)
    map_file.unlink()
