# SPDX-License-Identifier: Apache-2.0
"""JAX's primitives on traced values. A handler of a primitive takes the player (the evaluator of a jaxpr, in
jaxprs.py), operands, the parameters of the equation, and the shape and type of the result.

jax.numpy wraps every index: at < 0 ? at + size : at. If a captured array is read and the index is proven to be in
bounds, the index is used without the wrap, because loads of a program count negative indices from the end.
"""
import itertools
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .. import _abi
from . import arrays, bounds, curves, functions, ops, products, reductions
from .arrays import Vec, View, product, value
from .indexing import index
from .libraries import kind_of_dtype
from .place import refuse
from .record import CONST, FIRST, Recording
from .rules import stop
from .symbol import Sym
from .tables import spread
from .types import FLOAT, INT
from .unrolled import UNROLLED

Handler = Callable[..., Any]


class Held:
    """The result of a dynamic_slice before its squeeze: `part` is the indexed captured array, `shape` has dimensions of
    size 1 where the array was indexed, and `ones` lists the dimensions of size 1."""

    __slots__ = ("part", "shape", "ones")

    def __init__(self, part: Any, shape: Sequence[int], ones: Sequence[int]) -> None:
        self.part, self.shape, self.ones = part, tuple(shape), tuple(ones)


def settled(x: Any) -> Any:
    """Returns the elements of a Held, the result of a dynamic_slice; any other operand is returned unchanged."""
    if type(x) is not Held:
        return x
    rec = x.part.rec
    return value(Vec(rec, x.shape, arrays.vec(rec, x.part).elements))


JITTED = ("jit", "pjit", "closed_call", "core_call")
INLINED: Dict[str, Callable[..., Sym]] = {
    "floor_divide": functions.floordiv, "remainder": ops.mod, "fmod": functions.fmod, "logaddexp": curves.logaddexp,
    "signbit": functions.is_set_sign}



def _div(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns lax.div of x and y: x / y, rounded towards zero for ints."""
    return functions.div_mode(rec, x, y, None if ops.joint(x, y) == FLOAT else "trunc")


def _integer_pow(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    y = params["y"]

    def go(rec: Recording, x: Any) -> Sym:
        if y >= 0 and (ops.kind_of_operand(x) != FLOAT or y <= 4):
            return ops.power_by_squares(rec, x, y, ops.kind_of_operand(x))
        return ops.power(rec, x, functions.k(rec, float(y)))
    return player.apply(go, operands)


def _select_n(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    which, *cases = [player.traced(x) for x in operands]
    if len(cases) == 2 and not (type(which) is Sym and which.ty == INT):
        return player.apply(_choose, [which, *cases])
    chosen = cases[-1]
    for n in range(len(cases) - 2, -1, -1):
        chosen = player.apply(lambda rec, at, x, y, n=n: ops.choose(rec, functions.LE(rec, at, n), x, y),
                              [which, cases[n], chosen])
    return chosen


def _choose(rec: Recording, which: Any, x: Any, y: Any) -> Sym:
    """Returns select_n of two cases: x where `which` is false, and y where `which` is true."""
    return ops.choose(rec, ops.truth(rec, which), y, x)


def _as_given(rec: Recording, at: Sym, size: int) -> Sym:
    """Returns i if `at` is jax.numpy's wrapped index i < 0 ? i + size : i, else `at` itself."""
    parts = _parts(rec, at.node)
    if len(parts) != 4 or parts[0] != _abi.OP_SELECT:
        return at
    test, moved, index = _parts(rec, parts[1]), _parts(rec, parts[2]), parts[3]
    if test[:2] != (_abi.OP_LT, index) or moved[:2] != (_abi.OP_ADD, index):
        return at
    constants = _parts(rec, test[2]), _parts(rec, moved[2])
    return Sym(rec, index, at.ty) if constants == ((CONST, 2, 0), (CONST, 2, size)) else at


# Modes of a gather. An index out of bounds reads: a fill value (_FILL), the nearest element with its gradient stopped
# (_PROMISED), the nearest element (any other mode).
_FILL, _PROMISED = "FILL_OR_DROP", "PROMISE_IN_BOUNDS"


def _inside(player: Any, at: Any, size: Any, mode: str = "", room: int = 1,
            unsigned: bool = False) -> Tuple[Sym, Optional[Sym]]:
    """Returns (index, inside) for an access to `room` consecutive elements of a dimension of size `size`, from index
    `at` on: the first index to read, and whether the elements are in bounds. The returned index is clamped as in JAX,
    except if the gather mode is _FILL. In the gather modes _FILL and _PROMISED, `inside` is True where `at` is in
    bounds; in other modes `inside` is None. An index that is proven to be in bounds is returned unchanged, with None as
    `inside`."""
    rec = player.rec
    at = ops.as_sym(rec, player.traced(at))
    bound: Any = size - room
    if isinstance(size, int):
        given = _as_given(rec, at, size)
        found = bounds.span(rec, given.node)
        lowest = -size if given is not at and room == 1 else 0
        if lowest <= found[0] and found[1] <= bound:
            return given, None
        last: Any = max(bound, 0)
    else:  # the size is symbolic: its value is known when the exported module runs
        size, bound = (ops.scalar(rec, sys.modules["jax"].numpy.asarray(n)) for n in (size, bound))
        last = bound
    if unsigned:  # a uint32 index from 2^31 on is a negative int here
        beyond = Sym(rec, rec.integer(size), INT) if type(size) is int else size
        at = ops.choose(rec, functions.LT(rec, at, 0), beyond, at)
    at = Sym(rec, at.node, INT)  # the bounds may not fit a narrow int
    inside = ops.logical_and(rec, functions.LE(rec, 0, at), functions.LE(rec, at, bound)) if mode in (
        _FILL, _PROMISED) else None
    return at if mode == _FILL else functions.clamp(rec, at, 0, last), inside


def _parts(rec: Recording, node: int) -> Tuple[Any, ...]:
    return rec.code[node - FIRST] if node >= FIRST else ()


def _convert(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    kind = kind_of_dtype(params["new_dtype"])
    old, new = player.avals[0].dtype, out.dtype
    if kind is None:
        refuse("a traced value cannot be converted to %s" % new)
    if kind == kind_of_dtype(old) == FLOAT and new.itemsize < min(old.itemsize, 4):
        refuse("a traced %s is rounded to %s: a score function computes in the width of the engine and rounds nothing; "
               "leave the conversion out" % (old, new))
    if kind_of_dtype(old) == FLOAT and new.kind in "iu" and new.itemsize < 4:  # XLA saturates narrow ints
        ends = (-1 << 8 * new.itemsize - 1, (1 << 8 * new.itemsize - 1) - 1) if new.kind == "i" else (
            0, (1 << 8 * new.itemsize) - 1)
        return player.apply(lambda rec, x: ops.cast(rec, functions.clamp(rec, ops.cast(rec, x, INT), *ends), kind),
                            operands)
    return player.apply(lambda rec, x: ops.cast(rec, x, kind), operands)


def _broadcast(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    x, shape, dims = player.elements(operands[0]), tuple(params["shape"]), params["broadcast_dimensions"]
    if not shape:
        return value(x)
    lined = [x.shape[dims.index(d)] if d in dims else 1 for d in range(len(shape))]
    return Vec(player.rec, shape, arrays.expanded(Vec(player.rec, lined, x.elements), shape))


def _squeeze(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    x = operands[0]
    if type(x) is not Held:
        return arrays.reshape(player.elements(x), out.shape)
    gone = {d % len(x.shape) for d in params.get("dimensions", [d for d in range(len(x.shape)) if x.shape[d] == 1])}
    if not gone <= set(x.ones) or len(x.shape) - len(gone) != len(out.shape):
        return arrays.reshape(player.elements(x), out.shape)
    kept = [d for d in range(len(x.shape)) if d not in gone]
    ones = [n for n, d in enumerate(kept) if d in x.ones]
    return Held(x.part, [x.shape[d] for d in kept], ones) if ones else x.part


def _reshape(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    x = operands[0]
    if type(x) is Held and [n for d, n in enumerate(x.shape) if d not in x.ones] == list(out.shape):
        return x.part
    return arrays.reshape(player.elements(x), out.shape)


def _dynamic_slice(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    base, starts, sizes = operands[0], operands[1:], params["slice_sizes"]
    whole = tuple(base.shape)
    if type(base) is Vec or any(1 < size < n for size, n in zip(sizes, whole)):
        return _window(player, base, starts, sizes)
    key = tuple(0 if n == 1 else slice(None) if size == n else
                _inside(player, at, n, unsigned=player.is_unsigned(i + 1))[0]
                for i, (at, size, n) in enumerate(zip(starts, sizes, whole)))
    fixed = base.fixed if type(base) is View else None
    part = index(player.rec, base.base if fixed is not None else base, fixed, key)
    if type(part) is View or type(part) is Sym:
        return Held(part, sizes, [d for d, at in enumerate(key) if not isinstance(at, slice)])
    return part


def _window(player: Any, base: Any, starts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Returns the elements of a slice of an array: a slice of shape `sizes` that starts at the traced indices `starts`.
    As in JAX, the start indices are clamped so that the slice is in bounds."""
    rec = player.rec
    rows: List[List[Any]] = []
    for i, (at, size, n) in enumerate(zip(starts, sizes, base.shape)):
        if size == n:
            rows.append(list(range(n)))
            continue
        start = _inside(player, at, n, room=size, unsigned=player.is_unsigned(i + 1))[0]
        rows.append([ops.add(rec, start, i) for i in range(size)])
    if product(sizes) > arrays.MAX_ELEMENTS:
        refuse("a slice of shape %s is too large to be unrolled" % (tuple(sizes),))
    return Vec(rec, sizes, [_element(rec, base, at) for at in itertools.product(*rows)])


def _element(rec: Recording, base: Any, at: Sequence[Any]) -> Sym:
    if type(base) is Vec:
        return base[tuple(at)]
    if type(base) is View:
        return base[tuple(at)]
    return arrays.load(rec, base, [i.node if type(i) is Sym else rec.integer(i) for i in at])


def _gather(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    base, places, numbers = operands[0], player.elements(operands[1]), params["dimension_numbers"]
    rec, batch = player.rec, places.shape[:-1]
    offsets, starts = numbers.offset_dims, numbers.start_index_map
    beside = dict(zip(getattr(numbers, "operand_batching_dims", ()),
                      getattr(numbers, "start_indices_batching_dims", ())))  # batching dim of base -> of indices
    slid = [d for d in range(len(base.shape)) if d not in numbers.collapsed_slice_dims and d not in beside]
    if product(out.shape) > arrays.MAX_ELEMENTS:
        refuse("a gather of shape %s is too large to be unrolled" % (tuple(out.shape),))
    steps = arrays.strides_of(batch)
    mode, other = params["mode"].name, _fill(player, params.get("fill_value"), out.dtype)
    places = [_inside(player, x, base.shape[starts[n % len(starts)]], mode, params["slice_sizes"][
        starts[n % len(starts)]], player.is_unsigned(1)) for n, x in enumerate(places.elements)]
    elements = []
    for at in itertools.product(*map(range, out.shape)):
        lane = [i for d, i in enumerate(at) if d not in offsets]
        row = sum(i * s for i, s in zip(lane, steps)) * len(starts)
        moved = dict(zip(slid, (at[d] for d in offsets)))
        moved.update((d, lane[of]) for d, of in beside.items())
        index: List[Any] = []
        for d in range(len(base.shape)):
            begin: Any = places[row + starts.index(d)][0] if d in starts else 0
            shift = moved.get(d, 0)
            index.append(ops.add(rec, begin, shift) if shift and type(begin) is Sym else begin if shift == 0 else shift)
        one = _element(rec, base, index)
        for _, inside in places[row:row + len(starts)]:
            outside = other if mode == _FILL else stop(rec, one)
            one = one if inside is None else ops.choose(rec, inside, one, outside)
        elements.append(one)
    return value(Vec(rec, out.shape, elements))


def _fill(player: Any, given: Any, dtype: Any) -> Any:
    """Returns the fill value of a gather as an operand: `given`, or JAX's default for the dtype if `given` is None."""
    import numpy  # JAX requires NumPy
    if given is None:
        given = (numpy.nan if kind_of_dtype(dtype) == FLOAT else True if dtype == bool else
                 numpy.iinfo(dtype).max if dtype.kind == "u" else numpy.iinfo(dtype).min)
    return player.traced(numpy.asarray(given, dtype)[()])


def _reduce(name: str) -> Handler:
    def go(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
        made = reductions.reduce(player.rec, name, player.elements(operands[0]), list(params["axes"]))
        kind = kind_of_dtype(out.dtype)
        return made if kind in (FLOAT, None) else player.apply(lambda rec, x: ops.cast(rec, x, kind), [made])
    return go


def _dot_general(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    (left, right), (lead_x, lead_y) = params["dimension_numbers"]
    x, y = player.elements(operands[0]), player.elements(operands[1])
    of_x = [("x", d) for d in range(len(x.shape))]
    of_y = [("y", d) for d in range(len(y.shape))]
    for a, b in [*zip(left, right), *zip(lead_x, lead_y)]:
        of_y[b] = of_x[a]
    rest = [name for d, name in enumerate(of_x) if d not in (*left, *lead_x)]
    rest += [name for d, name in enumerate(of_y) if d not in (*right, *lead_y)]
    return products.sum_of_products(player.rec, [x, y], [of_x, of_y], [of_x[d] for d in lead_x] + rest)


def _concatenate(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return arrays.concatenate(player.rec, [player.elements(x) for x in operands], params["dimension"])


def _slice(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    steps = params["strides"] or (1,) * len(params["start_indices"])
    key = tuple(slice(a, b, c) for a, b, c in zip(params["start_indices"], params["limit_indices"], steps))
    x = operands[0]
    return x[key] if type(x) is View else player.elements(x)[key]


def _rev(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    x = player.elements(operands[0])
    turned = [slice(None, None, -1) if d in params["dimensions"] else slice(None) for d in range(len(x.shape))]
    return x[tuple(turned)] if x.shape else value(x)


def _transpose(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return arrays.permute(player.elements(operands[0]), params["permutation"])


_TO_EVEN = 1  # value of lax.RoundingMethod.TO_NEAREST_EVEN; this file does not import jax


def _round(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    if int(params["rounding_method"]) == _TO_EVEN:
        return player.apply(functions.nearest, operands)

    def away(rec: Recording, x: Any) -> Sym:
        up = functions.floor(rec, ops.add(rec, ops.absolute(rec, x), functions.k(rec, 0.5)))
        return functions.copysign(rec, up, x)
    return player.apply(away, operands)


def _stop(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return player.apply(lambda rec, x: stop(rec, ops.as_sym(rec, x)), operands)


def _stack(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return arrays.stack(player.rec, [player.elements(x) for x in operands], params.get("axis", 0))


def _shift_logical(rec: Recording, x: Any, y: Any) -> Sym:
    kept = ops.bit_and(rec, ops.shift_right(rec, x, y), ops.sub(rec, ops.shift_left(rec, 1, ops.sub(rec, 32, y)), 1))
    inside = functions.EQ(rec, ops.bit_and(rec, y, -32), 0)
    return ops.choose(rec, functions.EQ(rec, y, 0), x, ops.choose(rec, inside, kept, Sym(rec, rec.integer(0), INT)))


def each(fn: Callable[..., Sym]) -> Handler:
    return lambda player, operands, params, out: player.apply(fn, operands)


def _clamp(rec: Recording, low: Any, x: Any, high: Any) -> Sym:
    return functions.clamp(rec, x, low, high)


_EACH: Dict[str, Callable[..., Sym]] = spread({
    "add add_any": ops.add, "sub": ops.sub, "mul": ops.mul, "div": _div, "rem": functions.fmod, "max": ops.maximum,
    "min": ops.minimum, "neg": ops.neg, "sign": functions.sign, "abs": ops.absolute, "pow": ops.power,
    "square": functions.square, "exp": functions.exp, "exp2": functions.exp2, "expm1": curves.expm1,
    "log": functions.log, "log1p": functions.log1p, "tanh": functions.tanh, "logistic": functions.sigmoid,
    "sin": functions.sin, "cos": functions.cos, "tan": functions.tan, "asin": curves.asin, "acos": curves.acos,
    "atan": functions.atan, "atan2": curves.atan2, "sinh": curves.sinh, "cosh": curves.cosh, "asinh": curves.asinh,
    "acosh": curves.acosh, "atanh": curves.atanh, "sqrt": functions.sqrt, "rsqrt": functions.rsqrt,
    "cbrt": curves.cbrt, "erf": functions.erf, "erfc": curves.erfc, "floor": functions.floor, "ceil": functions.ceil,
    "is_finite": functions.isfinite, "clamp": _clamp, "and": ops.bit_and, "or": ops.bit_or, "xor": ops.bit_xor,
    "not": ops.invert, "shift_left": ops.shift_left, "shift_right_arithmetic": ops.shift_right,
    "shift_right_logical": _shift_logical, "eq eq_to": ops.compare(_abi.OP_EQ), "ne": ops.compare(_abi.OP_NE),
    "lt lt_to": ops.compare(_abi.OP_LT), "le le_to": ops.compare(_abi.OP_LE), "gt": ops.compare(_abi.OP_GT),
    "ge": ops.compare(_abi.OP_GE), "copy copy_p real optimization_barrier": ops.as_sym,
})
PRIMITIVES: Dict[str, Handler] = {
    **{name: each(fn) for name, fn in _EACH.items()},
    "integer_pow": _integer_pow, "select_n": _select_n, "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast, "squeeze": _squeeze, "reshape": _reshape, "expand_dims": _reshape,
    "dynamic_slice": _dynamic_slice, "gather": _gather, "reduce_sum": _reduce("sum"), "reduce_prod": _reduce("prod"),
    "reduce_max": _reduce("max"), "reduce_min": _reduce("min"), "reduce_and": _reduce("all"),
    "reduce_or": _reduce("any"), "argmax": _reduce("argmax"), "argmin": _reduce("argmin"),
    "dot_general": _dot_general, "concatenate": _concatenate, "slice": _slice, "rev": _rev, "transpose": _transpose,
    "round": _round, "stop_gradient": _stop, "stack": _stack, **UNROLLED,
}
