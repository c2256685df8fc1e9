"""A chain of transformers' conversion operations as one expression per target.

The operations' own rules, with expressions in place of tensors. Whoever writes a front can start from this.
"""

import math


def stack(dim, parts):
    return {"stack": {"dim": dim, "parts": parts}}


def concat(dim, parts):
    return {"concat": {"dim": dim, "parts": parts}}


def cut(dim, begin, end, of):
    return {"slice": {"dim": dim, "begin": begin, "end": end, "of": of}}


def chunk(dim, index, count, of):
    return {"chunk": {"dim": dim, "index": index, "count": count, "of": of}}


def transpose(first, second, of):
    return {"transpose": {"dims": [first, second], "of": of}}


def reshape(shape, of):
    return {"reshape": {"shape": list(shape), "of": of}}


def interleave(dim, inverse, of):
    return {"interleave": {"dim": dim, "inverse": inverse, "of": of}}


def rope(heads, inverse, of):
    return {"rope": {"heads": heads, "inverse": inverse, "of": of}}


class Surroundings:
    """What operations look at beside tensors."""

    def __init__(self, source_patterns, target_patterns, config=None, target_shapes=None):
        self.source_patterns = source_patterns
        self.target_patterns = target_patterns
        self.config = config
        self.target_shapes = target_shapes or {}


def only(values):
    """The single expression of a dict that must have one."""
    (value,) = values.values()
    if isinstance(value, list):
        (value,) = value
    return value


def merge_modulelist(op, values, around):
    if len(values) == 1:
        (parts,) = values.values()
        return {around.target_patterns[0]: stack(op.dim, parts)}
    return {pattern: stack(op.dim, parts) for pattern, parts in values.items()}


def concatenate(op, values, around):
    parts = []
    for pattern in around.source_patterns:
        value = values[pattern]
        parts += value if isinstance(value, list) else [value]
    return {around.target_patterns[0]: concat(op.dim, parts)}


def chunks(op, values, around):
    value = only(values)
    count = len(around.target_patterns)
    return {target: chunk(op.dim, i, count, value) for i, target in enumerate(around.target_patterns)}


def split(op, values, around):
    value = only(values)
    out, begin = {}, 0
    for target in around.target_patterns:
        end = begin + around.target_shapes[target][op.dim]
        out[target] = cut(op.dim, begin, end, value)
        begin = end
    return out


def transposed(op, values, around):
    # check_dims decides by the shape, which no expression does: whoever uses it has to know.
    return {around.target_patterns[0]: transpose(op.dim0, op.dim1, only(values))}


def interleaved(op, values, around):
    return {around.target_patterns[0]: interleave(op.dim, op.inverse, only(values))}


def permuted_for_rope(op, values, around):
    config = getattr(around.config, op.subconfig_key, around.config) if op.subconfig_key else around.config
    heads = getattr(config, "num_attention_heads", 1)
    renames = len(around.source_patterns) == len(around.target_patterns) == 1
    out = {}
    for pattern, value in values.items():
        value = only({pattern: value})
        if op.permute_layer_names is None or any(name in pattern for name in op.permute_layer_names):
            value = rope(heads, op.inverse, value)
        out[around.target_patterns[0] if renames else pattern] = value
    return out


def ernie_fused(op, values, around):
    targets = around.target_patterns
    out = {}
    for t, target in enumerate(targets):
        stacks = []
        for pattern in around.source_patterns:
            size = math.ceil(len(values[pattern]) / len(targets))
            stacks.append(stack(op.stack_dim, values[pattern][t * size : (t + 1) * size]))
        out[target] = concat(op.concat_dim, stacks)
    return out


HANDLERS = {
    "MergeModulelist": merge_modulelist,
    "Concatenate": concatenate,
    "Chunk": chunks,
    "Split": split,
    "Transpose": transposed,
    "Interleave": interleaved,
    "PermuteForRope": permuted_for_rope,
    "ErnieFuseAndSplitTextVisionExperts": ernie_fused,
}


def expressions(operations, keys, around):
    """`keys`: by source pattern, the list of checkpoint keys in natural order."""
    values = {pattern: list(names) for pattern, names in keys.items()}
    for op in operations:
        values = HANDLERS[type(op).__name__](op, values, around)
    return values
