# SPDX-License-Identifier: Apache-2.0
"""Handlers of NumPy's functions, by name. Ufuncs reach their handler through __array_ufunc__, other functions through
__array_function__.

Indexing a NumPy array with a traced value is not dispatched to the tracer. Before a trace, the NumPy arrays of a
function are wrapped (capture.py) in Captured, a subclass of ndarray whose indexing is traced.
"""
from typing import Any, Dict, Optional

from . import activations, arrays, curves, functions, ops, products, reductions
from .arrays import elementwise
from .place import like, refuse
from .record import Recording
from .symbol import Sym, recording_of
from .tables import (COMMON, Handler, check_rest, h_concatenate, h_expand, h_permute, h_reduce, h_reshape, h_swap,
                     in_rows, not_taken, one, same, spread, two)
from .taking import h_take, h_take_along
from .torch_handlers import h_astype, h_full_like, h_isin, h_like, h_linalg_norm, h_numel, h_rank, h_round
from .types import FLOAT


def h_where(rec: Recording, condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        refuse("numpy.where with a condition alone gives a shape that depends on values; give both branches")
    return elementwise(ops.where, rec, (condition, *branches))


def h_clip(rec: Recording, x: Any, a_min: Any = None, a_max: Any = None, **rest: Any) -> Any:
    low, high = rest.pop("min", a_min), rest.pop("max", a_max)
    check_rest("clip", rest)
    return elementwise(functions.clamp, rec, (x, low, high)) if low is not None or high is not None else x


def h_expand_dims(rec: Recording, x: Any, axis: int) -> Any:
    return COMMON["reshape"](rec, x, 1) if not getattr(x, "shape", ()) else arrays.vec(rec, x)[
        (slice(None),) * arrays.axis_of(axis, len(x.shape) + 1) + (None,)]


def h_expand_to(rec: Recording, x: Any, shape: Any, **rest: Any) -> Any:
    return h_expand(rec, x, shape)


def h_ravel(rec: Recording, x: Any, order: str = "C") -> Any:
    in_rows("ravel", order)
    return arrays.vec(rec, h_reshape(rec, x, -1))


def reciprocal(rec: Recording, x: Any) -> Sym:
    """Returns 1 / x. For an int x, 1 / x is an int, which is 0 unless x is 1 or -1."""
    return functions.reciprocal(rec, x) if ops.kind_of_operand(x) == FLOAT else functions.div_mode(rec, 1, x, "trunc")


def _iscomplex(rec: Recording, x: Any) -> Sym:
    return ops.as_sym(rec, False)


def _angle(rec: Recording, x: Any) -> Sym:
    """Returns NumPy's angle of a real x: pi if x is negative or -0.0, NaN for NaN, else 0."""
    turned = functions.copysign(rec, functions.k(rec, 1.0), x)
    return functions.angle(rec, ops.choose(rec, functions.isnan(rec, x), functions.real(rec, x), turned))


def h_angle(rec: Recording, x: Any, deg: bool = False) -> Any:
    found = elementwise(_angle, rec, (x,))
    return elementwise(curves.degrees, rec, (found,)) if deg else found


def h_searchsorted(rec: Recording, edges: Any, x: Any, side: str = "left", sorter: Any = None) -> Any:
    if sorter is not None:
        refuse("searchsorted: sorter is not known to traced values; sort the edges outside of the function")
    return reductions.bucketize(rec, x, edges, side == "right")


def h_digitize(rec: Recording, x: Any, bins: Any, right: bool = False) -> Any:
    """Returns np.digitize of x for bins in ascending order. Bins in descending order are not supported and not
    detected."""
    return reductions.bucketize(rec, x, bins, not right)


def h_transpose(rec: Recording, x: Any, axes: Any = None) -> Any:
    return h_permute(rec, x, tuple(range(len(x.shape)))[::-1] if axes is None else tuple(axes))


def h_cumsum(rec: Recording, x: Any, axis: Any = None, dtype: Any = None, **rest: Any) -> Any:
    check_rest("cumsum", rest)
    x = x if axis is not None else arrays.reshape(arrays.vec(rec, x), (-1,))
    return COMMON["cumsum"](rec, x, axis or 0, dtype=dtype)


def h_nan_to_num(rec: Recording, x: Any, copy: bool = True, nan: Any = None, posinf: Any = None,
                 neginf: Any = None) -> Any:
    return COMMON["nan_to_num"](rec, x, nan, posinf, neginf)


def h_concatenate_flat(rec: Recording, parts: Any, axis: Any = 0, **rest: Any) -> Any:
    if axis is None:
        parts, axis = [arrays.vec(rec, arrays.reshape(arrays.vec(rec, x), (-1,))) for x in parts], 0
    return h_concatenate(rec, parts, axis, **rest)


NUMPY: Dict[str, Handler] = {**COMMON, **spread({
    "divide": two(ops.div), "reciprocal": one(reciprocal),
    "where": h_where, "clip": h_clip, "round around": h_round, "rint": one(functions.rint),
    "fabs": one(functions.fabs), "cbrt": one(curves.cbrt), "logit": one(curves.logit),
    "log_expit": one(activations.log_sigmoid), "max": h_reduce("max"), "min": h_reduce("min"),
    "nanmax": h_reduce("nanmax"), "nanmin": h_reduce("nanmin"), "nansum": h_reduce("nansum"),
    "nanmean": h_reduce("nanmean"), "iscomplex": one(_iscomplex), "std": reductions.h_spread(True),
    "var": reductions.h_spread(False), "cumsum": h_cumsum, "dot": products.dot,
    "linalg_vecdot vecdot": products.vecdot, "linalg_norm": h_linalg_norm, "astype": h_astype,
    "transpose permute_dims": h_transpose, "swapaxes": h_swap, "broadcast_to": h_expand_to,
    "expand_dims": h_expand_dims, "ravel": h_ravel, "concatenate": h_concatenate_flat,
    "zeros_like empty_like": h_like(0), "ones_like": h_like(1), "full_like": h_full_like,
    "copy asarray ascontiguousarray conjugate conj real": same, "take": h_take, "take_along_axis": h_take_along,
    "nan_to_num": h_nan_to_num,
    "searchsorted": h_searchsorted, "digitize": h_digitize, "isin": h_isin, "ndim": h_rank, "shape": lambda rec,
    x: tuple(x.shape), "size": h_numel, "angle": h_angle,
})}


def _find(name: str) -> Handler:
    handler = NUMPY.get(name)
    if handler is None:
        refuse("NumPy's %s is not known to score functions%s; a table of it, made outside, may be indexed"
               % (name, like(name, NUMPY)))
    return handler


def _call(name: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    handler, rec = _find(name), _recording(args, kwargs)
    try:
        return handler(rec, *args, **kwargs)
    except TypeError as error:
        raise not_taken(error, "NumPy's " + name) from None


def _recording(args: Any, kwargs: Dict[str, Any]) -> Recording:
    rec: Optional[Recording] = recording_of(args) or recording_of(kwargs)
    assert rec is not None
    return rec


def call_ufunc(ufunc: Any, method: str, inputs: Any, kwargs: Dict[str, Any]) -> Any:
    """Returns the result of a ufunc call from __array_ufunc__: np.add(x, y) or np.add.reduce(x)."""
    if kwargs.get("out") is not None:
        refuse("out= writes into an array, which a score function must not")
    kwargs.pop("out", None)
    name = ufunc.__name__
    if method == "reduce":
        folded = {"add": "sum", "multiply": "prod", "logical_or": "any", "logical_and": "all", "maximum": "max",
                  "minimum": "min"}.get(name)
        if folded is None:
            refuse("numpy.%s.reduce is not known to score functions" % name)
        kwargs.setdefault("axis", 0)
        return h_reduce(folded)(_recording(inputs, kwargs), *inputs, **kwargs)
    if method != "__call__":
        refuse("numpy.%s.%s is not known to score functions" % (name, method))
    return _call(name, inputs, kwargs)


def call_function(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Returns the result of a call from __array_function__, which is a call of a function that is no ufunc: np.where(c,
    x, y)."""
    name = ("linalg_" if "linalg" in getattr(func, "__module__", "") else "") + func.__name__
    if kwargs.get("out") is not None:
        refuse("out= writes into an array, which a score function must not")
    return _call(name, args, {key: value for key, value in kwargs.items() if key != "out"})
