# SPDX-License-Identifier: Apache-2.0
"""Functions of traced scalars that are not operators: functions of the program language, quotients and remainders,
signs, and tests for NaN and infinity. curves.py and activations.py compose further functions from the functions of this
file.

The functions of this file, like those of ops.py, take a Recording (record.py) and operands (traced scalars or numbers).
Float literals in this file become constants of the program, never params."""
import math
import sys
from typing import Any, Callable, Optional

from .. import _abi
from . import ops
from .ops import as_sym, cast, choose, compare, emit, joint, kind_of_operand, maximum, minimum, node
from .libraries import dtype_name
from .place import refuse
from .record import Recording
from .symbol import Sym
from .types import BOOL, FLOAT, INT, PROMOTE

LT, EQ, NE, LE = (compare(op) for op in (_abi.OP_LT, _abi.OP_EQ, _abi.OP_NE, _abi.OP_LE))


def k(rec: Recording, value: float) -> Sym:
    return Sym(rec, rec.constant(value), FLOAT)


def real(rec: Recording, x: Any) -> Sym:
    return cast(rec, x, FLOAT)


def is_double(rec: Recording) -> bool:
    """Returns True if the caller of the trace declared scores of f64."""
    return rec.dtype is not None and dtype_name(rec.dtype) == "float64"


def of_float(op: int) -> Callable[[Recording, Any], Sym]:
    """Returns a Python function that records `op`, an operation of the program language that maps a float to a
    float."""
    return lambda rec, x: Sym(rec, rec.emit(op, node(rec, x, FLOAT)), FLOAT)


sqrt, rsqrt, exp, exp2, log, log2, log1p, tanh, sigmoid, erf, sin, cos, tan, atan = (
    of_float(getattr(_abi, "OP_" + name)) for name in
    "SQRT RSQRT EXP EXP2 LOG LOG2 LOG1P TANH SIGMOID ERF SIN COS TAN ATAN".split())


def rounding(op: int) -> Callable[[Recording, Any], Sym]:
    """Returns a Python function that records the rounding operation `op`; the function returns ints and bools
    unchanged."""
    def go(rec: Recording, x: Any) -> Sym:
        x = as_sym(rec, x)
        return x if x.ty != FLOAT else Sym(rec, rec.emit(op, x.node), FLOAT)
    return go


floor, ceil, trunc, nearest = (rounding(getattr(_abi, "OP_" + name)) for name in "FLOOR CEIL TRUNC ROUND".split())


def round_to(rec: Recording, x: Any, decimals: int = 0) -> Sym:
    if not decimals:
        return nearest(rec, x)
    scale = k(rec, 10.0 ** abs(decimals) if abs(decimals) <= sys.float_info.max_10_exp else math.inf)
    up, down = (ops.mul, ops.div) if decimals > 0 else (ops.div, ops.mul)
    return down(rec, nearest(rec, up(rec, real(rec, x), scale)), scale)


def rint(rec: Recording, x: Any) -> Sym:
    return nearest(rec, real(rec, x))


def emit_sign(rec: Recording, x: Any) -> Sym:
    """Returns the sign of x, -1, 0 or 1; NaN for NaN."""
    kind = kind_of_operand(x)
    return as_sym(rec, x) if kind == BOOL else emit(rec, _abi.OP_SIGN, kind, x)


def sign(rec: Recording, x: Any) -> Sym:
    """Returns the sign of x, -1, 0 or 1. sign(NaN) is 0 in torch and NaN in the other libraries."""
    if rec.lib != "torch" or kind_of_operand(x) != FLOAT:
        return emit_sign(rec, x)
    below = choose(rec, LT(rec, x, 0), k(rec, -1.0), k(rec, 0.0))
    return choose(rec, LT(rec, 0, x), k(rec, 1.0), below)


def clamp(rec: Recording, x: Any, low: Any = None, high: Any = None) -> Sym:
    if low is None and high is None:
        refuse("clamp: at least one of 'min' or 'max' must not be None")
    kinds = [joint(x, bound) for bound in (low, high) if bound is not None]
    kind = PROMOTE[kinds[0]][kinds[-1]]
    if kind == FLOAT:  # at a bound x gets the full gradient; minimum would split the gradient between x and the bound
        low, high = (k(rec, -math.inf) if low is None else low), (k(rec, math.inf) if high is None else high)
    if low is None:
        return minimum(rec, x, high)
    if high is None:
        return maximum(rec, x, low)
    if kind == BOOL:
        return minimum(rec, maximum(rec, x, low), high)
    return emit(rec, _abi.OP_CLAMP, kind, x, low, high)


def reciprocal(rec: Recording, x: Any) -> Sym:
    return ops.div(rec, k(rec, 1.0), x)


def square(rec: Recording, x: Any) -> Sym:
    return ops.power(rec, x, 2)


def fmod(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns the remainder of x / y with the sign of x."""
    kind = joint(x, y)
    if kind == FLOAT:
        x = real(rec, x)
        below = LT(rec, x, 0)
        size = choose(rec, below, ops.neg(rec, x), x)  # the absolute value, with derivative 1 at 0
        rest = emit(rec, _abi.OP_MOD, kind, size, ops.absolute(rec, real(rec, y)))
        return choose(rec, below, ops.neg(rec, rest), rest)
    rest = emit(rec, _abi.OP_MOD, kind, x, y)  # without absolute values: the lowest int has none
    return choose(rec, _is_turned(rec, x, y, rest), ops.sub(rec, rest, y), rest)


def _is_turned(rec: Recording, x: Any, y: Any, rest: Sym) -> Sym:
    """Returns True where x / y is negative and not an integer, so that rounding x / y down moves the quotient away from
    0."""
    return choose(rec, NE(rec, rest, 0), NE(rec, LT(rec, x, 0), LT(rec, y, 0)), NE(rec, rest, rest))


def floordiv(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns the exact floor of x / y, as torch and NumPy do: 1.0 // 0.1 is 9, although 1.0 / 0.1 rounds to 10."""
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
    if kind_of_operand(x) != FLOAT:
        return as_sym(rec, x)
    x = real(rec, x)
    largest = sys.float_info.max if is_double(rec) else 3.4028234663852886e38
    x = choose(rec, isnan(rec, x), k(rec, 0.0 if nan is None else float(nan)), x)
    x = choose(rec, isposinf(rec, x), k(rec, largest if posinf is None else float(posinf)), x)
    return choose(rec, isneginf(rec, x), k(rec, -largest if neginf is None else float(neginf)), x)


def _signed(rec: Recording, x: Any) -> Sym:
    """Returns a value that is negative where x is negative or -0.0."""
    if kind_of_operand(x) != FLOAT:
        return real(rec, x)
    return choose(rec, EQ(rec, x, k(rec, 0.0)), ops.div(rec, k(rec, 1.0), x), x)  # 1 / -0.0 is -inf


def copysign(rec: Recording, x: Any, y: Any) -> Sym:
    size = ops.absolute(rec, real(rec, x))
    return choose(rec, is_set_sign(rec, y), ops.neg(rec, size), size)


def heaviside(rec: Recording, x: Any, at_zero: Any) -> Sym:
    """Returns the Heaviside function of x. heaviside(NaN) is 0 in torch and NaN in the other libraries."""
    step = choose(rec, LT(rec, 0, x), k(rec, 1.0), k(rec, 0.0))
    step = step if rec.lib == "torch" else choose(rec, isnan(rec, x), real(rec, x), step)
    return choose(rec, EQ(rec, x, 0), at_zero, step)


def lerp(rec: Recording, x: Any, y: Any, weight: Any) -> Sym:
    """Returns x + weight * (y - x). As in torch, the formula of lerp starts from the nearer of x and y, so that a
    weight of 1 returns y exactly."""
    apart, weight = ops.sub(rec, y, x), real(rec, weight)
    near = ops.add(rec, x, ops.mul(rec, weight, apart))
    far = ops.sub(rec, y, ops.mul(rec, apart, ops.sub(rec, k(rec, 1.0), weight)))
    return choose(rec, LT(rec, ops.absolute(rec, weight), k(rec, 0.5)), near, far)


def fmax(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns the larger operand. If one operand is NaN, returns the other operand; if the operands are equal, returns
    the first operand."""
    return choose(rec, isnan(rec, x), y, choose(rec, LT(rec, x, y), y, x))


def fmin(rec: Recording, x: Any, y: Any) -> Sym:
    return choose(rec, isnan(rec, x), y, choose(rec, LT(rec, y, x), y, x))


def positive(rec: Recording, x: Any) -> Sym:
    x = as_sym(rec, x)
    if x.ty == BOOL:
        refuse("The `+` operator, on a bool is not supported by the libraries")
    return x


def is_set_sign(rec: Recording, x: Any) -> Sym:
    """Returns True where x is negative or -0.0."""
    return LT(rec, _signed(rec, x), k(rec, 0.0))


def masked_fill(rec: Recording, x: Any, mask: Any, value: Any) -> Sym:
    kind = kind_of_operand(x)
    filled = ops.where(rec, mask, value, x)
    return filled if filled.ty == kind else cast(rec, filled, kind)


def _times(rec: Recording, x: Any, y: Any, alpha: Any) -> Any:
    """Returns the term alpha * y of x + alpha * y, in the type of the sum: if x is a float, a narrow int y becomes a
    float first."""
    if type(alpha) is int and alpha == 1:
        return y
    kind = joint(x, y)
    if kind == BOOL:
        return ops.logical_and(rec, y, alpha)
    return ops.mul(rec, cast(rec, y, kind), alpha)


def added(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return ops.add(rec, x, _times(rec, x, y, alpha))


def added_term(rec: Recording, term: Callable[..., Sym], x: Any, y: Any, z: Any, value: Any) -> Sym:
    """Returns x + value * term(y, z), for addcmul and addcdiv, in the common type of x, y and z."""
    kind = PROMOTE[joint(x, y)][kind_of_operand(z)]
    if kind not in (FLOAT, BOOL):
        value = cast(rec, value, kind)  # torch truncates `value` if the other operands are ints
    return added(rec, x, term(rec, cast(rec, y, kind), cast(rec, z, kind)), value)


def subtracted(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return ops.sub(rec, x, _times(rec, x, y, alpha))


def rsub(rec: Recording, x: Any, y: Any, alpha: Any = 1) -> Sym:
    return subtracted(rec, y, x, alpha)


def frac(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return ops.sub(rec, x, trunc(rec, x))


def float_power(rec: Recording, x: Any, y: Any) -> Sym:
    return ops.power(rec, real(rec, x), real(rec, y))


def fabs(rec: Recording, x: Any) -> Sym:
    return ops.absolute(rec, real(rec, x))


def counted(rec: Recording, x: Any) -> Sym:
    """Returns x in the type that sums use: bools and narrow ints become ints."""
    kind = kind_of_operand(x)
    return as_sym(rec, x) if kind in (INT, FLOAT) else cast(rec, x, INT)


def isreal(rec: Recording, x: Any) -> Sym:
    return as_sym(rec, True)


def angle(rec: Recording, x: Any) -> Sym:
    """Returns the angle of a real number: pi below 0, NaN for NaN, else 0."""
    x = real(rec, x)
    found = choose(rec, LT(rec, x, k(rec, 0.0)), k(rec, math.pi), k(rec, 0.0))
    return choose(rec, isnan(rec, x), x, found)


def ldexp(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns x * 2^y. For torch, x is multiplied by 2^y. For NumPy, x is multiplied by 2^h and by 2^(y - h), where h
    is floor(y / 2), so that an overflow of 2^y alone has no effect."""
    x, y = real(rec, x), real(rec, y)
    if rec.lib == "torch":
        return ops.mul(rec, x, exp2(rec, y))
    half = floor(rec, ops.mul(rec, y, k(rec, 0.5)))
    made = ops.mul(rec, ops.mul(rec, x, exp2(rec, half)), exp2(rec, ops.sub(rec, y, half)))
    return choose(rec, EQ(rec, x, k(rec, 0.0)), x, made)
