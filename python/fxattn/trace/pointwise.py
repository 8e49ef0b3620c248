# SPDX-License-Identifier: Apache-2.0
"""The pointwise operations of cuDNN's frontend. The table of this file has, for each pointwise operation, the names of
the operands and a function that records the operation.

Arithmetic treats bools as ints, because a cuDNN graph has no arithmetic of bools.
"""
import math
from typing import Any, Callable, Dict, Tuple

from . import activations, functions, ops
from .._abi import OP_EQ, OP_GE, OP_GT, OP_LE, OP_LT, OP_NE
from .functions import LT, exp, k, real, sigmoid, tanh
from .ops import add, choose, compare, div, kind_of_operand, mul, sub
from .record import Recording
from .symbol import Sym
from .types import BOOL, FLOAT, I8, INT, U8

Op = Callable[..., Any]
TABLE_OF_TYPES = {"FLOAT": FLOAT, "HALF": FLOAT, "BFLOAT16": FLOAT, "DOUBLE": FLOAT, "FLOAT32": FLOAT, "FLOAT16": FLOAT,
                  "FLOAT64": FLOAT, "INT32": INT, "INT64": INT, "INT8": I8, "UINT8": U8, "BOOLEAN": BOOL, "BOOL": BOOL,
                  "NOT_SET": None}


def _counted(fn: Op) -> Op:
    """Returns a function that calls `fn` with bool operands converted to ints."""
    def go(rec: Recording, *operands: Any) -> Sym:
        return fn(rec, *[ops.cast(rec, x, INT) if kind_of_operand(x) == BOOL else x for x in operands])
    return go


def _number(rec: Recording, value: Any) -> Any:
    return value if type(value) is Sym else k(rec, float(value))


def relu(rec: Recording, x: Any, negative_slope: Any = 0.0, lower_clip: Any = 0.0, upper_clip: Any = None) -> Sym:
    """Returns x between lower_clip and upper_clip, upper_clip for larger x, and lower_clip + negative_slope * (x -
    lower_clip) for smaller x."""
    x, low = real(rec, x), _number(rec, lower_clip)
    below = add(rec, low, mul(rec, _number(rec, negative_slope), sub(rec, x, low))) if negative_slope else low
    top = x if upper_clip is None else ops.minimum(rec, x, _number(rec, upper_clip))
    return choose(rec, LT(rec, low, x), top, below)


def relu_backward(rec: Recording, loss: Any, x: Any, negative_slope: Any = 0.0, lower_clip: Any = 0.0,
                  upper_clip: Any = None) -> Sym:
    x, loss, zero = real(rec, x), real(rec, loss), k(rec, 0.0)
    inside = loss if upper_clip is None else choose(rec, LT(rec, x, _number(rec, upper_clip)), loss, zero)
    below = mul(rec, loss, _number(rec, negative_slope)) if negative_slope else zero
    return choose(rec, LT(rec, _number(rec, lower_clip), x), inside, below)


def leaky_relu_backward(rec: Recording, loss: Any, x: Any, negative_slope: Any) -> Sym:
    return choose(rec, LT(rec, k(rec, 0.0), x), real(rec, loss), mul(rec, loss, _number(rec, negative_slope)))


def tanh_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    y = tanh(rec, x)
    return mul(rec, real(rec, loss), sub(rec, k(rec, 1.0), mul(rec, y, y)))


def _sigmoid_slope(rec: Recording, y: Sym) -> Sym:
    return mul(rec, y, sub(rec, k(rec, 1.0), y))


def sigmoid_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    return mul(rec, real(rec, loss), _sigmoid_slope(rec, sigmoid(rec, x)))


def elu_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    below = mul(rec, loss, exp(rec, ops.minimum(rec, real(rec, x), k(rec, 0.0))))
    return choose(rec, LT(rec, k(rec, 0.0), x), real(rec, loss), below)


def gelu_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    x = real(rec, x)
    share = mul(rec, k(rec, 0.5), add(rec, k(rec, 1.0), functions.erf(rec, mul(rec, x, k(rec, math.sqrt(0.5))))))
    bell = mul(rec, k(rec, 1.0 / math.sqrt(2.0 * math.pi)), exp(rec, mul(rec, k(rec, -0.5), mul(rec, x, x))))
    return mul(rec, loss, add(rec, share, mul(rec, x, bell)))


def gelu_approx_tanh_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    x = real(rec, x)
    root, square = k(rec, math.sqrt(2.0 / math.pi)), mul(rec, x, x)
    inner = mul(rec, root, add(rec, x, mul(rec, k(rec, 0.044715), mul(rec, square, x))))
    y = tanh(rec, inner)
    slope = mul(rec, root, add(rec, k(rec, 1.0), mul(rec, k(rec, 3.0 * 0.044715), square)))
    rest = mul(rec, mul(rec, x, sub(rec, k(rec, 1.0), mul(rec, y, y))), slope)
    return mul(rec, loss, mul(rec, k(rec, 0.5), add(rec, add(rec, k(rec, 1.0), y), rest)))


def softplus_backward(rec: Recording, loss: Any, x: Any) -> Sym:
    return mul(rec, real(rec, loss), sigmoid(rec, x))


def swish(rec: Recording, x: Any, swish_beta: Any = 1.0) -> Sym:
    x = real(rec, x)
    return mul(rec, x, sigmoid(rec, mul(rec, x, _number(rec, swish_beta))))


def swish_backward(rec: Recording, loss: Any, x: Any, swish_beta: Any = 1.0) -> Sym:
    x, beta = real(rec, x), _number(rec, swish_beta)
    y = sigmoid(rec, mul(rec, x, beta))
    return mul(rec, loss, add(rec, y, mul(rec, mul(rec, beta, x), _sigmoid_slope(rec, y))))


def _leaky(rec: Recording, x: Any, negative_slope: Any) -> Sym:
    return activations.leaky_relu(rec, x, _number(rec, negative_slope))


def _select(rec: Recording, x: Any, y: Any, mask: Any) -> Sym:
    return choose(rec, ops.truth(rec, mask), x, y)


def _square_added(rec: Recording, a: Any, b: Any) -> Sym:
    return add(rec, a, mul(rec, b, b))


def _power(rec: Recording, x: Any, y: Any) -> Sym:
    return ops.power(rec, real(rec, x), real(rec, y))


_IN, _AB, _TWO = ("input",), ("a", "b"), ("input0", "input1")
_LOSS, _COMPARE = ("loss", "input"), ("input", "comparison")
POINTWISE: Dict[str, Tuple[Tuple[str, ...], Op]] = {
    "add": (_AB, _counted(add)), "sub": (_AB, _counted(sub)), "mul": (_AB, _counted(mul)), "div": (_AB, _counted(div)),
    "add_square": (_AB, _counted(_square_added)), "bias": (("input", "bias"), _counted(add)),
    "scale": (("input", "scale"), _counted(mul)), "max": (_TWO, _counted(ops.maximum)),
    "min": (_TWO, _counted(ops.minimum)),
    "mod": (_TWO, _counted(functions.fmod)), "pow": (_TWO, _power),
    "logical_and": (_AB, ops.logical_and), "logical_or": (_AB, ops.logical_or), "logical_not": (_IN, ops.logical_not),
    "binary_select": (("input0", "input1", "mask"), _select),
    **{"cmp_" + name: (_COMPARE, compare(op)) for name, op in
       (("eq", OP_EQ), ("neq", OP_NE), ("gt", OP_GT), ("ge", OP_GE), ("lt", OP_LT), ("le", OP_LE))},
    **{name: (_IN, _counted(fn)) for name, fn in
       (("abs", ops.absolute), ("neg", ops.neg), ("ceil", functions.ceil), ("floor", functions.floor))},
    **{name: (_IN, fn) for name, fn in
       (("identity", ops.as_sym), ("sqrt", functions.sqrt), ("rsqrt", functions.rsqrt), ("exp", exp),
        ("log", functions.log), ("sin", functions.sin), ("cos", functions.cos), ("tan", functions.tan),
        ("erf", functions.erf), ("tanh", tanh), ("sigmoid", sigmoid), ("reciprocal", functions.reciprocal),
        ("gelu", activations.gelu), ("gelu_approx_tanh", lambda rec, x: activations.gelu(rec, x, "tanh")),
        ("elu", activations.elu), ("softplus", activations.softplus), ("relu", relu), ("leaky_relu", _leaky),
        ("swish", swish))},
    **{name: (_LOSS, fn) for name, fn in
       (("relu_backward", relu_backward), ("leaky_relu_backward", leaky_relu_backward),
        ("tanh_backward", tanh_backward), ("sigmoid_backward", sigmoid_backward), ("elu_backward", elu_backward),
        ("gelu_backward", gelu_backward), ("gelu_approx_tanh_backward", gelu_approx_tanh_backward),
        ("softplus_backward", softplus_backward), ("swish_backward", swish_backward))},
}
_CLIPS = ("negative_slope", "lower_clip", "upper_clip")
# Options of an operation: numbers that are not operands. Options are constants, like attributes of a cuDNN operation.
OPTIONS: Dict[str, Tuple[str, ...]] = {
    "relu": _CLIPS, "relu_backward": _CLIPS, "leaky_relu": ("negative_slope",),
    "leaky_relu_backward": ("negative_slope",),
    "swish": ("swish_beta",), "swish_backward": ("swish_beta",),
}
# Order of positional arguments, if it is not the usual one: operands, options, compute_data_type, name.
ORDER: Dict[str, Tuple[str, ...]] = {"swish_backward": ("loss", "input", "compute_data_type", "swish_beta", "name")}
