"""The command `lading`: the engine's program, and beside it what needs Python.

    lading inspect org/name
    lading skeleton org/name >skeleton.json
    lading plan org/name --skeleton skeleton.json --mesh dp=8 --strategy fsdp2

All but `skeleton` is the program in the package, which takes this process over: signals, exit codes and standard
streams are its own. Importing this module imports neither torch nor the engine's library.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import LadingError

_BUG, _USAGE, _REFUSED, _FAILED = 1, 2, 3, 5  # exit codes (docs/exit-codes.md)
_HELP_OF_SKELETON = "Write the skeleton of a Hugging Face model as JSON, for plan and load; reads no weights"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with the process's own. Answers the exit code, if it comes back."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["skeleton"]:
        return _skeleton(given[1:])
    try:
        program = str(_find_program())
        if given in (["-h"], ["--help"]):
            return _help(program)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
            signal.signal(number, signal.SIG_DFL)
        os.execv(program, ["lading", *given])
    except OSError as error:
        return _fail(f"could not run the lading program: {error}", _BUG)


def _find_program() -> Path:
    """The one in the package, else a developer's build beside it: as the engine's library is found."""
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    places = [package / "bin" / "lading"]
    if (checkout / "CMakeLists.txt").is_file():
        places.append(checkout / "build" / "dev" / "lading")
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(f"it was not found at {' or '.join(map(str, places))}. Reinstall lading.")


def _help(program: str) -> int:
    """The program does not know what Python adds to it."""
    sys.stdout.flush()
    code = subprocess.run([program, "--help"], check=False).returncode
    print(f"Subcommands of the Python package:\n  {'skeleton':26}  {_HELP_OF_SKELETON}")
    return code


def _skeleton(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="lading skeleton", description=_HELP_OF_SKELETON + ".")
    parser.add_argument(
        "path", metavar="PATH", help="a directory with config.json, or org/name in the Hugging Face cache"
    )
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a cached repository (default: main)")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the skeleton to FILE instead of standard output, and beside it the other files that plan and load need",
    )
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the command downloads nothing, unless it is told to
    try:
        from .skeleton_files import skeleton_files, write_files

        output = options.output if options.output is not None else "FILE.json"
        files = skeleton_files(options.path, output, revision=options.revision)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "transformers"):
            raise
        why = f"lading skeleton needs torch and transformers, but {missing} is not installed"
        return _fail(f"{why}. Run: pip install {missing}", _USAGE)
    except (OSError, ValueError) as error:  # of transformers: no config there, or one that it does not know
        return _fail(str(error), _REFUSED)
    except LadingError as error:
        return _fail(str(error), error.exit_code)
    try:
        if options.output is None:
            (_, document), *others = files.items()
            sys.stdout.write(document.decode())
            sys.stdout.flush()
            if left := [place.name for place, data in others if data]:
                print(f"lading: plan and load also need {', '.join(left)}: pass -o FILE.json to write them", file=sys.stderr)
        else:
            write_files(files)
    except OSError as error:
        return _fail(f"the skeleton cannot be written: {error}", _BUG if options.output is None else _FAILED)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"lading: {message}", file=sys.stderr)
    return code
