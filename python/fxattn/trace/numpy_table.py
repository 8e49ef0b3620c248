# SPDX-License-Identifier: Apache-2.0
"""NumPy's functions, by name: ufuncs through __array_ufunc__, others through __array_function__.

NumPy cannot be told that an array of its own is indexed by a traced value. So arrays of a function are wrapped first
(capture.py) in Captured, an ndarray in all else, whose indexing comes here.
"""
from typing import Any, Dict, Optional

from . import arrays, functions, ops, reductions
from .arrays import elementwise
from .place import like, refuse
from .record import Recording
from .symbol import Sym, recording_of
from .tables import (COMMON, Handler, check_rest, h_concatenate, h_expand, h_permute, h_reduce, h_reshape, h_stack,
                     h_swap,
                     one, same, two)
from .torch_table import h_full_like, h_like, h_take, h_to
from .types import FLOAT


def h_where(rec: Recording, condition: Any, *branches: Any) -> Any:
    if len(branches) != 2:
        refuse("numpy.where with a condition alone gives a shape that depends on values; give both branches")
    return elementwise(ops.where, rec, (condition, *branches))


def h_clip(rec: Recording, x: Any, a_min: Any = None, a_max: Any = None, **rest: Any) -> Any:
    low, high = rest.pop("min", a_min), rest.pop("max", a_max)
    check_rest("clip", rest)
    return elementwise(functions.clamp, rec, (x, low, high)) if low is not None or high is not None else x


def h_round(rec: Recording, x: Any, decimals: int = 0, **rest: Any) -> Any:
    return elementwise(functions.round_to, rec, (x,), decimals=decimals)


def h_expand_dims(rec: Recording, x: Any, axis: int) -> Any:
    return COMMON["reshape"](rec, x, 1) if not getattr(x, "shape", ()) else arrays.vec(rec, x)[
        (slice(None),) * arrays.axis_of(axis, len(x.shape) + 1) + (None,)]


def reciprocal(rec: Recording, x: Any) -> Sym:
    """Of an int an int, which is 0 beyond 1 and -1."""
    return functions.reciprocal(rec, x) if ops.kind_of_operand(x) == FLOAT else functions.div_mode(rec, 1, x, "trunc")


NUMPY: Dict[str, Handler] = {
    **COMMON,
    "reciprocal": one(reciprocal),
    "add": two(ops.add), "subtract": two(ops.sub), "divide": two(ops.div), "where": h_where, "clip": h_clip,
    "round": h_round, "around": h_round, "rint": one(functions.rint), "fabs": one(functions.fabs),
    "max": h_reduce("max"), "min": h_reduce("min"), "amax": h_reduce("max"), "amin": h_reduce("min"),
    "softmax": COMMON["softmax"], "astype": h_to, "transpose": lambda rec, x, axes=None: h_swap(rec, x) if axes is None
    else h_permute(rec, x, axes), "broadcast_to": lambda rec, x, shape, **rest: h_expand(rec, x, shape),
    "expand_dims": h_expand_dims, "ravel": lambda rec, x, **rest: h_reshape(rec, x, -1), "zeros_like": h_like(0),
    "ones_like": h_like(1), "full_like": h_full_like, "copy": same, "asarray": same, "ascontiguousarray": same,
    "take": h_take, "searchsorted": lambda rec, edges, x, side="left", **rest: reductions.bucketize(
        rec, x, edges, side == "right"), "digitize": lambda rec, x, bins, right=False: reductions.bucketize(
        rec, x, bins, not right), "linalg_norm": COMMON["norm"],
    "logaddexp2": two(functions.logaddexp2), "sinc": one(functions.sinc),
    "isin": lambda rec, x, elements, **rest: reductions.isin(rec, x, elements), "conjugate": same, "real": same,
    "ndim": lambda rec, x: len(x.shape), "shape": lambda rec, x: tuple(x.shape),
    "size": lambda rec, x: arrays.product(x.shape),
}


def _find(name: str) -> Handler:
    handler = NUMPY.get(name)
    if handler is None:
        refuse("NumPy's %s is not known to score functions%s" % (name, like(name, NUMPY)))
    return handler


def _recording(args: Any, kwargs: Dict[str, Any]) -> Recording:
    rec: Optional[Recording] = recording_of(args) or recording_of(kwargs)
    assert rec is not None
    return rec


def call_ufunc(ufunc: Any, method: str, inputs: Any, kwargs: Dict[str, Any]) -> Any:
    """np.add(x, y), np.add.reduce(x): what __array_ufunc__ hands over."""
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
    return _find(name)(_recording(inputs, kwargs), *inputs, **kwargs)


def call_function(func: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
    """np.where(c, x, y) and all that is no ufunc: what __array_function__ hands over."""
    name = ("linalg_" if "linalg" in getattr(func, "__module__", "") else "") + func.__name__
    if kwargs.get("out") is not None:
        refuse("out= writes into an array, which a score function must not")
    return _find(name)(_recording(args, kwargs), *args, **{k: v for k, v in kwargs.items() if k != "out"})
