# SPDX-License-Identifier: Apache-2.0
"""Reductions over small arrays of traced values, unrolled from left to right, and products of them."""
import math
from collections import namedtuple
from typing import Any, Callable, List, Optional, Sequence, Union

from . import functions, ops
from .._abi import OP_EQ
from .arrays import Vec, axis_of, elementwise, permute, product, reshape, value, vec
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
            best, at = ops.choose(rec, better, x, best), ops.choose(rec, better, n, at)
        return at
    return go


def _logsumexp(rec: Recording, row: List[Sym]) -> Sym:
    top = _left(ops.maximum)(rec, row)
    finite = ops.choose(rec, functions.isfinite(rec, top), top, functions.k(rec, 0.0))
    total = _sum(rec, [functions.exp(rec, ops.sub(rec, x, finite)) for x in row])
    return ops.add(rec, functions.log(rec, total), finite)


FOLDS = {"sum": _sum, "prod": _prod, "any": _any, "all": _all, "mean": _mean, "max": _extreme(ops.maximum),
         "min": _extreme(ops.minimum), "argmax": _place_of(lambda rec, x, y: functions.LT(rec, y, x)),
         "argmin": _place_of(functions.LT), "logsumexp": _logsumexp,
         "count_nonzero": lambda rec, row: _sum(rec, [ops.truth(rec, x) for x in row])}


def rows_of(x: Vec, dims: Sequence[int]) -> List[List[Sym]]:
    """The elements that are folded together, for each element of the result."""
    kept = [d for d in range(len(x.shape)) if d not in dims]
    inner = product(x.shape[d] for d in dims)
    flat = permute(x, kept + list(dims)).elements if x.shape else x.elements
    count = product(x.shape[d] for d in kept)
    return [flat[n * inner:(n + 1) * inner] for n in range(count)]


def reduce(rec: Recording, name: str, x: Any, dim: Dim = None, keepdim: bool = False) -> Any:
    """A fold over some dimensions, all of them when none is named."""
    x = vec(rec, x)
    rank = len(x.shape)
    dims = list(range(rank)) if dim is None else [axis_of(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    dims = dims if rank else []
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    fold = FOLDS[name]
    made = Vec(rec, shape, [fold(rec, row) for row in rows_of(x, dims)])
    return value(made) if keepdim else reshape(made, [n for d, n in enumerate(made.shape) if d not in dims])


def extreme(rec: Recording, name: str, x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    """torch's max and min: of all elements, or values with indices along a dimension."""
    if dim is None:
        return reduce(rec, name, x)
    return Pair(reduce(rec, name, x, dim, keepdim), reduce(rec, "arg" + name, x, dim, keepdim))


def norm(rec: Recording, x: Any, p: Any = 2, dim: Dim = None, keepdim: bool = False) -> Any:
    p = 2 if p in (None, "fro") else p
    size = elementwise(ops.absolute, rec, [elementwise(functions.real, rec, [x])])
    if p in (math.inf, -math.inf):
        return reduce(rec, "max" if p > 0 else "min", size, dim, keepdim)
    if p == 0:
        return reduce(rec, "count_nonzero", size, dim, keepdim)
    if p == 1:
        return reduce(rec, "sum", size, dim, keepdim)
    if p == 2:
        total = reduce(rec, "sum", elementwise(ops.mul, rec, [size, size]), dim, keepdim)
        return elementwise(functions.sqrt, rec, [total])
    power = elementwise(lambda r, y: ops.power(r, y, functions.k(r, float(p))), rec, [size])
    total = reduce(rec, "sum", power, dim, keepdim)
    return elementwise(lambda r, y: ops.power(r, y, functions.k(r, 1.0 / p)), rec, [total])


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


def matmul(rec: Recording, x: Any, y: Any) -> Any:
    """Of vectors and matrices; leading dimensions broadcast."""
    x, y = vec(rec, x), vec(rec, y)
    if not x.shape or not y.shape:
        refuse("matmul, dot and @ take vectors and matrices, not scalars; use * ")
    row, column = len(x.shape) == 1, len(y.shape) == 1
    a = Vec(rec, (1,) + x.shape, x.elements) if row else x
    b = Vec(rec, y.shape + (1,), y.elements) if column else y
    if a.shape[-1] != b.shape[-2]:
        refuse("the sizes of a product do not fit: %s and %s" % (x.shape, y.shape))
    left = Vec(rec, a.shape[:-1] + (1, a.shape[-1]), a.elements)
    turned = permute(b, list(range(len(b.shape) - 2)) + [len(b.shape) - 1, len(b.shape) - 2])
    right = Vec(rec, turned.shape[:-2] + (1,) + turned.shape[-2:], turned.elements)
    terms = elementwise(ops.mul, rec, [left, right])
    made = vec(rec, reduce(rec, "sum", terms, -1))
    shape = [n for d, n in enumerate(made.shape)
             if not (row and d == len(made.shape) - 2) and not (column and d == len(made.shape) - 1)]
    return value(Vec(rec, shape, made.elements))


def bucketize(rec: Recording, x: Any, boundaries: Any, right: bool = False) -> Any:
    """How many boundaries lie below a value (or at it), as torch.bucketize counts."""
    edges = vec(rec, boundaries)
    fn = functions.LE if right else functions.LT

    def one(r: Recording, at: Any) -> Sym:
        return _sum(r, [fn(r, edge, at) for edge in edges.elements])
    return elementwise(one, rec, [x])


def isin(rec: Recording, x: Any, elements: Any) -> Any:
    """Whether a value is one of a few."""
    rest = vec(rec, elements)
    equal = ops.compare(OP_EQ)
    return elementwise(lambda r, y: _any(r, [equal(r, y, z) for z in rest.elements]), rec, [x])
