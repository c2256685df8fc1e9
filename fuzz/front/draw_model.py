"""The model of a world: a tree of modules, with the tensors that each of them holds."""

from __future__ import annotations

import random
from typing import Any

from .hooked import KINDS as HOOKS
from .names import draw_name
from .pieces import Json

SHARDED = ("fsdp2", "hsdp", "fsdp2_tp", "fsdp1", "zero3", "zero12", "dtensor")
_ODD_DTYPES = (
    "complex64", "bool", "int64", "int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2", "uint16",
    "float64", "bfloat16", "float16",
)  # fmt: skip
_PLAIN_NODES = {"linear": 5, "norm": 2, "mlp": 4, "rope": 2, "bag": 6, "chain": 2, "ref": 1, "rnn": 0.7, "conv": 0.7,
                "param": 1.2, "hooked": 0.9, "extra": 0.4, "lazy": 0.15}  # fmt: skip


def draw_model(dice: random.Random, layout: str, *, tied: bool, linear: bool) -> Json:
    width = dice.choice([4, 4, 6, 8]) if layout in ("tp", "fsdp2_tp") else dice.choice([3, 4, 4, 5, 6])
    taken: set[str] = set()
    embed = {"vocab": 12 if layout in ("tp", "fsdp2_tp") else dice.choice([5, 7, 8]), "tie": tied} if tied or dice.random() < 0.35 else None
    if layout == "dtensor":
        embed = None
    count = dice.choice([1, 2, 2, 3, 3, 4])
    nodes = draw_nodes(dice, layout, width, count, depth=2)
    if layout in ("tp", "fsdp2_tp"):
        nodes.insert(dice.randrange(len(nodes) + 1), _mlp(dice, {node["name"] for node in nodes}))
    if linear:
        nodes.insert(0, {"kind": "linear", "name": draw_name(dice, {node["name"] for node in nodes}, "fc"), "bias": True})
    return {
        "width": width,
        "dtype": "float32" if dice.random() < 0.9 or layout == "zero3" else dice.choice(["float64", "bfloat16"]),
        "embed": embed,
        "box": dice.choice(["list", "dict", "plain", "sequential"]),
        "names": {part: draw_name(dice, taken, part) for part in ("embed", "body", "head")},
        "nodes": nodes,
    }


def draw_nodes(dice: random.Random, layout: str, width: int, count: int, depth: int) -> list[Json]:
    taken: set[str] = set()
    shares: dict[str, float] = dict(_PLAIN_NODES)
    if layout == "dtensor":
        shares = {"own": 3, "bag": 6, "chain": 1}
    if layout in ("tp", "fsdp2_tp"):
        shares["mlp"] = 8
    if layout in ("zero3", "zero12"):
        shares.pop("param")  # hooks that compute with partitions
    if not depth:
        shares.pop("chain", None)
    nodes = []
    for _ in range(count):
        kind = dice.choices(list(shares), list(shares.values()))[0]
        nodes.append(_node(dice, layout, width, kind, draw_name(dice, taken, "m"), depth))
    return nodes


def _mlp(dice: random.Random, taken: set[str]) -> Json:
    return {"kind": "mlp", "name": draw_name(dice, taken, "mlp"), "hidden": dice.choice([4, 8]), "bias": True}


def _node(dice: random.Random, layout: str, width: int, kind: str, name: str, depth: int) -> Json:
    node: Json = {"kind": kind, "name": name}
    if kind == "linear":
        node["bias"] = dice.random() < 0.7
    elif kind == "norm":
        node["which"] = dice.choice(["layer", "batch", "rms"])
    elif kind == "mlp":
        node |= {"hidden": dice.choice([4, 6, 7, 8]), "bias": dice.random() < 0.7}
    elif kind == "rope":
        node["scale"] = dice.choice([1.0, 0.25])
    elif kind == "conv":
        node["channels_last"] = layout not in SHARDED and dice.random() < 0.6  # FSDP wants contiguous parameters
    elif kind == "rnn":
        node |= {"which": dice.choice(["LSTM", "GRU"]), "layers": dice.choice([1, 2]), "bias": dice.random() < 0.8}
    elif kind == "param":
        words = ["weight_norm", "weight_norm_old", "spectral_norm", "spectral_norm_old", "symmetric", "scaled"]
        node["which"] = dice.choice(words)
    elif kind == "hooked":
        node["which"] = dice.choice(HOOKS) if dice.random() < 0.14 else "forward"  # lading refuses most of the others
    elif kind == "extra":
        node["which"] = dice.choice(["tensor", "object"])
    elif kind == "ref":
        node["of"] = dice.randrange(10)
    elif kind == "bag":
        node["pieces"] = _pieces(dice, layout)
    elif kind == "chain":
        inner: set[str] = set()
        node |= {
            "box": dice.choice(["list", "dict", "plain", "sequential"]),
            "inner": draw_name(dice, inner, "inner"),
            "nodes": draw_nodes(dice, layout, width, dice.choice([1, 2, 2]), depth - 1),
        }
    return node


def _pieces(dice: random.Random, layout: str) -> list[Json]:
    taken: set[str] = {"held"}
    return [_piece(dice, layout, place, draw_name(dice, taken, "t")) for place in range(dice.randint(1, 4))]


def _piece(dice: random.Random, layout: str, place: int, name: str) -> Json:
    role = dice.choices(["param", "buffer", "constant", "plain"], [4, 4, 3, 2])[0]
    dtype = dice.choice(_ODD_DTYPES) if role != "param" and dice.random() < 0.6 else "float32"
    if layout == "ddp" and role == "buffer" and dtype not in ("int64", "uint8", "int32", "float64"):
        dtype = "float32"  # gloo broadcasts no others
    if role == "param" and layout in ("single", "replicas", "dtensor", "stages") and dice.random() < 0.25:
        dtype = dice.choice(["float64", "bfloat16", "complex64", "int64", "float8_e4m3fn", "bool"])
    if dtype != "float32" and role != "param" and dice.random() < 0.03:
        dtype = dice.choice(["float4_e2m1fn_x2", "float8_e8m0fnu", "uint4"])
    dims = dice.choices([0, 1, 2, 3, 4], [1, 4, 4, 1, 1])[0]
    shape = [dice.choice([1, 2, 3, 4, 5, 7]) for _ in range(dims)]
    if dims and dice.random() < 0.08:
        shape[dice.randrange(dims)] = 0
    if role == "param" and layout in SHARDED and layout != "dtensor" and not dims:
        shape = [3]
    piece: Json = {
        "name": name,
        "role": role,
        "dtype": dtype,
        "shape": shape,
        "memory": _memory(dice, layout, role, dtype, place),
        "value": dice.choices(["arange", "rope", "const", "zeros", "random", "empty"], [4, 2, 3, 2, 1, 0.3])[0],
        "grad": dice.random() < 0.8,
        "box": dice.choice(["none", "none", "list", "tuple", "dict", "dataclass", "deep", "deep dataclass"]),
        "of": dice.randrange(10),
        "how": dice.choice(["same", "transpose", "row", "slice", "flat"]),
    }
    return piece


def _memory(dice: random.Random, layout: str, role: str, dtype: str, place: int) -> str:
    if dice.random() < 0.55:
        return "plain"
    if role == "param" and layout in SHARDED and layout != "dtensor":
        return "plain"
    if dtype == "complex64":
        return dice.choice(["conj", "strided", "transposed"])
    if dtype in ("float4_e2m1fn_x2", "float8_e8m0fnu", "uint4"):
        return "plain"
    words = ["strided", "offset", "transposed", "channels_last"]
    if dtype == "float32":
        words += ["neg"] if role != "param" else []
        words += ["expand", "overlap"] if dice.random() < 0.1 else []
    if place:
        words += ["view"]
    return dice.choice(words)


def has_random(model: Json) -> bool:
    """Whether a value that no file holds may come from the random numbers of the process."""

    def asks(node: Any) -> bool:
        if isinstance(node, dict):
            old = node.get("which") in ("weight_norm_old", "spectral_norm_old")  # they keep a tensor beside
            return old or node.get("value") in ("random", "empty") or any(map(asks, node.values()))
        return isinstance(node, list) and any(map(asks, node))

    return asks(model["nodes"])
