# SPDX-License-Identifier: Apache-2.0
"""Functions of torch at the ends of what numbers hold: large and infinite values, NaN, signed zeros, the lowest ints,
and quotients that rounding would move. Each traced program against the function itself, in float64."""
import functools
import itertools
import math
import operator

import pytest

from fxattn.trace import TraceError, trace
from trace_support import Evaluator, evaluator, same

torch = pytest.importorskip("torch")

FLOATS = torch.tensor([0.0, -0.0, 1.5, -2.5, 0.5, 20.5, -30.0, 1.0, -1.0, 3.0, 0.1, -0.1, 6.0, 1e-8, -1e-8, 300.0,
                       -300.0, 800.0, 1e12, -1e12, 1e300, 1e-200, 0.999, math.inf, -math.inf, math.nan], dtype=torch.float64)
INTS = {torch.uint8: [0, 1, 7, 128, 255], torch.int8: [0, 1, -1, 7, -7, 127, -128],
        torch.int16: [0, 5, -3, 32767, -32768], torch.int32: [1, -7, 100000, 2147483647, -2147483648]}


def check(mod, own, **at):
    assert same(evaluator(trace(mod))(0.0, **at)[0], own, 1e-12), (at, own)


def check_table(fn, values, wide=1, **known):
    """A function of one or two elements of a table, at all of them."""
    mod = (lambda s, b, h, q, k: s + fn(values[q])) if wide == 1 else lambda s, b, h, q, k: s + fn(values[q], values[k])
    run = evaluator(trace(mod, **known))
    for at in itertools.product(range(len(values)), repeat=wide):
        got, own = run(0.0, q=at[0], k=at[-1])[0], float(fn(*[values[n] for n in at]))
        assert same(got, own, 1e-12), ([values[n] for n in at], got, own)
        if own and abs(own) < 1e-3:  # in proportion, not only next to 1
            assert abs(got - own) <= 1e-11 * abs(own), ([values[n] for n in at], got, own)


@pytest.mark.parametrize("name", """sinh cosh asinh acosh signbit expm1 log1p atan tanh sign sgn nan_to_num acos asin
    atanh erfc log2 angle special.erfcx special.log_ndtr special.entr special.logit""".split())
def test_one_float(name):
    check_table(operator.attrgetter(name)(torch), FLOATS, dtype=torch.float64)


@pytest.mark.parametrize("name", """floor_divide fmod remainder copysign atan2 hypot heaviside logaddexp xlogy fmax
    fmin maximum ldexp special.xlog1py""".split())
def test_two_floats(name):
    check_table(operator.attrgetter(name)(torch), FLOATS, 2, dtype=torch.float64)


@pytest.mark.parametrize("name", "sign angle ldexp heaviside hypot arctan2 copysign".split())
def test_numpy_floats(name):
    np = pytest.importorskip("numpy")
    fn, values = getattr(np, name), FLOATS.numpy()
    with np.errstate(all="ignore"):
        if name == "ldexp":
            for n, x in enumerate(values):
                check(lambda s, b, h, q, k: s + np.ldexp(values[q], 40), np.ldexp(x, 40), q=n)
        else:
            check_table(fn, values, 1 if name in ("sign", "angle") else 2, lib="numpy")


def test_jax_floats():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        values = jax.numpy.asarray(FLOATS.numpy())
        for name in ("round", "sign", "signbit", "flip", "nan_to_num"):
            check_table(getattr(jax.numpy, name), values, dtype="float64")


def test_largest_float():
    """What infinities become depends on how wide scores are."""
    for dtype in (None, torch.float32, torch.float64):
        run = evaluator(trace(lambda s, b, h, q, k: torch.nan_to_num(s), dtype=dtype))
        assert run(math.inf)[0] == torch.finfo(dtype or torch.float32).max == -run(-math.inf)[0]
    assert evaluator(trace(lambda s, b, h, q, k: s + torch.nan_to_num(q) // 2))(0.0, q=3)[0] == 1


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_two_ints(dtype):
    table = torch.tensor(INTS[dtype], dtype=dtype)
    fns = {"fmod": torch.fmod, "%": torch.remainder, "//": torch.floor_divide,
           "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc")}
    for fn in fns.values():
        for n, x in enumerate(table):
            for m, y in enumerate(table):
                if y == 0 or (y == -1 and x == torch.iinfo(dtype).min):
                    continue  # an error there, or a trap of the processor
                check(lambda s, b, h, q, k: s + fn(table[q], table[k]), fn(x, y), q=n, k=m)


def test_lerp():
    """A weight of a half and more counts from the other end."""
    for weight in (0.25, 0.5, 1.0, -3.0):
        check_table(lambda x, y: torch.lerp(x, y, weight), FLOATS, 2, dtype=torch.float64)


def test_float_of_the_lowest_int():
    table = torch.tensor([-128, 127], dtype=torch.int8)
    for n, x in enumerate(table):
        check(lambda s, b, h, q, k: s + torch.fmod(table[q], 1.5), torch.fmod(x.double(), 1.5), q=n)


def test_numpy_reciprocal_of_ints():
    np = pytest.importorskip("numpy")
    for dtype in ("uint8", "int8", "int32", "float64"):
        table = np.array([1, 2, 3, 127] + [-1, -5] * (dtype != "uint8"), dtype)
        for n, x in enumerate(table):
            check(lambda s, b, h, q, k: s + np.reciprocal(table[q]), np.reciprocal(x), q=n)


def test_scores_say_how_wide_they_are():
    """As in PyTorch: f64 of f64, else f32."""
    np = pytest.importorskip("numpy")
    from fxattn.numpy import attention
    from fxattn.torch import flex_attention
    seen = []

    def mod(s, b, h, q, k):
        seen.append(s.dtype)
        return s

    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.ones(1, 1, 2, 8, dtype=dtype)
        flex_attention(x, x, x, mod)
    for dtype in ("float64", "float32"):
        x = np.ones((1, 1, 2, 8), dtype)
        attention(x, x, x, mod)
    assert seen == [torch.float64, torch.float32, torch.float32, np.dtype("float64"), np.dtype("float32")]


F = torch.nn.functional
SLOPES = {
    "clamp below": lambda x, c: torch.clamp(x, max=c), "clamp above": lambda x, c: torch.clamp(c, min=x),
    "clamp both": lambda x, c: torch.clamp(x, -1.0, c), "clamp_min": lambda x, c: x.clamp_min(c), "fmax": torch.fmax,
    "fmin": lambda x, c: torch.fmin(c, x), "maximum": torch.maximum, "logaddexp": torch.logaddexp,
    "logaddexp2": lambda x, c: torch.logaddexp2(c, x), "xlogy": torch.xlogy, "xlogy by the second": lambda x, c:
    torch.xlogy(c, x), "atan2": torch.atan2, "atan2 by the second": lambda x, c: torch.atan2(c, x),
    "hypot": torch.hypot, "fmod": torch.fmod, "remainder": torch.remainder, "copysign": torch.copysign,
    "asinh": lambda x, c: torch.asinh(x * c), "erfc": lambda x, c: torch.erfc(x * 3 + c),
    "elu": lambda x, c: F.elu(x) + F.celu(x, 1.5) + F.selu(x), "relu6": lambda x, c: F.relu6(x * 6) * c,
    "hardtanh": lambda x, c: F.hardtanh(x, -1.0, 0.5) * c, "hardswish": lambda x, c: F.hardswish(x * 3) * c,
    "relu": lambda x, c: F.relu(x) * c, "softplus": lambda x, c: F.softplus(x * 40, threshold=20) * c,
    "shrink": lambda x, c: F.softshrink(x) + F.hardshrink(x), "log_ndtr": lambda x, c: torch.special.log_ndtr(x * 4),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name):
    """Derivatives are autograd's where a function has a corner, at zeros and at ties too."""
    fn = SLOPES[name]
    for c in (torch.tensor(x, dtype=torch.float64) for x in (0.5, -1.5, 1.0)):
        traced = trace(lambda s, b, h, q, k: fn(s, c), dtype=torch.float64)
        run = Evaluator(traced.program.derivative(), traced.tensors, traced.params)
        for at in (0.0, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5):
            x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
            own = float(torch.autograd.grad(fn(x, c), x)[0])
            if math.isfinite(own):
                assert same(run(at, dscore=1.0)[0], own, 1e-9), (at, c)



NARROW_TABLES = {"u8": torch.tensor([200, 3], dtype=torch.uint8), "i8": torch.tensor([-100, 90], dtype=torch.int8),
                 "i16": torch.tensor([-20000, 300], dtype=torch.int16), "bool": torch.tensor([True, False]),
                 "f64": torch.tensor([1.5, -2.0], dtype=torch.float64)}


@pytest.mark.parametrize("one, other", list(itertools.product(NARROW_TABLES, repeat=2)))
def test_what_is_added_is_multiplied_in_the_type_of_the_sum(one, other):
    """add and sub with alpha, addcmul: a narrow int beside a float is a float before it is multiplied."""
    x, y = NARROW_TABLES[one], NARROW_TABLES[other]
    fns = [lambda a, b: torch.add(a, b, alpha=3)]
    if "bool" not in (one, other):  # torch has no difference of bools
        fns.append(lambda a, b: torch.sub(a, b, alpha=3))
    if "f64" in (one, other):
        fns.append(lambda a, b: torch.addcmul(b, a, a, value=2))
    if other == "f64":  # torch divides no ints here
        fns.append(lambda a, b: torch.addcdiv(b, a, b + 1, value=2))
    for fn in fns:
        run = evaluator(trace(lambda s, b, h, q, k: s + fn(x[q], y[k])))
        for q, k in itertools.product(range(2), repeat=2):
            got, own = run(0.0, q=q, k=k)[0], float(fn(x[q:q + 1], y[k:k + 1]))  # of rank 1, so that none gives way
            assert same(got, own, 1e-12), (q, k, got, own)


VALUE = 2.75


@pytest.mark.parametrize("fn", [lambda x: torch.addcmul(x, x, x, value=2.75),
                                lambda x: torch.addcmul(x, x, x, value=VALUE),
                                lambda x: torch.addcmul(x, x, x, value=-1.5),
                                lambda x: torch.addcmul(x, x, x, value=True),
                                lambda x: torch.nn.functional.hardtanh(x, -0.5, 1.75),
                                lambda x: torch.nn.functional.hardtanh(x, -3.5, 7.9),
                                lambda x: torch.nn.functional.threshold(x, 0.5, 2.75),
                                lambda x: torch.nn.functional.threshold(x, 3, -1.5)])
def test_bounds_of_ints_are_ints(fn):
    check_table(fn, torch.tensor([-9, -1, 0, 1, 4, 9], dtype=torch.int32))


@pytest.mark.parametrize("decimals", [2, -1, 308, 400, -400])
def test_round_to_decimals_beyond_floats(decimals):
    check_table(lambda x: torch.round(x, decimals=decimals), FLOATS[:13], dtype=torch.float64)


@pytest.mark.parametrize("mod", [lambda s, b, h, q, k: s + s.new_zeros(10 ** 9).sum(),
                                 lambda s, b, h, q, k: s + torch.ones_like(s.expand(10 ** 6)).sum(),
                                 lambda s, b, h, q, k: s + s.expand(10 ** 5, 10 ** 5).sum(),
                                 lambda s, b, h, q, k: s + functools.reduce(
                                     lambda x, _: torch.cat([x, x]), range(40), s.reshape(1)).sum()])
def test_arrays_larger_than_any_program_are_refused(mod):
    """Before they are made: a list of 10^9 elements would take all memory."""
    with pytest.raises(TraceError, match="element by element"):
        trace(mod)


def test_a_scalar_indexed_by_nothing():
    table = torch.tensor(2.5, dtype=torch.float64)
    check(lambda s, b, h, q, k: s + table[()] * q, 7.5, q=3)
