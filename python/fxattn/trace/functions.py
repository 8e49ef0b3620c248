# SPDX-License-Identifier: Apache-2.0
"""Functions of traced scalars that are not operators: those of the program language, and those written with them.

As in ops.py, functions take a Recording and operands. Floats of this file are constants, never params.
"""
import math
from typing import Any, Callable, Optional

from .. import _abi
from . import ops
from .ops import as_sym, cast, choose, compare, emit, joint, kind_of_operand, logical_not, maximum, minimum, node
from .place import refuse
from .record import Recording
from .symbol import Sym
from .types import BOOL, FLOAT, INT, PROMOTE

LT, EQ, NE, LE = (compare(op) for op in (_abi.OP_LT, _abi.OP_EQ, _abi.OP_NE, _abi.OP_LE))


def k(rec: Recording, value: float) -> Sym:
    return Sym(rec, rec.constant(value), FLOAT)


def real(rec: Recording, x: Any) -> Sym:
    return cast(rec, x, FLOAT)


def of_float(op: int) -> Callable[[Recording, Any], Sym]:
    """A function of the language that takes and gives a float."""
    return lambda rec, x: Sym(rec, rec.emit(op, node(rec, x, FLOAT)), FLOAT)


sqrt, rsqrt, exp, exp2, log, log2, log1p, tanh, sigmoid, erf, sin, cos, tan, atan = (
    of_float(getattr(_abi, "OP_" + name)) for name in
    "SQRT RSQRT EXP EXP2 LOG LOG2 LOG1P TANH SIGMOID ERF SIN COS TAN ATAN".split())


def rounding(op: int) -> Callable[[Recording, Any], Sym]:
    """Whole numbers stay as they are, with their type."""
    def go(rec: Recording, x: Any) -> Sym:
        x = as_sym(rec, x)
        return x if x.ty != FLOAT else Sym(rec, rec.emit(op, x.node), FLOAT)
    return go


floor, ceil, trunc, nearest = (rounding(getattr(_abi, "OP_" + name)) for name in "FLOOR CEIL TRUNC ROUND".split())


def round_to(rec: Recording, x: Any, decimals: int = 0) -> Sym:
    if not decimals:
        return nearest(rec, x)
    scale = k(rec, 10.0 ** abs(decimals))
    up, down = (ops.mul, ops.div) if decimals > 0 else (ops.div, ops.mul)
    return down(rec, nearest(rec, up(rec, real(rec, x), scale)), scale)


def rint(rec: Recording, x: Any) -> Sym:
    return nearest(rec, real(rec, x))


def sign(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    return as_sym(rec, x) if kind == BOOL else emit(rec, _abi.OP_SIGN, kind, x)


def clamp(rec: Recording, x: Any, low: Any = None, high: Any = None) -> Sym:
    if low is None and high is None:
        refuse("clamp: at least one of 'min' or 'max' must not be None")
    if low is None:
        return minimum(rec, x, high)
    if high is None:
        return maximum(rec, x, low)
    kind = joint(x, low)
    kind = PROMOTE[kind][joint(x, high)]
    if kind == BOOL:
        return minimum(rec, maximum(rec, x, low), high)
    return emit(rec, _abi.OP_CLAMP, kind, x, low, high)


def relu(rec: Recording, x: Any) -> Sym:
    return emit(rec, _abi.OP_RELU, kind_of_operand(x), x)


def softplus(rec: Recording, x: Any, beta: Any = 1, threshold: Any = 20) -> Sym:
    """Above the threshold torch gives x; from 20 on the difference is below 3e-9."""
    x = real(rec, x)
    plain = type(beta) in (int, float) and beta == 1
    scaled = x if plain else real(rec, ops.mul(rec, x, beta))
    found = Sym(rec, rec.emit(_abi.OP_SOFTPLUS, scaled.node), FLOAT)
    found = found if plain else ops.div(rec, found, beta)
    if type(threshold) in (int, float) and threshold >= 20:
        return found
    return choose(rec, LT(rec, threshold, scaled), x, found)


def expm1(rec: Recording, x: Any) -> Sym:
    """tanh(x / 2) * (exp(x) + 1), which is exact also where exp(x) - 1 is not."""
    x = real(rec, x)
    return ops.mul(rec, tanh(rec, ops.mul(rec, x, k(rec, 0.5))), ops.add(rec, exp(rec, x), k(rec, 1.0)))


def silu(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return ops.mul(rec, x, sigmoid(rec, x))


def gelu(rec: Recording, x: Any, approximate: str = "none") -> Sym:
    x = real(rec, x)
    if approximate == "tanh":
        cube = ops.mul(rec, ops.mul(rec, x, x), x)
        inner = ops.mul(rec, k(rec, math.sqrt(2.0 / math.pi)), ops.add(rec, x, ops.mul(rec, k(rec, 0.044715), cube)))
        bell = tanh(rec, inner)
    else:
        bell = erf(rec, ops.mul(rec, x, k(rec, math.sqrt(0.5))))
    return ops.mul(rec, ops.mul(rec, k(rec, 0.5), x), ops.add(rec, k(rec, 1.0), bell))


def elu(rec: Recording, x: Any, alpha: Any = None) -> Sym:
    x = real(rec, x)
    below = expm1(rec, minimum(rec, x, k(rec, 0.0)))
    if alpha is not None:
        below = ops.mul(rec, below, alpha)
    return choose(rec, LT(rec, k(rec, 0.0), x), x, below)


def leaky_relu(rec: Recording, x: Any, slope: Any) -> Sym:
    x = real(rec, x)
    return choose(rec, LT(rec, k(rec, 0.0), x), x, ops.mul(rec, x, slope))


def log_sigmoid(rec: Recording, x: Any) -> Sym:
    return ops.neg(rec, softplus(rec, ops.neg(rec, real(rec, x))))


def log10(rec: Recording, x: Any) -> Sym:
    return ops.mul(rec, log(rec, x), k(rec, 1.0 / math.log(10.0)))


def reciprocal(rec: Recording, x: Any) -> Sym:
    return ops.div(rec, k(rec, 1.0), x)


def square(rec: Recording, x: Any) -> Sym:
    return ops.power(rec, x, 2)


def sinh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return ops.mul(rec, k(rec, 0.5), ops.sub(rec, expm1(rec, x), expm1(rec, ops.neg(rec, x))))


def cosh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return ops.mul(rec, k(rec, 0.5), ops.add(rec, exp(rec, x), exp(rec, ops.neg(rec, x))))


def asin(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    rest = ops.mul(rec, ops.sub(rec, k(rec, 1.0), x), ops.add(rec, k(rec, 1.0), x))
    return atan(rec, ops.div(rec, x, sqrt(rec, rest)))


def acos(rec: Recording, x: Any) -> Sym:
    return ops.sub(rec, k(rec, math.pi / 2.0), asin(rec, x))


def asinh(rec: Recording, x: Any) -> Sym:
    """log(2x) from 1e9 on, where the square would leave what f32 holds before long."""
    x = real(rec, x)
    size, high = ops.absolute(rec, x), k(rec, 1e9)
    near = minimum(rec, size, high)
    square_of = ops.mul(rec, near, near)
    root = sqrt(rec, ops.add(rec, square_of, k(rec, 1.0)))
    found = log1p(rec, ops.add(rec, near, ops.div(rec, square_of, ops.add(rec, root, k(rec, 1.0)))))
    far = ops.add(rec, log(rec, maximum(rec, size, high)), k(rec, math.log(2.0)))
    return ops.mul(rec, sign(rec, x), choose(rec, LT(rec, high, size), far, found))


def acosh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    above = ops.sub(rec, x, k(rec, 1.0))
    roots = ops.mul(rec, sqrt(rec, above), sqrt(rec, ops.add(rec, x, k(rec, 1.0))))
    return log1p(rec, ops.add(rec, above, roots))


def atanh(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    ratio = ops.div(rec, ops.mul(rec, k(rec, 2.0), x), ops.sub(rec, k(rec, 1.0), x))
    return ops.mul(rec, k(rec, 0.5), log1p(rec, ratio))


def atan2(rec: Recording, y: Any, x: Any) -> Sym:
    y, x = real(rec, y), real(rec, x)
    slope = atan(rec, ops.div(rec, y, x))
    turn = choose(rec, LT(rec, y, k(rec, 0.0)), k(rec, -math.pi), k(rec, math.pi))
    on_axis = choose(rec, EQ(rec, y, k(rec, 0.0)), k(rec, 0.0), ops.mul(rec, turn, k(rec, 0.5)))
    left = ops.add(rec, slope, turn)
    found = choose(rec, LT(rec, k(rec, 0.0), x), slope, choose(rec, LT(rec, x, k(rec, 0.0)), left, on_axis))
    return choose(rec, isnan(rec, ops.add(rec, x, y)), slope, found)


def erfc(rec: Recording, x: Any) -> Sym:
    return ops.sub(rec, k(rec, 1.0), erf(rec, x))


def hypot(rec: Recording, x: Any, y: Any) -> Sym:
    x, y = real(rec, x), real(rec, y)
    return sqrt(rec, ops.add(rec, ops.mul(rec, x, x), ops.mul(rec, y, y)))


def logaddexp(rec: Recording, x: Any, y: Any) -> Sym:
    x, y = real(rec, x), real(rec, y)
    gap = ops.neg(rec, ops.absolute(rec, ops.sub(rec, x, y)))
    apart = ops.add(rec, maximum(rec, x, y), log1p(rec, exp(rec, gap)))
    return choose(rec, EQ(rec, x, y), ops.add(rec, x, k(rec, math.log(2.0))), apart)


def xlogy(rec: Recording, x: Any, y: Any) -> Sym:
    y = real(rec, y)
    result = choose(rec, EQ(rec, x, k(rec, 0.0)), k(rec, 0.0), ops.mul(rec, x, log(rec, y)))
    return choose(rec, NE(rec, y, y), y, result)


def fmod(rec: Recording, x: Any, y: Any) -> Sym:
    """The remainder with the sign of x."""
    kind = joint(x, y)
    if kind == FLOAT:
        x = real(rec, x)
        rest = emit(rec, _abi.OP_MOD, kind, ops.absolute(rec, x), ops.absolute(rec, real(rec, y)))
        return choose(rec, LT(rec, x, 0), ops.neg(rec, rest), rest)
    rest = emit(rec, _abi.OP_MOD, kind, x, y)  # no absolute value: the lowest int has none
    return choose(rec, _is_turned(rec, x, y, rest), ops.sub(rec, rest, y), rest)


def _is_turned(rec: Recording, x: Any, y: Any, rest: Sym) -> Sym:
    """Whether a quotient that is not whole is below 0, so that rounding down went away from 0."""
    return choose(rec, NE(rec, rest, 0), NE(rec, LT(rec, x, 0), LT(rec, y, 0)), NE(rec, rest, rest))


def floordiv(rec: Recording, x: Any, y: Any) -> Sym:
    """Of floats as the libraries have it, exact: 1.0 // 0.1 is 9, though 1.0 / 0.1 is 10."""
    if joint(x, y) != FLOAT:
        return ops.floordiv(rec, x, y)
    x, y = real(rec, x), real(rec, y)
    rest = fmod(rec, x, y)
    count = ops.div(rec, ops.sub(rec, x, rest), y)
    found = nearest(rec, choose(rec, _is_turned(rec, rest, y, rest), ops.sub(rec, count, k(rec, 1.0)), count))
    return choose(rec, EQ(rec, y, k(rec, 0.0)), ops.div(rec, x, y), found)


def div_mode(rec: Recording, x: Any, y: Any, rounding_mode: Optional[str] = None) -> Sym:
    if rounding_mode is None:
        return ops.div(rec, x, y)
    if rounding_mode == "floor":
        return floordiv(rec, x, y)
    if rounding_mode != "trunc":
        refuse("div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '%s'" % rounding_mode)
    if joint(x, y) == FLOAT:
        return trunc(rec, ops.div(rec, x, y))
    down = ops.floordiv(rec, x, y)
    return choose(rec, _is_turned(rec, x, y, ops.mod(rec, x, y)), ops.add(rec, down, 1), down)


def isnan(rec: Recording, x: Any) -> Sym:
    return NE(rec, x, x)


def isinf(rec: Recording, x: Any) -> Sym:
    return EQ(rec, ops.absolute(rec, real(rec, x)), k(rec, math.inf))


def isfinite(rec: Recording, x: Any) -> Sym:
    return LT(rec, ops.absolute(rec, real(rec, x)), k(rec, math.inf))


def isneginf(rec: Recording, x: Any) -> Sym:
    return EQ(rec, real(rec, x), k(rec, -math.inf))


def isposinf(rec: Recording, x: Any) -> Sym:
    return EQ(rec, real(rec, x), k(rec, math.inf))


def isclose(rec: Recording, x: Any, y: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Sym:
    x, y = real(rec, x), real(rec, y)
    room = ops.add(rec, k(rec, float(atol)), ops.mul(rec, k(rec, float(rtol)), ops.absolute(rec, y)))
    near = LE(rec, ops.absolute(rec, ops.sub(rec, x, y)), room)
    near = ops.logical_or(rec, ops.logical_and(rec, near, isfinite(rec, y)), EQ(rec, x, y))
    return ops.logical_or(rec, near, ops.logical_and(rec, isnan(rec, x), isnan(rec, y))) if equal_nan else near


def nan_to_num(rec: Recording, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Sym:
    x = real(rec, x)
    largest = 3.4028234663852886e38
    x = choose(rec, isnan(rec, x), k(rec, 0.0 if nan is None else float(nan)), x)
    x = choose(rec, isposinf(rec, x), k(rec, largest if posinf is None else float(posinf)), x)
    return choose(rec, isneginf(rec, x), k(rec, -largest if neginf is None else float(neginf)), x)


def copysign(rec: Recording, x: Any, y: Any) -> Sym:
    size = ops.absolute(rec, real(rec, x))
    y = real(rec, y)
    of = choose(rec, EQ(rec, y, k(rec, 0.0)), ops.div(rec, k(rec, 1.0), y), y)  # 1 / -0.0 is -inf
    return choose(rec, LT(rec, of, k(rec, 0.0)), ops.neg(rec, size), size)


def heaviside(rec: Recording, x: Any, at_zero: Any) -> Sym:
    step = choose(rec, LT(rec, x, 0), k(rec, 0.0), k(rec, 1.0))
    return choose(rec, EQ(rec, x, 0), at_zero, choose(rec, isnan(rec, x), real(rec, x), step))


def lerp(rec: Recording, x: Any, y: Any, weight: Any) -> Sym:
    return ops.add(rec, x, ops.mul(rec, weight, ops.sub(rec, y, x)))


def fmax(rec: Recording, x: Any, y: Any) -> Sym:
    """The larger; the other one where one is NaN."""
    return choose(rec, isnan(rec, x), y, choose(rec, isnan(rec, y), x, maximum(rec, x, y)))


def fmin(rec: Recording, x: Any, y: Any) -> Sym:
    return choose(rec, isnan(rec, x), y, choose(rec, isnan(rec, y), x, minimum(rec, x, y)))


def positive(rec: Recording, x: Any) -> Sym:
    x = as_sym(rec, x)
    if x.ty == BOOL:
        refuse("The `+` operator, on a bool is not supported by the libraries")
    return x


def signbit(rec: Recording, x: Any) -> Sym:
    return LT(rec, copysign(rec, k(rec, 1.0), x), k(rec, 0.0))


def masked_fill(rec: Recording, x: Any, mask: Any, value: Any) -> Sym:
    kind = kind_of_operand(x)
    filled = ops.where(rec, mask, value, x)
    return filled if filled.ty == kind else cast(rec, filled, kind)


def added(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return ops.add(rec, x, y if type(alpha) is int and alpha == 1 else ops.mul(rec, y, alpha))


def subtracted(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return ops.sub(rec, x, y if type(alpha) is int and alpha == 1 else ops.mul(rec, y, alpha))


def rsub(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return subtracted(rec, y, x, alpha)


def not_finite(rec: Recording, x: Any) -> Sym:
    return logical_not(rec, isfinite(rec, x))


def degrees(rec: Recording, x: Any) -> Sym:
    return ops.mul(rec, real(rec, x), k(rec, 180.0 / math.pi))


def radians(rec: Recording, x: Any) -> Sym:
    return ops.mul(rec, real(rec, x), k(rec, math.pi / 180.0))


def frac(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return ops.sub(rec, x, trunc(rec, x))


def float_power(rec: Recording, x: Any, y: Any) -> Sym:
    return ops.power(rec, real(rec, x), real(rec, y))


def fabs(rec: Recording, x: Any) -> Sym:
    return ops.absolute(rec, real(rec, x))


def counted(rec: Recording, x: Any) -> Sym:
    """A bool or narrow int as sums count it."""
    kind = kind_of_operand(x)
    return as_sym(rec, x) if kind in (INT, FLOAT) else cast(rec, x, INT)


def logit(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return log(rec, ops.div(rec, x, ops.sub(rec, k(rec, 1.0), x)))


def sinc(rec: Recording, x: Any) -> Sym:
    """sin(pi x) / (pi x), 1 at 0."""
    turned = ops.mul(rec, real(rec, x), k(rec, math.pi))
    return choose(rec, EQ(rec, x, 0), k(rec, 1.0), ops.div(rec, sin(rec, turned), turned))


def logaddexp2(rec: Recording, x: Any, y: Any) -> Sym:
    two = k(rec, math.log(2.0))
    return ops.div(rec, logaddexp(rec, ops.mul(rec, real(rec, x), two), ops.mul(rec, real(rec, y), two)), two)
