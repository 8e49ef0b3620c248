# SPDX-License-Identifier: Apache-2.0
"""Small arrays of traced values: captured tensors that are indexed lazily (View), and elements worked out (Vec).

`bias[b][h, q]` and `table[q, :, 0:3]` index a captured tensor step by step: a View is a real view of that tensor
(slices, ints and new axes are taken by its own library, so strides and autograd stay) with traced indices at some of
its dimensions. When all have one, it is a load; when it is computed with, its elements are loaded one by one, and
operations are unrolled over them. Vec never has more than MAX_ELEMENTS.
"""
import itertools
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from .libraries import library_of
from .ops import add, as_sym, choose, compare, scalar
from .._abi import OP_EQ, OP_LT
from .place import TraceAttributeError, error, refuse
from .record import LOAD, Recording
from .symbol import TRACED, NeedsCapture, NeedsJax, Sym, recording_of
from .types import BOOL, FLOAT, INT

MAX_ELEMENTS = 1024
Shape = Tuple[int, ...]


def product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= int(size)
    return result


class _Array:
    """What View and Vec have in common."""

    __slots__ = ()
    __array_priority__ = 1000.0
    rec: Recording

    def __bool__(self) -> bool:
        refuse("the truth of a traced value is not known while the function is traced; use where, any and all")

    def __hash__(self) -> int:
        refuse("a traced tensor has no value yet, so it is no key of a dictionary and in no set")

    def __iter__(self) -> Any:
        if not self.shape:  # type: ignore[attr-defined]
            refuse("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        self.rec.sized = True
        return int(self.shape[0])  # type: ignore[attr-defined]

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise NeedsCapture()

    def __jax_array__(self) -> Any:
        raise NeedsJax()

    def __setitem__(self, key: Any, value: Any) -> None:
        refuse("tensors cannot be assigned into: a score function changes nothing; use where(c, x, y)")

    def _no_value(self, *args: Any) -> Any:
        refuse("a traced value is known when the program runs, not while the function is traced")

    __int__ = __float__ = __index__ = item = tolist = numpy = cpu = _no_value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_") and hasattr(type(self), name[:-1]):
            refuse("%s changes its tensor in place, which a score function must not" % name)
        raise error("traced tensors have no attribute or method '%s'" % name, TraceAttributeError)

    @property
    def ndim(self) -> int:
        return len(self.shape)  # type: ignore[attr-defined]

    @property
    def dtype(self) -> Any:
        elements = vec(self.rec, self).elements
        return elements[0].dtype if elements else None

    @property
    def device(self) -> Any:
        return Sym(self.rec, 0, FLOAT).device


class View(_Array):
    """A captured tensor with traced indices at some dimensions: `fixed` has a Sym or None for each of its base."""

    __slots__ = ("rec", "base", "fixed")

    def __init__(self, rec: Recording, base: Any, fixed: Tuple[Optional[Sym], ...]) -> None:
        self.rec, self.base, self.fixed = rec, base, fixed

    @property
    def shape(self) -> Shape:
        self.rec.sized = True
        return tuple(int(n) for n, f in zip(self.base.shape, self.fixed) if f is None)

    @property
    def ndim(self) -> int:
        return sum(f is None for f in self.fixed)

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    def __getitem__(self, key: Any) -> Any:
        return index(self.rec, self.base, self.fixed, key)

    def __repr__(self) -> str:
        return "<captured tensor %s, indexed>" % (tuple(self.base.shape),)


class Vec(_Array):
    """Traced values in a row-major array."""

    __slots__ = ("rec", "shape", "elements")

    def __init__(self, rec: Recording, shape: Sequence[int], elements: List[Sym]) -> None:
        self.rec, self.shape, self.elements = rec, tuple(shape), elements

    def __getitem__(self, key: Any) -> Any:
        return _index_vec(self, key)

    def __repr__(self) -> str:
        return "<traced tensor %s>" % (self.shape,)


TRACED[View] = TRACED[Vec] = True
Operand = Union[Sym, Vec, View, Any]


# ---- to elements and back

def vec(rec: Recording, x: Any) -> Vec:
    """Any operand as elements."""
    kind = type(x)
    if kind is Vec:
        return x
    if kind is View or library_of(x) is not None and x.ndim:
        fixed = x.fixed if kind is View else (None,) * x.ndim
        base = x.base if kind is View else x
        shape = tuple(int(n) for n, f in zip(base.shape, fixed) if f is None)
        _check_size(shape)
        rec.sized = True
        places = itertools.product(*(range(n) for n in shape))
        return Vec(rec, shape, [load(rec, base, _filled(rec, fixed, at)) for at in places])
    if isinstance(x, (list, tuple)):
        return stack(rec, [vec(rec, y) for y in x], 0)
    return Vec(rec, (), [as_sym(rec, scalar(rec, x))])


def value(x: Vec) -> Any:
    """A Vec of rank 0 as the scalar it is."""
    return x if x.shape else x.elements[0]


def _check_size(shape: Shape) -> None:
    if product(shape) > MAX_ELEMENTS:
        refuse("a score function computes with a tensor of shape %s, element by element; at most %d elements are "
               "unrolled. Index it down to a scalar first, or reduce it outside of the function"
               % (tuple(shape), MAX_ELEMENTS))


def _filled(rec: Recording, fixed: Sequence[Optional[Sym]], at: Sequence[int]) -> List[int]:
    rest = iter(at)
    return [f.node if f is not None else rec.integer(next(rest)) for f in fixed]


def load(rec: Recording, base: Any, nodes: Sequence[int]) -> Sym:
    at = rec.capture(base)
    return Sym(rec, rec.emit(LOAD, at, *nodes), rec.kinds[at])


def is_wide(x: Any) -> bool:
    """Whether an operand has dimensions."""
    kind = type(x)
    if kind is Vec or kind is View:
        return True
    return library_of(x) is not None and x.ndim > 0


def strides_of(shape: Shape) -> List[int]:
    return [product(shape[d + 1:]) for d in range(len(shape))]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    result = []
    for d in range(-rank, 0):
        sizes = {shape[d] for shape in shapes if len(shape) >= -d} - {1}
        if len(sizes) > 1:
            refuse("shapes %s do not broadcast" % ", ".join(map(str, shapes)))
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def expanded(x: Vec, shape: Shape) -> List[Sym]:
    if x.shape == shape:
        return x.elements
    if not x.shape:
        return x.elements * product(shape)
    steps = [0] * (len(shape) - len(x.shape)) + [0 if n == 1 else s for n, s in zip(x.shape, strides_of(x.shape))]
    return [x.elements[sum(i * s for i, s in zip(at, steps))] for at in itertools.product(*map(range, shape))]


def elementwise(fn: Callable[..., Sym], rec: Recording, operands: Sequence[Any], **rest: Any) -> Any:
    """An operation on scalars, applied to each element of operands that are broadcast."""
    if not any(map(is_wide, operands)):
        return fn(rec, *[x if x is None else scalar(rec, x) for x in operands], **rest)
    rows = [None if x is None else vec(rec, x) for x in operands]
    shape = broadcast([x.shape for x in rows if x is not None])
    _check_size(shape)
    columns = [[None] * product(shape) if x is None else expanded(x, shape) for x in rows]
    plain = [None if x is None or is_wide(x) or type(x) is Sym else scalar(rec, x) for x in operands]
    return Vec(rec, shape, [fn(rec, *[p if type(p) in (int, float, bool) else y for p, y in zip(plain, ys)], **rest)
                            for ys in zip(*columns)])


# ---- indexing

def index(rec: Recording, base: Any, fixed: Optional[Sequence[Optional[Sym]]], key: Any) -> Any:
    """base[key], where some of the indices are traced; `fixed` are those that earlier steps gave."""
    if fixed is None:  # nearly always: each index is a traced int, and there is one for each dimension
        given = key if type(key) is tuple else (key,)
        nodes = [x.node for x in given if type(x) is Sym and BOOL < x.ty < FLOAT and x.rec is rec]
        if len(nodes) == len(given) == base.ndim:
            return load(rec, base, nodes)
    fixed = (None,) * base.ndim if fixed is None else tuple(fixed)
    items = _spelled_out(list(key) if isinstance(key, (tuple, list)) else [key], sum(f is None for f in fixed), base)
    static: List[Any] = []
    after: List[Any] = []
    wide: List[int] = []
    rest = iter(items)
    item: Any = next(rest, slice(None))
    for known in fixed:
        if known is not None:
            static.append(slice(None))
            after.append(known)
            continue
        while item is None:  # a new axis
            static.append(None)
            after.append(None)
            item = next(rest, slice(None))
        kind = _index_kind(item)
        static.append(item if kind == "static" else slice(None))
        if kind != "static" or isinstance(item, slice):
            wide += [len(after)] if kind == "wide" else []
            after.append(None if kind == "static" else vec(rec, item) if kind == "wide" else _index_value(rec, item))
        item = next(rest, slice(None))
    for left in [item, *rest]:
        if left is None:
            static.append(None)
            after.append(None)
    if any(s is None or type(s) is int or s != slice(None) for s in static):
        base = base[tuple(static)]
    if wide:
        return _gather(rec, base, after, wide)
    if any(f is None for f in after):
        return View(rec, base, tuple(after))
    return load(rec, base, [f.node for f in after])


def _spelled_out(items: List[Any], free: int, base: Any) -> List[Any]:
    """The key with `...` written out."""
    given = sum(x is not None and x is not Ellipsis for x in items)
    if given > free:
        refuse("too many indices for a captured tensor of shape %s: %d given, %d left"
               % (tuple(base.shape), given, free))
    if Ellipsis in [x for x in items if x is Ellipsis]:
        at = next(n for n, x in enumerate(items) if x is Ellipsis)
        items[at:at + 1] = [slice(None)] * (free - given)
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


def _gather(rec: Recording, base: Any, after: List[Any], wide: List[int]) -> Any:
    """Indices that are arrays: one element, or one View, for each of theirs."""
    shape = broadcast([after[d].shape for d in wide])
    columns = {d: expanded(after[d], shape) for d in wide}
    parts = []
    for n in range(product(shape)):
        one = tuple(columns[d][n] if d in columns else f for d, f in enumerate(after))
        whole = all(f is not None for f in one)
        parts.append(load(rec, base, [f.node for f in one]) if whole else vec(rec, View(rec, base, one)))
    if parts and type(parts[0]) is Sym:
        return Vec(rec, shape, parts)
    inner = parts[0].shape
    front = Vec(rec, shape + inner, [e for part in parts for e in part.elements])
    before = sum(f is None for f in after[:wide[0]])
    if not before or wide != list(range(wide[0], wide[0] + len(wide))):
        return front
    dims = list(range(len(shape) + len(inner)))
    return permute(front, dims[len(shape):len(shape) + before] + dims[:len(shape)] + dims[len(shape) + before:])


def _from_start(rec: Recording, at: Sym, size: int) -> Sym:
    """An index that counts from the end where it is negative, as loads of programs do by themselves."""
    at = Sym(rec, at.node, INT)  # a narrow int could not hold the sum
    return choose(rec, compare(OP_LT)(rec, at, 0), add(rec, at, size), at) if size > 1 else at


def _index_vec(x: Vec, key: Any) -> Any:
    items = _spelled_out(list(key) if isinstance(key, tuple) else [key], len(x.shape), x)
    result, axis = x, 0
    for item in items:
        if item is None:
            result = Vec(x.rec, result.shape[:axis] + (1,) + result.shape[axis:], result.elements)
            axis += 1
            continue
        kind = _index_kind(item)
        if kind == "wide":
            refuse("a tensor of traced values takes ints, slices and traced scalars as indices, not arrays")
        size = result.shape[axis]
        if kind == "scalar":
            at = _from_start(x.rec, _index_value(x.rec, item), size)
            columns = [_take(result, axis, [i]).elements for i in range(size)]
            chosen = []
            for choices in zip(*columns):
                pick = choices[-1]
                for i in range(size - 2, -1, -1):
                    pick = choose(x.rec, compare(OP_EQ)(x.rec, at, i), choices[i], pick)
                chosen.append(pick)
            result = Vec(x.rec, result.shape[:axis] + result.shape[axis + 1:], chosen)
            continue
        if isinstance(item, slice):
            result, axis = _take(result, axis, list(range(size))[item]), axis + 1
            continue
        at = int(item)
        if not -size <= at < size:
            refuse("index %d is out of bounds for dimension %d with size %d" % (at, axis, size))
        part = _take(result, axis, [at % size])
        result = Vec(x.rec, part.shape[:axis] + part.shape[axis + 1:], part.elements)
    return value(result)


def _take(x: Vec, axis: int, at: List[int]) -> Vec:
    inner, size = product(x.shape[axis + 1:]), x.shape[axis]
    elements = [x.elements[(outer * size + i) * inner + n] for outer in range(product(x.shape[:axis])) for i in at
                for n in range(inner)]
    return Vec(x.rec, x.shape[:axis] + (len(at),) + x.shape[axis + 1:], elements)


# ---- shapes

def axis_of(dim: int, rank: int) -> int:
    if not -max(rank, 1) <= dim < max(rank, 1):
        refuse("Dimension out of range (expected to be in range of [%d, %d], but got %d)"
               % (-max(rank, 1), max(rank, 1) - 1, dim))
    return dim % max(rank, 1)


def permute(x: Vec, order: Sequence[int]) -> Vec:
    order = [axis_of(d, len(x.shape)) for d in order]
    steps = strides_of(x.shape)
    shape = tuple(x.shape[d] for d in order)
    return Vec(x.rec, shape, [x.elements[sum(i * steps[d] for i, d in zip(at, order))]
                              for at in itertools.product(*map(range, shape))])


def reshape(x: Vec, sizes: Sequence[int]) -> Any:
    sizes = [int(n) for n in sizes]
    if -1 in sizes:
        sizes[sizes.index(-1)] = len(x.elements) // max(1, product(n for n in sizes if n != -1))
    if product(sizes) != len(x.elements):
        refuse("shape '%s' is invalid for input of size %d" % (list(sizes), len(x.elements)))
    return value(Vec(x.rec, sizes, x.elements))


def stack(rec: Recording, parts: Sequence[Vec], dim: int) -> Vec:
    shape = broadcast([p.shape for p in parts])
    dim = axis_of(dim, len(shape) + 1)
    return concatenate(rec, [Vec(rec, shape[:dim] + (1,) + shape[dim:], expanded(p, shape)) for p in parts], dim)


def concatenate(rec: Recording, parts: Sequence[Vec], dim: int) -> Vec:
    dim = axis_of(dim, len(parts[0].shape))
    outer = product(parts[0].shape[:dim])
    runs = [len(p.elements) // max(1, outer) for p in parts]
    elements = [e for n in range(outer) for p, run in zip(parts, runs) for e in p.elements[n * run:(n + 1) * run]]
    total = sum(p.shape[dim] for p in parts)
    return Vec(rec, parts[0].shape[:dim] + (total,) + parts[0].shape[dim + 1:], elements)
