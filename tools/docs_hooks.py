"""Hooks of MkDocs: files of the repository that pages under docs/ link to become part of the site.

`../../examples/python/hsdp.py` works on a checkout, but lies outside of docs/. A Markdown file becomes a page below
`repository/`; any other file is copied there as it is. A link to a folder becomes plain text.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "repository"
LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def is_elsewhere(target):
    return bool(re.match(r"[a-z]+:|/", target))


def in_repository(page, target):
    """The path in the repository that a link on a page (docs/… or another Markdown file) leads to."""
    return normpath(join(dirname(page), target))


def links_in(text):
    """Link targets outside of code."""
    return [match[2] for match in LINK.finditer(CODE.sub("", text))]


def place_on_the_site(path):
    """Where a file of the repository is, relative to the site's root."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{FOLDER}/{path}"


def on_files(files, config):
    todo = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(todo)
    while todo:
        page = todo.pop()
        for target in links_in((ROOT / page).read_text()):
            path = in_repository(page, target)
            if is_elsewhere(target) or path in seen or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            seen.add(path)
            place, source = place_on_the_site(path), str(ROOT / path)
            files.append(File.generated(config, place, abs_src_path=source, inclusion=InclusionLevel.NOT_IN_NAV))
            if path.endswith(".md"):
                todo.append(path)
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    source = uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"

    def on_the_site(match):
        words, target, anchor = match[1], match[2], match[3] or ""
        if is_elsewhere(target):
            return match[0]
        path = in_repository(source, target)
        if (ROOT / path).is_dir():
            return words[1:-1]
        return f"{words}({relpath(place_on_the_site(path), dirname(uri) or '.')}{anchor})"

    pieces = []
    end = 0
    for code in CODE.finditer(markdown):  # code stays as it is
        pieces += [LINK.sub(on_the_site, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join(pieces) + LINK.sub(on_the_site, markdown[end:])


