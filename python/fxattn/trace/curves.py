# SPDX-License-Identifier: Apache-2.0
"""Smooth functions of one and two floats that the program language lacks, composed from functions that it has.

A function of this file should be accurate to a few ulp in f64 and f32 wherever the function of the user's library is
accurate, including at the limits of the range and at signed zeros. The derivative of a function of this file should be
as accurate as the function, because fxattn differentiates the formula of this file."""
import math
from typing import Any, List

from . import functions, ops
from .functions import EQ, LT, NE, copysign, emit_sign, exp, is_set_sign, k, log, log1p, real, sqrt, tanh
from .ops import absolute, add, choose, div, maximum, minimum, mul, neg, sub
from .record import Recording
from .symbol import Sym


def expm1(rec: Recording, x: Any) -> Sym:
    """Returns exp(x) - 1, computed as tanh(x / 2) * (exp(x) + 1), a formula that is accurate everywhere, also near
    0."""
    x = real(rec, x)
    return mul(rec, tanh(rec, mul(rec, x, k(rec, 0.5))), add(rec, exp(rec, x), k(rec, 1.0)))


def log10(rec: Recording, x: Any) -> Sym:
    return mul(rec, log(rec, x), k(rec, 1.0 / math.log(10.0)))


def sinh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return mul(rec, k(rec, 0.5), sub(rec, expm1(rec, x), expm1(rec, neg(rec, x))))


def cosh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return mul(rec, k(rec, 0.5), add(rec, exp(rec, x), exp(rec, neg(rec, x))))


def asin(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    rest = mul(rec, sub(rec, k(rec, 1.0), x), add(rec, k(rec, 1.0), x))
    return functions.atan(rec, div(rec, x, sqrt(rec, rest)))


def acos(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    ratio = div(rec, sub(rec, k(rec, 1.0), x), add(rec, k(rec, 1.0), x))
    return mul(rec, k(rec, 2.0), functions.atan(rec, sqrt(rec, ratio)))


def asinh(rec: Recording, x: Any) -> Sym:
    """Returns asinh(x). For |x| from 1e9 on, asinh(x) is computed as log(2x), because x^2 overflows f32 for larger x.
    Near 0, asinh(x) is computed as atanh(x / sqrt(1 + x^2)), because a formula with the sign of x has no derivative at
    0."""
    x = real(rec, x)
    size, high, one = absolute(rec, x), k(rec, 1e9), k(rec, 1.0)
    near = minimum(rec, size, high)
    square_of = mul(rec, near, near)
    root = sqrt(rec, add(rec, square_of, one))
    found = log1p(rec, add(rec, near, div(rec, square_of, add(rec, root, one))))
    far = add(rec, log(rec, maximum(rec, size, high)), k(rec, math.log(2.0)))
    wide = mul(rec, emit_sign(rec, x), choose(rec, LT(rec, high, size), far, found))
    return choose(rec, LT(rec, size, k(rec, 0.5)), atanh(rec, div(rec, x, root)), wide)


def acosh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    above = sub(rec, x, k(rec, 1.0))
    roots = mul(rec, sqrt(rec, above), sqrt(rec, add(rec, x, k(rec, 1.0))))
    return log1p(rec, add(rec, above, roots))


def atanh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    ratio = div(rec, mul(rec, k(rec, 2.0), x), sub(rec, k(rec, 1.0), x))
    return mul(rec, k(rec, 0.5), log1p(rec, ratio))


def atan2(rec: Recording, y: Any, x: Any) -> Sym:
    """Returns atan2(y, x), computed from the smaller of |y / x| and |x / y|, so that the result is accurate near both
    axes. For zeros and infinities the result of atan2 follows from the signs of x and y."""
    y, x = real(rec, y), real(rec, x)
    wide, high = absolute(rec, x), absolute(rec, y)
    steep = LT(rec, wide, high)
    over, under = choose(rec, steep, x, y), choose(rec, steep, y, x)
    none = mul(rec, y, k(rec, 0.0))  # 0 with the sign of y and derivative 0, selected where x and y are 0
    ratio = choose(rec, EQ(rec, under, k(rec, 0.0)), none, div(rec, over, under))
    corner = choose(rec, EQ(rec, x, y), k(rec, 1.0), k(rec, -1.0))
    ratio = choose(rec, EQ(rec, minimum(rec, wide, high), k(rec, math.inf)), corner, ratio)
    angle, turn = functions.atan(rec, ratio), copysign(rec, k(rec, math.pi), y)
    flat = choose(rec, is_set_sign(rec, x), add(rec, angle, turn), angle)
    return choose(rec, steep, sub(rec, mul(rec, turn, k(rec, 0.5)), angle), flat)


def hypot(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns sqrt(x^2 + y^2), computed as m * sqrt(1 + r^2), where m is the larger operand and r the smaller one
    divided by m. x^2 could overflow."""
    x, y = absolute(rec, real(rec, x)), absolute(rec, real(rec, y))
    most, least = maximum(rec, x, y), minimum(rec, x, y)
    ratio = div(rec, least, most)
    found = mul(rec, most, sqrt(rec, add(rec, k(rec, 1.0), mul(rec, ratio, ratio))))
    infinite = ops.logical_or(rec, EQ(rec, x, k(rec, math.inf)), EQ(rec, y, k(rec, math.inf)))
    plain = choose(rec, EQ(rec, least, k(rec, 0.0)), most, found)
    return choose(rec, infinite, k(rec, math.inf), plain)


def logaddexp(rec: Recording, x: Any, y: Any) -> Sym:
    x, y = real(rec, x), real(rec, y)
    gap = neg(rec, absolute(rec, sub(rec, x, y)))
    most = maximum(rec, x, y)
    found = add(rec, most, log1p(rec, exp(rec, gap)))
    return choose(rec, functions.isfinite(rec, gap), found, most)


def logaddexp2(rec: Recording, x: Any, y: Any) -> Sym:
    two = k(rec, math.log(2.0))
    return div(rec, logaddexp(rec, mul(rec, real(rec, x), two), mul(rec, real(rec, y), two)), two)


def _times_log(rec: Recording, x: Any, y: Sym, log_of: Sym) -> Sym:
    """Returns x * log_of, where log_of is a logarithm of y. The product of x and the logarithm of y is 0 where x is 0,
    also for an infinite logarithm, and NaN where y is NaN."""
    wild = ops.logical_not(rec, functions.isfinite(rec, log_of))
    at_zero = ops.logical_and(rec, EQ(rec, x, k(rec, 0.0)), wild)
    result = choose(rec, at_zero, k(rec, 0.0), mul(rec, x, log_of))
    return choose(rec, NE(rec, y, y), y, result)


def xlogy(rec: Recording, x: Any, y: Any) -> Sym:
    y = real(rec, y)
    return _times_log(rec, x, y, log(rec, y))


def xlog1py(rec: Recording, x: Any, y: Any) -> Sym:
    y = real(rec, y)
    return _times_log(rec, x, y, log1p(rec, y))


def entr(rec: Recording, x: Any) -> Sym:
    """Returns -x log(x) for x > 0, 0 for x = 0, -inf for x < 0."""
    x = real(rec, x)
    inside = choose(rec, EQ(rec, x, k(rec, 0.0)), k(rec, 0.0), neg(rec, mul(rec, x, log(rec, x))))
    return choose(rec, LT(rec, x, k(rec, 0.0)), k(rec, -math.inf), inside)


def logit(rec: Recording, x: Any, eps: Any = None) -> Sym:
    x = real(rec, x)
    if eps is not None:
        top = sub(rec, k(rec, 1.0), eps)
        x = choose(rec, LT(rec, x, eps), eps, choose(rec, LT(rec, top, x), top, x))
    return log(rec, div(rec, x, sub(rec, k(rec, 1.0), x)))


def sinc(rec: Recording, x: Any) -> Sym:
    """Returns sin(pi x) / (pi x), which is 1 where x is 0."""
    turned = mul(rec, real(rec, x), k(rec, math.pi))
    return choose(rec, EQ(rec, x, 0), k(rec, 1.0), div(rec, functions.sin(rec, turned), turned))


def degrees(rec: Recording, x: Any) -> Sym:
    return mul(rec, real(rec, x), k(rec, 180.0 / math.pi))


def radians(rec: Recording, x: Any) -> Sym:
    return mul(rec, real(rec, x), k(rec, math.pi / 180.0))


def cbrt(rec: Recording, x: Any) -> Sym:
    size = ops.power(rec, absolute(rec, real(rec, x)), k(rec, 1.0 / 3.0))
    return copysign(rec, size, x)


# ---- functions related to the error function

# Chebyshev coefficients of log(erfcx(z) / t) in 2t - 1, with t = 2 / (2 + z), z >= 0; relative error 2e-16.
_ERFCX = (-1.3026537197817094, 0.6419697923564902, 0.01947647320418582, -0.009561514786808736, -0.000946595344482052,
          0.000366839497852706, 4.252332480693399e-05, -2.0278578112521706e-05, -1.6242900045364272e-06,
          1.3036558358554828e-06, 1.562644188352058e-08, -8.523809631386103e-08, 6.529054422110825e-09,
          5.059343961139051e-09, -9.913639804903784e-10, -2.2736536958722908e-10, 9.646839230215143e-11,
          2.394140441452919e-12, -6.886127085214966e-12, 8.941458684574854e-13, 3.12944115066216e-13,
          -1.1307621505807219e-13)


def _log_of_tail(rec: Recording, size: Sym) -> List[Sym]:
    """Returns [t, log(erfcx(size) / t)] with t = 2 / (2 + size), computed by Clenshaw's recurrence. erfcx(x) is
    exp(x^2) * erfc(x)."""
    t = div(rec, k(rec, 2.0), add(rec, k(rec, 2.0), size))
    twice = sub(rec, mul(rec, k(rec, 4.0), t), k(rec, 2.0))
    last, before = k(rec, _ERFCX[-1]), k(rec, 0.0)
    for c in _ERFCX[-2:0:-1]:
        last, before = add(rec, sub(rec, mul(rec, twice, last), before), k(rec, c)), last
    half = sub(rec, mul(rec, mul(rec, twice, k(rec, 0.5)), last), before)
    return [t, add(rec, half, k(rec, 0.5 * _ERFCX[0]))]


def erfc(rec: Recording, x: Any) -> Sym:
    """Returns erfc(x). For |x| < 0.5 the formula of erfc is 1 - erf(x); for larger x the difference 1 - erf(x) cancels,
    and _log_of_tail is used."""
    x = real(rec, x)
    size = absolute(rec, x)
    t, power = _log_of_tail(rec, size)
    tail = mul(rec, t, exp(rec, sub(rec, power, mul(rec, size, size))))
    far = choose(rec, LT(rec, x, k(rec, 0.0)), sub(rec, k(rec, 2.0), tail), tail)
    return choose(rec, LT(rec, size, k(rec, 0.5)), sub(rec, k(rec, 1.0), functions.erf(rec, x)), far)


def erfcx(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    t, power = _log_of_tail(rec, maximum(rec, x, k(rec, 0.0)))
    below = mul(rec, erfc(rec, x), exp(rec, mul(rec, x, x)))
    return choose(rec, LT(rec, x, k(rec, 0.0)), below, mul(rec, t, exp(rec, power)))


def ndtr(rec: Recording, x: Any) -> Sym:
    return mul(rec, k(rec, 0.5), erfc(rec, mul(rec, real(rec, x), k(rec, -math.sqrt(0.5)))))


def log_ndtr(rec: Recording, x: Any) -> Sym:
    turned = mul(rec, real(rec, x), k(rec, math.sqrt(0.5)))
    t, power = _log_of_tail(rec, maximum(rec, neg(rec, turned), k(rec, 0.0)))
    low = add(rec, sub(rec, power, mul(rec, turned, turned)), log(rec, mul(rec, k(rec, 0.5), t)))
    high = log1p(rec, mul(rec, k(rec, -0.5), erfc(rec, turned)))
    return choose(rec, LT(rec, turned, k(rec, -0.5)), low, high)
