# SPDX-License-Identifier: Apache-2.0
"""Small arrays of traced values: a View is a captured tensor that is indexed lazily, and a Vec is an array of computed
elements.

`bias[b][h, q]` and `table[q, :, 0:3]` index a captured tensor step by step. A View is a view of a captured tensor, with
traced indices at some dimensions. Slices, ints and new axes are applied by the library of the tensor, which keeps
strides and autograd. A View with an index at every dimension becomes a load. A View (a captured tensor with traced
indices) that is an operand of arithmetic becomes one load for each element, and the arithmetic is unrolled over at most
MAX_ELEMENTS elements. A Vec (an array of computed elements) has at most MAX_HELD elements. indexing.py implements
`x[...]` of View and Vec."""
import itertools
from operator import index as as_int
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from .libraries import library_of
from .ops import as_sym, scalar
from .place import TraceAttributeError, error, refuse
from .record import LOAD, MAX_NODES, Recording
from .symbol import TRACED, NeedsCapture, NeedsJax, Sym
from .types import FLOAT

MAX_ELEMENTS, MAX_HELD = 1024, 4 * MAX_NODES
Shape = Tuple[int, ...]


def product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= int(size)
    return result


class _Array:
    """Base class of View and Vec."""

    __slots__ = ()
    __array_priority__ = 1000.0
    rec: Recording
    shape: Any

    def __bool__(self) -> bool:
        refuse("the truth of a traced value is not known while the function is traced; use where, any and all")

    def __hash__(self) -> int:
        refuse("a traced tensor has no value yet, so it is no key of a dictionary and in no set")

    def __iter__(self) -> Any:
        if not self.shape:
            refuse("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        self.rec.sized = True
        return int(self.shape[0])

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

    __int__ = __float__ = __index__ = item = tolist = numpy = _no_value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_") and hasattr(type(self), name[:-1]):
            refuse("%s changes its tensor in place, which a score function must not" % name)
        raise error("traced tensors have no attribute or method '%s'" % name, TraceAttributeError)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        elements = vec(self.rec, self).elements
        return elements[0].dtype if elements else None

    @property
    def device(self) -> Any:
        return Sym(self.rec, 0, FLOAT).device


class View(_Array):
    """A captured tensor with traced indices at some dimensions: `fixed` has a Sym or None for each dimension of the
    tensor."""

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

    def __repr__(self) -> str:
        return "<captured tensor %s, indexed>" % (tuple(self.base.shape),)


class Vec(_Array):
    """A row-major array of traced values, with one Sym for each element."""

    __slots__ = ("rec", "shape", "elements")

    def __init__(self, rec: Recording, shape: Sequence[int], elements: List[Sym]) -> None:
        self.rec, self.shape, self.elements = rec, tuple(shape), elements

    def __repr__(self) -> str:
        return "<traced tensor %s>" % (self.shape,)


TRACED[View] = TRACED[Vec] = True
Operand = Union[Sym, Vec, View, Any]


# ---- conversions to Vec and back

def vec(rec: Recording, x: Any) -> Vec:
    """Returns an operand as a Vec (an array of traced values); a scalar becomes a Vec of rank 0."""
    kind = type(x)
    if kind is Vec:
        return x
    if kind is View or library_of(x) is not None and x.ndim:
        fixed = x.fixed if kind is View else (None,) * x.ndim
        base = x.base if kind is View else x
        shape = tuple(int(n) for n, f in zip(base.shape, fixed) if f is None)
        check_size(shape)
        rec.sized = True
        places = itertools.product(*(range(n) for n in shape))
        return Vec(rec, shape, [load(rec, base, _filled(rec, fixed, at)) for at in places])
    if isinstance(x, (list, tuple)):
        return stack(rec, [vec(rec, y) for y in x], 0)
    return Vec(rec, (), [as_sym(rec, scalar(rec, x))])


def value(x: Vec) -> Any:
    """Returns the scalar in a Vec (an array of traced values) of rank 0; any other Vec is returned unchanged."""
    return x if x.shape else x.elements[0]


def check_size(shape: Sequence[int], most: int = MAX_ELEMENTS) -> None:
    if product(shape) > most:
        refuse("a score function computes with a tensor of shape %s, element by element; at most %d elements are "
               "unrolled. Index it down to a scalar first, or reduce it outside of the function"
               % (tuple(shape), most))


def check_held(shape: Sequence[int]) -> None:
    """Raises TraceError if an array of the shape `shape` would have more than MAX_HELD elements."""
    check_size(shape, MAX_HELD)


def _filled(rec: Recording, fixed: Sequence[Optional[Sym]], at: Sequence[int]) -> List[int]:
    rest = iter(at)
    return [f.node if f is not None else rec.integer(next(rest)) for f in fixed]


def load(rec: Recording, base: Any, nodes: Sequence[int]) -> Sym:
    at = rec.capture(base)
    return Sym(rec, rec.emit(LOAD, at, *nodes), rec.kinds[at])


def is_wide(x: Any) -> bool:
    """Returns True if an operand is a View, a Vec, or an array of rank 1 or more."""
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
    check_held(shape)
    if not x.shape:
        return x.elements * product(shape)
    steps = [0] * (len(shape) - len(x.shape)) + [0 if n == 1 else s for n, s in zip(x.shape, strides_of(x.shape))]
    return [x.elements[sum(i * s for i, s in zip(at, steps))] for at in itertools.product(*map(range, shape))]


def elementwise(fn: Callable[..., Sym], rec: Recording, operands: Sequence[Any], **rest: Any) -> Any:
    """Applies `fn`, an operation on scalars, to each element of the broadcast operands. Returns a Vec (an array of
    traced values), or a scalar if all operands are scalars."""
    if not any(map(is_wide, operands)):
        return fn(rec, *[x if x is None else scalar(rec, x) for x in operands], **rest)
    rows = [None if x is None else vec(rec, x) for x in operands]
    shape = broadcast([x.shape for x in rows if x is not None])
    check_size(shape)
    columns = [[None] * product(shape) if x is None else expanded(x, shape) for x in rows]
    plain = [None if x is None or is_wide(x) or type(x) is Sym else scalar(rec, x) for x in operands]
    return Vec(rec, shape, [fn(rec, *[p if type(p) in (int, float, bool) else y for p, y in zip(plain, ys)], **rest)
                            for ys in zip(*columns)])


# ---- shapes

def axes_of(dim: Any, rank: int) -> List[int]:
    """Returns the list of dimensions that an argument `dim` names: all for None, else the given dimension or
    dimensions. If `dim` is a tensor of rank 0, its value names the dimension."""
    if not rank:
        return []
    given = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
    return [axis_of(d, rank) for d in given]


def axis_of(dim: Any, rank: int) -> int:
    dim = as_int(dim)
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
    check_held((outer, sum(runs)))
    elements = [e for n in range(outer) for p, run in zip(parts, runs) for e in p.elements[n * run:(n + 1) * run]]
    total = sum(p.shape[dim] for p in parts)
    return Vec(rec, parts[0].shape[:dim] + (total,) + parts[0].shape[dim + 1:], elements)
