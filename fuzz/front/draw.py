"""A world's document, made from one integer. Nothing here looks at torch: the document alone decides what happens."""

from __future__ import annotations

import random
from typing import Any

from .draw_model import SHARDED, draw_model, has_random
from .pieces import Json

# layout: (share of the worlds, fewest ranks, most ranks)
LAYOUTS: dict[str, tuple[float, int, int]] = {
    "single": (0.24, 1, 1),
    "replicas": (0.08, 2, 4),
    "ddp": (0.05, 2, 3),
    "fsdp2": (0.16, 2, 4),
    "hsdp": (0.06, 4, 4),
    "tp": (0.10, 2, 4),
    "fsdp2_tp": (0.07, 4, 4),
    "dtensor": (0.12, 2, 4),
    "stages": (0.05, 2, 4),
    "different": (0.02, 2, 3),
    "fsdp1": (0.06, 2, 3),
    "zero3": (0.06, 2, 3),
    "zero12": (0.05, 2, 2),
}
SURGERY = (
    "tie", "untie", "replace", "init", "freeze", "cast", "delete", "rename", "register", "deepcopy", "pickle",
    "compile", "optimizer", "forward", "to_empty", "load_before", "peft", "offload",
)  # fmt: skip
_LATE = ("compile", "optimizer", "forward", "to_empty", "load_before", "peft", "offload")
# What cannot be: (surgery, layout), and why.
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{("offload", layout): "accelerate offloads the model of one process" for layout in LAYOUTS if layout != "single"},
    **{("to_empty", layout): f"{layout} takes a real model" for layout in ("ddp", "zero12")},
    ("optimizer", "zero12"): "the engine has its own optimizer",
    ("compile", "zero12"): "the engine compiles by itself",
    ("peft", "dtensor"): "its modules have no linear layers that PEFT knows",
}


def draw(seed: int) -> Json:
    dice = random.Random(seed)
    kind = dice.choices(list(LAYOUTS), [share for share, _, _ in LAYOUTS.values()])[0]
    ranks = dice.randint(*LAYOUTS[kind][1:])
    cuts = _surgery(dice, kind)
    kinds = {cut["kind"] for cut in cuts}
    build = _choice(dice, {"skeleton": 0.42, "real": 0.38, "meta": 0.12, "accelerate": 0.08})
    if kind in ("ddp", "zero12") or kinds & {"forward", "offload"} or _is_merged(cuts):
        build = "real"
    if "to_empty" in kinds:
        build = "skeleton"
    elif build == "accelerate" and "untie" in kinds:
        build = "meta"
    layout = _layout(dice, kind, ranks)
    if build == "accelerate" and layout.get("how") == "tie":
        build = "meta"
    if layout.get("strategy") == "SHARD_GRAD_OP" and "forward" in kinds:
        layout["strategy"] = "FULL_SHARD"  # the other stays gathered after it
    tied = "untie" in kinds or dice.random() < 0.3 and build != "accelerate"  # which makes two objects of a tie
    model = draw_model(dice, kind, tied=tied, linear="peft" in kinds)
    spec: Json = {
        "seed": seed,
        "ranks": ranks,
        "layout": layout,
        "build": build,
        "surgery": cuts,
        "model": model,
        "files": {},
        "load": {},
    }
    _files(dice, spec)
    _load(dice, spec)
    _tidy(model, spec)
    if kind == "fsdp1":
        _without_refs(model)  # plain torch ends by a signal when a unit is run twice
    has_cast = spec["files"]["dtype"] != "same" or spec["load"]["cast"] == "exact"  # views go with what they look at
    is_copied = build != "real" and kinds & {"pickle", "deepcopy"} or spec["load"]["recipes"]
    if build == "accelerate" or has_cast or is_copied or kind in SHARDED and (build == "real" or dice.random() < 0.85):
        _without_views(model)
    spec["random"] = has_random(model) or bool(spec["files"]["missing"]) or "peft" in kinds
    return spec


def _tidy(node: Any, spec: Json) -> None:
    """Takes out what plain torch would fill with rubbish, or does not load into."""
    if isinstance(node, dict):
        is_told = spec["files"]["missing"] or spec["load"]["recipes"]
        if node.get("value") == "empty" and (spec["build"] != "skeleton" or is_told):
            node["value"] = "const"
        if node.get("value") == "random" and node["dtype"] not in ("float32", "float64"):
            node["value"] = "rope"  # two seeds would often give the same
        if node.get("memory") in ("neg", "conj") and (spec["layout"]["kind"] == "dtensor" or not node["shape"]):
            node["memory"] = "plain"  # distribute_tensor loses such a bit, and so does copy_ of another dtype to a scalar
        if node.get("memory") in ("expand", "overlap") and node["role"] in ("param", "buffer"):
            if spec["build"] != "real" or spec["layout"]["kind"] in SHARDED:
                node["memory"] = "plain"
        node = list(node.values())
    for inner in node if isinstance(node, list) else ():
        _tidy(inner, spec)


def _without_views(node: Any) -> None:
    """Sharding a real model takes a parameter away from the plain tensors that were views of it; so does accelerate,
    and a copy on meta. A recipe gives a view memory of its own."""
    if isinstance(node, dict):
        if node.get("memory") == "view":
            node["memory"] = "offset"
        node = list(node.values())
    for inner in node if isinstance(node, list) else ():
        _without_views(inner)


def _without_refs(node: Any) -> None:
    if isinstance(node, list):
        node[:] = [inner for inner in node if not (isinstance(inner, dict) and inner.get("kind") == "ref")]
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _without_refs(inner)


def _choice(dice: random.Random, shares: dict[Any, float]) -> Any:
    return dice.choices(list(shares), list(shares.values()))[0]


_WAYS = ["constant", "data", "copy", "buffer", "assign"]


def _is_merged(cuts: list[Json]) -> bool:
    return any(cut["kind"] == "peft" and cut["how"] == "merged" for cut in cuts)


def _surgery(dice: random.Random, layout: str) -> list[Json]:
    count = _choice(dice, {0: 0.2, 1: 0.35, 2: 0.3, 3: 0.15})
    kinds = dice.sample([kind for kind in SURGERY if (kind, layout) not in IMPOSSIBLE], count)
    if "offload" in kinds and dice.random() < 0.8:
        kinds.remove("offload")  # lading refuses it
    if "forward" in kinds and "to_empty" in kinds:
        kinds.remove("to_empty")  # a forward pass of memory without values
    if "offload" in kinds:
        kinds = [kind for kind in kinds if kind not in ("to_empty", "forward")]
    kinds.sort(key=lambda kind: kind in _LATE)
    return [
        {
            "kind": kind,
            "pick": dice.randrange(1000),
            "swap": dice.random() < 0.5,
            "how": dice.choice(["new", "adapter", "adapter", "new", "new", "adapter", "merged"] if kind == "peft" else _WAYS),
            "dtype": dice.choice(["bfloat16", "float64", "float16"]),
        }
        for kind in kinds
    ]


def _layout(dice: random.Random, kind: str, ranks: int) -> Json:
    layout: Json = {"kind": kind, "units": [dice.randrange(100) for _ in range(dice.randrange(3))]}
    order = list(range(ranks))
    if dice.random() < 0.02:  # lading refuses most of these orders
        dice.shuffle(order)
    if kind == "fsdp2":
        layout |= {"shard1": dice.random() < 0.2, "reshard": dice.random() < 0.8}
        layout |= _grid_slice(dice, order) if ranks == 4 and dice.random() < 0.25 else {"mesh": order}
    elif kind in ("hsdp", "fsdp2_tp"):
        layout |= {"mesh": [order[:2], order[2:]], "dims": ["a", "b"]}
        layout["embed"] = dice.choice(["none", "none", "rows", "columns"])
    elif kind == "tp":
        layout |= _grid_slice(dice, order) if ranks == 4 and dice.random() < 0.3 else {"mesh": order}
        layout["embed"] = dice.choice(["none", "none", "rows", "columns"])
    elif kind == "dtensor":
        layout |= {"mesh": [order[:2], order[2:]] if ranks == 4 and dice.random() < 0.6 else order}
        dims = 2 if isinstance(layout["mesh"][0], list) else 1
        layout["placements"] = [_placements(dice, dims) for _ in range(8)]
    elif kind == "fsdp1":
        strategy = dice.choice(["FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
        layout |= {"orig": dice.random() < 0.5, "strategy": strategy}
    elif kind == "zero3":
        layout |= {"stage": 3, "dtype": dice.choice(["float32", "float32", "bfloat16"]), "zero": {},
                   "engine_first": dice.random() < 0.3}  # fmt: skip
    elif kind == "zero12":
        layout |= {"stage": dice.randrange(3), "dtype": dice.choice(["float32", "bfloat16"])}
    elif kind == "different":
        layout["how"] = dice.choice(["fewer", "tie", "frozen", "same", "same", "same"])
    elif kind == "stages":
        layout |= {"owners": [dice.randrange(ranks) for _ in range(6)], "ranks": ranks}
    return layout


def _grid_slice(dice: random.Random, order: list[int]) -> Json:
    grid = [order[:2], order[2:]]
    if dice.random() < 0.4:
        grid = [[grid[0][0], grid[1][0]], [grid[0][1], grid[1][1]]]
    return {"mesh": grid, "dims": ["a", "b"], "slice": dice.choice(["a", "b"])}


def _placements(dice: random.Random, dims: int) -> Any:
    if dice.random() < 0.15:
        return "plain"
    words: list[Any] = []
    for _ in range(dims):
        throw = dice.random()
        if throw < 0.35:
            words.append("r")
        elif throw < 0.9:
            words.append(dice.choice([0, 0, 1, 2, -1]))
        else:
            words.append([dice.randrange(2), 2])
    return words


def _files(dice: random.Random, spec: Json) -> None:
    throw = dice.random()
    spec["files"] = {
        "shards": dice.choice([1, 1, 2, 3]),
        "by_file": dice.random() < 0.5,
        "folder": dice.choice(["ckpt", "renamed", "a b", "größe", "x*"]),
        "missing": [dice.randrange(100) for _ in range(dice.randint(1, 3))] if throw < 0.15 else [],
        "extra": dice.randint(1, 2) if dice.random() < 0.08 else 0,
        "dtype": "same",
        "tied": _choice(dice, {"all": 0.45, "first": 0.35, "last": 0.19, "different": 0.01}),
    }


def _loses_record(kinds: set[str]) -> bool:
    """Whether lading may no longer know what constructors computed."""
    return bool(kinds & {"deepcopy", "pickle", "to_empty", "init", "cast"})


def _load(dice: random.Random, spec: Json) -> None:
    files, build = spec["files"], spec["build"]
    kinds = {cut["kind"] for cut in spec["surgery"]}
    if "forward" in kinds:
        files["missing"] = []
    cuts_ties = spec["layout"]["kind"] in ("tp", "fsdp2_tp")  # parallelize_module takes them apart, before the load
    if cuts_ties:
        forgotten = build == "real" or "load_before" in kinds  # a skeleton knows them until it is loaded
        files |= {"tied": "all", "missing": []} if forgotten else {"tied": "all"}
    if (build in ("meta", "accelerate") or build == "skeleton" and _loses_record(kinds)) and dice.random() < 0.85:
        files["missing"] = []
    load: Json = {
        "exchange": "never",
        "strict": not files["extra"] or dice.random() < 0.2,
        "allow_missing": ["*"] if files["missing"] and dice.random() < 0.85 else [],
        "external": [dice.randrange(100)] if dice.random() < 0.05 else [],
        "keep": [dice.randrange(100)] if build == "real" and not cuts_ties and dice.random() < 0.05 else [],
        "recipes": build != "real" and (build != "skeleton" or _loses_record(kinds)) and dice.random() < 0.97,
        "cast": "promote",
        "dtype": "auto",
        "device": "cpu" if build != "real" or dice.random() < 0.9 else None,
        "verify": "full" if dice.random() < 0.1 else None,
        "threads": dice.randint(2, 4) if spec["ranks"] == 1 and dice.random() < 0.15 else 1,
        "disturb": dice.choice(["fork", "stop"]) if dice.random() < 0.02 else None,
    }
    if cuts_ties:
        load["external"] = []  # it would be the value of one of two
    if spec["layout"]["kind"] == "different":
        load |= {"external": [], "keep": []}  # these are chosen by number, and ranks have other numbers of tensors
        files["tied"] = "all"  # a rank may know a tie of which another has one name only
    if spec["ranks"] > 1 and dice.random() < 0.35:
        load["exchange"] = dice.choice(["node", "job"])
    if "peft" in kinds and build != "real" or build == "accelerate":
        pass  # adapters keep the dtype that PEFT made them in, buffers the one of their memory
    elif dice.random() < 0.12:
        files["dtype"] = dice.choice(["bfloat16", "float16", "float32", "float64"])
        if build == "real" or kinds & {"to_empty", "register"} or spec["layout"]["kind"] in ("fsdp1", "zero3"):
            load["cast"] = "destination"
    elif build in ("skeleton", "meta") and dice.random() < 0.08:
        load |= {"cast": "exact", "dtype": dice.choice(["bfloat16", "float16", "float64"])}
    if build == "real" and "cast" in kinds or spec["layout"].get("dtype") == "bfloat16":
        load |= {"cast": "destination", "dtype": "auto"}
    spec["load"] = load
