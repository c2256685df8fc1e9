"""Operators with a generator and a default dtype of their own: the same bits as under the process's, which stay."""

import pytest
import torch
from lading import one_op
from lading.one_op import drawing_overload, run_op, run_with_generator
from lading.skeleton_ops import op_info

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch, request):
    """The state of the process at the end, and but for tests of the last resort no setting at all."""
    before = torch.get_rng_state()
    if "last_resort" not in request.node.name:
        monkeypatch.setattr(one_op, "process_state", None)
    yield
    assert torch.equal(torch.get_rng_state(), before) and torch.get_default_dtype() == torch.float32


def under(dtype, func, *args, **kwargs):
    """What plain torch gives under a default dtype."""
    torch.set_default_dtype(dtype)
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_default_dtype(torch.float32)


def seeded(seed, func, *args, **kwargs):
    """What plain torch gives if its generator is seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return func(*args, **kwargs)


def same(got, want):
    assert got.dtype == want.dtype
    assert torch.equal(got, want) or torch.equal(got.isnan(), want.isnan())


_FLOATS = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
_RANDOM = [
    (aten.rand.default, ([5],), {}),
    (aten.rand.default, ([5],), {"dtype": torch.float64}),
    (aten.randn.default, ([40],), {}),
    (aten.rand_like.default, (_FLOATS,), {}),
    (aten.randn_like.default, (_FLOATS,), {"dtype": torch.bfloat16}),
    (aten.randint.default, (9, [20]), {}),
    (aten.randint.low, (-3, 9, [20]), {}),
    (aten.randint_like.default, (_FLOATS, 9), {}),
    (aten.randint_like.low_dtype, (_FLOATS, 2, 9), {}),
    (aten.randperm.default, (9,), {}),
    (aten.normal.float_float, (1.0, 2.0, [7]), {}),
    (aten.bernoulli.default, (_FLOATS,), {}),
    (aten.bernoulli.p, (_FLOATS, 0.3), {}),
    (aten.multinomial.default, (_FLOATS, 2), {}),
    (aten.poisson.default, (_FLOATS,), {}),
    (aten.poisson.default, (_FLOATS, None), {}),
    (aten._standard_gamma.default, (_FLOATS,), {}),
    (aten.binomial.default, (_FLOATS * 9 // 1, _FLOATS), {}),
]


@pytest.mark.parametrize("func, args, kwargs", _RANDOM, ids=lambda value: str(value)[:30])
def test_random_operators_draw_from_a_generator_of_their_own(func, args, kwargs):
    generator = torch.Generator().manual_seed(5)
    same(run_with_generator(func, args, kwargs, generator), seeded(5, func, *args, **kwargs))


def test_every_public_random_operator_on_the_cpu_takes_a_generator():
    """What is left are composites, which do not arrive at the dispatcher, and fused operators."""
    without = set()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        ):
            continue
        func = getattr(getattr(aten, base), overload or "default")
        if torch.Tag.nondeterministic_seeded in func.tags and drawing_overload(func) is None:
            without.add(base)
    assert {name for name in without if name[0] != "_"} <= {"native_dropout", "miopen_rnn"}


def test_last_resort_of_a_random_operator():
    x = torch.ones(50)
    generator = torch.Generator().manual_seed(5)
    got = run_with_generator(aten.native_dropout.default, (x, 0.5, True), {}, generator)[0]
    same(got, seeded(5, aten.native_dropout.default, x, 0.5, True)[0])
    more = run_with_generator(aten.native_dropout.default, (x, 0.5, True), {}, generator)[0]
    assert not torch.equal(got, more)  # the generator went on


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_factories_under_another_default_dtype(dtype):
    for func, *args in (
        (aten.zeros.default, [3]),
        (aten.full.default, [3], 0.1),
        (aten.full.default, [3], 7),
        (aten.full.default, [3], 1j),
        (aten.arange.default, 3),
        (aten.arange.default, 3.0),
        (aten.arange.start_step, 0.0, 1.0, 0.1),
        (aten.linspace.default, 0, 1, 7),
        (aten.eye.default, 3),
        (aten.scalar_tensor.default, 0.1),
        (aten.hann_window.default, 7),
        (aten.kaiser_window.default, 7),
    ):
        if dtype == torch.bfloat16 and ("1j" in str(args) or "kaiser" in str(func)):
            continue  # torch itself has no such dtype
        want = under(dtype, func, *args)
        same(run_op(func, tuple(args), {}, default_dtype=dtype, results=[want.dtype]), want)


_INTEGERS = torch.tensor([[3, 1, 2], [5, 16777217, 9007199254740993]])


def _argument(argument, place):
    kinds = {"Tensor": _INTEGERS, "float": 0.5, "int": 1, "bool": False}
    kinds |= {kind: (2.5, 16777216.5)[place % 2] for kind in ("number", "Scalar", "Optional[number]")}
    return kinds.get(str(argument.type))


def _pointwise_calls():
    """Every pointwise operator on integers, as far as numbers for its other arguments can be guessed."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or base.startswith("_") or "polynomial" in base or "backward" in base:
            continue
        func = getattr(getattr(aten, base), overload or "default")
        info = op_info(func)
        if torch.Tag.pointwise not in func.tags or info.writes or info.is_random or base == "chalf":
            continue
        args, kwargs = [], {}
        for place, argument in enumerate(func._schema.arguments):
            value = _argument(argument, place)
            if argument.kwarg_only:
                kwargs |= {argument.name: value} if value is not None else {}
            elif value is not None or not argument.has_default_value():
                args.append(value)
        yield func, tuple(args), kwargs


def test_integers_in_pointwise_operators_under_another_default_dtype():
    compared, different = 0, set()
    for func, args, kwargs in _pointwise_calls():
        try:
            want = under(torch.float64, func, *args, **kwargs)
        except Exception:  # not for integers
            continue
        if not isinstance(want, torch.Tensor) or "floor_divide" in str(func):
            continue
        plain = func(*args, **kwargs)
        got = run_op(func, args, kwargs, default_dtype=torch.float64, results=[want.dtype])
        same(got, want)
        compared += 1
        if plain.dtype != want.dtype or not torch.equal(plain.nan_to_num(), want.nan_to_num()):
            different.add(str(func))
    assert compared > 90
    assert {"aten.div.Tensor", "aten.cos.default", "aten.mul.Scalar", "aten.pow.Scalar", "aten.gt.Scalar"} <= different


def test_last_resort_under_another_default_dtype():
    want = under(torch.float64, aten.isin.Tensor_Scalar, _INTEGERS, 16777216.5)
    args = (_INTEGERS, 16777216.5)
    got = run_op(aten.isin.Tensor_Scalar, args, {}, default_dtype=torch.float64, results=[want.dtype])
    same(got, want)
    x = torch.ones(3)
    want = under(torch.float64, lambda: x * 1j)
    same(run_op(aten.mul.Tensor, (x, 1j), {}, default_dtype=torch.float64, results=[want.dtype]), want)


def test_values_that_do_not_depend_on_the_default_dtype_keep_theirs():
    for func, args in (
        (aten.mul.Tensor, (_FLOATS, 2.5)),
        (aten.fill.Scalar, (_INTEGERS, 2.0)),
        (aten.masked_fill.Scalar, (_INTEGERS, _INTEGERS > 2, 2.0)),
        (aten._to_copy.default, (_INTEGERS,)),
        (aten.index_select.default, (_INTEGERS, 0, torch.tensor([1]))),
    ):
        want = func(*args)
        same(run_op(func, args, {}, default_dtype=torch.float64, results=[want.dtype]), want)
