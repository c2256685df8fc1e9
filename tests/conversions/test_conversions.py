"""Every conversion of transformers that only moves elements, as an expression: bit for bit what transformers makes."""

import itertools
import math
import types

import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: the real operations are the oracle")
loading = pytest.importorskip(
    "transformers.core_model_loading", reason="needs transformers >= 5: the real operations are the oracle"
)

from conversions import chains  # noqa: E402
from conversions.probe import Refused  # noqa: E402

CONFIG = types.SimpleNamespace(
    num_attention_heads=2, vision_config=types.SimpleNamespace(num_attention_heads=4)
)


# transformers 5.17 has no Split, and its PermuteForRope wants names of layers and keeps the source's name.
since_split = pytest.mark.skipif(not hasattr(loading, "Split"), reason="transformers does this otherwise before Split")


def random_tensor(*shape):
    """Random bits as float32, NaNs among them: nothing but a copy keeps them."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32).view(torch.float32)


def same_bits(a, b):
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


class Model:
    """As much of a model as an operation asks for."""

    def __init__(self, shapes):
        self.shapes = shapes

    def get_parameter(self, name):
        return torch.empty(self.shapes[name], device="meta")


def run_chain(operations, tensors, source_patterns, target_patterns, shapes=None):
    """What transformers' WeightConverter.convert does with its operations."""
    values = {pattern: list(parts) for pattern, parts in tensors.items()}
    for op in operations:
        values = op.convert(
            values,
            source_patterns=source_patterns,
            target_patterns=target_patterns,
            full_layer_name=target_patterns[0],
            model=Model(shapes or {}),
            config=CONFIG,
            missing_keys=None,
        )
    return values


def compare_chain(probe, operations, tensors, source_patterns, target_patterns, shapes=None):
    wanted = run_chain(operations, tensors, source_patterns, target_patterns, shapes)
    keys, by_key = {}, {}
    for number, (pattern, parts) in enumerate(tensors.items()):
        keys[pattern] = [f"source{number}.{i}" for i in range(len(parts))]
        by_key.update(zip(keys[pattern], parts))
    around = chains.Surroundings(source_patterns, target_patterns, CONFIG, shapes)
    made = chains.expressions(operations, keys, around)
    assert wanted and set(wanted) <= set(made)
    for target, expression in made.items():
        if target not in wanted:  # torch.chunk made fewer
            with pytest.raises(Refused, match="has no chunk"):
                probe.evaluate(expression, by_key)
            continue
        real = wanted[target][0] if isinstance(wanted[target], list) else wanted[target]
        assert same_bits(probe.evaluate(expression, by_key, real.shape), real), (target, expression)


def single(op, tensor, **more):
    return [op], {"s": [tensor]}, ["s"], ["t"], *more.values()


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("experts", [1, 3, 12])
def test_merge_modulelist(probe, dim, experts):
    parts = [random_tensor(3, 4) for _ in range(experts)]
    compare_chain(probe, [loading.MergeModulelist(dim)], {"e.*.w": parts}, ["e.*.w"], ["t"])


@pytest.mark.parametrize("order", [("w1", "w3"), ("w3", "w1")])
def test_merge_and_concatenate_keep_the_declared_order(probe, order):
    tensors = {pattern: [random_tensor(3, 4) for _ in range(12)] for pattern in order}
    operations = [loading.MergeModulelist(0), loading.Concatenate(1)]
    compare_chain(probe, operations, tensors, ["w1", "w3"], ["gate_up"])


@pytest.mark.parametrize("dim", [0, 1])
def test_concatenate_of_uneven_parts(probe, dim):
    shapes = [[2, 4], [5, 4], [1, 4]]
    tensors = {name: [random_tensor(*(s if dim == 0 else s[::-1]))] for name, s in zip("abc", shapes)}
    compare_chain(probe, [loading.Concatenate(dim)], tensors, list("abc"), ["t"])


def test_concatenate_of_many_shards_of_one_pattern(probe):
    shards = [random_tensor(2, 3) for _ in range(12)]
    compare_chain(probe, [loading.Concatenate(0, "split_ngram_parts")], {"s_*": shards}, ["s_*"], ["t"])


@pytest.mark.parametrize(("extent", "count"), [(6, 3), (7, 3), (5, 4), (4, 3), (8, 8), (3, 1), (2, 5)])
@pytest.mark.parametrize("dim", [0, 1])
def test_chunk(probe, extent, count, dim):
    tensor = random_tensor(*((extent, 3) if dim == 0 else (3, extent)))
    compare_chain(probe, [loading.Chunk(dim)], {"s": [tensor]}, ["s"], [f"t{i}" for i in range(count)])


@since_split
def test_split(probe):
    shapes = {"q": (6, 2), "k": (2, 2), "v": (3, 2)}
    compare_chain(probe, [loading.Split(0)], {"s": [random_tensor(11, 2)]}, ["s"], list(shapes), shapes)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(range(3), 2)))
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 3, 3)])
def test_transpose(probe, first, second, shape):
    compare_chain(probe, *single(loading.Transpose(first, second), random_tensor(*shape)))
    compare_chain(probe, *single(loading.Transpose(first, second).reverse_op, random_tensor(*shape)))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((6,), 0), ((6, 5), 0), ((5, 8), 1), ((2, 6, 3), 1), ((2, 3, 2), 2)])
def test_interleave(probe, shape, dim, inverse):
    compare_chain(probe, *single(loading.Interleave(dim, inverse), random_tensor(*shape)))


@since_split
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("subconfig", [None, "vision_config", "absent"])
@pytest.mark.parametrize("shape", [(24,), (24, 3), (8, 1)])
def test_permute_for_rope(probe, shape, subconfig, inverse):
    compare_chain(probe, *single(loading.PermuteForRope(subconfig, None, inverse), random_tensor(*shape)))


@pytest.mark.parametrize("experts", [4, 5, 6])
@pytest.mark.parametrize("patterns", [["gate", "up"], ["down"]])
def test_ernie_fuse_and_split(probe, experts, patterns):
    tensors = {pattern: [random_tensor(3, 2) for _ in range(experts)] for pattern in patterns}
    operations = [loading.ErnieFuseAndSplitTextVisionExperts()]
    compare_chain(probe, operations, tensors, patterns, ["text", "vision"])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_split_modulelist(probe, dim):
    """The inverse of MergeModulelist: a slice of one, without its dim."""
    tensor = random_tensor(3, 4, 5)
    made = loading.SplitModulelist(dim).convert({"t": tensor}, ["t"], ["e.*.w"])
    assert len(made) == tensor.shape[dim]
    for i, (_, real) in enumerate(made.items()):
        expression = chains.reshape(real.shape, chains.cut(dim, i, i + 1, "t"))
        assert same_bits(probe.evaluate(expression, {"t": tensor}), real)


def test_ernie_split_and_decouple(probe):
    fused = {"text": random_tensor(3, 6, 2), "vision": random_tensor(2, 6, 2)}
    op = loading.ErnieSplitAndDecoupleTextVisionExperts()
    made = op.convert({k: [v] for k, v in fused.items()}, list(fused), ["gate.*", "up.*"], config=None)
    assert len(made) == 10
    for half, name in enumerate(["gate", "up"]):
        numbers = itertools.count()
        for source, tensor in fused.items():
            for e in range(tensor.shape[0]):
                part = chains.chunk(1, half, 2, chains.cut(0, e, e + 1, source))
                real = made[f"{name}.{next(numbers)}"]
                assert same_bits(probe.evaluate(chains.reshape(real.shape, part), fused), real)


def test_conv3d_and_linear(probe):
    conv = random_tensor(2, 3, 1, 2, 2)
    linear = loading.Conv3dToLinear(3, (1, 2, 2)).convert({"s": [conv]}, ["s"], ["t"])["t"]
    assert same_bits(probe.evaluate(chains.reshape(linear.shape, "s"), {"s": conv}), linear)
    back = loading.LinearToConv3d(3, (1, 2, 2)).convert({"s": [linear]}, ["s"], ["t"])["t"]
    assert same_bits(probe.evaluate(chains.reshape(back.shape, "s"), {"s": linear}), back)


def test_vision_fuse_and_unfuse(probe):
    names, projections = ["q_proj", "k_proj"], ["q_proj", "k_proj", "v_proj"]
    fused = random_tensor(24, 2)
    unfuse = loading.VisionUnfuseAndPermuteForRope(0, names)
    parts = unfuse.convert({"wqkv": [fused]}, ["wqkv"], projections, config=CONFIG)
    for i, name in enumerate(projections):
        expression = chains.chunk(0, i, 3, "wqkv")
        expression = chains.rope(4, False, expression) if name in names else expression
        assert same_bits(probe.evaluate(expression, {"wqkv": fused}), parts[name])
    inverse = [chains.rope(4, True, name) if name in names else name for name in projections]
    assert same_bits(probe.evaluate(chains.concat(0, inverse), parts), fused)


def test_gguf_rows_and_inputs(probe):
    gguf = pytest.importorskip("transformers.integrations.gguf.gguf_conversion_mapping")
    keys, values, head, offset = 2, 3, 2, 4
    rows = random_tensor(offset + keys * values * head, 2)
    real = gguf.TiledToGroupedRows(keys, values, head, offset).convert({"s": [rows]}, ["s"], ["t"])["t"]

    def grouped(dim, of):
        return {"rearrange": {"dim": dim, "factors": [values, keys, head], "order": [1, 0, 2], "of": of}}

    tail = grouped(0, chains.cut(0, offset, rows.shape[0], "s"))
    assert same_bits(probe.evaluate(chains.concat(0, [chains.cut(0, 0, offset, "s"), tail]), {"s": rows}), real)
    inputs = random_tensor(2, keys * values * head)
    real = gguf.TiledToGroupedInputs(keys, values, head).convert({"s": [inputs]}, ["s"], ["t"])["t"]
    assert same_bits(probe.evaluate(grouped(1, "s"), {"s": inputs}), real)
    real = gguf.Unsqueeze(1).convert({"s": [inputs]}, ["s"], ["t"])["t"]
    assert same_bits(probe.evaluate(chains.stack(1, ["s"]), {"s": inputs}), real)


def table_converters():
    mapping = pytest.importorskip("transformers.conversion_mapping")
    for entry, transforms in mapping._build_checkpoint_conversion_mapping().items():
        for transform in transforms:
            if isinstance(transform, loading.WeightConverter):
                yield entry, transform


def test_every_operation_of_the_table_is_covered():
    used = {type(op).__name__ for _, converter in table_converters() for op in converter.operations}
    assert used and used <= set(chains.HANDLERS)


def test_every_converter_of_the_table(probe):
    """The table's own chains, with its numbers of sources and targets, on small tensors."""
    done = 0
    for entry, converter in table_converters():
        sources, targets = list(converter.source_patterns), list(converter.target_patterns)
        names = {type(op).__name__ for op in converter.operations}
        dims = [d for op in converter.operations for d in (getattr(op, "dim0", 0), getattr(op, "dim1", 0))]
        shape = (4, 6, 8) if max(dims) >= 2 else (24, 8)
        listed = names & {"MergeModulelist", "ErnieFuseAndSplitTextVisionExperts"}
        count = 12 if listed or any("*" in pattern for pattern in sources) else 1
        shapes = None
        if "Split" in names:
            sizes = [1] * (len(targets) - 1)
            shapes = dict(zip(targets, [(size, 8) for size in [24 - sum(sizes), *sizes]]))
        elif "Transpose" in names:  # the shape that a check_dims transposes for
            shapes = {targets[0]: (4, 8, 6) if len(shape) == 3 else (8, 24)}
        tensors = {pattern: [random_tensor(*shape) for _ in range(count)] for pattern in sources}
        compare_chain(probe, converter.operations, tensors, sources, targets, shapes)
        done += 1
    assert done >= 100, "the table is not where it was"


def test_r47_square_weights(probe):
    """transformers' check_dims leaves a square weight alone; an expression does what it says."""
    square = random_tensor(2, 3, 3)
    kept = run_chain([loading.Transpose(1, 2, True)], {"s": [square]}, ["s"], ["t"], {"t": (2, 3, 3)})["t"]
    assert same_bits(kept, square)
    made = probe.evaluate(chains.transpose(1, 2, "s"), {"s": square})
    assert same_bits(made, square.transpose(1, 2)) and not same_bits(made, square)


@pytest.mark.parametrize(
    ("expression", "shape", "message"),
    [
        (chains.interleave(0, False, "s"), (5, 2), "does not divide"),
        (chains.rope(2, False, "s"), (6, 2), "does not divide"),
        (chains.cut(0, 4, 9, "s"), (8, 2), "out of range"),
        ({"quantize": {"of": "s"}}, (4, 4), "changes values"),
        ("other", (4,), "no key"),
    ],
)
def test_what_transformers_raises_for_is_refused(probe, expression, shape, message):
    with pytest.raises(Refused, match=message):
        probe.ask(expression, {"s": shape})


def test_a_stack_over_a_variable_is_merge_modulelist(probe):
    """The template form, counted by the target: 10 after 9."""
    parts = [random_tensor(3, 4) for _ in range(12)]
    real = loading.MergeModulelist(0).convert({"e": list(parts)}, ["e"], ["t"])["t"]
    by_key = {f"experts.{e}.w": part for e, part in enumerate(parts)}
    by_key = dict(sorted(by_key.items()))  # lexical, as in a file
    expression = {"stack": {"dim": 0, "over": "e", "of": "experts.{e}.w"}}
    assert same_bits(probe.evaluate(expression, by_key, real.shape), real)
    assert math.prod(real.shape) == 144
