# SPDX-License-Identifier: Apache-2.0
"""Handlers of the functions and methods that torch and NumPy have in common, by name.

The handler of a torch or NumPy function takes a Recording and the arguments as the user gave them. torch_table.py and
numpy_table.py add the handlers of one library; methods.py makes the handlers methods of traced values.
"""
from typing import Any, Callable, Dict, Sequence

from . import activations, arrays, curves, functions, ops, products, reductions
from .._abi import OP_EQ, OP_GE, OP_GT, OP_LE, OP_LT, OP_NE
from .arrays import Vec, elementwise, vec
from .libraries import kind_of_dtype
from .ops import compare
from .place import error as error_here
from .place import refuse
from .record import Recording
from .symbol import Sym

Handler = Callable[..., Any]
_NUMBERS = {int: True, float: True, bool: True}


def not_taken(error: TypeError, what: str) -> Exception:
    """Returns the exception to raise after the call of a handler raised the TypeError `error`. Returns `error` itself
    if the body of the handler raised `error`. If the arguments do not fit the handler's signature, the message of the
    returned exception describes the mismatch, with `what` as the function's name."""
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return error
    return error_here("%s is not known to score functions with these arguments (%s)" % (what, error))


def is_plain(rec: Recording, x: Any) -> bool:
    """Returns True if an operand can be used directly: a symbol of this trace, or a Python number."""
    return x.rec is rec if type(x) is Sym else type(x) in _NUMBERS


def check_rest(name: str, rest: Dict[str, Any]) -> None:
    """Accepts keywords that do not change the value, and raises an error for all keywords that could change the
    value."""
    for key, given in rest.items():
        if given is None or key in ("name", "device", "requires_grad", "pin_memory", "memory_format", "layout",
                                    "non_blocking", "copy", "casting", "order", "subok", "validate_args", "stable",
                                    "_stacklevel"):
            continue
        if key == "where" and given is True or key == "dtype":
            continue
        refuse("%s: the keyword %s=%s is not known to traced values" % (name, key, given))


def one(fn: Callable[..., Sym]) -> Handler:
    """Returns the handler that applies `fn` to the elements of one operand."""
    def go(rec: Recording, x: Any, **rest: Any) -> Any:
        if rest:
            check_rest(getattr(fn, "__name__", "this function"), rest)
        return fn(rec, x) if type(x) is Sym and x.rec is rec else elementwise(fn, rec, (x,))
    return go


def two(fn: Callable[..., Sym]) -> Handler:
    """Returns the handler that applies `fn` to the elements of two operands."""
    def go(rec: Recording, x: Any, y: Any, **rest: Any) -> Any:
        if rest:
            check_rest(getattr(fn, "__name__", "this function"), rest)
        if is_plain(rec, x) and is_plain(rec, y):
            return fn(rec, x, y)
        return elementwise(fn, rec, (x, y))
    return go


def turned(fn: Callable[..., Sym]) -> Handler:
    """Returns the handler that calls `fn` with swapped operands, as __rsub__ requires."""
    return two(lambda rec, x, y: fn(rec, y, x))


def spread(table: Dict[str, Any]) -> Dict[str, Any]:
    """Returns a table with one entry for each name; a key of `table` may consist of several names, separated by
    spaces."""
    return {name: row for names, row in table.items() for name in names.split()}


UNARY: Dict[str, Callable[..., Sym]] = spread({
    "neg negative": ops.neg, "abs absolute": ops.absolute, "invert bitwise_not": ops.invert,
    "logical_not": ops.logical_not, "positive pos": functions.positive, "square": functions.square,
    "reciprocal": functions.reciprocal, "sign sgn": functions.sign, "signbit": functions.is_set_sign,
    "floor": functions.floor, "ceil": functions.ceil, "trunc fix": functions.trunc, "frac": functions.frac,
    "isnan": functions.isnan, "isinf": functions.isinf, "isfinite": functions.isfinite, "isneginf": functions.isneginf,
    "isposinf": functions.isposinf, "isreal": functions.isreal, "angle": functions.angle,
    "sqrt": functions.sqrt, "rsqrt": functions.rsqrt, "exp": functions.exp, "exp2": functions.exp2,
    "expm1": curves.expm1, "log": functions.log, "log2": functions.log2, "log10": curves.log10,
    "log1p": functions.log1p, "sin": functions.sin, "cos": functions.cos, "tan": functions.tan,
    "atan arctan": functions.atan, "asin arcsin": curves.asin, "acos arccos": curves.acos, "tanh": functions.tanh,
    "sinh": curves.sinh, "cosh": curves.cosh, "asinh arcsinh": curves.asinh, "acosh arccosh": curves.acosh,
    "atanh arctanh": curves.atanh, "rad2deg degrees": curves.degrees, "deg2rad radians": curves.radians,
    "sigmoid expit": functions.sigmoid, "relu": activations.relu, "erf": functions.erf, "erfc": curves.erfc,
    "erfcx": curves.erfcx, "ndtr": curves.ndtr, "log_ndtr": curves.log_ndtr, "entr": curves.entr, "sinc": curves.sinc,
})
BINARY: Dict[str, Callable[..., Sym]] = spread({
    "add": ops.add, "sub subtract": ops.sub, "mul multiply": ops.mul, "truediv true_divide": ops.div,
    "floordiv floor_divide": functions.floordiv, "mod remainder": ops.mod, "fmod": functions.fmod,
    "pow power": ops.power, "float_power": functions.float_power, "minimum": ops.minimum, "maximum": ops.maximum,
    "fmin": functions.fmin, "fmax": functions.fmax, "atan2 arctan2": curves.atan2, "hypot": curves.hypot,
    "logaddexp": curves.logaddexp, "logaddexp2": curves.logaddexp2, "ldexp": functions.ldexp, "xlogy": curves.xlogy,
    "xlog1py": curves.xlog1py, "copysign": functions.copysign, "heaviside": functions.heaviside,
    "and bitwise_and": ops.bit_and, "or bitwise_or": ops.bit_or, "xor bitwise_xor": ops.bit_xor,
    "lshift bitwise_left_shift left_shift": ops.shift_left, "rshift bitwise_right_shift right_shift": ops.shift_right,
    "logical_and": ops.logical_and, "logical_or": ops.logical_or, "logical_xor": ops.logical_xor,
    "eq equal": compare(OP_EQ), "ne not_equal": compare(OP_NE), "lt less": compare(OP_LT),
    "le less_equal": compare(OP_LE), "gt greater": compare(OP_GT), "ge greater_equal": compare(OP_GE),
})
# Python's operators that have a reflected method, such as __radd__.
OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()


def dims_of(sizes: Sequence[Any]) -> Any:
    """Returns sizes as a tuple; the user passed the sizes as one sequence or as several arguments."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else tuple(sizes)


# ---- shapes

def in_rows(name: str, order: Any) -> None:
    """Raises an error if NumPy's option `order` is not "C"."""
    if order != "C":
        refuse("%s: rows in order C are known to traced values, not order %s" % (name, order))


def h_reshape(rec: Recording, x: Any, *sizes: Any, **rest: Any) -> Any:
    in_rows("reshape", rest.get("order", "C"))
    return arrays.reshape(vec(rec, x), dims_of(sizes or (rest.get("shape") or rest.get("size"),)))


def h_unsqueeze(rec: Recording, x: Any, dim: int) -> Any:
    x = vec(rec, x)
    dim = arrays.axis_of(dim, len(x.shape) + 1)
    return Vec(rec, x.shape[:dim] + (1,) + x.shape[dim:], x.elements)


def h_squeeze(rec: Recording, x: Any, dim: Any = None, **rest: Any) -> Any:
    x, dim = vec(rec, x), rest.pop("axis", dim)
    check_rest("squeeze", rest)
    dims = arrays.axes_of(dim, len(x.shape))
    return arrays.value(Vec(rec, [n for d, n in enumerate(x.shape) if d not in dims or n != 1], x.elements))


def h_expand(rec: Recording, x: Any, *sizes: Any, **rest: Any) -> Any:
    x, sizes = vec(rec, x), dims_of(sizes or (rest.get("size") or rest.get("shape"),))
    lead = len(sizes) - len(x.shape)
    shape = tuple(x.shape[d - lead] if n == -1 else int(n) for d, n in enumerate(sizes))
    return arrays.value(Vec(rec, shape, arrays.expanded(x, shape)))


def h_permute(rec: Recording, x: Any, *dims: Any) -> Any:
    return arrays.value(arrays.permute(vec(rec, x), dims_of(dims)))


def h_swap(rec: Recording, x: Any, dim0: int = -1, dim1: int = -2) -> Any:
    x = vec(rec, x)
    order = list(range(len(x.shape)))
    if order:
        a, b = arrays.axis_of(dim0, len(order)), arrays.axis_of(dim1, len(order))
        order[a], order[b] = order[b], order[a]
    return arrays.value(arrays.permute(x, order))


def h_stack(rec: Recording, parts: Sequence[Any], dim: int = 0, **rest: Any) -> Any:
    check_rest("stack", {key: given for key, given in rest.items() if key != "axis"})
    return arrays.stack(rec, [vec(rec, x) for x in parts], rest.get("axis", dim))


def h_concatenate(rec: Recording, parts: Sequence[Any], dim: int = 0, **rest: Any) -> Any:
    check_rest("cat", {key: given for key, given in rest.items() if key != "axis"})
    return arrays.concatenate(rec, [vec(rec, x) for x in parts], rest.get("axis", dim))


# ---- reductions

def h_reduce(name: str) -> Handler:
    def go(rec: Recording, x: Any, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
        dim, keepdim = rest.pop("axis", dim), rest.pop("keepdims", keepdim)
        kind = None if rest.get("dtype") is None else kind_of_dtype(rest["dtype"])
        check_rest(name, rest)
        if kind is not None:
            x = elementwise(lambda r, y: ops.cast(r, y, kind), rec, (x,))
        return reductions.reduce(rec, name, x, dim, bool(keepdim))
    return go


def h_norm(rec: Recording, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
    p, dim, keepdim = rest.pop("ord", p), rest.pop("axis", dim), rest.pop("keepdims", keepdim)
    check_rest("norm", rest)
    return reductions.norm(rec, x, p, dim, keepdim)


def h_softmax(rec: Recording, x: Any, dim: int = -1, **rest: Any) -> Any:
    return reductions.softmax(rec, x, rest.get("axis", dim))


def h_log_softmax(rec: Recording, x: Any, dim: int = -1, **rest: Any) -> Any:
    return reductions.log_softmax(rec, x, rest.get("axis", dim))


def h_cumsum(rec: Recording, x: Any, dim: int = 0, **rest: Any) -> Any:
    kind = None if rest.get("dtype") is None else kind_of_dtype(rest["dtype"])
    x = x if kind is None else elementwise(lambda r, y: ops.cast(r, y, kind), rec, (x,))
    return reductions.cumsum(rec, x, rest.get("axis", dim))


def same(rec: Recording, x: Any, *args: Any, **rest: Any) -> Any:
    """Returns x. The handler of all torch and NumPy functions that return a traced value unchanged."""
    return x


COMMON: Dict[str, Handler] = {
    **{name: one(fn) for name, fn in UNARY.items()},
    **{name: two(fn) for name, fn in BINARY.items()},
    **{"r" + name: turned(BINARY[name]) for name in OPERATORS},
    "isclose": lambda rec, x, y, rtol=1e-05, atol=1e-08, equal_nan=False: elementwise(
        functions.isclose, rec, (x, y), rtol=rtol, atol=atol, equal_nan=equal_nan),
    "nan_to_num": lambda rec, x, nan=None, posinf=None, neginf=None, **rest: elementwise(
        functions.nan_to_num, rec, (x,), nan=nan, posinf=posinf, neginf=neginf),
    **{name: h_reduce(name) for name in "sum prod any all mean argmax argmin logsumexp count_nonzero".split()},
    "amax": h_reduce("max"), "amin": h_reduce("min"), "norm": h_norm, "softmax": h_softmax, "cumsum": h_cumsum,
    "log_softmax": h_log_softmax, "dot": products.matmul, "matmul": products.matmul, "vdot": products.vdot,
    "rmatmul": lambda rec, x, y: products.matmul(rec, y, x), "inner": products.inner, "outer": products.outer,
    "einsum": products.einsum,
    "reshape": h_reshape, "squeeze": h_squeeze, "stack": h_stack, "concatenate": h_concatenate,
}
