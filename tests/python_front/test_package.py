"""The Python package as its users get it: a wheel of what was built, in an environment that has nothing else.

The wheel is made by tools/wheel, as `./dev wheel` makes it, of the objects that are there already. The environment is a
virtual one without pip, without torch and without any variable; it does not know the checkout.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "python" / "lading"
BUILD = Path(os.environ.get("LADING_COMMAND", REPOSITORY / "build" / "dev" / "lading")).resolve().parent
VERSION = re.search(r"project\(lading VERSION (\S+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt))\.so\.\d+")


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=180, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return Path(run(sys.executable, REPOSITORY / "tools" / "wheel", "--prebuilt", BUILD, "--out", folder).strip())


class Environment:
    """Programs of a virtual environment, run with no variable set and far from the checkout."""

    def __init__(self, place):
        self.place = place
        self.package = next(place.glob("lib/python3*/site-packages/lading"))

    def start(self, program, *arguments, **options):
        command = [str(self.place / "bin" / program), *map(str, arguments)]
        return subprocess.run(
            command, env={}, cwd=self.place, capture_output=True, text=True, timeout=60, check=False, **options
        )

    def run(self, program, *arguments):
        done = self.start(program, *arguments)
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    place = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return Environment(place)


@pytest.fixture(scope="module")
def sample(bare, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    bare.run("lading", "demo", "--dir", folder)
    return folder


def test_one_wheel_serves_all_pythons(wheel):
    tag = re.fullmatch(rf"lading-{re.escape(VERSION)}-py3-none-manylinux_2_(\d+)_\w+\.whl", wheel.name)
    assert tag
    # Newer systems link newer symbols. On the oldest that we build on, this is the least that can be reached.
    if platform.libc_ver() == ("glibc", "2.36"):
        assert int(tag[1]) == 34


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(f"lading-{VERSION}.dist-info/METADATA").decode()
    front = {f"lading/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")} | {"lading/py.typed"}
    engine = {"lading/lib/liblading.so", "lading/lib/liblading_mpi.so", "lading/bin/lading"}
    assert front | engine <= names
    rest = names - front - engine
    expected = re.compile(
        rf"lading/licenses/\w+\.txt|lading\.libs/lib[\w.-]+|lading-{re.escape(VERSION)}\.dist-info/.+"
    )
    assert [name for name in sorted(rest) if not expected.fullmatch(name)] == []
    assert {f"lading-{VERSION}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= rest
    # torch comes in no build that pip chose
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line] == []


def test_plain_pip_install_serves_this_machine(tmp_path):
    """`pip install .` in its two steps. It carries no library: it uses those that it was compiled with."""
    settings = f"--config-settings=cmake.define.LADING_PREBUILT={BUILD}"
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", settings, "-w", tmp_path / "made", REPOSITORY)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    [made] = (tmp_path / "made").iterdir()
    run(*pip, "--python", tmp_path / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index", made)
    plain = Environment(tmp_path)
    assert plain.run("lading", "--version") == plain.run("python", "-m", "lading", "--version") == f"lading {VERSION}\n"
    assert plain.run("python", "-c", "from lading import _engine; print(_engine.version())") == f"{VERSION}\n"
    [tags] = tmp_path.glob("lib/python3*/site-packages/lading-*.dist-info/WHEEL")
    assert re.search(r"^Tag: py3-none-linux_\w+$", tags.read_text(), re.MULTILINE)
    assert not (plain.package.parent / "lading.libs").exists()


def test_every_library_comes_from_the_wheel_or_the_system(bare):
    carried = bare.package.parent / "lading.libs"
    binaries = [bare.package / "lib" / "liblading.so", bare.package / "bin" / "lading", *carried.iterdir()]
    assert len(binaries) > 2
    for binary in binaries:
        for line in run("ldd", binary, env={"PATH": os.environ["PATH"]}).splitlines():
            name, _, found = line.strip().partition(" => ")
            name = Path(name.split(" (")[0]).name
            assert SYSTEM.fullmatch(name) or Path(found.split(" (")[0]).resolve().parent == carried.resolve(), line


def test_the_command_runs_in_a_bare_environment(bare, sample):
    assert bare.run("lading", "--version") == f"lading {VERSION}\n"
    assert bare.run("python", "-m", "lading", "--version") == f"lading {VERSION}\n"
    shown = bare.run("python", "-m", "lading", "inspect", sample, "--json")
    assert shown == bare.run("lading", "inspect", sample, "--json")
    assert json.loads(shown)["tensor_count"] == 22
    ledger = bare.place / "ledger.json"
    bare.run("lading", "load", sample, "--mesh", "dp=4", "--strategy", "zero3", "--ledger", ledger)
    assert "verified" in bare.run("lading", "verify", sample, ledger)


def test_mpirun_loads_with_the_command_of_the_wheel(bare, sample, tmp_path):
    """With the MPI of this machine: the wheel carries none."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("there is no mpirun (Debian: openmpi-bin)")
    assert not list((bare.package.parent / "lading.libs").glob("libmpi*"))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PATH": os.environ["PATH"]}
    load = (bare.place / "bin" / "lading", "load", sample, "--mesh", "dp=2", "--strategy", "fsdp2")
    words = run(mpirun, "--oversubscribe", "-n", "2", *load, "--ledger", tmp_path / "ledger.json", env=root)
    assert "all 2 ranks read" in words
    assert "verified: 22 tensors" in bare.run("lading", "verify", sample, tmp_path)


def test_the_command_keeps_exit_codes_and_streams(bare):
    refused = bare.start("lading", "inspect", "no/such/place")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "no/such/place" in refused.stderr
    assert bare.start("lading").returncode == 2


def test_help_names_what_python_adds(bare):
    for arguments in (["--help"], ["-h"]):
        words = bare.run("lading", *arguments)
        assert words.index("inspect ") < words.index("skeleton ")
    assert bare.run("lading", "skeleton", "--help").startswith("usage: lading skeleton")


def test_import_needs_no_torch_and_finds_the_engine_of_the_wheel(bare):
    code = (
        "import lading, sys; from lading import _engine;"
        "assert not {'torch', 'numpy'} & set(sys.modules);"
        "assert 'LadingError' in dir(lading) and issubclass(lading.LadingError, Exception);"
        "print(_engine.LIBRARY_PATH, _engine.version())"
    )
    path, version = bare.run("python", "-c", code).split()
    assert (Path(path), version) == (bare.package / "lib" / "liblading.so", VERSION)


def test_python_plans_and_loads_without_torch(bare, sample):
    code = f"""
import ctypes
from lading import _engine
plan = _engine.plan({{"checkpoint": {str(sample)!r}, "ranks": [0]}})
memories = [(ctypes.create_string_buffer(max(1, d.size_bytes)), d.size_bytes) for d in plan.destinations]
report = plan.load([(ctypes.addressof(memory), size) for memory, size in memories])
print(len(report.digests))
"""
    assert bare.run("python", "-c", code) == "22\n"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("int lading_abi_version(void) { return 999; }", "has ABI version 999"),
        ("int another_library;", "is not a lading library"),
        (None, "that file does not exist"),
    ],
)
def test_a_wrong_engine_is_refused_at_import(bare, tmp_path, source, complaint):
    library = tmp_path / "other.so"
    if source:
        (tmp_path / "other.c").write_text(f"{source}\n")
        run("cc", "-shared", "-fPIC", tmp_path / "other.c", "-o", library)
    code = f"import os; os.environ['LADING_LIBRARY'] = {str(library)!r}; import lading._engine"
    done = bare.start("python", "-c", code)
    assert done.returncode == 1 and "ImportError" in done.stderr and complaint in done.stderr
    assert str(library) in done.stderr


def test_skeleton_says_what_it_lacks(bare, sample):
    done = bare.start("lading", "skeleton", sample)
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch is not installed" in done.stderr and "pip install torch" in done.stderr


def from_the_checkout(*arguments):
    """`python -m lading` of the checkout, with torch, and the engine under test."""
    library = BUILD / "liblading.so"
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY / "python"), LADING_LIBRARY=str(library))
    command = [sys.executable, "-m", "lading", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a model's config and weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **small)).save_pretrained(folder)
    return folder


def test_skeleton_needs_no_weights_and_writes_what_plan_reads(model, tmp_path):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    written = tmp_path / "skeleton.json"
    done = from_the_checkout("skeleton", tmp_path, "--output", written)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    tensors = {tensor["name"] for tensor in json.loads(written.read_text())["tensors"]}
    assert {"model.embed_tokens.weight", "model.rotary_emb.inv_freq", "lm_head.weight"} <= tensors
    assert from_the_checkout("skeleton", tmp_path).stdout == written.read_text()
    plan = run(
        BUILD / "lading", "plan", model, "--skeleton", written, "--mesh", "dp=2", "--strategy", "fsdp2", "--json"
    )
    assert json.loads(plan)["ok"] is True


def test_skeleton_refuses_in_words(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["NoSuchModel"]}')
    for path, code, word in ((tmp_path, 2, "NoSuchModel"), (tmp_path / "nowhere", 3, "nowhere")):
        done = from_the_checkout("skeleton", path)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert word in done.stderr and "Traceback" not in done.stderr


def test_the_command_is_the_process(bare):
    """No Python stays between the caller and the program: it would have to pass signals on."""
    command = [bare.place / "bin" / "python", "-m", "lading", "--version"]
    with subprocess.Popen(command, env={}, stdout=subprocess.DEVNULL) as started:
        deadline = time.monotonic() + 30
        name = ""
        while name != "lading" and time.monotonic() < deadline:  # a process that ended keeps its name until waited for
            name = Path(f"/proc/{started.pid}/comm").read_text().strip()
            time.sleep(0.01)
    assert (name, started.returncode) == ("lading", 0)


def test_a_reader_that_went_away_ends_the_command(bare):
    """As it does without Python in front, which ignores SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [bare.place / "bin" / "lading", "--version"]
    done = subprocess.run(command, env={}, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def compiled_of(source, build):
    """The sources below src that a build of `source` would compile."""
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DLADING_DEVELOPER=OFF")
    files = {Path(entry["file"]) for entry in json.loads((build / "compile_commands.json").read_text())}
    return {path.relative_to(source) for path in files if path.is_relative_to(source / "src")}


def test_the_source_distribution_is_complete(tmp_path):
    """What the sdist holds can be configured, and is every source that the checkout builds of."""
    hook = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", hook, tmp_path, cwd=REPOSITORY)
    shutil.unpack_archive(tmp_path / f"lading-{VERSION}.tar.gz", tmp_path)
    source = tmp_path / f"lading-{VERSION}"
    assert not list(source.rglob("*_test.cc")) and not (source / "tests").exists()
    assert compiled_of(source, tmp_path / "build") == compiled_of(REPOSITORY, tmp_path / "checkout")
    folders = (REPOSITORY / "src", REPOSITORY / "include")
    headers = {path.relative_to(REPOSITORY) for folder in folders for path in folder.rglob("*.h")}
    assert {path.relative_to(source) for path in source.rglob("*.h")} == headers


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_the_front_is_python_3_10(path):
    ast.parse(path.read_text(), feature_version=(3, 10))
