"""Console samples of README.md and docs/: what they are, how they are run, and what of their output is compared.

    python tests/docs/samples.py COMMAND [--write] [PAGE…]      COMMAND: the lading to run, such as build/dev/lading

A sample is a block ```console. Lines that begin with "$ " are commands; the lines behind a command are its output,
standard output and standard error together. Each block runs by itself, in a fresh folder that has the sample checkpoint
in build/demo, so that blocks do not depend on each other. With --write, output that differs is written into the page.

What is compared: the whole output, with these exceptions.

- White space: lines of a page may be wrapped, and columns aligned.
- A line that is "…" stands for any lines. A command that shows no output must succeed; its output is not compared.
- The folder of the sample: "…/" stands for it.
- Numbers of one machine (`OF_A_MACHINE`): seconds, speeds, threads, and the sizes of staging buffers and peaks.

A block that cannot be run here has a comment before it, "<!-- not run: why -->". Tests count these.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(<!-- not run: (?P<why>.+?) -->\n)?```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_CHARACTERS = 120
LEFT_OUT = "…"
SIZE = r"[\d.,]+ [kMG]?B"
OF_A_MACHINE = (
    (r"\d+\.\d+ s\b", "# s"),
    (r"\d+\.\d+ GB/s", "# GB/s"),
    (r"\bwith \d+ threads?", "with # threads"),
    (rf"{SIZE} of staging", "# of staging"),
    (rf"^( *(?:staging|peak \S+))((?: +{SIZE})+)", r"\1 #"),
)


@dataclass
class Step:
    command: str
    expected: str | None  # None: not shown


@dataclass
class Sample:
    page: str
    line: int
    text: str
    why_not_run: str | None

    def steps(self):
        pieces = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        assert not pieces[0].strip(), f"{self.page}:{self.line}: a sample begins with a command"
        return [Step(command, output or None) for command, output in zip(pieces[1::2], pieces[2::2], strict=True)]


def pages():
    return ["README.md", *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))]


def samples_of(page, text=None):
    text = (REPOSITORY / page).read_text() if text is None else text
    found = BLOCK.finditer(text)
    return [Sample(page, text.count("\n", 0, match.start("text")), match["text"], match["why"]) for match in found]


def plain(text, folder=None):
    """White space, the sample's folder and numbers of one machine aside."""
    if folder is not None:
        text = re.sub(rf"(?<![\w/]){re.escape(str(folder))}/", "…/", text)
    for pattern, instead in OF_A_MACHINE:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return " ".join(text.split())


def is_the_same(expected, printed, folder=None):
    """Whether a page's output is what was printed. `folder`: where it was."""
    parts = [plain(part) for part in re.split(rf"^{LEFT_OUT}\n", expected, flags=re.MULTILINE)]
    pattern = r"(?:^|(?<= ))(?:.* )?".join(re.escape(part) + (" ?" if part else "") for part in parts)
    return re.fullmatch(pattern.replace("\\ ", " "), plain(printed, folder) + " ") is not None


def run(sample, command, folder):
    """What each step printed, and its exit code, in a new folder."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "lading").symlink_to(Path(command).resolve())
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8"}

    def shell(text):
        done = subprocess.run(
            ["bash", "-c", text], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout, done.returncode

    _, code = shell("lading demo --dir build/demo")
    assert code == 0, "the sample checkpoint could not be written"
    results = []
    for step in sample.steps():
        printed, code = shell(f"(exit {code})\n{step.command}")
        results.append((step, printed, code))
    return results


def problems_of(sample, command):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "sample"
        found = []
        for step, printed, code in run(sample, command, folder):
            if step.expected is None and code != 0:
                found.append(f"{sample.page}:{sample.line}: {step.command}: exit code {code}\n{printed}")
            elif step.expected is not None and not is_the_same(step.expected, printed, folder):
                found.append(
                    f"{sample.page}:{sample.line}: {step.command}\n--- the page\n{step.expected}--- printed\n{printed}"
                )
        return found


def rewritten(sample, command):
    """The sample's text with what is printed today, where that differs. Leave lines out again by hand."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "sample"
        lines = []
        for step, printed, _code in run(sample, command, folder):
            lines.append(f"$ {step.command}\n")
            if step.expected is not None:
                differs = not is_the_same(step.expected, printed, folder)
                lines.append(wrapped(printed.replace(f"{folder}/", "…/")) if differs else step.expected)
        return "".join(lines)


def wrapped(text):
    """Lines as long as those of a page."""
    lines = text.splitlines()
    short = (textwrap.wrap(line, MOST_CHARACTERS) if len(line) > MOST_CHARACTERS else [line] for line in lines)
    return "".join(f"{line}\n" for several in short for line in several)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("pages", nargs="*", default=pages())
    arguments = parser.parse_intermixed_args()
    problems = []
    for page in arguments.pages:
        for sample in samples_of(page):
            if sample.why_not_run:
                print(f"{page}:{sample.line}: not run: {sample.why_not_run}")
                continue
            found = problems_of(sample, arguments.command)
            problems += found
            if found and arguments.write:
                path = REPOSITORY / page
                path.write_text(path.read_text().replace(sample.text, rewritten(sample, arguments.command)))
    print(*problems, sep="\n")
    return 1 if problems and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
