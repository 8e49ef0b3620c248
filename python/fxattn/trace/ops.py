# SPDX-License-Identifier: Apache-2.0
"""Operations on traced scalars with the semantics of torch, NumPy and JAX: promotion, bools, narrow ints, powers of
ints, shifts.

The functions of this file take a Recording and operands (Syms, which are traced scalars, or Python numbers), and return
a Sym. `elementwise` in arrays.py applies the functions of this file to small arrays; tables.py maps the names that
users call to the functions of this file.
"""
import sys
from typing import Any, Callable, Optional, Tuple

from .._abi import (OP_ABS, OP_ADD, OP_AND, OP_DIV, OP_EQ, OP_FLOAT, OP_FLOORDIV, OP_GE, OP_GT, OP_INT, OP_LE, OP_LT,
                    OP_MAX, OP_MIN, OP_MOD, OP_MUL, OP_NE, OP_NEG, OP_NOT, OP_OR, OP_POW, OP_SELECT, OP_SHL, OP_SHR,
                    OP_SUB, OP_XOR)
from .libraries import library_of, plain_number, storage_of, symbolic_kind
from .place import refuse
from .record import FIRST, LOAD, Recording
from .symbol import NeedsJax, Sym
from .types import BESIDE_INT, BOOL, FLOAT, I8, I16, INT, NAMES, PROMOTE, U8

NARROW = (U8, I8, I16)
_SHIFT = {I8: 24, I16: 16}


class RunInt(int):
    """An int that becomes a param in an operation with a traced value, and acts as a Python int elsewhere."""

    __slots__ = ()


def scalar(rec: Recording, x: Any) -> Any:
    """Returns an operand as a Sym or a Python bool, int or float. A number of another library becomes a Python number
    or a Sym, a captured tensor of rank 0 becomes a Sym, and any other value raises an error."""
    kind = type(x)
    if kind is Sym:
        return x if x.rec is rec else moved(rec, x)
    if kind is float or kind is int or kind is bool:
        return x
    if kind is RunInt:
        return Sym(rec, rec.param(x, INT), INT)
    library = library_of(x)
    if library is not None:
        if x.ndim:
            refuse("a scalar is wanted here, not a tensor of shape %s" % (tuple(x.shape),))
        if rec.device is not None and library == "torch" and x.device.type == "cpu" != rec.device.type:
            return _from_host(rec, x)
        at = rec.capture(x)
        return Sym(rec, rec.emit(LOAD, at), rec.kinds[at])
    found = plain_number(x)
    if type(found) is float:  # a NumPy scalar: the object itself is passed, so that its uses share one param
        return Sym(rec, rec.number(x), FLOAT)
    if found is not None:
        return found
    of = symbolic_kind(x)
    if of is not None:
        return Sym(rec, rec.param(x, of), of)
    if hasattr(x, "__jax_array__") and "jax" in sys.modules:  # for example nnx.Param, which JAX accepts as an array
        raise NeedsJax()
    refuse("a score function computes with numbers and tensors, not with %s" % type(x).__name__)


def _from_host(rec: Recording, x: Any) -> Sym:
    """Returns a param for a tensor of rank 0 that is in host memory while the call runs on a device: torch also treats
    a host tensor of rank 0 as a number."""
    kind = storage_of(x)[2]
    at = Sym(rec, rec.param(x, FLOAT if kind == FLOAT else INT), FLOAT if kind == FLOAT else INT)
    return truth(rec, at) if kind == BOOL else Sym(rec, at.node, kind)


def moved(rec: Recording, x: Sym) -> Sym:
    """Returns the copy of a value of the forward trace in the backward trace, where the instructions that compute the
    value are repeated."""
    if rec.parent is not x.rec:
        refuse("this value was made by another trace, so it means nothing here; compute it again in this function")
    return Sym(rec, rec.copy_of(x.node), x.ty)


def node(rec: Recording, x: Any, kind: int) -> int:
    """Returns the node of an operand. A Python number becomes a constant of type `kind`, or a param."""
    of = type(x)
    if of is Sym:
        return int(x.node)
    if of is bool:
        return rec.boolean(x)
    if of is float:
        return rec.number(x)
    return rec.whole(x) if kind == FLOAT else rec.integer(x, kind if kind != BOOL else INT)


def joint(x: Any, y: Any) -> int:
    """Returns the promoted type of two operands. The promoted type of a Python int and an int narrower than 32 bits is
    the type of the narrower int."""
    tx, ty = type(x), type(y)
    if tx is Sym:
        if ty is Sym:
            return PROMOTE[x.ty][y.ty]
        return FLOAT if ty is float else int(x.ty) if ty is bool else BESIDE_INT[x.ty]
    if ty is Sym:
        return FLOAT if tx is float else int(y.ty) if tx is bool else BESIDE_INT[y.ty]
    return FLOAT if float in (tx, ty) else INT if int in (tx, ty) else BOOL


def kind_of_operand(x: Any) -> int:
    of = type(x)
    return int(x.ty) if of is Sym else FLOAT if of is float else BOOL if of is bool else INT


def narrowed(rec: Recording, at: int, kind: int) -> Sym:
    """Returns the int node `at` wrapped to the range of the narrow type `kind`."""
    if kind == U8:
        at = rec.emit(OP_AND, at, rec.integer(255))
    elif kind in _SHIFT:
        by = rec.integer(_SHIFT[kind])
        at = rec.emit(OP_SHR, rec.emit(OP_SHL, at, by), by)
    return Sym(rec, at, kind)


def emit(rec: Recording, op: int, kind: int, *operands: Any) -> Sym:
    """Records `op` on the operands, which are converted to the type `kind`. Returns the result of `op`, a Sym of type
    `kind`."""
    instruction = [op]
    for x in operands:
        instruction.append(x.node if type(x) is Sym else node(rec, x, kind))
    code = rec.code
    code.append(tuple(instruction))
    at = len(code) + (FIRST - 1)
    return Sym(rec, at, kind) if kind >= INT or kind == BOOL else narrowed(rec, at, kind)


# ---- arithmetic

def _make_arithmetic(op: int, of_bools: Optional[int]) -> Callable[[Recording, Any, Any], Sym]:
    """Returns a function that records x op y, or of_bools for two bools. The returned function tests for two traced
    values first, because operations on two traced values are the most common."""
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        if type(x) is Sym and type(y) is Sym:
            kind = PROMOTE[x.ty][y.ty]
            if kind >= INT:
                code = rec.code
                code.append((op, x.node, y.node))
                return Sym(rec, len(code) + (FIRST - 1), kind)
        kind = joint(x, y)
        if kind == BOOL:
            if of_bools is None:
                refuse("subtraction, the `-` operator, of two bools is not supported by the libraries; use ^ or "
                       "logical_xor")
            return emit(rec, of_bools, kind, x, y)
        return emit(rec, op, kind, x, y)
    return go


add = _make_arithmetic(OP_ADD, OP_OR)
mul = _make_arithmetic(OP_MUL, OP_AND)
sub = _make_arithmetic(OP_SUB, None)
minimum = _make_arithmetic(OP_MIN, OP_AND)
maximum = _make_arithmetic(OP_MAX, OP_OR)


def div(rec: Recording, x: Any, y: Any) -> Sym:
    return Sym(rec, rec.emit(OP_DIV, node(rec, x, FLOAT), node(rec, y, FLOAT)), FLOAT)


def _of_bools(rec: Recording, name: str) -> int:
    if rec.lib != "numpy":
        refuse("%s of two bools is not supported by torch; convert one with .int()" % name)
    return I8


def floordiv(rec: Recording, x: Any, y: Any) -> Sym:
    kind = joint(x, y)
    return emit(rec, OP_FLOORDIV, _of_bools(rec, "floor division") if kind == BOOL else kind, x, y)


def mod(rec: Recording, x: Any, y: Any) -> Sym:
    kind = joint(x, y)
    return emit(rec, OP_MOD, _of_bools(rec, "the remainder") if kind == BOOL else kind, x, y)


def neg(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == BOOL:
        refuse("negation, the `-` operator, of a bool is not supported by the libraries; use ~ or logical_not")
    return emit(rec, OP_NEG, kind, x)


def absolute(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == BOOL and rec.lib != "numpy":
        refuse("abs of a bool is not supported by torch")
    return as_sym(rec, x) if kind in (BOOL, U8) else emit(rec, OP_ABS, kind, x)


# ---- powers

def power(rec: Recording, x: Any, y: Any) -> Sym:
    """Returns x to the power y. Powers of ints are computed by multiplications, which wrap around; powers with a float
    operand are float powers."""
    kind = joint(x, y)
    if kind == FLOAT:
        if type(x) is Sym and x.ty == FLOAT and _is_two(rec, y):
            return emit(rec, OP_MUL, FLOAT, x, x)
        return Sym(rec, rec.emit(OP_POW, node(rec, x, FLOAT), node(rec, y, FLOAT)), FLOAT)
    if kind == BOOL:
        kind = _of_bools(rec, "a power")
    if type(y) is Sym:
        return _power_of_exponent(rec, x, y, kind)
    if y < 0:
        refuse("Integers to negative integer powers are not allowed; write x ** %.1f" % y)
    return power_by_squares(rec, x, int(y), kind)


def _is_two(rec: Recording, y: Any) -> bool:
    """Returns True if the exponent is the literal 2. A param does not count as the literal 2, because a param may have
    another value in the next call."""
    return type(y) is int and y == 2 or type(y) is float and y == 2.0 and rec.is_literal(y)


def power_by_squares(rec: Recording, x: Any, exponent: int, kind: int) -> Sym:
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = as_sym(rec, square, kind) if result is None else emit(rec, OP_MUL, kind, result, square)
        exponent >>= 1
        if exponent:
            square = emit(rec, OP_MUL, kind, square, square)
    return Sym(rec, rec.integer(1), kind) if result is None else result


def _power_of_exponent(rec: Recording, x: Any, y: Sym, kind: int) -> Sym:
    """Returns x to the power of a traced int y, computed from the bits of y. As in torch, a negative power of an int x
    is 0 unless x is 1 or -1."""
    if y.ty == BOOL:
        return choose(rec, y, x, Sym(rec, rec.integer(1), kind))
    bits = {U8: 8, I8: 7, I16: 15, INT: 31}[y.ty]
    base = as_sym(rec, x, kind)
    if type(x) is int and x == 2:
        inside = compare(OP_LT)(rec, y, 31 if kind == INT else 16)
        result = choose(rec, inside, emit(rec, OP_SHL, kind, 1, y), choose(rec, compare(OP_EQ)(rec, y, 31), -1 << 31, 0)
                        if kind == INT else 0)
    else:
        result, square = Sym(rec, rec.integer(1), kind), base
        for bit in range(bits):
            odd = compare(OP_NE)(rec, emit(rec, OP_AND, INT, y, 1 << bit), 0)
            result = choose(rec, odd, emit(rec, OP_MUL, kind, result, square), result)
            square = emit(rec, OP_MUL, kind, square, square)
    if y.ty == U8:
        return result
    odd = compare(OP_NE)(rec, emit(rec, OP_AND, INT, y, 1), 0)
    units = choose(rec, compare(OP_EQ)(rec, base, 1), 1,
                   choose(rec, compare(OP_EQ)(rec, base, -1 if kind != U8 else 255), choose(rec, odd, -1, 1), 0))
    return Sym(rec, choose(rec, compare(OP_LT)(rec, y, 0), units, result).node, kind)


# ---- comparisons, logic, bits

def compare(op: int) -> Callable[[Recording, Any, Any], Sym]:
    return _COMPARISONS[op]


def _make_comparison(op: int) -> Callable[[Recording, Any, Any], Sym]:
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        if type(x) is Sym and type(y) is Sym:
            code = rec.code
            code.append((op, x.node, y.node))
            return Sym(rec, len(code) + (FIRST - 1), BOOL)
        kind = joint(x, y)
        if kind in NARROW and rec.lib == "numpy":
            kind = INT  # NumPy compares a Python int by its value; torch wraps it to the narrow type first
        return Sym(rec, rec.emit(op, node(rec, x, kind), node(rec, y, kind)), BOOL)
    return go


_COMPARISONS = {op: _make_comparison(op) for op in (OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE)}


def truth(rec: Recording, x: Any) -> Sym:
    """Returns x != 0, the conversion that .bool(), logical_and and similar functions apply to operands; returns a bool
    unchanged."""
    x = as_sym(rec, x)
    return x if x.ty == BOOL else Sym(rec, rec.emit(OP_NE, x.node, rec.integer(0)), BOOL)


def _make_bits(op: int, sign: str) -> Callable[[Recording, Any, Any], Sym]:
    def go(rec: Recording, x: Any, y: Any) -> Sym:
        kind = joint(x, y)
        if kind == FLOAT:
            refuse("`%s` takes ints and bools, not floats; compare a float first" % sign)
        return emit(rec, op, kind, x, y)
    return go


bit_and, bit_or, bit_xor = (_make_bits(op, sign) for op, sign in ((OP_AND, "&"), (OP_OR, "|"), (OP_XOR, "^")))


def _make_logic(op: int) -> Callable[[Recording, Any, Any], Sym]:
    return lambda rec, x, y: Sym(rec, rec.emit(op, truth(rec, x).node, truth(rec, y).node), BOOL)


logical_and, logical_or, logical_xor = (_make_logic(op) for op in (OP_AND, OP_OR, OP_XOR))


def logical_not(rec: Recording, x: Any) -> Sym:
    return Sym(rec, rec.emit(OP_NOT, truth(rec, x).node), BOOL)


def invert(rec: Recording, x: Any) -> Sym:
    kind = kind_of_operand(x)
    if kind == FLOAT:
        refuse("`~` takes ints and bools, not floats")
    return emit(rec, OP_NOT, kind, x)


def _shift_operands(rec: Recording, x: Any, y: Any) -> Tuple[int, int, int]:
    kind = joint(x, y)
    if kind == FLOAT:
        refuse("shifts take ints, not floats")
    kind = INT if kind == BOOL else kind
    parts = [rec.emit(OP_INT, node(rec, z, BOOL)) if kind_of_operand(z) == BOOL else node(rec, z, kind) for z in (x, y)]
    return kind, parts[0], parts[1]


def _shift(rec: Recording, x: Any, y: Any, op: int) -> Sym:
    """Returns x shifted by y. If the shift count y is outside 0..31, a left shift returns 0, and a right shift returns
    -1 for negative x, else 0, as in torch and NumPy. The shifts of the program language itself take the shift count
    modulo 32."""
    kind, value, count = _shift_operands(rec, x, y)
    at = rec.emit(op, value, count)
    if type(y) is Sym or not 0 <= y < 32:
        inside = rec.emit(OP_EQ, rec.emit(OP_AND, count, rec.integer(-32)), rec.integer(0))
        rest = rec.integer(0) if op == OP_SHL else rec.emit(OP_SHR, value, rec.integer(31))
        at = rec.emit(OP_SELECT, inside, at, rest)
    return narrowed(rec, at, kind)


def shift_left(rec: Recording, x: Any, y: Any) -> Sym:
    return _shift(rec, x, y, OP_SHL)


def shift_right(rec: Recording, x: Any, y: Any) -> Sym:
    return _shift(rec, x, y, OP_SHR)


# ---- choice and conversions

def choose(rec: Recording, c: Any, x: Any, y: Any) -> Sym:
    """Returns x where the bool c is true, else y."""
    kind = joint(x, y)
    first, second = node(rec, x, kind), node(rec, y, kind)
    if kind != BOOL and kind != FLOAT:  # the result is an int, so a branch of type bool is converted to int
        first = rec.emit(OP_INT, first) if kind_of_operand(x) == BOOL else first
        second = rec.emit(OP_INT, second) if kind_of_operand(y) == BOOL else second
    return Sym(rec, rec.emit(OP_SELECT, node(rec, c, BOOL), first, second), kind)


def where(rec: Recording, c: Any, x: Any, y: Any) -> Sym:
    kind = kind_of_operand(c)
    if kind != BOOL:
        if rec.lib != "numpy" and kind != U8:
            refuse("where expected condition to be a boolean, but got %s; compare it, as in x != 0" % NAMES[kind])
        c = truth(rec, c)
    return choose(rec, c, x, y)


def as_sym(rec: Recording, x: Any, kind: int = -1) -> Sym:
    """Returns any operand as a Sym, which has the type `kind` if `kind` is given. The type of the operand must promote
    to `kind`."""
    if type(x) is Sym:
        if kind in (-1, x.ty):
            return x
        return Sym(rec, rec.emit(OP_INT, x.node) if x.ty == BOOL and kind != FLOAT else x.node, kind)
    kind = kind_of_operand(x) if kind < 0 else kind
    return Sym(rec, node(rec, x, kind), kind)


def cast(rec: Recording, x: Any, kind: int) -> Sym:
    """Returns x converted to a type. A float that becomes an int is rounded towards zero, and an int wraps around in a
    narrower type."""
    x = as_sym(rec, x)
    if x.ty == kind:
        return x
    if kind == BOOL:
        return truth(rec, x)
    if kind == FLOAT:
        return Sym(rec, rec.emit(OP_FLOAT, x.node), FLOAT)
    at = rec.emit(OP_INT, x.node) if x.ty in (BOOL, FLOAT) else x.node
    fits = x.ty == BOOL or kind == INT or (x.ty in (U8, I8) and kind == I16)
    return Sym(rec, at, kind) if fits else narrowed(rec, at, kind)
