"""Reduces a failing world to a small one that fails in the same way, and says in words what it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from .pieces import Json

_PLAIN_LOAD = {
    "exchange": "never", "strict": True, "allow_missing": [], "external": [], "keep": [], "recipes": False,
    "cast": "promote", "dtype": "auto", "verify": None, "threads": 1, "disturb": None, "device": "cpu",
}  # fmt: skip
_PLAIN_FILES = {"shards": 1, "by_file": True, "folder": "ckpt", "missing": [], "extra": 0, "dtype": "same", "tied": "all"}
_PLAIN_PIECE = {"memory": "plain", "value": "arange", "box": "none", "dtype": "float32", "grad": True}
_PLAIN_LAYOUT = {"units": [], "shard1": False, "reshard": True, "embed": "none", "slice": None}


def signature(verdict: Json) -> str:
    """What makes two failures the same."""
    cause = verdict["cause"] if verdict["verdict"] in ("different", "bare") else ""
    return f"{verdict['verdict']} {cause.split(':')[0]}"


def shrink(spec: Json, verdict: Json, run: Callable[[Json], Json], limit: int = 400) -> tuple[Json, Json]:
    """The smallest world found, and its verdict. `run` gives the verdict of a world."""
    wanted, tries = signature(verdict), 0
    is_smaller = True
    while is_smaller and tries < limit:
        is_smaller = False
        for candidate in candidates(spec):
            tries += 1
            if tries > limit:
                break
            answer = run(candidate)
            if signature(answer) == wanted:
                spec, verdict, is_smaller = candidate, answer, True
                break
    return spec, verdict


def candidates(spec: Json) -> Iterator[Json]:
    """Smaller worlds, the boldest steps first."""
    yield from _without_each(spec, ("surgery",))
    for path in list(_lists(spec["model"], ("model",))):
        yield from _without_each(spec, path)
    yield from _flattened(spec)
    if spec["model"]["embed"]:
        yield _with(spec, ("model", "embed"), None)
        if spec["model"]["embed"]["tie"]:
            yield _with(spec, ("model", "embed", "tie"), False)
    for part, plain in (("load", _PLAIN_LOAD), ("files", _PLAIN_FILES), ("layout", _PLAIN_LAYOUT)):
        for name, value in plain.items():
            if name in spec[part] and spec[part][name] != value:
                yield _with(spec, (part, name), value)
    yield from _fewer_ranks(spec)
    if spec["build"] != "real":
        yield _with(spec, ("build",), "real")
    yield from _plainer(spec)


def _with(spec: Json, path: tuple[Any, ...], value: Any) -> Json:
    smaller = copy.deepcopy(spec)
    at: Any = smaller
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return smaller


def _at(spec: Json, path: tuple[Any, ...]) -> Any:
    at: Any = spec
    for step in path:
        at = at[step]
    return at


def _without_each(spec: Json, path: tuple[Any, ...]) -> Iterator[Json]:
    every = _at(spec, path)
    for place in range(len(every)):
        if path == ("surgery",) or len(every) > 1 or path[-1] == "pieces":
            yield _with(spec, path, every[:place] + every[place + 1 :])


def _lists(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Paths of all lists of modules and of tensors."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("nodes", "pieces"):
                yield (*path, name)
            yield from _lists(value, (*path, name))
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _lists(value, (*path, place))


def _flattened(spec: Json) -> Iterator[Json]:
    """A container gives way to what is in it."""
    for path in list(_lists(spec["model"], ("model",))):
        if path[-1] != "nodes":
            continue
        nodes = _at(spec, path)
        for place, node in enumerate(nodes):
            if node["kind"] == "chain":
                yield _with(spec, path, nodes[:place] + node["nodes"] + nodes[place + 1 :])


def _fewer_ranks(spec: Json) -> Iterator[Json]:
    if spec["ranks"] > 2 and not isinstance((spec["layout"].get("mesh") or [0])[0], list):
        smaller = copy.deepcopy(spec)
        smaller["ranks"] = 2
        if "mesh" in smaller["layout"]:
            smaller["layout"]["mesh"] = [rank for rank in smaller["layout"]["mesh"] if rank < 2]
        if "ranks" in smaller["layout"]:
            smaller["layout"]["ranks"] = 2
        yield smaller
    mesh = spec["layout"].get("mesh")
    if mesh and not isinstance(mesh[0], list) and mesh != sorted(mesh):
        yield _with(spec, ("layout", "mesh"), sorted(mesh))
    if mesh and isinstance(mesh[0], list) and mesh != [[0, 1], [2, 3]]:
        yield _with(spec, ("layout", "mesh"), [[0, 1], [2, 3]])
    if spec["layout"]["kind"] != "single":
        smaller = copy.deepcopy(spec)
        smaller["layout"], smaller["ranks"] = {"kind": "single", "units": []}, 1
        yield smaller


def _plainer(spec: Json) -> Iterator[Json]:
    """Plain names, dtypes, memory and shapes."""
    model = spec["model"]
    plain_names = {"embed": "embed", "body": "body", "head": "head"}
    if model["names"] != plain_names:
        yield _with(spec, ("model", "names"), plain_names)
    if model["dtype"] != "float32":
        yield _with(spec, ("model", "dtype"), "float32")
    for path in list(_lists(model, ("model",))):
        for place, one in enumerate(_at(spec, path)):
            here = (*path, place)
            name = f"{'t' if path[-1] == 'pieces' else 'm'}{place}"
            if one["name"] != name:
                yield _with(spec, (*here, "name"), name)
            if path[-1] == "nodes":
                if one["kind"] not in ("linear", "bag", "mlp", "own", "chain"):
                    yield _with(spec, here, {"kind": "linear", "name": one["name"], "bias": False})
                continue
            for field, value in _PLAIN_PIECE.items():
                if one[field] != value:
                    yield _with(spec, (*here, field), value)
            if one["shape"] not in ([4], [3, 2]):
                yield _with(spec, (*here, "shape"), [4])
    for number, cut in enumerate(spec["surgery"]):
        if cut["pick"] > 9:
            yield _with(spec, ("surgery", number, "pick"), cut["pick"] % 10)


def in_words(spec: Json, verdict: Json) -> str:
    """A small world, readable."""
    layout = {name: value for name, value in spec["layout"].items() if _PLAIN_LAYOUT.get(name, 0) != value}
    load = {name: value for name, value in spec["load"].items() if _PLAIN_LOAD.get(name, 0) != value}
    files = {name: value for name, value in spec["files"].items() if _PLAIN_FILES.get(name, 0) != value}
    model = spec["model"]
    lines = [
        f"verdict: {verdict['verdict']}: {verdict['cause']}",
        f"ranks {spec['ranks']}, layout {layout}, built {spec['build']}, {model['dtype']}, width {model['width']}",
        f"body ({model['box']}) {model['names']}, embedding {model['embed']}",
        *(f"  module {_node_words(node)}" for node in model["nodes"]),
        *(f"surgery: {cut['kind']} {words}" for cut, words in _surgery_words(spec, verdict)),
        f"files {files}, load {load}",
        *(f"  {line}" for detail in verdict["details"][:4] for line in detail.splitlines()[-6:]),
    ]
    return "\n".join(lines)


def _surgery_words(spec: Json, verdict: Json) -> Iterator[tuple[Json, str]]:
    done = iter(verdict.get("done", []))
    for cut in spec["surgery"]:
        yield cut, next(done, "")


def _node_words(node: Json) -> str:
    if node["kind"] == "bag":
        pieces = [
            {name: value for name, value in piece.items() if _PLAIN_PIECE.get(name, 0) != value and name not in ("of", "how")}
            | ({"of": piece["of"], "how": piece["how"]} if piece["memory"] == "view" else {})
            for piece in node["pieces"]
        ]
        return f"{node['name']!r}: bag of {json.dumps(pieces, ensure_ascii=False)}"
    if node["kind"] == "chain":
        return f"{node['name']!r}: chain in a {node['box']} of [{'; '.join(_node_words(one) for one in node['nodes'])}]"
    return f"{node['name']!r}: { {name: value for name, value in node.items() if name != 'name'} }"
