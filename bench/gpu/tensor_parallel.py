"""Which part of a Llama's tensor a rank has under tensor parallelism, by arithmetic of the bench's own."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

# The first that matches decides; for lading the same list is --tp-plan.
STYLES = [
    ("*.q_proj.weight", "colwise"),
    ("*.k_proj.weight", "colwise"),
    ("*.v_proj.weight", "colwise"),
    ("*.gate_proj.weight", "colwise"),
    ("*.up_proj.weight", "colwise"),
    ("*.o_proj.weight", "rowwise"),
    ("*.down_proj.weight", "rowwise"),
    ("*embed_tokens.weight", "vocab"),
    ("lm_head.weight", "vocab"),
    ("*norm.weight", "replicate"),
]
DIM = {"colwise": 0, "vocab": 0, "rowwise": 1}


@dataclass(frozen=True)
class Part:
    dim: int
    first: int
    last: int


def part_of(name: str, shape: tuple[int, ...], rank: int, count: int) -> Part | None:
    """None: all of it. As torch.chunk cuts."""
    style = next((style for pattern, style in STYLES if fnmatchcase(name, pattern)), "replicate")
    if style == "replicate":
        return None
    dim = DIM[style]
    size = -(-shape[dim] // count)
    return Part(dim, min(rank * size, shape[dim]), min((rank + 1) * size, shape[dim]))


def lading_options() -> list[str]:
    return [word for pattern, style in STYLES for word in ("--tp-plan", f"{pattern}={style}")]
