# SPDX-License-Identifier: Apache-2.0
"""JAX's primitives on small arrays of traced values: primitives that move, sort or scan elements, and bit counts.

A primitive that moves elements runs in JAX once, on an array of element indices; the resulting indices state where each
element goes. Sorting is a network of compare-exchanges (bubble sort), which is stable like JAX's sort.
"""
import sys
from typing import Any, Callable, Dict, List, Sequence

from .. import _abi
from . import arrays, curves, functions, ops
from .arrays import Vec, product, value
from .place import refuse
from .record import Recording
from .symbol import Sym
from .types import FLOAT, INT

MAX_SORTED = 16
Handler = Callable[..., Any]


def _numbered(parts: Sequence[Vec]) -> List[Any]:
    """Returns int arrays of the shapes of `parts`; the ints number the elements of all parts consecutively."""
    numpy, found, at = sys.modules["numpy"], [], 0
    for part in parts:
        size = product(part.shape)
        found.append(numpy.arange(at, at + size, dtype="int32").reshape(part.shape))
        at += size
    return found


def _moved(player: Any, parts: Sequence[Vec], move: Callable[..., Any]) -> List[Vec]:
    """Returns the results of `move`, a function that only rearranges elements, applied to `parts`."""
    jax, numpy = sys.modules["jax"], sys.modules["numpy"]
    with jax.ensure_compile_time_eval():
        places = [numpy.asarray(x) for x in jax.tree.leaves(move(*_numbered(parts)))]
    elements = [x for part in parts for x in part.elements]
    for place in places:
        arrays.check_held(place.shape)
    return [Vec(player.rec, place.shape, [elements[i] for i in place.reshape(-1)]) for place in places]


def _pad(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    config = [tuple(map(int, one)) for one in params["padding_config"]]
    return _moved(player, [player.elements(x) for x in operands],
                  lambda x, y: sys.modules["jax"].lax.pad(x, y, config))[0]


def _split(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return _moved(player, [player.elements(operands[0])],
                  lambda x: sys.modules["jax"].lax.split(x, params["sizes"], params["axis"]))


def _unstack(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    axis = params.get("axis", 0)
    return [value(x) for x in _moved(player, [player.elements(operands[0])], lambda x: [
        x.take(i, axis) for i in range(x.shape[axis])])]


def _tile(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    return _moved(player, [player.elements(operands[0])],
                  lambda x: sys.modules["numpy"].tile(x, params["reps"]).reshape(out.shape))[0]


def _scatter(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    """Returns x.at[places].set(...) or .add(...). The indices `places` must be known while the function is traced."""
    jax, places = sys.modules["jax"], operands[1]
    if type(places) in (Sym, Vec):
        refuse("an element is set at a traced place; choose by jnp.where(jnp.arange(n) == i, x, a)")
    rest = {name: params[name] for name in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    old, new = player.elements(operands[0]), player.elements(operands[2])
    return _moved(player, [old, new], lambda x, y: jax.lax.scatter(x, places, y, **rest))[0]


def _scatter_add(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    jax, numpy, places = sys.modules["jax"], sys.modules["numpy"], operands[1]
    if type(places) in (Sym, Vec):
        refuse("an element is added to at a traced place; choose by jnp.where(jnp.arange(n) == i, x + a, x)")
    rest = {name: params[name] for name in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    old, new = player.elements(operands[0]), player.elements(operands[2])
    count = len(new.elements)
    with jax.ensure_compile_time_eval():
        each = numpy.eye(count, dtype="int32").reshape((count, *new.shape))
        hits = [numpy.asarray(jax.lax.scatter_add(numpy.zeros(old.shape, "int32"), places, one, **rest)).reshape(-1)
                for one in each]
    sums = list(old.elements)
    for x, hit in zip(new.elements, hits):
        sums = [ops.add(player.rec, y, x) if on else y for y, on in zip(sums, hit)]
    return value(Vec(player.rec, old.shape, sums))


def _update(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    """Returns dynamic_update_slice. In a dynamic_update_slice at a traced start index, each element of the result is a
    select of an old and a new element."""
    rec, (old, new) = player.rec, (player.elements(x) for x in operands[:2])
    starts = operands[2:]
    if not any(type(x) is Sym for x in starts):
        return _moved(player, [old, new], lambda x, y: sys.modules["jax"].lax.dynamic_update_slice(x, y, starts))[0]
    if len(old.shape) != 1:
        refuse("dynamic_update_slice at a traced place is known of arrays of one dimension, not of shape %s"
               % (old.shape,))
    start = functions.clamp(rec, starts[0], 0, old.shape[0] - new.shape[0])
    elements = list(old.elements)
    for n in range(len(elements)):
        for shift, x in enumerate(new.elements):
            if 0 <= n - shift <= old.shape[0] - new.shape[0]:
                elements[n] = ops.choose(rec, functions.EQ(rec, start, n - shift), x, elements[n])
    return Vec(rec, old.shape, elements)


# ---- along an axis

def _columns(x: Vec, axis: int) -> List[List[int]]:
    """Returns one list for each index of the other axes: the flat indices of the elements along `axis`."""
    numpy = sys.modules["numpy"]
    found = numpy.moveaxis(numpy.arange(product(x.shape)).reshape(x.shape), axis, -1)
    return [list(map(int, row)) for row in found.reshape(-1, x.shape[axis])] if x.elements else []


def _running(fn: Callable[..., Sym]) -> Handler:
    def go(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
        x = player.elements(operands[0])
        elements = list(x.elements)
        for column in _columns(x, params["axis"]):
            column = column[::-1] if params.get("reverse") else column
            for before, at in zip(column, column[1:]):
                elements[at] = fn(player.rec, elements[before], elements[at])
        return Vec(player.rec, x.shape, elements)
    return go


def _exchanged(rec: Recording, parts: Sequence[List[Any]], column: List[int], keys: int, down: bool) -> None:
    """Sorts the elements at the indices `column` of each list in `parts`, in place. The first `keys` lists of `parts`
    are the sort keys, `down` selects descending order, and elements with equal keys keep their order."""
    for done in range(len(column) - 1, 0, -1):
        for n in range(done):
            at, then = column[n], column[n + 1]
            wrong: Any = None
            for part in reversed(parts[:keys]):
                x, y = (part[then], part[at]) if down else (part[at], part[then])
                later = _is_later(rec, x, y)
                wrong = later if wrong is None else ops.logical_or(
                    rec, later, ops.logical_and(rec, ops.logical_not(rec, _is_later(rec, y, x)), wrong))
            for part in parts:
                x, y = part[at], part[then]
                part[at], part[then] = ops.choose(rec, wrong, y, x), ops.choose(rec, wrong, x, y)


def _is_later(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns True where x sorts after y: y < x, and NaN sorts after all numbers."""
    less = functions.LT(rec, y, x)
    if ops.kind_of_operand(x) != FLOAT:
        return less
    return ops.logical_or(rec, less, ops.logical_and(rec, functions.isnan(rec, x), functions.EQ(rec, y, y)))


def _check_sorted(name: str, length: int) -> None:
    if length > MAX_SORTED:
        refuse("%s of %d traced values is too long to be unrolled; at most %d are" % (name, length, MAX_SORTED))


def _sort(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    parts = [player.elements(x) for x in operands]
    _check_sorted("a sort", parts[0].shape[params["dimension"]])
    lists = [[ops.as_sym(player.rec, e) for e in x.elements] for x in parts]
    for column in _columns(parts[0], params["dimension"]):
        _exchanged(player.rec, lists, column, params["num_keys"], False)
    return [Vec(player.rec, x.shape, elements) for x, elements in zip(parts, lists)]


def _top_k(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    rec, x = player.rec, player.elements(operands[0])
    axis, k = params.get("axis", -1) % len(x.shape), params["k"]
    _check_sorted("top_k", x.shape[axis])
    columns, places = _columns(x, axis), [Sym(rec, rec.integer(0), INT)] * len(x.elements)
    lists: List[List[Any]] = [[ops.as_sym(rec, e) for e in x.elements], places]
    for column in columns:
        for n, at in enumerate(column):
            lists[1][at] = Sym(rec, rec.integer(n), INT)
        _exchanged(rec, lists, column, 1, True)
    kept = (slice(None),) * axis + (slice(0, k),)
    return [Vec(rec, x.shape, elements)[kept] for elements in lists]


# ---- bits

def _ones(rec: Recording, x: Any) -> Sym:
    """Returns the number of set bits of a 32-bit int."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        high = ops.bit_and(rec, ops.shift_right(rec, x, shift), mask)
        x = ops.add(rec, ops.bit_and(rec, x, mask), high)
    return ops.bit_and(rec, ops.shift_right(rec, ops.mul(rec, x, 0x01010101), 24), 63)


def _of_bits(count: Callable[..., Sym]) -> Handler:
    def go(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
        bits = 8 * out.dtype.itemsize
        if bits > 32:
            refuse("bits of %s are counted, and ints of score functions have 32" % out.dtype)

        def one(rec: Recording, x: Any) -> Sym:
            whole = Sym(rec, ops.as_sym(rec, x).node, INT)
            return Sym(rec, count(rec, whole if bits == 32 else ops.bit_and(rec, whole, (1 << bits) - 1), bits).node,
                       ops.kind_of_operand(x))
        return player.apply(one, operands)
    return go


def _leading_zeros(rec: Recording, x: Any, bits: int) -> Sym:
    for shift in (1, 2, 4, 8, 16):  # sets all bits below the highest set bit
        x = ops.bit_or(rec, x, ops.shift_right(rec, x, shift))
    return ops.sub(rec, bits, _ones(rec, x))


def _bitcast(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    kinds = (player.avals[0].dtype, out.dtype)
    if any(kind.kind not in "iu" for kind in kinds) or kinds[0].itemsize != kinds[1].itemsize or kinds[0].itemsize < 4:
        refuse("the bits of %s are read as %s, which a score function cannot" % kinds)
    return player.traced(operands[0])


def _precision(player: Any, operands: List[Any], params: Dict[str, Any], out: Any) -> Any:
    wide = {4: (8, 23), 8: (11, 52)}.get(out.dtype.itemsize, (99, 99))
    if params["exponent_bits"] < wide[0] or params["mantissa_bits"] < wide[1]:
        refuse("reduce_precision to %d bits of fraction: a score function computes in the width of the engine and "
               "rounds nothing; leave it out" % params["mantissa_bits"])
    return player.traced(operands[0])


UNROLLED: Dict[str, Handler] = {
    "pad": _pad, "split": _split, "tile": _tile, "unstack": _unstack, "scatter": _scatter, "scatter-add": _scatter_add,
    "dynamic_update_slice": _update, "cumsum": _running(ops.add), "cumprod": _running(ops.mul),
    "cummax": _running(ops.maximum), "cummin": _running(ops.minimum), "cumlogsumexp": _running(curves.logaddexp),
    "sort": _sort, "top_k": _top_k, "population_count": _of_bits(lambda rec, x, bits: _ones(rec, x)),
    "clz": _of_bits(_leading_zeros), "bitcast_convert_type": _bitcast, "reduce_precision": _precision}
