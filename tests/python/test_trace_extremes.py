# SPDX-License-Identifier: Apache-2.0
"""Functions of torch at the ends of what numbers hold: large and infinite values, NaN, signed zeros, the lowest ints,
and quotients that rounding would move. Each traced program against the function itself, in float64."""
import math

import pytest

from fxattn.trace import trace
from trace_support import evaluator, same

torch = pytest.importorskip("torch")

FLOATS = torch.tensor([0.0, -0.0, 1.5, -2.5, 0.5, 20.5, -30.0, 1.0, -1.0, 3.0, 0.1, -0.1, 6.0, 1e-8, -1e-8, 300.0,
                       -300.0, 800.0, 1e12, -1e12, 1e300, math.inf, -math.inf, math.nan], dtype=torch.float64)
INTS = {torch.uint8: [0, 1, 7, 128, 255], torch.int8: [0, 1, -1, 7, -7, 127, -128],
        torch.int16: [0, 5, -3, 32767, -32768], torch.int32: [1, -7, 100000, 2147483647, -2147483648]}


def check(mod, own, **at):
    assert same(evaluator(trace(mod))(0.0, **at)[0], own, 1e-12), (at, own)


@pytest.mark.parametrize("name", ["sinh", "cosh", "asinh", "acosh", "signbit", "expm1", "log1p", "atan", "tanh"])
def test_one_float(name):
    fn = getattr(torch, name)
    for n, x in enumerate(FLOATS):
        check(lambda s, b, h, q, k: s + fn(FLOATS[q]), fn(x), q=n)


@pytest.mark.parametrize("name", ["floor_divide", "fmod", "remainder", "copysign", "atan2"])
def test_two_floats(name):
    fn = getattr(torch, name)
    for n, x in enumerate(FLOATS):
        for m, y in enumerate(FLOATS):
            zeros = [z for z in (x, y) if z == 0 and math.copysign(1, z) < 0]
            if name == "atan2" and (zeros or torch.isinf(x) and torch.isinf(y)):
                continue  # a zero has no sign once it is compared; the quotient of infinities is NaN
            check(lambda s, b, h, q, k: s + fn(FLOATS[q], FLOATS[k]), fn(x, y), q=n, k=m)


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
