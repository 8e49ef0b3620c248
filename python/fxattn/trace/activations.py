# SPDX-License-Identifier: Apache-2.0
"""Activation functions with the meaning of torch.nn.functional; tables.py and pointwise.py map names to these
functions."""
import math
from typing import Any

from .. import _abi
from .curves import expm1
from .functions import LE, LT, erf, is_double, k, real, sigmoid, tanh
from .ops import absolute, add, cast, choose, div, emit, kind_of_operand, mul, neg, sub
from .record import Recording
from .symbol import Sym
from .types import FLOAT

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def relu(rec: Recording, x: Any) -> Sym:
    return emit(rec, _abi.OP_RELU, kind_of_operand(x), x)


def softplus(rec: Recording, x: Any, beta: Any = 1, threshold: Any = 20) -> Sym:
    """Returns log(1 + exp(beta * x)) / beta, or x where beta * x is above the threshold, as torch does.
    Where beta * x is above 20, log(1 + exp(beta * x)) / beta and x differ only in f64."""
    x = real(rec, x)
    plain = type(beta) in (int, float) and beta == 1
    scaled = x if plain else real(rec, mul(rec, x, beta))
    found = Sym(rec, rec.emit(_abi.OP_SOFTPLUS, scaled.node), FLOAT)
    found = found if plain else div(rec, found, beta)
    if type(threshold) in (int, float) and threshold >= 20 and not is_double(rec):
        return found
    return choose(rec, LT(rec, threshold, scaled), x, found)


def log_sigmoid(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return neg(rec, Sym(rec, rec.emit(_abi.OP_SOFTPLUS, neg(rec, x).node), FLOAT))


def silu(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return mul(rec, x, sigmoid(rec, x))


def gelu(rec: Recording, x: Any, approximate: str = "none") -> Sym:
    x = real(rec, x)
    if approximate == "tanh":
        cube = mul(rec, mul(rec, x, x), x)
        inner = mul(rec, k(rec, math.sqrt(2.0 / math.pi)), add(rec, x, mul(rec, k(rec, 0.044715), cube)))
        bell = tanh(rec, inner)
    else:
        bell = erf(rec, mul(rec, x, k(rec, math.sqrt(0.5))))
    return mul(rec, mul(rec, k(rec, 0.5), x), add(rec, k(rec, 1.0), bell))


def _at_most_zero(rec: Recording, x: Sym) -> Sym:
    """Returns min(x, 0), with derivative 1 at 0."""
    return choose(rec, LT(rec, k(rec, 0.0), x), k(rec, 0.0), x)


def elu(rec: Recording, x: Any, alpha: Any = None) -> Sym:
    x = real(rec, x)
    below = expm1(rec, _at_most_zero(rec, x))
    if alpha is not None:
        below = mul(rec, below, alpha)
    return choose(rec, LT(rec, k(rec, 0.0), x), x, below)


def celu(rec: Recording, x: Any, alpha: Any = 1) -> Sym:
    x = real(rec, x)
    below = mul(rec, expm1(rec, div(rec, _at_most_zero(rec, x), alpha)), alpha)
    return choose(rec, LT(rec, k(rec, 0.0), x), x, below)


def selu(rec: Recording, x: Any) -> Sym:
    return mul(rec, elu(rec, x, k(rec, _SELU_ALPHA)), k(rec, _SELU_SCALE))


def leaky_relu(rec: Recording, x: Any, slope: Any) -> Sym:
    x = real(rec, x)
    return choose(rec, LT(rec, k(rec, 0.0), x), x, mul(rec, x, slope))


def mish(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return mul(rec, x, tanh(rec, softplus(rec, x)))


def softsign(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return div(rec, x, add(rec, absolute(rec, x), k(rec, 1.0)))


def tanhshrink(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return sub(rec, x, tanh(rec, x))


def hardshrink(rec: Recording, x: Any, lambd: Any) -> Sym:
    x = real(rec, x)
    return choose(rec, LE(rec, absolute(rec, x), lambd), k(rec, 0.0), x)


def softshrink(rec: Recording, x: Any, lambd: Any) -> Sym:
    x = real(rec, x)
    outside = sub(rec, x, choose(rec, LT(rec, x, k(rec, 0.0)), neg(rec, lambd), lambd))
    return choose(rec, LE(rec, absolute(rec, x), lambd), k(rec, 0.0), outside)


def hardsigmoid(rec: Recording, x: Any) -> Sym:
    return div(rec, relu6(rec, add(rec, real(rec, x), k(rec, 3.0))), k(rec, 6.0))


def hardswish(rec: Recording, x: Any) -> Sym:
    x = real(rec, x)
    return mul(rec, x, hardsigmoid(rec, x))


def _alike(rec: Recording, number: Any, x: Any) -> Any:
    """Returns `number` in the type of x: torch truncates a float `number` if x is an int."""
    kind = kind_of_operand(x)
    return number if kind == FLOAT else cast(rec, number, kind)


def hardtanh(rec: Recording, x: Any, low: Any, high: Any) -> Sym:
    """Returns x clamped to [low, high]. The derivative of the result at low and high is 0; the derivative of
    torch.clamp at low and high is 1."""
    low, high = _alike(rec, low, x), _alike(rec, high, x)
    return choose(rec, LE(rec, x, low), low, choose(rec, LE(rec, high, x), high, x))


def relu6(rec: Recording, x: Any) -> Sym:
    return hardtanh(rec, x, 0, 6)


def threshold(rec: Recording, x: Any, at: Any, value: Any) -> Sym:
    return choose(rec, LE(rec, x, _alike(rec, at, x)), _alike(rec, value, x), x)


def prelu(rec: Recording, x: Any, weight: Any) -> Sym:
    return leaky_relu(rec, x, weight)
