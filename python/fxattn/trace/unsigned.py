# SPDX-License-Identifier: Apache-2.0
"""JAX's integer types that the program language lacks: uint32, uint16, int64, uint64. An operation on JAX's integer
types gives an exact result or raises an error.

- uint32 is stored as an int of the same bits. Operations whose result depends on signedness are emulated in this file,
  unless the operands are proven to be below 2^31.

- uint16 is an int whose upper bits are cleared.

- A 64-bit product is refused unless the product is proven to fit 32 bits; a 64-bit sum is refused if the known bounds
  of the sum exceed 32 bits.
"""
from typing import Any, Callable, Dict, List, Optional

from .. import _abi
from . import bounds, functions, ops
from .arrays import Vec
from .libraries import kind_of_dtype
from .place import refuse
from .record import FIRST, Recording
from .symbol import Sym
from .types import BOOL, FLOAT, INT

_TOP, _REST = -(1 << 31), (1 << 31) - 1
# Primitives that give the same bits for signed and unsigned ints, or only move elements.
_BY_BITS = frozenset(
    "add sub mul neg and or xor not shift_left shift_right_logical eq eq_to ne select_n broadcast_in_dim squeeze "
    "reshape expand_dims dynamic_slice gather reduce_sum reduce_and reduce_or concatenate slice rev transpose stack "
    "pad split tile scatter scatter-add dynamic_update_slice cumsum population_count clz bitcast_convert_type copy "
    "copy_p integer_pow optimization_barrier stop_gradient".split())
_PRODUCTS = frozenset("mul integer_pow shift_left reduce_prod cumprod dot_general square".split())


def _flip(rec: Recording, x: Any) -> Sym:
    """Returns x with the top bit flipped: a signed comparison of two flipped values is an unsigned comparison of the
    operands."""
    return ops.bit_xor(rec, x, _TOP)


def _compared(op: int) -> Callable[..., Sym]:
    return lambda rec, x, y: ops.compare(op)(rec, _flip(rec, x), _flip(rec, y))


_BELOW = _compared(_abi.OP_LT)


def _quotient(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns the quotient x / y of two unsigned 32-bit ints. The half x / 2 fits a signed int, and 2 * (x / 2 / y) is
    the quotient or the quotient minus one. If the unsigned y is 2^31 or more, the quotient x / y is 0 or 1."""
    half = ops.bit_and(rec, ops.shift_right(rec, x, 1), _REST)
    near = ops.shift_left(rec, ops.floordiv(rec, half, y), 1)
    rest = ops.sub(rec, x, ops.mul(rec, near, y))
    made = ops.choose(rec, _BELOW(rec, rest, y), near, ops.add(rec, near, 1))
    large = ops.choose(rec, _BELOW(rec, x, y), Sym(rec, rec.integer(0), INT), Sym(rec, rec.integer(1), INT))
    return ops.choose(rec, functions.LT(rec, y, 0), large, made)


def _as_float(rec: Recording, x: Any) -> Sym:
    """Returns an unsigned int as a float. The unsigned int is rounded to a float once, because its upper 24 bits and
    its lower 8 bits convert exactly."""
    upper = ops.bit_and(rec, ops.shift_right(rec, x, 8), (1 << 24) - 1)
    lower = ops.cast(rec, ops.bit_and(rec, x, 255), FLOAT)
    return ops.add(rec, ops.mul(rec, ops.cast(rec, upper, FLOAT), functions.k(rec, 256.0)), lower)


_OWN: Dict[str, Callable[..., Sym]] = {
    "lt": _BELOW, "lt_to": _BELOW, "le": _compared(_abi.OP_LE), "le_to": _compared(_abi.OP_LE),
    "gt": _compared(_abi.OP_GT), "ge": _compared(_abi.OP_GE), "div": _quotient,
    "rem": lambda rec, x, y: ops.sub(rec, x, ops.mul(rec, _quotient(rec, x, y), y)),
    "max": lambda rec, x, y: ops.choose(rec, _BELOW(rec, x, y), y, x),
    "min": lambda rec, x, y: ops.choose(rec, _BELOW(rec, x, y), x, y)}


def _below_half(player: Any, operands: List[Any]) -> bool:
    """Returns True if all ints are proven to be below 2^31, so that signed operations give the same result."""
    for x in operands:
        for one in player.elements(x).elements if type(x) is not Sym else [x]:
            if type(one) is not Sym or one.ty == INT and bounds.span(player.rec, one.node)[0] < 0:
                return False
    return True


def exact(player: Any, name: str, equation: Any, operands: List[Any]) -> Optional[Any]:
    """Returns the result of an operation on uint32; None if the operation on signed ints gives an equal result."""
    kinds = [str(atom.aval.dtype) for atom in equation.invars]
    made = str(equation.outvars[0].aval.dtype)
    if name == "convert_element_type":
        return _converted(player, kinds[0], made, operands)
    if "uint32" not in kinds or name in _BY_BITS:
        return None
    wanted = [x for x, kind in zip(operands, kinds) if kind == "uint32"]
    if _below_half(player, wanted):
        return None
    if name not in _OWN:
        refuse("JAX's %s of uint32 is not known to score functions; convert to int32 before" % name)
    return player.apply(_OWN[name], operands)


def _converted(player: Any, kind: str, made: str, operands: List[Any]) -> Optional[Any]:
    if kind == "uint32" and made not in ("uint32", "int32", "uint16", "int16", "uint8", "int8", "bool"):
        if _below_half(player, operands):
            return None
        if kind_of_dtype(made) == FLOAT:
            return player.apply(_as_float, operands)
        refuse("a uint32 becomes %s, and ints of score functions have 32 bits; convert it to a float" % made)
    if made in ("uint32", "uint64") and kind_of_dtype(kind) == FLOAT:
        refuse("a traced float becomes %s, which is known of signed ints; convert to int32" % made)
    return None


def in_range(player: Any, name: str, aval: Any, result: Any) -> Any:
    """Returns a result wrapped to its type; the upper bits of a uint16 are cleared. Raises an error for a 64-bit result
    that may need more than 32 bits."""
    kind = str(aval.dtype)
    if kind == "uint16":
        return player.apply(lambda rec, x: ops.bit_and(rec, ops.as_sym(rec, x), 0xFFFF), [result])
    if kind in ("int64", "uint64") and name in _PRODUCTS:
        found = result.elements if type(result) is Vec else [result]
        if any(type(x) is Sym and x.ty != BOOL and bounds.span(player.rec, x.node) == bounds.ALL for x in found):
            refuse("a product in %s may need more than the 32 bits that ints of score functions have; take the factors "
                   "as int32 where it has room there, or as floats" % kind)
    if kind in ("int64", "uint64") and type(result) is Sym and _leaves(player.rec, result.node, kind):
        refuse("a sum in %s may need more than the 32 bits that ints of score functions have; take floats, or a "
               "smaller number" % kind)
    return result


def _leaves(rec: Recording, node: int, kind: str) -> bool:
    """Returns True if a sum of ints with known bounds may exceed 32 bits, or may be negative for uint64. Sums of values
    without known bounds, such as captured ids, are assumed to fit into 32 bits."""
    op, *parts = rec.code[node - FIRST] if node >= FIRST else (None,)
    if op not in (_abi.OP_ADD, _abi.OP_SUB, _abi.OP_NEG, _abi.OP_ABS) or any(
            bounds.span(rec, part) == bounds.ALL for part in parts):
        return False
    found = bounds.span(rec, node)
    return found == bounds.ALL or kind == "uint64" and found[0] < 0
