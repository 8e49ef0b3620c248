# SPDX-License-Identifier: Apache-2.0
"""Functions that take elements of arrays at traced indices: select, index_select, take, gather and similar functions.
indexing.py implements x[...]."""
import itertools
from operator import index as as_int
from typing import Any, Optional

from . import arrays, ops
from .arrays import Vec, View, axis_of, vec
from .indexing import index
from .place import refuse
from .record import Recording
from .symbol import Sym


def h_getitem(rec: Recording, x: Any, key: Any) -> Any:
    return x[key] if type(x) in (Sym, Vec, View) else index(rec, x, None, key)


def h_aten_index(rec: Recording, x: Any, indices: Any) -> Any:
    """Returns aten.index. None in `indices` selects all indices of a dimension; in an index t[None] of Python, None
    would mean a new dimension."""
    return h_getitem(rec, x, tuple(slice(None) if i is None else i for i in indices))


def _along(rec: Recording, x: Any, dim: Any, key: Any) -> Any:
    return h_getitem(rec, x, (slice(None),) * axis_of(as_int(dim), x.ndim) + (key,))


def h_select(rec: Recording, x: Any, dim: Any, index: Any) -> Any:
    return _along(rec, x, dim, index)


def h_index_select(rec: Recording, x: Any, dim: Any, index: Any) -> Any:
    found = vec(rec, index)
    return _along(rec, x, dim, Vec(rec, (1,), found.elements) if not found.shape else found)


def h_narrow(rec: Recording, x: Any, dim: Any, start: Any, length: int) -> Any:
    """Returns `length` elements of x along dim, from index `start` on; `start` may be a traced value."""
    if type(start) is Sym:
        return _along(rec, x, dim, Vec(rec, (length,), [ops.add(rec, start, n) for n in range(length)]))
    return _along(rec, x, dim, slice(as_int(start), as_int(start) + length))


def check_take(out: Any = None, mode: str = "raise", **rest: Any) -> None:
    """Raises an error if `mode` or `out` of NumPy's take is set, because x[index] has no such options."""
    if mode != "raise" or out is not None:
        refuse("take: mode and out are not known to traced values; index with t[i], of np.clip(i, 0, n - 1) or i % n")


def h_take(rec: Recording, x: Any, index: Any, axis: Optional[int] = None, **rest: Any) -> Any:
    """Returns take: elements of the flattened x (torch, or NumPy without an axis), or elements along the axis
    (NumPy)."""
    check_take(**rest)
    return h_getitem(rec, x.reshape(-1), index) if axis is None else _along(rec, x, axis, index)


def h_gather(rec: Recording, x: Any, dim: Any, index: Any, sparse_grad: bool = False) -> Any:
    """Returns torch.gather: out[i, j] = x[index[i, j], j] if dim is 0, x[i, index[i, j]] if dim is 1."""
    at, dim = vec(rec, index), as_int(dim)
    if x.ndim != len(at.shape):
        if x.ndim > 1 or at.shape:
            refuse("gather: the index has %d dimensions, the tensor %d; torch requires equal numbers"
                   % (len(at.shape), x.ndim))
        return h_getitem(rec, x, at.elements[0])
    dim = axis_of(dim, x.ndim)
    places = itertools.product(*map(range, at.shape))
    return arrays.value(Vec(rec, at.shape, [h_getitem(rec, x, (*place[:dim], row, *place[dim + 1:]))
                                            for place, row in zip(places, at.elements)]))


def h_take_along(rec: Recording, x: Any, index: Any, dim: Any = None, **rest: Any) -> Any:
    """Returns take_along_dim: gather with `index` broadcast over the other dimensions of x."""
    dim = rest.get("axis", dim)
    if dim is None:
        return h_getitem(rec, x.reshape(-1), arrays.reshape(vec(rec, index), (-1,)))
    at, dim = vec(rec, index), axis_of(as_int(dim), x.ndim)
    if len(at.shape) != x.ndim:
        refuse("take_along_dim: the index has %d dimensions, the tensor %d; it must have as many"
               % (len(at.shape), x.ndim))
    shape = tuple(n if d == dim or n != 1 else int(x.shape[d]) for d, n in enumerate(at.shape))
    return h_gather(rec, x, dim, Vec(rec, shape, arrays.expanded(at, shape)))


def h_embedding(rec: Recording, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None,
                *args: Any, **rest: Any) -> Any:
    if max_norm is not None:
        refuse("embedding: max_norm changes its table, which a score function must not")
    return h_getitem(rec, weight, input)
