# SPDX-License-Identifier: Apache-2.0
"""Reductions over small arrays of traced values, unrolled from left to right."""
import math
from collections import namedtuple
from typing import Any, Callable, List, Optional, Sequence, Union

from . import functions, ops
from .arrays import Vec, axes_of, axis_of, elementwise, permute, product, reshape, value, vec
from .functions import EQ
from .place import refuse
from .record import Recording
from .symbol import Sym
from .types import FLOAT

Dim = Union[None, int, Sequence[int]]
Pair = namedtuple("Pair", "values indices")
Fold = Callable[[Recording, List[Sym]], Sym]


def _left(fn: Callable[[Recording, Any, Any], Sym]) -> Fold:
    def go(rec: Recording, row: List[Sym]) -> Sym:
        result = row[0]
        for x in row[1:]:
            result = fn(rec, result, x)
        return result
    return go


def _sum(rec: Recording, row: List[Sym]) -> Sym:
    return _left(ops.add)(rec, [functions.counted(rec, x) for x in row]) if row else ops.as_sym(rec, 0)


def _prod(rec: Recording, row: List[Sym]) -> Sym:
    return _left(ops.mul)(rec, [functions.counted(rec, x) for x in row]) if row else ops.as_sym(rec, 1)


def _any(rec: Recording, row: List[Sym]) -> Sym:
    return _left(ops.logical_or)(rec, [ops.truth(rec, x) for x in row]) if row else ops.as_sym(rec, False)


def _all(rec: Recording, row: List[Sym]) -> Sym:
    return _left(ops.logical_and)(rec, [ops.truth(rec, x) for x in row]) if row else ops.as_sym(rec, True)


def _mean(rec: Recording, row: List[Sym]) -> Sym:
    if row and row[0].ty != FLOAT and rec.lib != "numpy":
        refuse("mean(): could not infer output dtype. Input dtype must be a floating point type; convert with .float()")
    return ops.div(rec, _sum(rec, row), functions.k(rec, float(len(row))))


def _extreme(fn: Callable[[Recording, Any, Any], Sym]) -> Fold:
    def go(rec: Recording, row: List[Sym]) -> Sym:
        if not row:
            refuse("max and min of no elements are not defined")
        return _left(fn)(rec, row)
    return go


def _place_of(less: Callable[[Recording, Any, Any], Sym]) -> Fold:
    def go(rec: Recording, row: List[Sym]) -> Sym:
        best, at = row[0], ops.as_sym(rec, 0)
        for n, x in enumerate(row[1:], 1):
            better = less(rec, x, best)
            if x.ty == FLOAT:  # the first NaN wins over any number
                new = ops.logical_and(rec, functions.isnan(rec, x), EQ(rec, best, best))
                better = ops.logical_or(rec, better, new)
            best, at = ops.choose(rec, better, x, best), ops.choose(rec, better, n, at)
        return at
    return go


def _logsumexp(rec: Recording, row: List[Sym]) -> Sym:
    top = _left(ops.maximum)(rec, row)
    finite = ops.choose(rec, functions.isfinite(rec, top), top, functions.k(rec, 0.0))
    total = _sum(rec, [functions.exp(rec, ops.sub(rec, x, finite)) for x in row])
    return ops.add(rec, functions.log(rec, total), finite)


def _numbers(rec: Recording, row: List[Sym]) -> List[Sym]:
    return [ops.choose(rec, functions.isnan(rec, x), functions.k(rec, 0.0), x) if x.ty == FLOAT else x for x in row]


def _nansum(rec: Recording, row: List[Sym]) -> Sym:
    return _sum(rec, _numbers(rec, row))


def _nanmean(rec: Recording, row: List[Sym]) -> Sym:
    count = _sum(rec, [EQ(rec, x, x) for x in row])
    return ops.div(rec, _nansum(rec, row), count)


FOLDS = {"sum": _sum, "prod": _prod, "any": _any, "all": _all, "mean": _mean, "max": _extreme(ops.maximum),
         "min": _extreme(ops.minimum), "argmax": _place_of(lambda rec, x, y: functions.LT(rec, y, x)),
         "argmin": _place_of(functions.LT), "logsumexp": _logsumexp,
         "nanmax": _left(functions.fmax), "nanmin": _left(functions.fmin), "nansum": _nansum, "nanmean": _nanmean,
         "count_nonzero": lambda rec, row: _sum(rec, [ops.truth(rec, x) for x in row])}


def rows_of(x: Vec, dims: Sequence[int]) -> List[List[Sym]]:
    """Returns one list for each element of the result: the elements of x that are reduced into it."""
    kept = [d for d in range(len(x.shape)) if d not in dims]
    inner = product(x.shape[d] for d in dims)
    flat = permute(x, kept + list(dims)).elements if x.shape else x.elements
    count = product(x.shape[d] for d in kept)
    return [flat[n * inner:(n + 1) * inner] for n in range(count)]


def reduce(rec: Recording, name: str, x: Any, dim: Dim = None, keepdim: bool = False) -> Any:
    """Returns the reduction FOLDS[name] of x over the dimensions `dim`, or over all dimensions if `dim` is None."""
    x = vec(rec, x)
    dims = axes_of(dim, len(x.shape))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    fold = FOLDS[name]
    made = Vec(rec, shape, [fold(rec, row) for row in rows_of(x, dims)])
    return value(made) if keepdim else reshape(made, [n for d, n in enumerate(made.shape) if d not in dims])


def extreme(rec: Recording, name: str, x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    """Returns torch's max or min: the maximum or minimum of all elements, or a Pair (values, indices) along a
    dimension."""
    if dim is None:
        return reduce(rec, name, x)
    return Pair(reduce(rec, name, x, dim, keepdim), reduce(rec, "arg" + name, x, dim, keepdim))


def _count(x: Any, dim: Dim) -> int:
    """Returns the number of elements that are reduced into one element of the result."""
    shape = tuple(x.shape)
    return product(shape[d] for d in axes_of(dim, len(shape)))


def norm(rec: Recording, x: Any, p: Any = 2, dim: Dim = None, keepdim: bool = False) -> Any:
    p = 2 if p is None or p == "fro" else float(p)
    size = elementwise(ops.absolute, rec, [elementwise(functions.real, rec, [x])])
    if p in (math.inf, -math.inf):
        return reduce(rec, "max" if p > 0 else "min", size, dim, keepdim)
    if p == 0:
        return reduce(rec, "count_nonzero", size, dim, keepdim)
    if p == 1:
        return reduce(rec, "sum", size, dim, keepdim)
    if rec.lib == "torch" and p > 0 and _count(size, dim) == 1:  # for one element torch returns the absolute value
        return reduce(rec, "sum", size, dim, keepdim)
    if p == 2:
        total = reduce(rec, "sum", elementwise(ops.mul, rec, [size, size]), dim, keepdim)
        return elementwise(functions.sqrt, rec, [total])
    power = elementwise(lambda r, y: ops.power(r, y, functions.k(r, float(p))), rec, [size])
    total = reduce(rec, "sum", power, dim, keepdim)
    return elementwise(lambda r, y: ops.power(r, y, functions.k(r, 1.0 / p)), rec, [total])


def log_softmax(rec: Recording, x: Any, dim: int) -> Any:
    x = elementwise(functions.real, rec, [x])
    return elementwise(ops.sub, rec, [x, reduce(rec, "logsumexp", x, dim, True)])


def softmax(rec: Recording, x: Any, dim: int) -> Any:
    x = elementwise(functions.real, rec, [x])
    top = reduce(rec, "max", x, dim, True)
    grown = elementwise(lambda r, a, b: functions.exp(r, ops.sub(r, a, b)), rec, [x, top])
    return elementwise(ops.div, rec, [grown, reduce(rec, "sum", grown, dim, True)])


def cumsum(rec: Recording, x: Any, dim: int) -> Any:
    x = vec(rec, x)
    dim = axis_of(dim, len(x.shape))
    order = [d for d in range(len(x.shape)) if d != dim] + [dim]
    rows = rows_of(x, [dim])
    sums = [s for row in rows for s in (_sum(rec, row[:n + 1]) for n in range(len(row)))]
    made = Vec(rec, [x.shape[d] for d in order], sums)
    return permute(made, [order.index(d) for d in range(len(order))]) if x.shape else value(made)


def bucketize(rec: Recording, x: Any, boundaries: Any, right: bool = False) -> Any:
    """Returns the number of boundaries below x, as torch.bucketize does. With `right`, the boundaries equal to x are
    counted as well as those below x."""
    edges = vec(rec, boundaries)
    fn = functions.LE if right else functions.LT

    def one(r: Recording, at: Any) -> Sym:
        return _sum(r, [fn(r, edge, at) for edge in edges.elements])
    return elementwise(one, rec, [x])


def isin(rec: Recording, x: Any, elements: Any) -> Any:
    """Returns True where x is equal to one of `elements`."""
    rest = vec(rec, elements)
    return elementwise(lambda r, y: _any(r, [EQ(r, y, z) for z in rest.elements]), rec, [x])


def h_spread(rooted: bool) -> Callable[..., Any]:
    """Returns the handler of std (if `rooted`) or var. std and var of NumPy divide by the number of elements unless
    ddof is set."""
    def go(rec: Recording, x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
           correction: Any = None, **rest: Any) -> Any:
        if not isinstance(unbiased, bool) or isinstance(dim, bool):
            refuse("std and var take dim, correction and keepdim by keyword")
        less = rest.pop("ddof", 0) if rec.lib == "numpy" else int(unbiased) if correction is None else correction
        dim, keepdim = rest.pop("axis", dim), rest.pop("keepdims", keepdim)
        x = elementwise(functions.real, rec, [x])
        apart = elementwise(ops.sub, rec, [x, reduce(rec, "mean", x, dim, True)])
        total = reduce(rec, "sum", elementwise(ops.mul, rec, [apart, apart]), dim, keepdim)
        share = elementwise(ops.div, rec, [total, functions.k(rec, float(max(0, _count(x, dim) - less)))])
        return elementwise(functions.sqrt, rec, [share]) if rooted else share
    return go
