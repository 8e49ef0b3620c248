# SPDX-License-Identifier: Apache-2.0
"""Products of small arrays of traced values: matmul, inner, outer, einsum. The sums of a product are unrolled from left
to right."""
import itertools
from typing import Any, Dict, List, Sequence

from . import arrays, ops
from .arrays import Vec, elementwise, permute, strides_of, value, vec
from .place import refuse
from .record import Recording
from .reductions import FOLDS, reduce
from .symbol import Sym


def matmul(rec: Recording, x: Any, y: Any) -> Any:
    """Returns matmul of x and y, which are vectors or matrices; leading dimensions broadcast."""
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


def inner(rec: Recording, x: Any, y: Any) -> Any:
    """Returns the inner product over the last dimensions of x and y; returns x * y if x or y is a scalar."""
    x, y = vec(rec, x), vec(rec, y)
    if not x.shape or not y.shape:
        return value(_times(rec, x, y))
    return _contract(rec, x, y, [len(x.shape) - 1], [len(y.shape) - 1])


def dot(rec: Recording, x: Any, y: Any) -> Any:
    """Returns NumPy's dot: x * y if x or y is a scalar, else the sum of products over the last dimension of x and the
    last but one dimension of y."""
    x, y = vec(rec, x), vec(rec, y)
    if not x.shape or not y.shape:
        return value(_times(rec, x, y))
    return _contract(rec, x, y, [len(x.shape) - 1], [max(0, len(y.shape) - 2)])


def _in_a_row(rec: Recording, x: Any) -> Vec:
    elements = vec(rec, x).elements
    return Vec(rec, (len(elements),), elements)


def vdot(rec: Recording, x: Any, y: Any) -> Any:
    """Returns NumPy's vdot: the inner product of the flattened x and the flattened y."""
    return _contract(rec, _in_a_row(rec, x), _in_a_row(rec, y), [0], [0])


def vecdot(rec: Recording, x: Any, y: Any, dim: int = -1, **rest: Any) -> Any:
    return reduce(rec, "sum", elementwise(ops.mul, rec, [x, y]), rest.get("axis", dim))


def outer(rec: Recording, x: Any, y: Any) -> Any:
    return _contract(rec, _in_a_row(rec, x), _in_a_row(rec, y), [], [])


def linear(rec: Recording, x: Any, weight: Any, bias: Any = None) -> Any:
    made = inner(rec, x, weight)
    return made if bias is None else elementwise(ops.add, rec, (made, bias))


def _times(rec: Recording, x: Vec, y: Vec) -> Vec:
    return vec(rec, elementwise(ops.mul, rec, [x, y]))


def _contract(rec: Recording, x: Vec, y: Vec, left: Sequence[int], right: Sequence[int]) -> Any:
    """Returns the sum of products over the dimensions `left` of x, paired with the dimensions `right` of y. The result
    has the dimensions of x that are not in `left`, then the dimensions of y that are not in `right`."""
    names = itertools.count()
    of_x = [next(names) for _ in x.shape]
    of_y = [of_x[left[right.index(d)]] if d in right else next(names) for d in range(len(y.shape))]
    kept = [n for d, n in enumerate(of_x) if d not in left] + [n for d, n in enumerate(of_y) if d not in right]
    return sum_of_products(rec, [x, y], [of_x, of_y], kept)


def einsum(rec: Recording, equation: Any, *operands: Any, **rest: Any) -> Any:
    """Returns einsum for an equation such as "i,i->" or "ij,j"; an equation with `...` is not accepted."""
    if not isinstance(equation, str):
        refuse("einsum: the equation is given as a string, then the operands")
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in equation or len(terms) != len(given):
        refuse("einsum: '%s' names %d operands of the %d given; `...` is not known to traced values"
               % (equation, len(terms), len(given)))
    kept = right if arrow else "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return sum_of_products(rec, [vec(rec, x) for x in given], terms, kept)


def sum_of_products(rec: Recording, operands: Sequence[Vec], names: Sequence[Sequence[Any]],
                    kept: Sequence[Any]) -> Any:
    """Returns the product of the operands, summed over all dimensions except `kept`. `names` has the names of the
    dimensions of each operand."""
    sizes: Dict[Any, int] = {}
    for x, of in zip(operands, names):
        if len(x.shape) != len(of):
            refuse("a product: an operand of shape %s has not %d dimensions" % (x.shape, len(of)))
        for name, n in zip(of, x.shape):
            if sizes.setdefault(name, n) != n:
                refuse("the sizes of a product do not fit: %s" % " and ".join(str(z.shape) for z in operands))
    folded = [name for name in sizes if name not in kept]
    arrays.check_size([*(sizes[name] for name in kept), *(sizes[name] for name in folded)])
    steps = [_steps_of(x, of) for x, of in zip(operands, names)]
    elements: List[Sym] = []
    for outside in itertools.product(*(range(sizes[name]) for name in kept)):
        terms = []
        for inside in itertools.product(*(range(sizes[name]) for name in folded)):
            at = dict(zip([*kept, *folded], [*outside, *inside]))
            parts = [x.elements[sum(at[name] * step for name, step in of.items())] for x, of in zip(operands, steps)]
            term = parts[0]
            for part in parts[1:]:
                term = ops.mul(rec, term, part)
            terms.append(term)
        elements.append(FOLDS["sum"](rec, terms) if folded else terms[0])
    return value(Vec(rec, [sizes[name] for name in kept], elements))


def _steps_of(x: Vec, names: Sequence[Any]) -> Dict[Any, int]:
    """Returns the stride of each named dimension of x. If two dimensions of x have one name, their strides are added,
    which steps along the diagonal."""
    found: Dict[Any, int] = {}
    for name, step in zip(names, strides_of(x.shape)):
        found[name] = found.get(name, 0) + step
    return found
