# SPDX-License-Identifier: Apache-2.0
"""Implements the indexing of captured tensors by traced values, and of small arrays of traced values.

Ints, slices and new axes are applied to a captured tensor by the library of the tensor, which keeps strides and
autograd. Each dimension that remains after ints, slices and new axes has a traced index, an array of traced indices, or
no index."""
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .arrays import Vec, View, broadcast, expanded, is_wide, load, permute, product, value, vec
from .functions import EQ, LT
from .libraries import library_of
from .ops import add, as_sym, choose, scalar
from .place import refuse
from .record import Recording
from .symbol import Sym, recording_of
from .types import BOOL, FLOAT, INT

_ALL = slice(None)


def index(rec: Recording, base: Any, fixed: Optional[Sequence[Optional[Sym]]], key: Any) -> Any:
    """Returns base[key], where some of the indices are traced; `fixed` has the traced indices of earlier indexing
    steps."""
    if fixed is None:  # the common case: one traced int for each dimension
        given = key if type(key) is tuple else (key,)
        nodes = [x.node for x in given if type(x) is Sym and BOOL < x.ty < FLOAT and x.rec is rec]
        if len(nodes) == len(given) == base.ndim:
            return load(rec, base, nodes)
        fixed = (None,) * base.ndim
    items = _spelled_out(key, sum(f is None for f in fixed), base, rec.lib)
    static, left = _split(rec, items, fixed)
    if any(x is None or type(x) is int or x != _ALL for x in static):
        base = base[tuple(static)]
    if any(type(x) is Vec for x in left):
        return _gather(rec, left, lambda one: _read(rec, base, one))
    return _read(rec, base, left)


def _read(rec: Recording, base: Any, left: Sequence[Optional[Sym]]) -> Any:
    nodes = [x.node for x in left if x is not None]
    return load(rec, base, nodes) if len(nodes) == len(left) else View(rec, base, tuple(left))


def _split(rec: Recording, items: Sequence[Any], fixed: Sequence[Optional[Sym]]) -> Tuple[List[Any], List[Any]]:
    """Splits an index into two lists (static, left): `static`, which the tensor's library applies, and `left`, the
    traced indices that remain. In the list `static`, `:` stands in place of each traced index. The list `left` has one
    item for each dimension of the result of tensor[static]: the traced index of the dimension (Sym or Vec), or None."""
    static: List[Any] = []
    left: List[Any] = []
    rest = iter(items)
    for known in fixed:
        if known is not None:
            static.append(_ALL)
            left.append(known)
            continue
        item = next(rest, _ALL)
        while item is None:  # an index None inserts a new axis
            static.append(None)
            left.append(None)
            item = next(rest, _ALL)
        kind = _index_kind(item)
        static.append(item if kind == "static" else _ALL)
        if kind != "static":
            left.append(vec(rec, item) if kind == "wide" else _index_value(rec, item))
        elif isinstance(item, slice):
            left.append(None)
    behind = [None for item in rest if item is None]
    return static + behind, left + behind


def _spelled_out(key: Any, free: int, base: Any, lib: str) -> List[Any]:
    """Returns the parts of the index `key` of an expression t[key], with `...` replaced by full slices. A list with
    traced values as the index of a tensor of torch is split like a tuple, as torch itself does."""
    as_tuple = isinstance(key, tuple) or type(key) is list and recording_of(key) is not None and lib == "torch"
    items = list(key) if as_tuple else [key]
    given = sum(x is not None and x is not Ellipsis for x in items)
    if given > free:
        refuse("too many indices for a tensor of shape %s: %d given, %d left" % (tuple(base.shape), given, free))
    at = next((n for n, x in enumerate(items) if x is Ellipsis), None)
    if at is not None:
        items[at:at + 1] = [_ALL] * (free - given)
    return items


def _index_kind(item: Any) -> str:
    if isinstance(item, slice):
        if recording_of([item]) is not None:
            refuse("a slice with traced bounds has no fixed length; index with a range instead, as in "
                   "t[q + torch.arange(3)]")
        return "static"
    if isinstance(item, bool) or type(item) is Sym and item.ty == BOOL:
        refuse("a bool is no index: its truth would decide the shape; use where, or convert it with .int()")
    if type(item) is Sym:
        if item.ty == FLOAT:
            refuse("an index must be an int, this is a float; convert it with .int() or .to(torch.int32)")
        return "scalar"
    if isinstance(item, (list, tuple)) or is_wide(item):
        return "wide"
    return "scalar" if library_of(item) is not None else "static"


def _index_value(rec: Recording, item: Any) -> Sym:
    found = as_sym(rec, scalar(rec, item))
    if found.ty in (BOOL, FLOAT):
        refuse("an index must be an int, not a %s" % ("bool" if found.ty == BOOL else "float"))
    return found


def _gather(rec: Recording, left: Sequence[Any], read: Callable[[Sequence[Any]], Any]) -> Any:
    """If some indices in the list `left` are arrays, calls read(indices) once for each element of these arrays, with
    the element in place of its array, and returns the results as one array. As in torch and NumPy, the dimensions of
    the array indices replace the indexed dimensions if the indexed dimensions are adjacent; otherwise the dimensions of
    the array indices come first. NumPy counts a scalar index as an array index, and torch does not."""
    wide = [d for d, x in enumerate(left) if type(x) is Vec]
    shape = broadcast([left[d].shape for d in wide])
    columns = {d: [_index_value(rec, x) for x in expanded(left[d], shape)] for d in wide}
    parts = [vec(rec, read([columns[d][n] if d in columns else x for d, x in enumerate(left)]))
             for n in range(product(shape))]
    if not parts:
        refuse("an index of no elements gives nothing to compute with")
    inner = parts[0].shape
    front = Vec(rec, shape + inner, [e for part in parts for e in part.elements])
    counted = [d for d, x in enumerate(left) if d in columns or rec.lib == "numpy" and type(x) is Sym]
    before = sum(x is None or isinstance(x, slice) for x in left[:counted[0]])
    if not before or counted != list(range(counted[0], counted[0] + len(counted))):
        return value(front)
    dims = list(range(len(shape) + len(inner)))
    return permute(front, dims[len(shape):len(shape) + before] + dims[:len(shape)] + dims[len(shape) + before:])


# ---- arrays of traced values

def _index_vec(x: Vec, key: Any) -> Any:
    items = _spelled_out(key, len(x.shape), x, x.rec.lib)
    kinds = [None if item is None else _index_kind(item) for item in items]
    if "wide" in kinds:
        return _gather(x.rec, [vec(x.rec, item) if kind == "wide" else item for item, kind in zip(items, kinds)],
                       lambda one: _index_vec(x, tuple(one)))
    result, axis = x, 0
    for item, kind in zip(items, kinds):
        if item is None:
            result, axis = Vec(x.rec, result.shape[:axis] + (1,) + result.shape[axis:], result.elements), axis + 1
        elif isinstance(item, slice):
            result, axis = _take(result, axis, list(range(result.shape[axis]))[item]), axis + 1
        elif kind == "scalar":
            result = _chosen(result, axis, _index_value(x.rec, item))
        else:
            result = _one(result, axis, int(item))
    return value(result)


def _one(x: Vec, axis: int, at: int) -> Vec:
    size = x.shape[axis]
    if not -size <= at < size:
        refuse("index %d is out of bounds for dimension %d with size %d" % (at, axis, size))
    part = _take(x, axis, [at % size])
    return Vec(x.rec, part.shape[:axis] + part.shape[axis + 1:], part.elements)


def _chosen(x: Vec, axis: int, at: Sym) -> Vec:
    """Returns the elements of x at a traced index along an axis, selected among all elements of that axis."""
    rec, size = x.rec, x.shape[axis]
    at = Sym(rec, at.node, INT)  # the sum at + size might not fit a narrow int
    if size > 1:  # a negative index counts from the end, as in loads of programs
        at = choose(rec, LT(rec, at, 0), add(rec, at, size), at)
    columns = [_take(x, axis, [i]).elements for i in range(size)]
    chosen = []
    for choices in zip(*columns):
        pick = choices[-1]
        for i in range(size - 2, -1, -1):
            pick = choose(rec, EQ(rec, at, i), choices[i], pick)
        chosen.append(pick)
    return Vec(rec, x.shape[:axis] + x.shape[axis + 1:], chosen)


def _take(x: Vec, axis: int, at: List[int]) -> Vec:
    inner, size = product(x.shape[axis + 1:]), x.shape[axis]
    elements = [x.elements[(outer * size + i) * inner + n] for outer in range(product(x.shape[:axis])) for i in at
                for n in range(inner)]
    return Vec(x.rec, x.shape[:axis] + (len(at),) + x.shape[axis + 1:], elements)


def _index_view(x: View, key: Any) -> Any:
    return index(x.rec, x.base, x.fixed, key)


View.__getitem__ = _index_view  # type: ignore[method-assign, assignment]
Vec.__getitem__ = _index_vec  # type: ignore[method-assign, assignment]
